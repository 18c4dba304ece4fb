"""The folder of a run that adapts to feedback: its settings, the state that it begins with, and its files.

It has four files more than other run folders::

    served.json      the run and the checkpoint that were served
    feedback.jsonl   one row for each line of the queue that was used up: its place, and its reward or why it was rejected
    updates.jsonl    one row for each batch: what became of its updates, and which held-out answers were right
    rejects.jsonl    the rejected lines with the reasons: those of feedback.jsonl, and those that were read since the last batch

A checkpoint holds where feedback.jsonl and updates.jsonl end, as it does for metrics.jsonl. What was read of the queue follows from
feedback.jsonl, so a process that was killed at any time goes on as if it had not been.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from rljax.errors import InputError
from rljax.files import AppendFile, atomic_write
from rljax.models.model_folder import read_json
from rljax.records import documented
from rljax.tracking.rows import lines_of, parse_row
from rljax.tracking.run_folder import Mark, RunFolder, mark_of
from rljax.tracking.trackers import JsonlTracker
from rljax.training.checkpoints.checkpoint import LAST, Quality
from rljax.training.checkpoints.manifest import fault_of
from rljax.training.config import AlgorithmConfig, CriticConfig, TrainConfig, WarmStartConfig
from rljax.training.config.adaptation import AdaptationConfig
from rljax.training.inference.trained_policy import find_run, fit_devices
from rljax.training.lifecycle.initial_state import first_params, place_state
from rljax.training.parts.adapter import base_entry
from rljax.training.parts.seams import Seams, refuse_missing, saved_settings
from rljax.training.phases.adaptation import WORSE, clipped_feedback
from rljax.training.phases.feedback_log import as_lines
from rljax.training.setup import Setup, make_setup
from rljax.training.state import RL, TrainState, create

SERVED, FEEDBACK, UPDATES, REJECTS = "served.json", "feedback.jsonl", "updates.jsonl", "rejects.jsonl"
"""Names of the files."""
NOT_NEEDED = ("algorithm", "optimizer")
"""Arguments of `train` that an adaptation does not use."""


@documented
class Heldout(NamedTuple):
    """A held-out evaluation."""

    right: Float[np.ndarray, "P"]
    """1 where the greedy answer is right, 0 where it is wrong, NaN where that is unknown."""
    metrics: dict[str, float]
    """Its numbers."""

    @property
    def quality(self) -> Quality:
        """Accuracy and mean reward."""
        return Quality(self.metrics["accuracy"], self.metrics["reward"])


def continues(path: Path) -> bool:
    """True if a folder holds an adaptation that can go on. Files of one that was killed before its first save are removed.

    Raises:
        InputError: it holds a run that is not an adaptation, or another process works in it.
    """
    if not (path / "config.json").is_file():
        return False
    if not (path / SERVED).is_file():
        raise InputError(f"{str(path)!r} holds a run that is not an adaptation; choose another folder with --run.")
    folder = RunFolder.open(path)
    if folder.is_held:
        raise InputError(f"another process is training in {path}; wait until it ends, or stop it.")
    if folder.has_progress or fault_of(folder.checkpoints / LAST / "0") is None:
        return True
    folder.discard()
    (path / SERVED).unlink()  # last: without it the rest would be taken for another run
    if not any(path.iterdir()):
        path.rmdir()
    return False


def adapted_settings(served: TrainConfig, config: AdaptationConfig) -> TrainConfig:
    """Settings of the adapted run: those of the served one, without what belongs to its algorithm."""
    optimization, rate = served.optimization, config.learning_rate
    return replace(
        served,
        algorithm=AlgorithmConfig(),
        warm_start=WarmStartConfig(),
        critic=CriticConfig(),
        sampling=replace(
            served.sampling,
            prompts=config.batch,
            group_size=1,
            token_budget=None,
            remembered_rewards=0,
            oversample=1.0,
            delay=0,
        ),
        optimization=replace(
            optimization,
            learning_rate=optimization.learning_rate if rate is None else rate,
            learning_rate_warmup=0,
            schedule="constant",
            minibatches=1,
            passes=1,
            kl_limit=None,
            microbatch_rows=None,
            auxiliary=0.0,
            remedy="off",
        ),
        devices=fit_devices(served.devices),
        run=replace(served.run, folder=str(config.place), models="none"),
    )


def served_setup(config: AdaptationConfig, existing: Path | None) -> tuple[Setup, tuple[RunFolder, str]]:
    """Setup of the adapted run, and folder and checkpoint of the served run.

    Raises:
        InputError: the target is not a run, or was trained with parts that only a call can pass; or the existing folder is not that
            of an adaptation of this run.
    """
    path, which = find_run(config.target, config.checkpoint)
    if path is None:
        raise InputError(
            f"{config.target!r} is not the folder of a run with checkpoints; give one that `rljax train` made."
        )
    served = RunFolder.open(path)
    settings, needed = saved_settings(served.config)
    refuse_missing([name for name in needed if name not in NOT_NEEDED])
    if existing is not None:
        check_served(existing, path, which)
    algorithm = clipped_feedback(config.clip, config.kl_coefficient)
    return make_setup(adapted_settings(settings, config), Seams(algorithm=algorithm)), (served, which)


def check_served(folder: Path, run: Path, which: str) -> None:
    """Refuse a folder that holds the adaptation of another run or checkpoint.

    Raises:
        InputError: the message says what it holds.
    """
    before = read_json(folder / SERVED)
    if before != served_entry(run, which):
        raise InputError(
            f"{str(folder)!r} holds the adaptation of checkpoint {before.get('checkpoint')!r} of {before.get('run')!r}; give that "
            "one, or choose another folder with --run."
        )


def served_entry(run: Path, which: str) -> dict[str, str]:
    """Contents of served.json."""
    return {"run": str(run.resolve()), "checkpoint": which}


def settings_of(setup: Setup) -> dict[str, Any]:
    """Contents of config.json. `rljax train --resume` asks for the algorithm, which it cannot get, and so changes nothing."""
    return setup.config.to_json() | {"seams": ["algorithm"]} | base_entry(setup.config, setup.base)


def check_log(folder: RunFolder, marks: Mapping[str, Mark]) -> None:
    """Refuse a run whose log is gone: which lines were learned from would not be known.

    Raises:
        InputError: names the file.
    """
    file = folder.path / FEEDBACK
    if marks[FEEDBACK].length and not file.exists():
        raise InputError(
            f"{str(file)!r} is gone. It lists the lines that were learned from: restore it, or start again in another "
            "folder (--run)."
        )


def new_folder(config: AdaptationConfig, setup: Setup, served: tuple[RunFolder, str], path: Path) -> RunFolder:
    """Make the folder of an adaptation. `SERVED` is written first: it tells what a killed process left from other runs.

    Raises:
        InputError: the folder holds files of a run, or cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        atomic_write(path / SERVED, json.dumps(served_entry(served[0].path, served[1]), indent=2).encode() + b"\n")
    except OSError as error:
        raise InputError(f"the run folder {path} cannot be made ({error}); choose another with --run.") from error
    try:
        return RunFolder.create(path, settings_of(setup))
    except InputError:
        (path / SERVED).unlink()
        raise


