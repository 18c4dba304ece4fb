"""The folder of a run that adapts to feedback: its settings, its initial state, and its files.

It has four files that other run folders lack::

    served.json     the run and the checkpoint that were served
    feedback.jsonl  one row per consumed line of the queue: its position, and its reward or why it was rejected
    updates.jsonl   one row per batch: the outcome of its updates, and which held-out answers were right
    rejects.jsonl   the rejected lines, each with its reason; it includes lines read since the last batch, not yet in feedback.jsonl

A checkpoint records the lengths of feedback.jsonl and updates.jsonl, as it does for metrics.jsonl. The rows of feedback.jsonl show
which lines of the queue were consumed, so a run can be killed at any time and continue without losing or repeating a line.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from rljax.errors import InputError
from rljax.files import atomic_write
from rljax.models.model_folder import read_json
from rljax.programs.adaptation import WORSE, clipped_feedback
from rljax.programs.adaptation_config import AdaptationConfig
from rljax.programs.trained_policy import find_run, fit_devices
from rljax.rewards.reward_call import abstain
from rljax.tracking.rows import read_rows
from rljax.tracking.run_folder import FileState, RunFolder
from rljax.training.checkpoints.checkpoint import LAST, Quality, quality_of
from rljax.training.checkpoints.manifest import fault_of
from rljax.training.config import AlgorithmConfig, CriticConfig, TrainConfig, WarmStartConfig
from rljax.training.parts.adapter import base_entry
from rljax.training.parts.custom_parts import CustomParts, read_saved_settings, refuse_missing
from rljax.training.parts.reward import custom_reward_names
from rljax.training.setup import Setup, make_setup
from rljax.training.state import RL, TrainState, create

SERVED, FEEDBACK, UPDATES, REJECTS = "served.json", "feedback.jsonl", "updates.jsonl", "rejects.jsonl"
"""Names of the files."""
NOT_NEEDED = ("algorithm", "optimizer")
"""Arguments of `train` that an adaptation does not use."""


class HeldoutEvaluation(NamedTuple):
    """A held-out evaluation."""

    right: Float[np.ndarray, "P"]
    """Per problem, 1 if the greedy answer is right, 0 if it is wrong, NaN if that is unknown."""
    metrics: dict[str, float]
    """Metrics of the evaluation."""

    @property
    def quality(self) -> Quality:
        """The result by which checkpoints are compared."""
        return quality_of(self.metrics, "reward")


class AdaptationFolder(RunFolder):
    """The folder of an adaptation. A checkpoint also records the states of its two logs, and `discard` also removes them."""

    @property
    def own_files(self) -> tuple[Path, ...]:
        """Files that an adaptation writes into its folder, except served.json, which identifies it and is removed last."""
        return (*super().own_files, self.path / REJECTS)

    @property
    def growing_files(self) -> tuple[Path, ...]:
        """Files to which each step appends."""
        return (*super().growing_files, self.path / FEEDBACK, self.path / UPDATES)


def prepare_to_continue(path: Path) -> bool:
    """Return True if a folder contains an adaptation that can continue; remove one that was killed before its first save.

    Raises:
        InputError: the folder contains a run that is not an adaptation, or another process is using it.
    """
    if not (path / "config.json").is_file():
        return False
    if not (path / SERVED).is_file():
        raise InputError(f"{str(path)!r} contains a run that is not an adaptation; choose another folder with --run.")
    folder = AdaptationFolder.open(path)
    if folder.is_locked:
        raise InputError(f"another process is training in {path}; wait until it ends, or stop it.")
    if folder.has_progress or fault_of(folder.checkpoints / LAST / "0") is None:
        return True
    folder.discard()
    (path / SERVED).unlink()  # last, because without it the folder would count as a run that is not an adaptation
    if not any(path.iterdir()):
        path.rmdir()
    return False


def adapt_settings(served: TrainConfig, config: AdaptationConfig) -> TrainConfig:
    """Make the settings of the adapted run: those of the served run, without what belongs to its algorithm and its environment."""
    optimization, rate = served.optimization, config.learning_rate
    return replace(
        served,
        algorithm=AlgorithmConfig(),
        reward=replace(served.reward, environment=None, environment_options=None),
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
        run=replace(served.run, folder=str(config.output_folder), models="none"),
    )


def make_served_setup(config: AdaptationConfig, existing: Path | None) -> tuple[Setup, tuple[RunFolder, str]]:
    """Make the setup of the adapted run, and return it with the folder and the checkpoint of the served run.

    Raises:
        InputError: the target is not a run, or was trained with parts passed in Python; or the existing folder is not an
            adaptation of this run.
    """
    path, which = find_run(config.target, config.checkpoint)
    if path is None:
        raise InputError(
            f"{config.target!r} is not the folder of a run with checkpoints; name a folder that `rljax train` wrote."
        )
    served = RunFolder.open(path)
    settings, needed = read_saved_settings(served.config)
    refuse_missing([name for name in needed if name not in NOT_NEEDED])
    if existing is not None:
        check_served(existing, path, which)
    algorithm = clipped_feedback(config.clip, config.kl_coefficient)
    # Rewards come from the feedback, so the run's reward code is not executed.
    reward = [abstain] * len(settings.reward.names) if custom_reward_names(settings) else None
    custom = CustomParts(algorithm=algorithm, reward=reward)
    return make_setup(adapt_settings(settings, config), custom), (served, which)


def check_served(folder: Path, run: Path, which: str) -> None:
    """Reject a folder that contains the adaptation of another run or checkpoint.

    Raises:
        InputError: the folder contains the adaptation of another run or checkpoint.
    """
    before = read_json(folder / SERVED)
    if before != served_entry(run, which):
        raise InputError(
            f"{str(folder)!r} contains the adaptation of checkpoint {before.get('checkpoint')!r} of the run {before.get('run')!r}; "
            "name that run and checkpoint, or choose another folder with --run."
        )


def served_entry(run: Path, which: str) -> dict[str, str]:
    """Make the contents of served.json."""
    return {"run": str(run.resolve()), "checkpoint": which}


def settings_of(setup: Setup) -> dict[str, Any]:
    """Make the contents of config.json. Its `seams` entry makes `rljax train --resume` refuse the folder."""
    return setup.config.to_json() | {"seams": ["algorithm"]} | base_entry(setup.config, setup.base)


def check_log(folder: RunFolder, file_states: Mapping[str, FileState]) -> None:
    """Reject a run whose feedback.jsonl is missing, because the lines that it learned from are then unknown.

    Raises:
        InputError: feedback.jsonl is missing.
    """
    file = folder.path / FEEDBACK
    if file_states[FEEDBACK].length and not file.exists():
        raise InputError(
            f"{str(file)!r} is missing. It records which lines the run has learned from; restore the file, or start "
            "again in another folder (--run)."
        )


def new_folder(setup: Setup, served: tuple[RunFolder, str], path: Path) -> AdaptationFolder:
    """Create the folder of an adaptation. `SERVED` is written first, so that the files of a killed process can be identified.

    Raises:
        InputError: the folder contains files of a run, or cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        is_new = create_file(path / SERVED)
        atomic_write(path / SERVED, json.dumps(served_entry(served[0].path, served[1]), indent=2).encode() + b"\n")
    except OSError as error:
        raise InputError(f"the run folder {path} cannot be created ({error}); choose another with --run.") from error
    try:
        return AdaptationFolder.create(path, settings_of(setup))
    except InputError:
        if is_new:  # otherwise another process created the file and is starting an adaptation here
            (path / SERVED).unlink()
        raise


