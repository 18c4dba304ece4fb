"""Orbax checkpoints: the state, what is known of the prompts, the groups carried over, and a few words about the run.

The best and the last are kept.
"""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from rljax.data.history import History
from rljax.errors import InputError
from rljax.parallel import of_first, together
from rljax.rollout.groups import Groups
from rljax.training.state import TrainState

LAST, BEST = "last", "best"


class Checkpoint(NamedTuple):
    """What a run continues from."""

    state: TrainState
    history: History
    """How often each training prompt was solved."""
    carried: Groups | None
    """Kept groups that were left over."""
    notes: dict
    """JSON: how good held-out answers were before RL, at best, and last."""


def _manager(folder: Path) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(max_to_keep=1, create=True, enable_async_checkpointing=False)
    handlers = {
        "state": ocp.StandardCheckpointHandler(),
        "history": ocp.StandardCheckpointHandler(),
        "carried": ocp.StandardCheckpointHandler(),
        "notes": ocp.JsonCheckpointHandler(),
    }
    return ocp.CheckpointManager(folder.absolute(), options=options, item_handlers=handlers)


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint into `folder`, replacing the one before; an interrupted write leaves that one whole."""
    state = checkpoint.state
    items = {
        "state": ocp.args.StandardSave(state),
        "history": ocp.args.StandardSave(checkpoint.history._asdict()),
        "notes": ocp.args.JsonSave(checkpoint.notes),
    }
    if checkpoint.carried is not None:
        there = {name: array for name, array in checkpoint.carried._asdict().items() if array is not None}
        items["carried"] = ocp.args.StandardSave(there)
    with _manager(folder) as manager:
        # Numbered by how often it was saved: after a resume, a step can come by a second time.
        manager.save(_latest(manager) + 1, args=ocp.args.Composite(**items), force=True)


def restore(folder: Path, like: TrainState) -> Checkpoint:
    """Read the checkpoint in `folder`.

    Args:
        folder: where `save` wrote.
        like: a state with the shapes, dtypes and shardings to restore to (arrays or `jax.ShapeDtypeStruct`s).

    Raises:
        InputError: there is no checkpoint.
    """
    together(lambda: _check_folder(folder))
    with _manager(folder) as manager:
        number = _latest(manager)
        if number < 0:
            raise InputError(f"There is no whole checkpoint in {str(folder)!r}. Start the run anew.")
        present = manager.item_metadata(number)
        wanted = {
            "state": ocp.args.StandardRestore(like),
            "history": ocp.args.StandardRestore(_abstract(present["history"])),
            "notes": ocp.args.JsonRestore(),
        }
        if present.get("carried") is not None:
            wanted["carried"] = ocp.args.StandardRestore(_abstract(present["carried"]))
        found = manager.restore(number, args=ocp.args.Composite(**wanted))
    carried = Groups(**found["carried"]) if "carried" in wanted else None
    return Checkpoint(found["state"], History(**found["history"]), carried, found["notes"])


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(f"There is no checkpoint in {str(folder)!r}: the run ended before it wrote one. Start it anew.")


def _latest(manager: ocp.CheckpointManager) -> int:
    """Number of the latest checkpoint as the first host sees the folder, -1 without one."""
    number = manager.latest_step()
    return int(of_first(np.int32(-1 if number is None else number)))


def _abstract(metadata: PyTree) -> PyTree:
    """Host arrays of the shapes that a checkpoint's metadata names."""
    return jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), dict(metadata))
