"""Read the batch that a run was learning from when it was stopped; `rljax.training.run` writes it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from rljax.algorithms import EarlierRewards
from rljax.errors import InputError
from rljax.ops.unpublished.reward_history import RewardHistory
from rljax.rollout.groups import from_dict
from rljax.training.rollout_data import ScoredRollout
from rljax.training.run import GROUPS, PAST, STOPPED_BATCH_FORMAT, StoppedBatch


def read_batch(path: Path) -> StoppedBatch:
    """Read a batch that `write_batch` wrote.

    Raises:
        InputError: the file is missing, or is not a batch.
    """
    if not path.is_file():
        raise InputError(
            f"There is no batch file {str(path)!r}. A run writes one when it stops because the loss or gradient was not finite, or "
            "an update was far too large."
        )
    try:
        with safe_open(path, framework="numpy") as file:
            notes = {} if file.metadata() is None else file.metadata()
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
        if notes.get("format") != STOPPED_BATCH_FORMAT:
            raise InputError(
                f"{str(path)!r} is not a batch of a stopped run that this version can read: its format is {notes.get('format')!r}, "
                f"but must be {STOPPED_BATCH_FORMAT!r}."
            )
        return _batch_from(nest(arrays), {name: json.loads(text) for name, text in notes.items() if name != "format"})
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{str(path)!r} cannot be read as the batch of a stopped run ({error}).") from error


def _batch_from(tree: Mapping[str, Any], notes: Mapping[str, Any]) -> StoppedBatch:
    """Build the batch from the arrays and the metadata of its file."""
    groups = from_dict(tree[GROUPS])
    past = EarlierRewards(RewardHistory(**tree[PAST]), groups.prompt_ids) if PAST in tree else None
    scored_rollout = ScoredRollout(groups, float(notes["progress"]), past)
    return StoppedBatch(scored_rollout, int(notes["step"]), int(notes["checkpoint"]), notes["weights"])


def nest(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Build nested dicts from the result of `flatten`.

    Example:
        >>> from rljax.training.run import flatten
        >>> list(nest(flatten({"a": {"b/c": np.ones(1)}}))["a"])
        ['b/c']
    """
    tree: dict[str, Any] = {}
    for path, array in arrays.items():
        *parents, name = (json.loads(f'"{part}"') for part in path.split("/"))
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
        node[name] = array
    return tree
