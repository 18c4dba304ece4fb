"""Orbax checkpoints: the training state, the history of the prompts, surplus groups, and evaluation results.

A folder holds the newest checkpoints of one kind, the last or the best ones, under numbers that count the saves. Each has a
manifest, and what is read is the newest one that is whole.
"""

import logging
import math
import os
import secrets
import sys
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.tree_util import tree_leaves_with_path, tree_map_with_path
from jaxtyping import PyTree

from rljax.data.history import History
from rljax.errors import InputError
from rljax.models import Params
from rljax.models.model_folder import read_json
from rljax.parallel import is_first, of_first, on_first
from rljax.parallel.mesh import path_names
from rljax.records import documented
from rljax.rollout import Groups
from rljax.rollout.groups import from_dict, to_dict
from rljax.tracking.run_folder import Mark
from rljax.training.checkpoints.compatibility import check_same_state, refuse_structures
from rljax.training.checkpoints.manifest import Rows, fault_of, write_manifest
from rljax.training.checkpoints.retention import numbers_in, remove_on_error
from rljax.training.checkpoints.shared_reference import ITEM as REFERENCE
from rljax.training.checkpoints.shared_reference import content_hash, link_reference, same_reference
from rljax.training.monitoring.remedies import Remedied
from rljax.training.sampler_delay import Ring, entries_by_number, in_order, ring_like
from rljax.training.state import TrainState

LAST, BEST = "last", "best"


@documented
class Quality(NamedTuple):
    """Result of a held-out evaluation. With rewards of 0 and 1, the two numbers are equal."""

    accuracy: float
    """Share of the answers whose reward is positive."""
    reward: float
    """Mean reward of the answers."""

    def __str__(self) -> str:
        """Format the accuracy, and the mean reward if it differs.

        Example:
            >>> print(Quality(0.5, 0.5), "|", Quality(0.0, -0.25))
            50.0% | 0.0% (mean reward -0.250)
        """
        share = f"{self.accuracy:.1%}"
        return share if self.reward == self.accuracy else f"{share} (mean reward {self.reward:.3f})"


@documented
class Notes(NamedTuple):
    """Results of the held-out evaluations so far; None before the first one."""

    quality_before: Quality | None = None
    """Result before RL."""
    quality: Quality | None = None
    """Result of the last evaluation."""
    best_quality: Quality | None = None
    """Best result, by mean reward."""
    best_step: int | None = None
    """RL step of the best result."""

    def evaluated(self, quality: Quality, step: int) -> "Notes":
        """Return the notes after an evaluation. The first evaluation is the one before RL."""
        notes = self._replace(quality=quality)
        if notes.quality_before is None:
            notes = notes._replace(quality_before=quality)
        best = math.nan if step == 0 or self.best_quality is None else self.best_quality.reward
        if quality.reward > best or math.isnan(best):
            notes = notes._replace(best_quality=quality, best_step=step)
        return notes

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Notes":
        """Build notes from their `_asdict` after a round trip through JSON."""
        fields: dict[str, Any] = {
            name: Quality(*value) if isinstance(value, list) else value for name, value in raw.items()
        }
        return cls(**fields)


@documented
class Checkpoint(NamedTuple):
    """Everything that a run needs to continue. The loop passes it from phase to phase; nothing else about a run changes."""

    state: TrainState
    """Parameters, optimisers, counters."""
    history: History
    """How often each training prompt was solved."""
    carried: Groups | None = None
    """Groups that dynamic sampling kept beyond the number that was needed."""
    notes: Notes = Notes()
    """Results of the held-out evaluations."""
    remedies: tuple[Remedied, ...] = ()
    """Settings that alarms have changed, in order."""
    ring: Ring = ()
    """Old parameters, with which the next steps draw their responses; none without a delay of the sampler."""


