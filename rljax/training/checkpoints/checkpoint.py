"""Orbax checkpoints: the training state, the history of the prompts, surplus groups, and evaluation results.

A folder contains the newest checkpoints of one kind, "last" or "best", numbered in the order of the saves. Each has a manifest, and
a reader takes the newest complete checkpoint. The reference policy is a separate item, because in most runs it does not change
during RL: the checkpoints of a run then share its files through hard links, or copies if the disk does not support links.
"""

import hashlib
import logging
import math
import os
import secrets
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental.multihost_utils import process_allgather
from jax.tree_util import tree_leaves_with_path, tree_map_with_path
from jaxtyping import PyTree

from rljax.data.history import History
from rljax.errors import InputError
from rljax.models import Params
from rljax.models.model_folder import read_json
from rljax.models.policy import HostParams
from rljax.parallel import copy_from_first, is_first, run_on_first
from rljax.parallel.mesh import path_names
from rljax.rollout import Groups
from rljax.rollout.groups import from_dict, to_dict
from rljax.tracking.run_folder import FileState
from rljax.training.checkpoints.compatibility import check_same_state, explain_structure_error
from rljax.training.checkpoints.manifest import (
    MANIFEST,
    ManifestRows,
    fault_of,
    intact_rows,
    link_folder,
    numbers_in,
    remove_on_error,
    write_manifest,
)
from rljax.training.state import TrainState

LAST, BEST = "last", "best"

MIN_JUDGED_RATIO = 0.9
"""Two evaluations are compared by their metric only if the ratio of their judged answers, smaller to larger, is at least this."""


class Quality(NamedTuple):
    """Result of a held-out evaluation. With rewards of 0 and 1, accuracy and reward are equal."""

    accuracy: float
    """Fraction of correct answers among those that were judged."""
    reward: float
    """Mean reward of the answers that have a reward."""
    judged: int | None = None
    """Number of judged answers; this and the next three fields are None in checkpoints of earlier versions."""
    answers: int | None = None
    """Total number of answers."""
    metric: str | None = None
    """Name of the metric that decides which checkpoint is best."""
    score: float | None = None
    """Value of this metric."""

    def beats(self, best: "Quality") -> bool:
        """Return True if this evaluation is at least as good as the best earlier one.

        An evaluation with far fewer judged answers loses, because those few answers may be the easy ones. The newer evaluation
        wins if the earlier one was ranked by another metric or has no reward.

        Example:
            >>> many = Quality(0.9, 0.9, judged=10, answers=10, metric="accuracy", score=0.9)
            >>> few = Quality(1.0, 1.0, judged=1, answers=10, metric="accuracy", score=1.0)
            >>> few.beats(many), many.beats(few), many.beats(many)
            (False, True, True)
        """
        if math.isnan(best.reward) or best.metric not in (None, self.metric):
            return True
        if self.judged is not None and best.judged is not None:
            if self.judged < MIN_JUDGED_RATIO * best.judged:
                return False
            if best.judged < MIN_JUDGED_RATIO * self.judged:
                return True
        if self.score is None or best.score is None:
            return self.reward >= best.reward
        return self.score > best.score or (self.score == best.score and self.reward >= best.reward)

    @property
    def counts(self) -> str:
        """Text with the numbers of correct, judged and unjudged answers; empty if all were judged.

        Example:
            >>> Quality(1.0, 1.0, judged=1, answers=10).counts, Quality(1.0, 1.0, judged=4, answers=4).counts
            ('1 of 1 judged answers; 9 were not judged', '')
        """
        if self.judged is None or self.answers is None or self.judged == self.answers:
            return ""
        right, missing = round(self.accuracy * self.judged) if self.judged else 0, self.answers - self.judged
        return f"{right} of {self.judged} judged answers; {missing} {'was' if missing == 1 else 'were'} not judged"

    def __str__(self) -> str:
        """Format the accuracy, the mean reward if it differs, and the counts if some answers were not judged.

        Example:
            >>> print(Quality(0.5, 0.5), "|", Quality(0.0, -0.25), "|", Quality(2 / 3, 2 / 3, judged=3, answers=10))
            50.0% | 0.0% (mean reward -0.250) | 66.7% (2 of 3 judged answers; 7 were not judged)
        """
        notes = [] if self.reward == self.accuracy else [f"mean reward {self.reward:.3f}"]
        notes += [self.counts] if self.counts else []
        return f"{self.accuracy:.1%} ({', '.join(notes)})" if notes else f"{self.accuracy:.1%}"


