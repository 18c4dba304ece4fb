"""The batch of a run that its guard stopped: one file of safetensors in the run folder, which holds arrays and no code."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from rljax.algorithms import Past
from rljax.errors import InputError
from rljax.files import atomic_write
from rljax.ops.unpublished.reward_history import RewardHistory
from rljax.records import documented
from rljax.rollout.groups import from_dict, to_dict
from rljax.tracking.run_folder import RunFolder
from rljax.training.lesson import Lesson

NAME = "stopped_batch.safetensors"
"""Name of the file in the run folder."""
FORMAT = "rljax stopped batch 3"
GROUPS, PAST = "groups", "past"


@documented
class StoppedBatch(NamedTuple):
    """Batch from which a run was learning when it was stopped."""

    lesson: Lesson
    """What the updates were computed from, as it was before them."""
    step: int
    """RL steps done."""
    checkpoint: int
    """Number of the checkpoint with the parameters, among those in `checkpoints/last`."""
    weights: Mapping[str, float] | None
    """Weights of several rewards that the algorithm takes one by one; None if it needs none."""


def write_batch(folder: RunFolder, kept: StoppedBatch) -> Path:
    """Write a batch into the folder of its run, in place of an earlier one, and return the file."""
    lesson = kept.lesson
    numbers = {"step": kept.step, "checkpoint": kept.checkpoint, "progress": lesson.progress, "weights": kept.weights}
    notes = {"format": FORMAT} | {name: json.dumps(value) for name, value in numbers.items()}
    past = {} if lesson.past is None else {PAST: lesson.past.memory._asdict()}
    tree = {GROUPS: to_dict(lesson.groups)} | past
    arrays = {name: np.ascontiguousarray(array) for name, array in flatten(tree).items()}
    path = folder.path / NAME
    atomic_write(path, save(arrays, metadata=notes))
    return path


def read_batch(path: Path) -> StoppedBatch:
    """Read a batch that `write_batch` wrote.

    Raises:
        InputError: the file is missing, or is another one.
    """
    if not path.is_file():
        raise InputError(
            f"There is no batch {str(path)!r}: it is written when a run stops because loss or gradient was not finite, or an "
            "update far too large."
        )
    try:
        with safe_open(path, framework="numpy") as file:
            notes = {} if file.metadata() is None else file.metadata()
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
        if notes.get("format") != FORMAT:
            raise InputError(
                f"{str(path)!r} is not a batch of a stopped run that this version can read: its format is {notes.get('format')!r}, "
                f"and {FORMAT!r} is needed."
            )
        return _batch_from(nest(arrays), {name: json.loads(text) for name, text in notes.items() if name != "format"})
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{str(path)!r} cannot be read as the batch of a stopped run ({error}).") from error


def _batch_from(tree: Mapping[str, Any], numbers: Mapping[str, Any]) -> StoppedBatch:
    """The batch from the arrays and the numbers of its file."""
    groups = from_dict(tree[GROUPS])
    past = Past(RewardHistory(**tree[PAST]), groups.prompt_ids) if PAST in tree else None
    lesson = Lesson(groups, float(numbers["progress"]), past)
    return StoppedBatch(lesson, int(numbers["step"]), int(numbers["checkpoint"]), numbers["weights"])


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    """Arrays of nested dicts by their path.

    Example:
        >>> list(flatten({"a": {"b": np.ones(1)}, "c": np.ones(1)}))
        ['a/b', 'c']
    """
    found: dict[str, np.ndarray] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{json_name(name)}/")
        else:
            found[f"{prefix}{json_name(name)}"] = value
    return found


def json_name(name: str) -> str:
    """A name without slashes, which `nest` gives back: that of a part of a reward may be anything."""
    return json.dumps(name).replace("/", "\\u002f")[1:-1]


def nest(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Nested dicts from the result of `flatten`.

    Example:
        >>> list(nest(flatten({"a": {"b/c": np.ones(1)}}))["a"])
        ['b/c']
    """
    tree: dict[str, Any] = {}
    for path, array in arrays.items():
        *folders, name = (json.loads(f'"{part}"') for part in path.split("/"))
        place = tree
        for part in folders:
            place = place.setdefault(part, {})
        place[name] = array
    return tree