@documented
class Damaged(NamedTuple):
    """A checkpoint that is not whole."""

    path: Path
    """Its folder."""
    fault: str
    """What is wrong with it, in words."""

    def __str__(self) -> str:
        """Say what is wrong with which checkpoint."""
        return f"{self.path}: {self.fault}."


@documented
class Restored(NamedTuple):
    """Contents of a folder of checkpoints, as they were read."""

    checkpoint: Checkpoint
    """The newest checkpoint that is whole."""
    marks: dict[str, Mark]
    """Where the files of the run folder ended when it was saved."""
    damaged: tuple[Damaged, ...] = ()
    """Newer checkpoints that are not whole; known to the first host alone."""


def _manager(folder: Path, *, writes: bool = False, partial: bool = False) -> ocp.CheckpointManager:
    """Orbax manager of a folder of checkpoints.

    Args:
        folder: the checkpoints of one kind.
        writes: whether it saves. Only then does it remove what a killed save left, which for a reader may be a save in progress.
        partial: whether only a part of the state will be read.
    """
    options = ocp.CheckpointManagerOptions(
        max_to_keep=None,  # `prune` removes the old ones, after the manifest of the new one is written
        create=writes,
        enable_async_checkpointing=writes and jax.process_count() > 1,  # a single process has a thread of its own
        cleanup_tmp_directories=writes,
    )
    handlers = {
        "state": ocp.PyTreeCheckpointHandler() if partial else ocp.StandardCheckpointHandler(),
        "history": ocp.StandardCheckpointHandler(),
        REFERENCE: ocp.StandardCheckpointHandler(),
        "carried": ocp.StandardCheckpointHandler(),
        "ring": ocp.StandardCheckpointHandler(),
        "notes": ocp.JsonCheckpointHandler(),
    }
    return ocp.CheckpointManager(folder.absolute(), options=options, item_handlers=handlers)


def save(folder: Path, checkpoint: Checkpoint, marks: Mapping[str, Mark]) -> None:
    """Write a checkpoint into `folder`, beside the older ones. If it fails, nothing of it is left.

    Args:
        folder: the checkpoints of one kind.
        checkpoint: the last phase and step of the run.
        marks: where the files of the run folder end now; a resume cuts them there.
    """
    begin_save(folder, checkpoint, marks)()


def begin_save(folder: Path, checkpoint: Checkpoint, marks: Mapping[str, Mark]) -> Callable[[], None]:
    """Begin a `save`; all processes call it together. Several of them only copy their arrays, which may be donated afterwards.

    Returns:
        Ends the save: waits for the disk, and makes the checkpoint whole. It may be called in a thread, because the processes meet
        in it without their devices; the first one knows when the checkpoint is whole.
    """
    notes = checkpoint.notes._asdict() | {
        "phase": int(checkpoint.state.phase),
        "files": {name: list(mark) for name, mark in marks.items()},
        "remedies": [list(change) for change in checkpoint.remedies],
    }
    items = {
        "state": ocp.args.StandardSave(checkpoint.state._replace(reference=None)),
        "history": ocp.args.StandardSave(checkpoint.history._asdict()),
        "notes": ocp.args.JsonSave(notes),
    }
    if checkpoint.carried is not None:
        items["carried"] = ocp.args.StandardSave(to_dict(checkpoint.carried))
    if checkpoint.ring:
        items["ring"] = ocp.args.StandardSave(entries_by_number(checkpoint.ring))
    # The number counts saves, not steps: after a resume, the same step can be saved again.
    number = int(of_first(np.int32(max(numbers_in(folder), default=-1)))) + 1
    found: list[tuple[Path, Rows]] = []
    if checkpoint.state.reference is not None:
        notes[REFERENCE] = content_hash(checkpoint.state.reference)
        on_first(lambda: found.extend(same_reference(folder, notes[REFERENCE])))
        if not of_first(np.int32(len(found))):
            items[REFERENCE] = ocp.args.StandardSave(checkpoint.state.reference)

    with remove_on_error(folder, number), quiet_orbax(), ExitStack() as stack:
        manager = stack.enter_context(_manager(folder, writes=True))
        manager.save(number, args=ocp.args.Composite(**items), force=True)
        stack.pop_all()

    def end() -> None:
        with remove_on_error(folder, number):
            with quiet_orbax(), manager:
                manager.wait_until_finished()
            if is_first():
                for source, _ in found:
                    link_reference(source, folder / str(number))
                write_manifest(folder / str(number), *(rows for _, rows in found))

    return end


