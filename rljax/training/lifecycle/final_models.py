"""The models of a finished run as folders that other programs open: RUN/best and RUN/last."""

from functools import partial
from pathlib import Path

import jax

from rljax.models import Params
from rljax.training.checkpoints.checkpoint import BEST, LAST, Checkpoint, restore_params
from rljax.training.parts.model_folder import atomically, companions, save_model
from rljax.training.run import Run


def models_to_write(run: Run) -> list[str]:
    """Models that the settings ask for; none of a policy of the user that only writes folders of its own kind."""
    models = run.config.run.models
    if run.setup.policy.contents is None or models == "none":
        return []
    return [BEST, LAST] if models == "both" else [models]


def write_final_models(run: Run, checkpoint: Checkpoint) -> list[Path]:
    """Write the models that the settings ask for, in place of those of an earlier end; all processes call it together.

    An adapter is merged in. With a full disk it waits for room, as a save does.

    Returns:
        Their folders.
    """
    run.saver.wait()
    return [_written(run, checkpoint, which) for which in models_to_write(run)]


def _written(run: Run, checkpoint: Checkpoint, which: str) -> Path:
    setup, folder = run.setup, run.folder.path / which
    params = setup.whole(_params(run, checkpoint, which))
    beside = companions(run.config, setup.tokenizer)
    save = partial(save_model, model=setup.policy, params=params, beside=beside)
    run.disk.attempt_together("the model", lambda: atomically(folder, save))
    return folder


def _params(run: Run, checkpoint: Checkpoint, which: str) -> Params:
    """Parameters that are trained: those at hand, or those of the best checkpoint."""
    state = checkpoint.state
    if which == LAST or checkpoint.notes.best_step == int(state.step):
        return state.params
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state.params)
    return restore_params(run.folder.checkpoints / BEST, like)