def quality_of(metrics: Mapping[str, float], metric: str) -> Quality:
    """Build the result of a held-out evaluation from its metrics.

    Args:
        metrics: averages over the answers, from `rljax.evaluation.heldout.Evaluation.metrics`.
        metric: name of the metric that decides which checkpoint is best.

    Raises:
        InputError: there is no such metric; the message lists the metrics.
    """
    if metric not in metrics:
        raise InputError(
            f"--best-metric {metric} is not a metric of the held-out evaluation; choose one of {', '.join(sorted(metrics))}."
        )
    judged, answers = int(metrics["judged"]), int(metrics["answers"])
    return Quality(metrics["accuracy"], metrics["reward"], judged, answers, metric, metrics[metric])


class Notes(NamedTuple):
    """Results of the held-out evaluations so far; the results are None before the first evaluation."""

    quality_before: Quality | None = None
    """Result before RL."""
    quality: Quality | None = None
    """Result of the latest evaluation."""
    best_quality: Quality | None = None
    """Best result, by the run's `best_metric`."""
    best_step: int | None = None
    """RL step of the best result."""
    awaits_evaluation: bool = False
    """Whether the last step still lacks its evaluation; a resumed run evaluates first."""

    def with_result(self, quality: Quality, step: int) -> "Notes":
        """Return the notes with a new result added. The first result of a run counts as the one before RL."""
        notes = self._replace(quality=quality)
        if notes.quality_before is None:
            notes = notes._replace(quality_before=quality)
        if step == 0 or self.best_quality is None or quality.beats(self.best_quality):
            notes = notes._replace(best_quality=quality, best_step=step)
        return notes

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Notes":
        """Build notes from their `_asdict` after a round trip through JSON."""
        fields: dict[str, Any] = {
            name: Quality(*value) if isinstance(value, list) else value for name, value in raw.items()
        }
        return cls(**fields)


class Checkpoint(NamedTuple):
    """Everything that a run needs to continue. The loop passes it from phase to phase; nothing else about a run changes."""

    state: TrainState
    """Parameters, optimizer states and counters."""
    history: History
    """How often each training prompt was solved."""
    carried: Groups | None = None
    """Surplus groups that dynamic sampling kept for the next rollout."""
    notes: Notes = Notes()
    """Results of the held-out evaluations."""
    journal: Mapping[str, Sequence[Sequence[Any]]] = MappingProxyType({})
    """Name of an option -> the records of the changes that this option made between steps, as JSON."""


class UnusableCheckpoint(NamedTuple):
    """A checkpoint that must not be used: it is incomplete, or was saved after the checkpoint being resumed."""

    path: Path
    """Folder of the checkpoint."""
    fault: str
    """Why the checkpoint must not be used, such as "weights is missing"."""

    def __str__(self) -> str:
        """Return the path and the fault."""
        return f"{self.path}: {self.fault}."


class Restoration(NamedTuple):
    """The result of reading a folder of checkpoints."""

    checkpoint: Checkpoint
    """The newest complete checkpoint."""
    file_states: dict[str, FileState]
    """Lengths and digests of the run folder's files when the checkpoint was saved."""
    damaged: tuple[UnusableCheckpoint, ...] = ()
    """Newer checkpoints that are not complete; empty on all hosts but the first."""


HANDLERS_WITHOUT_COPY = ocp.type_handlers.create_type_handler_registry(
    (np.ndarray, ocp.type_handlers.NumpyHandler(deepcopy_host_arrays=False)), (jax.Array, ocp.type_handlers.ArrayHandler())
)
"""Handlers for a single process: they write host arrays without copying them first, because nothing changes these arrays."""