def create_file(file: Path) -> bool:
    """Create an empty file and return True; return False if it already exists. Of several processes, only one gets True."""
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def begin_adaptation(setup: Setup, params: Any) -> TrainState:
    """Make the initial state of an adaptation, not yet on the devices. `params` are also the reference parameters."""
    state = create(params, setup.optimizer, setup.config.run.seed, with_reference=True)
    return state._replace(phase=jnp.int32(RL))


def update_row(step: int, outcome: str, heldout: HeldoutEvaluation | None, *, updates: int = 0) -> dict[str, Any]:
    """Make a row of updates.jsonl with one character per problem: whether its answer was right, or `-` if unknown."""
    row: dict[str, Any] = {"step": step, "outcome": outcome, "updates": updates}
    if heldout is None:
        return row
    return row | {"right": "".join("-" if np.isnan(value) else str(int(value)) for value in heldout.right)}


def better_evaluation(best: Float[np.ndarray, "P"] | None, new: Float[np.ndarray, "N"]) -> Float[np.ndarray, "..."]:
    """Return the evaluation with the higher accuracy: `best` if they tie, `new` if their numbers of problems differ.

    Example:
        >>> better_evaluation(np.array([1.0, 0.0]), np.array([np.nan, 0.0])).tolist()
        [1.0, 0.0]
    """
    if best is None or len(best) != len(new):
        return new
    return new if accuracy_of(new) > accuracy_of(best) else best


def accuracy_of(right: Float[np.ndarray, "P"]) -> float:
    """Return the fraction of right answers among those whose correctness is known; -1 if there are none."""
    known = right[~np.isnan(right)]
    return float(known.mean()) if known.size else -1.0


def best_evaluation(file: Path) -> Float[np.ndarray, "P"] | None:
    """Return the best evaluation among the kept models (1: right, 0: wrong, NaN: unknown); None if there is none.

    Raises:
        InputError: a row cannot be read; the message names the file and the line.
    """
    texts = [row["right"] for row in read_rows(file, _check_update) if "right" in row and row["outcome"] != WORSE]
    evaluations = [np.array([np.nan if mark == "-" else float(mark) for mark in text]) for text in texts]
    return reduce(better_evaluation, evaluations, None)


def _check_update(row: dict[str, Any]) -> str | None:
    is_valid = (
        isinstance(row.get("outcome"), str)
        and isinstance(row.get("right", ""), str)
        and set(row.get("right", "")) <= set("01-")
    )
    return None if is_valid else 'must have "outcome", and only 0, 1 and - in "right"'