def abandoned_in(folder: Path, best_step: int | None) -> list[Damaged]:
    """Best checkpoints from after the checkpoint that a run goes on from, if the best one until then is there.

    Args:
        folder: the best checkpoints, all of them whole.
        best_step: RL step of the best evaluation until then.
    """
    # Not with Orbax, whose manager waits for all processes: the first host alone asks.
    notes = {number: read_json(folder / str(number) / "notes" / "metadata") for number in numbers_in(folder)}
    steps = {number: found["best_step"] for number, found in notes.items()}
    if best_step not in steps.values():
        return []
    fault = f"it was saved after the checkpoint that this run goes on from, whose best step is {best_step}"
    return [Damaged(folder / str(number), fault) for number, step in steps.items() if step > best_step]


@contextmanager
def quiet_orbax() -> Generator[None]:
    """Keep the tracebacks of Orbax's threads off the screen: what went wrong is raised, and said once."""

    def is_other(record: logging.LogRecord) -> bool:
        return f"{os.sep}orbax{os.sep}" not in record.pathname

    logger = logging.getLogger("absl")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def restore(folder: Path, like: Callable[[int], TrainState]) -> Restored:
    """Read the newest whole checkpoint in `folder`.

    Args:
        folder: where `save` wrote.
        like: phase of the run -> a placed state of that phase, with the shapes, dtypes and shardings to restore to.

    Raises:
        InputError: no checkpoint is whole, or it holds the state of another model, optimiser or version.
    """
    number, damaged = newest_whole(folder)
    with quiet_orbax(), _manager(folder) as manager:
        notes = manager.restore(number, args=ocp.args.Composite(notes=ocp.args.JsonRestore()))["notes"]
        state = like(notes.pop("phase"))
        marks = {name: Mark(*mark) for name, mark in notes.pop("files").items()}
        remedies = tuple(Remedied(*row) for row in notes.pop("remedies", []))  # absent in earlier versions
        saved = manager.item_metadata(number)
        own = dict(saved["state"])
        wanted = {
            "state": ocp.args.StandardRestore(state),
            "history": ocp.args.StandardRestore(_abstract(saved["history"])),
        }
        if notes.pop(REFERENCE, None) is not None:  # absent in earlier versions, where it was a part of the state
            own[REFERENCE] = saved[REFERENCE]
            wanted["state"] = ocp.args.StandardRestore(state._replace(reference=None))
            wanted[REFERENCE] = ocp.args.StandardRestore(state.reference)
        check_same_state(folder, own, state)
        if saved.get("carried") is not None:
            wanted["carried"] = ocp.args.StandardRestore(_abstract(saved["carried"]))
        if saved.get("ring") is not None:
            wanted["ring"] = ocp.args.StandardRestore(ring_like(dict(saved["ring"]), state.params))
        with refuse_structures(folder, own, state):
            found = manager.restore(number, args=ocp.args.Composite(**wanted))
    carried = from_dict(found["carried"]) if "carried" in wanted else None
    ring = in_order(found["ring"]) if "ring" in wanted else ()
    state = found["state"]._replace(reference=found[REFERENCE]) if REFERENCE in wanted else found["state"]
    checkpoint = Checkpoint(state, History(**found["history"]), carried, Notes.from_json(notes), remedies, ring)
    return Restored(checkpoint, marks, damaged)