def _manager(folder: Path, *, writes: bool = False, partial: bool = False, most_bytes: int = 0) -> ocp.CheckpointManager:
    """Make the Orbax manager of a folder of checkpoints.

    Args:
        folder: folder with the checkpoints of one kind.
        writes: whether the manager will save. A reader must not remove unfinished saves, which may still be in progress.
        partial: whether the reader may read only a part of the state.
        most_bytes: bytes of the largest array to save. Orbax keeps at most about this many bytes of arrays not yet written.
    """
    registry: dict[str, Any] = {"type_handler_registry": HANDLERS_WITHOUT_COPY} if jax.process_count() == 1 else {}
    trees = {"save_concurrent_gb": most_bytes // 10**9 + 1, **registry}
    options = ocp.CheckpointManagerOptions(
        max_to_keep=None,  # `prune` removes old checkpoints once the new one has its manifest
        create=writes,
        enable_async_checkpointing=writes and jax.process_count() > 1,  # a single process saves in its own thread
        cleanup_tmp_directories=writes,
    )
    handlers = {
        "state": ocp.PyTreeCheckpointHandler(**trees) if partial or writes else ocp.StandardCheckpointHandler(),
        "history": ocp.StandardCheckpointHandler(),
        REFERENCE: ocp.PyTreeCheckpointHandler(**trees) if writes else ocp.StandardCheckpointHandler(),
        "carried": ocp.StandardCheckpointHandler(),
        "notes": ocp.JsonCheckpointHandler(),
    }
    return ocp.CheckpointManager(folder.absolute(), options=options, item_handlers=handlers)


def save(folder: Path, checkpoint: Checkpoint, file_states: Mapping[str, FileState]) -> None:
    """Write a checkpoint into `folder`, next to the older ones. A save that fails leaves no files behind.

    Args:
        folder: folder with the checkpoints of one kind.
        checkpoint: the checkpoint to write.
        file_states: current lengths and digests of the run folder's files; a resumed run truncates them to these lengths.
    """
    begin_save(folder, checkpoint, file_states)()


def begin_save(folder: Path, checkpoint: Checkpoint, file_states: Mapping[str, FileState]) -> Callable[[], None]:
    """Begin a `save`; all processes call it together. If there are several, it only copies the arrays, which may then be donated.

    Returns:
        A function that waits for the disk and completes the checkpoint. Each process may call it in a thread, because it
        synchronizes the processes without using their devices. The checkpoint is complete when it returns in the first process.
    """
    notes = checkpoint.notes._asdict() | {
        "phase": int(checkpoint.state.phase),
        "files": {name: list(state) for name, state in file_states.items()},
        "journal": dict(checkpoint.journal),
    }
    items = {
        "state": ocp.args.PyTreeSave(checkpoint.state._replace(reference=None)),
        "history": ocp.args.StandardSave(checkpoint.history._asdict()),
        "notes": ocp.args.JsonSave(notes),
    }
    if checkpoint.carried is not None:
        items["carried"] = ocp.args.StandardSave(to_dict(checkpoint.carried))
    # The number counts saves, not steps: after a resume, the same step can be saved again.
    number = int(copy_from_first(np.int32(max(numbers_in(folder), default=-1)))) + 1
    same_references: list[tuple[Path, ManifestRows]] = []
    if checkpoint.state.reference is not None:
        notes[REFERENCE] = content_hash(checkpoint.state.reference)
        run_on_first(lambda: same_references.extend(find_same_reference(folder, notes[REFERENCE])))
        if not copy_from_first(np.int32(len(same_references))):
            items[REFERENCE] = ocp.args.PyTreeSave(checkpoint.state.reference)

    with remove_on_error(folder, number), quiet_orbax(), ExitStack() as stack:
        largest = max(leaf.nbytes for leaf in jax.tree.leaves(checkpoint.state))
        manager = stack.enter_context(_manager(folder, writes=True, most_bytes=largest))
        manager.save(number, args=ocp.args.Composite(**items), force=True)
        stack.pop_all()

    def finish() -> None:
        with remove_on_error(folder, number):
            with quiet_orbax(), manager:
                manager.wait_until_finished()
            if is_first():
                for source, _ in same_references:
                    link_folder(source / REFERENCE, folder / str(number) / REFERENCE)
                write_manifest(folder / str(number), *(rows for _, rows in same_references))

    return finish


def find_abandoned(folder: Path, best_step: int | None) -> list[UnusableCheckpoint]:
    """Find best checkpoints saved after the checkpoint being resumed; return none if the earlier best checkpoint no longer exists.

    Args:
        folder: folder with the best checkpoints, which must all be complete.
        best_step: RL step of the best evaluation up to the checkpoint being resumed.
    """
    steps = {number: notes.best_step for number, notes in notes_in(folder).items()}
    if best_step is None or best_step not in steps.values():
        return []
    fault = f"it was saved after the checkpoint that this run continues from, up to which step {best_step} was the best"
    later = [number for number, step in steps.items() if step is not None and step > best_step]
    return [UnusableCheckpoint(folder / str(number), fault) for number in later]


def notes_in(folder: Path) -> dict[int, Notes]:
    """Return the notes of the checkpoints in `folder`, by number; damaged and half-deleted checkpoints are left out."""
    # This does not use Orbax, whose manager waits for all processes, because the first host may call it alone.
    saves = {number: folder / str(number) for number in numbers_in(folder)}
    found = {n: read_json(save / NOTES / "metadata") for n, save in saves.items() if intact_rows(save, NOTES) is not None}
    return {n: Notes.from_json({key: raw[key] for key in Notes._fields if key in raw}) for n, raw in found.items()}


@contextmanager
def quiet_orbax() -> Generator[None]:
    """Hide the tracebacks of Orbax's threads, because their errors are also raised."""

    def is_not_from_orbax(record: logging.LogRecord) -> bool:
        return f"{os.sep}orbax{os.sep}" not in record.pathname

    logger = logging.getLogger("absl")
    logger.addFilter(is_not_from_orbax)
    try:
        yield
    finally:
        logger.removeFilter(is_not_from_orbax)


def restore(folder: Path, like: Callable[[int], TrainState]) -> Restoration:
    """Read the newest complete checkpoint in `folder`.

    Args:
        folder: folder that `save` wrote to.
        like: phase of the run -> a placed state of that phase, with the shapes, dtypes and shardings to restore to.

    Raises:
        InputError: no checkpoint is complete, or the newest complete one belongs to another model, optimizer or version.
    """
    number, damaged = newest_complete(folder)
    with quiet_orbax(), _manager(folder) as manager:
        notes = manager.restore(number, args=ocp.args.Composite(notes=ocp.args.JsonRestore()))["notes"]
        state = like(notes.pop("phase"))
        file_states = {name: FileState(*state) for name, state in notes.pop("files").items()}
        journal = notes.pop("journal", {})
        saved = manager.item_metadata(number)
        saved_state = dict(saved["state"])
        wanted = {
            "state": ocp.args.StandardRestore(state),
            "history": ocp.args.StandardRestore(_abstract(saved["history"])),
        }
        if notes.pop(REFERENCE, None) is not None:  # absent in earlier versions, which saved the reference in the state
            saved_state[REFERENCE] = saved[REFERENCE]
            wanted["state"] = ocp.args.StandardRestore(state._replace(reference=None))
            wanted[REFERENCE] = ocp.args.StandardRestore(state.reference)
        check_same_state(folder, saved_state, state)
        if saved.get("carried") is not None:
            wanted["carried"] = ocp.args.StandardRestore(_abstract(saved["carried"]))
        with explain_structure_error(folder, saved_state, state):
            found = manager.restore(number, args=ocp.args.Composite(**wanted))
    carried = from_dict(found["carried"]) if "carried" in wanted else None
    state = found["state"]._replace(reference=found[REFERENCE]) if REFERENCE in wanted else found["state"]
    checkpoint = Checkpoint(state, History(**found["history"]), carried, Notes.from_json(notes), journal)
    return Restoration(checkpoint, file_states, damaged)


def restore_params(
    folder: Path, like: PyTree[jax.Array | jax.ShapeDtypeStruct], *, within: tuple[str, ...] = ("params",)
) -> Params:
    """Read only the parameters of the policy, or of another model in the state.

    Args:
        folder: folder that `save` wrote to.
        like: placed parameters, or their shapes, with the shapes, dtypes and shardings to restore to.
        within: path of the parameters in the state, such as ("critic", "params") for the critic.

    Raises:
        InputError: there is no complete checkpoint, or the newest one has the parameters of another model.
    """
    number, damaged = newest_complete(folder)
    for passed_over in damaged:
        print(f"note: an older checkpoint is used instead of {passed_over}", file=sys.stderr)

    def nest(tree: PyTree) -> PyTree:
        return reduce(lambda part, name: {name: part}, reversed(within), tree)

    with quiet_orbax(), _manager(folder, partial=True) as manager:
        state = manager.item_metadata(number)["state"]
        saved = nest(reduce(lambda part, name: dict(part)[name], within, state))
        check_same_state(folder, saved, nest(like))
        # Keep the saved tree's containers, because Orbax can restore a part of a state only into dicts and lists.
        leaves = {path_names(path): leaf for path, leaf in tree_leaves_with_path(nest(like))}
        wanted = tree_map_with_path(lambda path, _: leaves[path_names(path)], saved)
        arguments = ocp.args.PyTreeRestore(
            item=wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=True
        )
        restored = manager.restore(number, args=ocp.args.Composite(state=arguments))["state"]
    found = {path_names(path): leaf for path, leaf in tree_leaves_with_path(restored)}
    return jax.tree.unflatten(jax.tree.structure(like), [found[path] for path in leaves])


def newest_complete(folder: Path) -> tuple[int, tuple[UnusableCheckpoint, ...]]:
    """Find the newest complete checkpoint in `folder`.

    Returns:
        The checkpoint's number, and the newer, incomplete checkpoints; the latter are empty on all hosts but the first.

    Raises:
        InputError: there is no complete checkpoint; the message says why.
    """
    found: list[tuple[int, tuple[UnusableCheckpoint, ...]]] = []
    run_on_first(lambda: found.append(_search(folder)))
    number, damaged = found[0] if found else (-1, ())
    return int(copy_from_first(np.int32(number))), damaged


def _search(folder: Path) -> tuple[int, tuple[UnusableCheckpoint, ...]]:
    """Return what `newest_complete` returns, after a search on this host only."""
    damaged = find_damaged(folder)
    passed_over = {int(path.name) for path, _ in damaged}
    complete = [number for number in numbers_in(folder) if number not in passed_over]
    if complete:
        return max(complete), damaged
    if not damaged:
        raise InputError(
            f"There is no checkpoint in {str(folder)!r}: the run ended before it wrote one, or its checkpoints were deleted. "
            "Restore them, or repeat the command that started the run, with --resume auto."
        )
    faults = " ".join(map(str, damaged))
    raise InputError(f"No checkpoint in {str(folder)!r} is complete. {faults} Restore the files, or start a new run.")


def find_damaged(folder: Path) -> tuple[UnusableCheckpoint, ...]:
    """Find incomplete checkpoints in `folder` that are newer than the newest complete one; runs on this host only."""
    damaged: list[UnusableCheckpoint] = []
    for number in sorted(numbers_in(folder), reverse=True):
        fault = fault_of(folder / str(number))
        if fault is None:
            break
        damaged.append(UnusableCheckpoint(folder / str(number), fault))
    return tuple(damaged)


def set_aside(damaged: Collection[UnusableCheckpoint]) -> list[str]:
    """Move checkpoints that cannot be used into `damaged/` next to their folder, out of the way of later saves.

    Returns:
        A message for each of them: what was moved, where to, and why.
    """
    moves = []
    for path, fault in damaged:
        target = path.parent.parent / "damaged" / f"{path.parent.name}-{path.name}-{secrets.token_hex(4)}"
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
        moves.append(
            f"{path} cannot be used: {fault}. It was moved to {target}, which you can delete; an earlier checkpoint is used."
        )
    return moves


def _abstract(metadata: PyTree) -> PyTree:
    """Make host arrays with the shapes and dtypes in a checkpoint's metadata."""
    return jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), dict(metadata))


