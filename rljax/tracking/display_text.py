"""Labels, units and formats of the numbers and times of a run; shared by the displays and the plots."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from rljax.records import documented

BARS = "▁▂▃▄▅▆▇█"


@documented
class Metric(NamedTuple):
    """Label, unit and format of one number of a run on the display."""

    key: str
    """Name of the number in the metrics."""
    label: str
    """Name on the display; see `label_of` for that of `accuracy`."""
    unit: str
    """Unit on the display; empty if there is none."""
    form: str
    """Format specification, as for `format`."""
    scale: float = 1.0
    """Factor that converts the number to the unit."""
    is_brief: bool = False
    """Whether a line in a pipe has it, too."""
    is_count: bool = False
    """Whether it counts events: it is hidden while it is 0, and summed up instead of averaged."""

    def written(self, value: float) -> str:
        """Format the number in its unit, without the unit."""
        return format(float(value) * self.scale, self.form)

    def with_unit(self, value: float) -> str:
        """Format the number with its unit."""
        return f"{self.written(value)} {self.unit}".rstrip()


METRICS = (
    Metric("reward", "reward", "", ".3f", is_brief=True),
    Metric("accuracy", "rewards above 0", "%", ".1f", 100.0, is_brief=True),
    Metric("margin", "margin", "", ".3f", is_brief=True),
    Metric("lead", "lead", "", ".3f", is_brief=True),
    Metric("chosen_logp", "log p of preferred", "nats", ".2f"),
    Metric("rejected_logp", "log p of others", "nats", ".2f"),
    Metric("score", "score", "", ".3f"),
    Metric("entropy", "entropy", "nats/token", ".3f", is_brief=True),
    Metric("kl", "KL", "nats/token", ".4f", is_brief=True),
    Metric("clip_fraction", "clip fraction", "%", ".2f", 100.0),
    Metric("teacher_kl", "KL to the teacher", "nats/token", ".4f"),
    Metric("teacher_divergence", "teacher divergence", "nats/token", ".4f"),
    Metric("correction_cut", "cut by correction", "%", ".2f", 100.0),
    Metric("surrogate_masked", "off-policy masked", "%", ".2f", 100.0),
    Metric("explained_variance", "explained variance", "", ".3f", is_brief=True),
    Metric("value_loss", "value loss", "", ".4f", is_brief=True),
    Metric("advantage_correlation", "credit correlation", "", ".3f"),
    Metric("response_length", "response length", "tokens", ".1f", is_brief=True),
    Metric("truncated_share", "truncated", "%", ".1f", 100.0),
    Metric("grad_norm", "gradient norm", "", ".3f"),
    Metric("tokens_per_second", "speed", "tokens/s", ",.0f"),
    Metric("filtered_ratio", "filtered groups", "%", ".1f", 100.0),
    Metric("unfilled_groups", "unfilled groups", "", ".0f", is_brief=True, is_count=True),
    Metric("unjudged", "unjudged responses", "", ".0f", is_brief=True, is_count=True),
    Metric("skipped_updates", "skipped updates", "steps", ".3g", is_brief=True, is_count=True),
    Metric("learning_rate", "learning rate", "", ".2e"),
    Metric("loss", "loss", "", ".4f", is_brief=True),
)
CORRECT, POSITIVE, IN_ORDER = "accuracy", "rewards above 0", "pairs in order"
"""Names of the number `accuracy`: where a verifier decides what is right, where it is a share of rewards, and for pairs."""
PHASE_NAMES = {
    "warm_start": "warm start",
    "value": "value pretraining",
    "rl": "RL",
    "eval": "evaluation",
    "reward_model": "reward model",
}
SHOWN_SAMPLES = 4
SAMPLE_CHARACTERS = 200


def label_of(metric: Metric, accuracy: str) -> str:
    """Name of a number on the display; that of `accuracy` is the argument."""
    return accuracy if metric.key == "accuracy" else metric.label


def verdict(reward: float, correct: bool | None) -> str:
    """The judgement of an answer in words: right or wrong where a verifier decided, else the reward.

    Example:
        >>> verdict(1.0, True), verdict(0.2, False), verdict(0.25, None), verdict(float("nan"), None)
        ('right', 'wrong', 'reward 0.25', 'not judged')
    """
    if math.isnan(reward):
        return "not judged"
    if correct is None:
        return f"reward {reward:g}"
    return "right" if correct else "wrong"


@dataclass(frozen=True)
class Progress:
    """Progress of a phase.

    Args:
        name: the phase.
        total: the step at which it ends.
        started: time at which it began, in seconds of any clock; all other times are of the same clock.
        step: the last finished step.
        at: time at which `step` was finished.
        first_step: the first step that this process finished; None before that.
        first_at: time at which `first_step` was finished.
        compiled: seconds that compilation took.
    """

    name: str
    total: int
    started: float
    step: int = 0
    at: float = 0.0
    first_step: int | None = None
    first_at: float = 0.0
    compiled: float = 0.0

    @property
    def title(self) -> str:
        """Name of the phase on the display."""
        return PHASE_NAMES.get(self.name, self.name)

    def advanced(self, step: int, now: float) -> "Progress":
        """The same phase once `step` is finished."""
        if self.first_step is None:
            return replace(self, step=step, at=now, first_step=step, first_at=now)
        return replace(self, step=step, at=now)

    def elapsed(self, now: float) -> str:
        """Time since the phase began."""
        return clock_time(now - self.started)

    def with_compilation(self, seconds: float) -> "Progress":
        """The same phase after a compilation."""
        return replace(self, compiled=self.compiled + seconds)

    def spent(self, now: float) -> str:
        """Time since the phase began, and how much of it was compilation, if that is a second or more."""
        return self.elapsed(now) + (f", {clock_time(self.compiled)} of it compiling" if self.compiled >= 1 else "")

    def is_tenth(self, step: int) -> bool:
        """True if `step`, the next one, ends a tenth of the phase."""
        return step >= self.total or step * 10 // self.total > self.step * 10 // self.total

    def remaining(self, now: float) -> str | None:
        """Time left, estimated from this process's steps after the first one, which compiles; None if it is unknown."""
        if self.first_step is None or self.step <= self.first_step:
            return None
        seconds_per_step = (self.at - self.first_at) / (self.step - self.first_step)
        return clock_time(max(0.0, seconds_per_step * (self.total - self.step) - (now - self.at)))


