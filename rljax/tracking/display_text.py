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
    """How one number of a run is displayed."""

    key: str
    """Name of the number in the metrics."""
    label: str
    """Name on the display."""
    unit: str
    """Unit on the display; empty if there is none."""
    form: str
    """Format specification, as for `format`."""
    scale: float = 1.0
    """Factor that converts the number to the unit."""

    def written(self, value: float) -> str:
        """Format the number in its unit, without the unit."""
        return format(float(value) * self.scale, self.form)

    def with_unit(self, value: float) -> str:
        """Format the number with its unit."""
        return f"{self.written(value)} {self.unit}".rstrip()


METRICS = (
    Metric("reward", "reward", "", ".3f"),
    Metric("accuracy", "accuracy", "%", ".1f", 100.0),
    Metric("entropy", "entropy", "nats/token", ".3f"),
    Metric("kl", "KL", "nats/token", ".4f"),
    Metric("clip_fraction", "clip fraction", "%", ".2f", 100.0),
    Metric("teacher_kl", "KL to the teacher", "nats/token", ".4f"),
    Metric("teacher_divergence", "teacher divergence", "nats/token", ".4f"),
    Metric("correction_cut", "cut by correction", "%", ".2f", 100.0),
    Metric("surrogate_masked", "off-policy masked", "%", ".2f", 100.0),
    Metric("explained_variance", "explained variance", "", ".3f"),
    Metric("value_loss", "value loss", "", ".4f"),
    Metric("advantage_correlation", "credit correlation", "", ".3f"),
    Metric("response_length", "response length", "tokens", ".1f"),
    Metric("truncated_share", "truncated", "%", ".1f", 100.0),
    Metric("grad_norm", "gradient norm", "", ".3f"),
    Metric("tokens_per_second", "speed", "tokens/s", ",.0f"),
    Metric("filtered_ratio", "filtered groups", "%", ".1f", 100.0),
    Metric("learning_rate", "learning rate", "", ".2e"),
    Metric("loss", "loss", "", ".4f"),
)
PHASE_NAMES = {"warm_start": "warm start", "value": "value pretraining", "rl": "RL", "eval": "evaluation"}


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
    """

    name: str
    total: int
    started: float
    step: int = 0
    at: float = 0.0
    first_step: int | None = None
    first_at: float = 0.0

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

    def remaining(self, now: float) -> str | None:
        """Time left, estimated from this process's steps after the first one, which compiles; None if it is unknown."""
        if self.first_step is None or self.step <= self.first_step:
            return None
        seconds_per_step = (self.at - self.first_at) / (self.step - self.first_step)
        return clock_time(max(0.0, seconds_per_step * (self.total - self.step) - (now - self.at)))


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
