"""The trainer: settings, state, steps, phases, checkpoints, and the loop.

The path of the data through a run: `loop` calls `phase.run_phase` for each phase (`warm_start`, `value_pretraining`, `reinforce`);
an RL step samples and scores (`scored_rollout`), and learns (`update`, `value_update`). A step takes a `state`, returns
the next one with `metrics`, and uses what `setup` has built; `worker` builds the sampler and the judge. The folders are

- `config`: the settings of a run, and how they are read from files and flags;
- `parts`: the parts that the settings choose or the user passes: policy, tokenizer, adapter, problems, reward;
- `objective`: the loss that the updates minimize, and the optimizer;
- `checkpoints`: writing, reading, checking and deleting checkpoints;
- `lifecycle`: the beginning and the end of a run, and resuming it.

The modules form eight layers, and a layer imports only its own modules and lower ones (tests/test_floors.py): settings and records;
checkpoints and phases; parts; setup; updates; run; kinds of phases; loop.
"""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
