"""Floor 5: settings, state, steps, phases, checkpoints, and the loop.

The files here are the way of the data through a run: `loop` goes through the phases; `reinforce` makes the RL steps; `rollouts`
samples, `lesson` scores, and `learner` learns with the programs of `update` and `value_update`. They change `state`, return
`metrics`, and use what `setup` builds. `worker` makes what draws and judges, `sampler_delay` keeps old parameters, `controller`
scales updates, `run` holds the folder and the logs, and `interrupt`, `grace_period` and `stopped_batch` end a run early. The
folders are

- `config`: the settings of a run, and how files and flags make them;
- `parts`: what the settings choose or the user passes: policy, tokenizer, adapter, problems, reward;
- `objective`: what the updates minimise, and the optimiser: algorithm, critic, reference, teacher, anchor, auxiliary loss;
- `monitoring`: statistics of responses and batches, and what acts on a run: the guard of the updates, and remedies;
- `checkpoints`: writing and reading checkpoints, which of them stay, and the checks that they are whole;
- `memory`: what each device holds and computes, from shapes alone; `rljax plan`;
- `lifecycle`: the beginning and the end of a run, resuming it, replaying a step that stopped it, and trials of several runs;
- `phases`: training besides the RL steps: warm start, value pretraining, preference pairs, reward models, feedback;
- `inference`: a trained policy: loading, export, evaluation, search, and data that it writes.

Folders do not import each other in a circle, neither directly nor through the files here.
"""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