def restore_params(
    folder: Path, like: PyTree[jax.Array | jax.ShapeDtypeStruct], *, within: tuple[str, ...] = ("params",)
) -> Params:
    """Read the policy's parameters alone, or those of another model in the state.

    Args:
        folder: where `save` wrote.
        like: placed parameters, or their shapes, with the shapes, dtypes and shardings to restore to.
        within: where they are in the state: ("critic", "params") are those of the critic.

    Raises:
        InputError: there is no checkpoint, or it holds the parameters of another model.
    """
    number, damaged = newest_whole(folder)
    for passed_over in damaged:
        print(f"note: an older checkpoint is used instead of {passed_over}", file=sys.stderr)

    def inside(tree: PyTree) -> PyTree:
        return reduce(lambda part, name: {name: part}, reversed(within), tree)

    with quiet_orbax(), _manager(folder, partial=True) as manager:
        state = manager.item_metadata(number)["state"]
        saved = inside(reduce(lambda part, name: dict(part)[name], within, state))
        check_same_state(folder, saved, inside(like))
        # Keep the saved tree's containers: Orbax restores a part of a state into dicts and lists, but not into every pytree.
        leaves = {path_names(path): leaf for path, leaf in tree_leaves_with_path(inside(like))}
        wanted = tree_map_with_path(lambda path, _: leaves[path_names(path)], saved)
        arguments = ocp.args.PyTreeRestore(
            item=wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=True
        )
        restored = manager.restore(number, args=ocp.args.Composite(state=arguments))["state"]
    found = {path_names(path): leaf for path, leaf in tree_leaves_with_path(restored)}
    return jax.tree.unflatten(jax.tree.structure(like), [found[path] for path in leaves])


def newest_whole(folder: Path) -> tuple[int, tuple[Damaged, ...]]:
    """Find the newest checkpoint in `folder` that is whole.

    Returns:
        Its number, and the newer ones that are not whole. Only the first host looks, and it alone knows the second.

    Raises:
        InputError: there is none; the message says why.
    """
    found: list[tuple[int, tuple[Damaged, ...]]] = []
    on_first(lambda: found.append(_search(folder)))
    number, damaged = found[0] if found else (-1, ())
    return int(of_first(np.int32(number))), damaged


def _search(folder: Path) -> tuple[int, tuple[Damaged, ...]]:
    """The same on one host."""
    damaged = damaged_in(folder)
    passed_over = {int(path.name) for path, _ in damaged}
    whole = [number for number in numbers_in(folder) if number not in passed_over]
    if whole:
        return max(whole), damaged
    if not damaged:
        raise InputError(f"There is no checkpoint in {str(folder)!r}: the run ended before it wrote one. Start a new run.")
    faults = " ".join(map(str, damaged))
    raise InputError(f"No checkpoint in {str(folder)!r} is whole. {faults} Restore the files, or start a new run.")


def damaged_in(folder: Path) -> tuple[Damaged, ...]:
    """Checkpoints in `folder` that are not whole and newer than the newest whole one; on this host alone."""
    damaged: list[Damaged] = []
    for number in sorted(numbers_in(folder), reverse=True):
        fault = fault_of(folder / str(number))
        if fault is None:
            break
        damaged.append(Damaged(folder / str(number), fault))
    return tuple(damaged)


def set_aside(damaged: Collection[Damaged]) -> list[str]:
    """Move checkpoints that are not whole out of the way of later saves, into `damaged/` beside their folder.

    Returns:
        What was moved where and why, in words.
    """
    moves = []
    for path, fault in damaged:
        place = path.parent.parent / "damaged" / f"{path.parent.name}-{path.name}-{secrets.token_hex(4)}"
        place.parent.mkdir(exist_ok=True)
        path.rename(place)
        moves.append(
            f"{path} is damaged: {fault}. It is now {place}, which can be deleted; the run goes on from the one before."
        )
    return moves


def _abstract(metadata: PyTree) -> PyTree:
    """Host arrays with the shapes and dtypes in a checkpoint's metadata."""
    return jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), dict(metadata))