def state_of(setup: Setup, params: Any) -> TrainState:
    """State at the beginning of an adaptation: the parameters are the reference too."""
    state = create(params, setup.optimizer, setup.config.run.seed, with_reference=True)
    return place_state(setup, state._replace(phase=jnp.int32(RL)))


def state_like(setup: Setup) -> TrainState:
    """A state with the shapes and places of an adaptation's."""
    return state_of(setup, first_params(setup))


def abstract(params: Any) -> Any:
    """Shapes, types and places of parameters."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), params)


def log_metrics(folder: RunFolder, rows: Sequence[tuple[str, int, Mapping[str, float]]]) -> None:
    """Append rows to metrics.jsonl."""
    with closing(JsonlTracker(folder)) as tracker:
        for row in rows:
            tracker.log(*row)


def append(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a file."""
    with closing(AppendFile(file)) as opened_file:
        opened_file.append(as_lines(rows))


def update_row(step: int, outcome: str, heldout: Heldout | None, *, made: int = 0) -> dict[str, Any]:
    """Row of updates.jsonl: which answers were right, one character a problem, `-` where that is unknown."""
    row: dict[str, Any] = {"step": step, "outcome": outcome, "updates": made}
    if heldout is None:
        return row
    return row | {"right": "".join("-" if np.isnan(one) else str(int(one)) for one in heldout.right)}


def better(best: Float[np.ndarray, "P"] | None, right: Float[np.ndarray, "N"]) -> Float[np.ndarray, "..."]:
    """Evaluation with the higher accuracy; the earlier one if both have the same, the later one if their problems differ.

    Example:
        >>> better(np.array([1.0, 0.0]), np.array([np.nan, 0.0])).tolist()
        [1.0, 0.0]
    """
    if best is None or len(best) != len(right):
        return right
    return right if accuracy_of(right) > accuracy_of(best) else best


def accuracy_of(right: Float[np.ndarray, "P"]) -> float:
    """Share of the right answers of those that are known; below 0 if none is."""
    known = right[~np.isnan(right)]
    return float(known.mean()) if known.size else -1.0


def best_of(file: Path) -> Float[np.ndarray, "P"] | None:
    """Answers that were right in the best evaluation of a model that was kept; None without one.

    Raises:
        InputError: a row cannot be read; names the file and the line.
    """
    if not file.is_file():
        return None
    rows = [parse_row(line, file, number, _check_update) for number, line in enumerate(lines_of(file)[:-1], 1)]
    found = [_right(row["right"]) for row in rows if "right" in row and row["outcome"] != WORSE]
    return reduce(better, found, None)


def _check_update(row: dict[str, Any]) -> str | None:
    whole = (
        isinstance(row.get("outcome"), str)
        and isinstance(row.get("right", ""), str)
        and set(row.get("right", "")) <= set("01-")
    )
    return None if whole else 'must have "outcome", and 0, 1 and - alone in "right"'


def _right(text: str) -> Float[np.ndarray, "P"]:
    return np.array([np.nan if one == "-" else float(one) for one in text])


def marks_of(folder: RunFolder) -> dict[str, Mark]:
    """Marks at the ends of the growing files."""
    return folder.marks() | {name: _mark(folder.path / name) for name in (FEEDBACK, UPDATES)}


def _mark(file: Path) -> Mark:
    """Mark at the end of a file. When this returns, its content is on the disk."""
    if not file.is_file():
        return mark_of(b"")
    with file.open("rb") as opened_file:
        os.fsync(opened_file.fileno())
        return mark_of(opened_file.read())
