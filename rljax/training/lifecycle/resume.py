"""Settings that may change when a run is resumed, and a summary of the run so far.

A setting may change if a run that had the new value from its first step would have computed the same numbers (up to the rounding of
sums in another order, where devices or micro-batches change). Every other change is refused by its name.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

from rljax.algorithms import Algorithm
from rljax.errors import InputError
from rljax.records import documented
from rljax.tracking.display_text import sparkline
from rljax.tracking.rows import Row, read_metrics
from rljax.tracking.run_folder import RunFolder
from rljax.training.config import TrainConfig
from rljax.training.setup import Setup
from rljax.training.state import RL, WARM_START, TrainState

FREE = (
    *("steps", "eval_every", "checkpoint_every", "max_to_keep", "max_best_to_keep", "keep_period", "models"),
    *("sample_every", "shown_samples", "quiet", "wandb"),
    *("replicas", "fsdp", "tensor", "microbatch_rows", "score_chunk", "remat", "attention", "decode_slots", "cache_memory"),
    *("max_failure_share",),
    *("host_timeout", "grace", "keep_warm_start"),
)
"""Settings that may change on resume."""
CURVE_WIDTH = 40


@documented
class Change(NamedTuple):
    """A setting that has another value than when the run was started, or resumed last."""

    name: str
    """Flat name of the setting."""
    before: Any
    """Value in the run's config.json."""
    after: Any
    """New value."""

    def __str__(self) -> str:
        """Write the change as `steps: 100 -> 200`."""
        return f"{self.name}: {self.before} -> {self.after}"


def changes_between(saved: TrainConfig, wanted: TrainConfig) -> tuple[Change, ...]:
    """List the settings that differ; a configuration without a run folder has the folder of the saved one.

    Example:
        >>> [str(change) for change in changes_between(TrainConfig(), TrainConfig.flat(steps=200))]
        ['steps: 100 -> 200']
    """
    if wanted.run.folder is None:
        wanted = wanted.replace(run=saved.run.folder)
    before, after = (replace(config, task=config.generated_task).to_flat() for config in (saved, wanted))
    names = dict.fromkeys([*before, *after])
    return tuple(Change(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name))


def check_changes(changes: Collection[Change]) -> None:
    """Refuse changes of settings that the numbers of the run so far depend on.

    Raises:
        InputError: names these settings.
    """
    fixed = [change for change in changes if change.name not in FREE]
    if fixed:
        raise InputError(
            f"A resumed run cannot change {', '.join(map(str, fixed))}: what the run has computed so far depends on it. Leave it "
            f"out, or start a new run; {', '.join(FREE)} may change."
        )


def check_steps(changes: Collection[Change], setup: Setup, state: TrainState) -> None:
    """Refuse a number of RL steps that the run has passed, or that its past steps depend on.

    Raises:
        InputError: the message has the reason.
    """
    change = next((change for change in changes if change.name == "steps"), None)
    done = int(state.step)
    if change is None or not done:
        return
    if change.after < done:
        raise InputError(f"steps is {change.after}, but the run has made {done} RL steps already; give at least as many.")
    reasons = schedules(setup.config, setup.algorithm)
    if reasons:
        raise InputError(
            f"A resumed run cannot change {change}: the {done} RL steps so far follow a schedule over all steps "
            f"({', '.join(reasons)}). Leave it out, or start a new run."
        )


def schedules(config: TrainConfig, algorithm: Algorithm) -> list[str]:
    """Settings that follow a schedule over all RL steps, so that their number cannot change once they have begun."""
    scheduled = {
        "difficulty_window_end": config.data.difficulty_window_end is not None,
        f"the algorithm {config.algorithm.name}, which mixes two advantages": algorithm.needs("progress"),
        "schedule=cosine": config.optimization.schedule == "cosine",
        "mix_pretrained_value": config.critic.mix_pretrained_value,
    }
    return [reason for reason, holds in scheduled.items() if holds]


def summary(setup: Setup, state: TrainState, folder: RunFolder, changes: Collection[Change]) -> list[str]:
    """Describe a resumed run: where it continues, what was changed, and its curve so far."""
    config, done, phase = setup.config, int(state.step), int(state.phase)
    steps = config.optimization.steps
    place = f"RL step {done} of {steps}"
    if phase == WARM_START:
        place = f"warm-start step {int(state.warm_step)} of {config.warm_start.steps}"
    elif phase != RL:
        place = f"step {int(state.value_step)} of value pretraining"
    lines = [f"Resumed at {place}."]
    if changes:
        lines.append(f"Changed: {', '.join(map(str, changes))}.")
    if done >= steps and phase == RL:
        extend = (
            "" if schedules(config, setup.algorithm) else f"; --steps N extends it, for example --steps {max(2 * steps, 1)}"
        )
        lines.append(f"The run has made all of its RL steps{extend}.")
    rows = past_rows(folder)
    curves = {
        "reward": [row["reward"] for row in rows if row["phase"] == "rl" and row.get("reward") is not None],
        "held-out accuracy": [row["accuracy"] for row in rows if is_evaluation(row)],
    }
    for name, values in curves.items():
        if values:
            lines.append(f"{name} so far: {sparkline(values, CURVE_WIDTH)} {values[0]:.3f} -> {values[-1]:.3f}")
    return lines


def past_rows(folder: RunFolder) -> list[Row]:
    """Rows of metrics.jsonl; none if the run has made no step."""
    if not folder.metrics.is_file() or not folder.metrics.stat().st_size:
        return []
    return read_metrics(folder.metrics)


def is_evaluation(row: Row) -> bool:
    """True if a row holds a held-out accuracy."""
    return row["phase"] == "eval" and row.get("accuracy") is not None


def last_evaluation(folder: RunFolder) -> Row | None:
    """Row of the last held-out evaluation; None before the first one."""
    return next((row for row in reversed(past_rows(folder)) if is_evaluation(row)), None)
