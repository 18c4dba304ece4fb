"""The trainer: settings, state, steps, phases, checkpoints, and the training loop.

`loop` calls `phase.run_phase` for each phase of a run (`warm_start`, `value_pretraining`, `rl_phase`). An RL step samples and
scores responses (`rollout_data`), and then learns from them (`update`, `value_update`). A step takes a `state`, and returns the
next state and the step's `metrics`. `setup` builds what the steps use; `worker` builds the sampler and the judge. The folders are

- `config`: the settings of a run, and how they are read from files and flags;
- `parts`: the parts that the settings choose or the user passes: policy, tokenizer, adapter, problems, reward;
- `objective`: the loss that the updates minimize, and the optimizer;
- `checkpoints`: writing, reading, checking and deleting checkpoints;
- `lifecycle`: starting, resuming and finishing a run.

The modules form eight layers, and each module imports only from its own layer and the layers below (tests/test_layers.py). From the
lowest: settings and records; checkpoints and phases; parts; setup; updates; run; kinds of phases; loop.
"""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