def required_phase(progress: Progress | None) -> Progress:
    """The phase in progress.

    Raises:
        ValueError: there is none.
    """
    if progress is None:
        raise ValueError("update was called before phase: a step belongs to a phase")
    return progress


def clock_time(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds.

    Args:
        seconds: not negative.

    Returns:
        `h:mm:ss`.

    Example:
        >>> clock_time(3725.4)
        '1:02:05'
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def finite_mean(values: Sequence[float]) -> float:
    """The mean of the values that are finite; NaN when none is."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def sparkline(values: Sequence[float], width: int) -> str:
    """A row of bars, from the smallest value to the largest.

    Args:
        values: numbers, oldest first.
        width: largest number of characters; if there are more values, neighbours are averaged.

    Returns:
        One character per value or average; "×" if it is not finite. Equal values are drawn as the lowest bar.

    Example:
        >>> sparkline([0.0, 1.0, 2.0, float("nan"), 7.0], 10)
        '▁▂▃×█'
    """
    count = min(width, len(values))
    edges = [index * len(values) // max(count, 1) for index in range(count + 1)]
    means = [finite_mean(values[start:end]) for start, end in pairwise(edges)]
    finite = [mean for mean in means if math.isfinite(mean)]
    if not finite:
        return "×" * len(means)
    low, span = min(finite), max(finite) - min(finite)
    # Averages of equal values differ in their last bits; that is not a change to draw.
    is_flat = span <= 1e-9 * max(abs(mean) for mean in finite)
    heights = [0.0 if is_flat else (mean - low) / span for mean in means]
    return "".join(
        BARS[round(height * (len(BARS) - 1))] if math.isfinite(mean) else "×"
        for mean, height in zip(means, heights, strict=True)
    )