NOTES = "notes"
"""Name of the checkpoint item with the results of evaluations, the phase, the run folder's files and the options' journals."""
REFERENCE = "reference"
"""Name of the checkpoint item with the reference policy, and of the notes' entry with the hash of this policy's arrays."""


def content_hash(params: Params | HostParams) -> str:
    """Return a SHA-256 of all arrays and of their distribution over processes; all processes call it together.

    Example:
        >>> content_hash({"a": np.zeros(2)}) == content_hash({"a": np.zeros(2)}) != content_hash({"a": np.ones(2)})
        True
    """
    digest = hashlib.sha256()
    for path, leaf in tree_leaves_with_path(params):
        digest.update(repr((path_names(path), leaf.shape, str(leaf.dtype))).encode())
        is_local = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
        for index, part in [("", leaf)] if is_local else [(shard.index, shard.data) for shard in leaf.addressable_shards]:
            digest.update(repr(index).encode())
            digest.update(np.ascontiguousarray(part).view(np.uint8).data)
    own_digest = np.frombuffer(digest.digest(), np.uint8)
    return hashlib.sha256(process_allgather(own_digest).tobytes()).hexdigest()


def find_same_reference(folder: Path, wanted: str) -> list[tuple[Path, ManifestRows]]:
    """Find a checkpoint of the run that contains the reference with this hash; runs on this host only.

    Args:
        folder: folder with the checkpoints of one kind; the folders of the other kinds next to it are searched too.
        wanted: `content_hash` of the reference.

    Returns:
        At most one pair: the checkpoint, and the manifest rows of its reference's files, which were compared with the files (by
        length only, if there are several processes).
    """
    for checkpoint in sorted(path.parent for path in folder.parent.glob(f"*/*/{MANIFEST}")):
        if intact_rows(checkpoint, NOTES) is None or read_json(checkpoint / NOTES / "metadata").get(REFERENCE) != wanted:
            continue
        # With several processes, the others would wait while this process hashes.
        rows = intact_rows(checkpoint, REFERENCE, by_hash=jax.process_count() == 1)
        if rows is not None:
            return [(checkpoint, rows)]
    return []
