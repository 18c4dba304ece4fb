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
    """Label, unit and format of one number; `scale` turns it into `unit`."""

    key: str
    label: str
    unit: str
    form: str
    scale: float = 1.0

    def written(self, value: float) -> str:
        """The number in its unit, without the unit."""
        return format(float(value) * self.scale, self.form)

    def with_unit(self, value: float) -> str:
        """The number and its unit."""
        return f"{self.written(value)} {self.unit}".rstrip()


METRICS = (
    Metric("reward", "reward", "", ".3f"),
    Metric("accuracy", "accuracy", "%", ".1f", 100.0),
    Metric("entropy", "entropy", "nats/token", ".3f"),
    Metric("kl", "KL", "nats/token", ".4f"),
    Metric("clip_fraction", "clip fraction", "%", ".2f", 100.0),
    Metric("correction_cut", "cut by correction", "%", ".2f", 100.0),
    Metric("off_policy_masked", "off-policy masked", "%", ".2f", 100.0),
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
        started: when it began, in seconds of any clock; all other times are of the same.
        step: the last finished step, `at` when.
        first_step: the first step that was finished here, `first_at` when; None before it.
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
        """Name of the phase for a person."""
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
        """Time left, from the steps after the first: that one compiles, and a resumed run begins late. None: unknown."""
        if self.first_step is None or self.step <= self.first_step:
            return None
        seconds_per_step = (self.at - self.first_at) / (self.step - self.first_step)
        return clock_time(max(0.0, seconds_per_step * (self.total - self.step) - (now - self.at)))


def clock_time(seconds: float) -> str:
    """Seconds as hours, minutes and seconds.

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
        width: at most so many characters; more values than that are averaged in even runs.

    Returns:
        One character a value or run; "×" where none of it is finite. Equal values stand at the lowest bar.

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
    # Averages of equal values differ in their last bits; that is no history to draw.
    is_flat = span <= 1e-9 * max(abs(mean) for mean in finite)
    heights = [0.0 if is_flat else (mean - low) / span for mean in means]
    return "".join(
        BARS[round(height * (len(BARS) - 1))] if math.isfinite(mean) else "×"
        for mean, height in zip(means, heights, strict=True)
    )
