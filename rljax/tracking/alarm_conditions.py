"""Conditions of alarms: pure functions that detect problems in the recent metric rows of a run.

A condition returns a description of the problem, or None if the condition is not met. Values that are absent or not finite are
ignored; without enough values, a condition is not met.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, median
from typing import Any, NamedTuple

FIRST, RECENT = 10, 100
"""Numbers of rows that a history keeps: from the start of the run, and the most recent."""
BRIEF, LONG = 5, 10
"""Numbers of values whose mean is compared with a limit: for a steady metric, and for a noisy metric."""

Row = Mapping[str, Any]


class History(NamedTuple):
    """The RL rows and evaluation rows that alarms use; a bounded number of rows, however long the run is."""

    first: tuple[Row, ...] = ()
    """The first RL rows."""
    recent: tuple[Row, ...] = ()
    """The most recent RL rows."""
    heldout: tuple[Row, ...] = ()
    """The most recent evaluations."""
    steps: int = 0
    """Number of RL rows so far."""

    def after_row(self, row: Row) -> "History":
        """Return the history with one more row; rows of phases other than `rl` and `eval` change nothing."""
        if row["phase"] == "eval":
            return self._replace(heldout=(*self.heldout, row)[-RECENT:])
        if row["phase"] != "rl":
            return self
        first = (*self.first, row) if len(self.first) < FIRST else self.first
        return self._replace(first=first, recent=(*self.recent, row)[-RECENT:], steps=self.steps + 1)


AlarmCondition = Callable[[History], str | None]
"""History -> description of the problem; None if there is none."""


def values(rows: Sequence[Row], name: str) -> list[float]:
    """Return the finite values of a metric, oldest first."""
    found = (row.get(name) for row in rows)
    return [float(value) for value in found if value is not None and math.isfinite(value)]


def last_mean(history: History, name: str, count: int) -> float | None:
    """Return the mean of the last `count` values in the last `2 * count` rows; None if these rows have fewer values."""
    found = values(history.recent[-2 * count :], name)[-count:]
    return fmean(found) if len(found) == count else None


def start_mean(history: History, name: str) -> float | None:
    """Return the mean of a metric over the first RL rows; None if a value is missing, or until `BRIEF` more rows exist."""
    found = values(history.first, name)
    return fmean(found) if len(found) == FIRST and history.steps >= FIRST + BRIEF else None


class Limit(NamedTuple):
    """A condition that is met when the mean of a metric's last values is beyond a limit."""

    name: str
    """The metric."""
    limit: float
    """The limit."""
    is_upper: bool = True
    """Whether it is an upper limit; otherwise it is a lower limit."""
    over: int = BRIEF
    """Number of values in the mean."""
    after: int = 0
    """The condition cannot be met before this step."""

    def __call__(self, history: History) -> str | None:
        """Describe the problem; None if the mean is within the limit."""
        mean = last_mean(history, self.name, self.over)
        if mean is None or history.steps < self.after:
            return None
        if mean <= self.limit if self.is_upper else mean >= self.limit:
            return None
        return f"{self.name} is {mean:.3g}, the mean of {self.over} steps (limit {self.limit:g})"


above = Limit
"""Detect when the mean of the last values is above a limit."""
below = partial(Limit, is_upper=False)
"""Detect when the mean of the last values is below a limit."""


def fallen_to(name: str, share: float) -> AlarmCondition:
    """Detect when a metric is below the fraction `share` of its mean over the first steps."""

    def condition(history: History) -> str | None:
        mean, start = last_mean(history, name, BRIEF), start_mean(history, name)
        if mean is None or start is None or mean >= share * start:
            return None
        return f"{name} is {mean:.3g}, and was {start:.3g} in the first {FIRST} steps (limit {share:g} times that)"

    return condition


def risen_to(name: str, factor: float, *, by: float = 0.0) -> AlarmCondition:
    """Detect when a metric is above `factor` times its mean over the first steps, and has risen by more than `by`."""

    def condition(history: History) -> str | None:
        mean, start = last_mean(history, name, BRIEF), start_mean(history, name)
        if mean is None or start is None or mean <= max(factor * start, start + by):
            return None
        limit = f"{factor:g} times that" if factor * start >= start + by else f"{by:g} above that"
        return f"{name} is {mean:.3g}, and was {start:.3g} in the first {FIRST} steps (limit {limit})"

    return condition


def spiked(name: str, factor: float, *, after: int = 20) -> AlarmCondition:
    """Detect when the mean of the last three values is above `factor` times the median of the earlier values."""

    def condition(history: History) -> str | None:
        found, now = values(history.recent, name), last_mean(history, name, 3)
        if now is None or len(found) < after:
            return None
        usual = median(found[:-3])
        if now <= factor * usual or usual <= 0:
            return None
        return f"{name} is {now:.3g}, the mean of 3 steps, and was usually {usual:.3g} (limit {factor:g} times that)"

    return condition


def absent(name: str, *, over: int = BRIEF) -> AlarmCondition:
    """Detect when a metric is absent from all of the last rows."""

    def condition(history: History) -> str | None:
        rows = history.recent[-over:]
        return f"no {name} in {over} steps" if len(rows) == over and not values(rows, name) else None

    return condition


def spread_vanished(history: History, *, over: int = BRIEF) -> str | None:
    """Detect when, in each of the last rows, all rewards are equal up to rounding, or too close for advantages to differ."""
    found = [
        (math.sqrt(row["reward_variance"]), abs(row["reward"]))
        for row in history.recent[-over:]
        if row.get("reward_variance") is not None and row.get("reward") is not None
    ]
    if len(found) < over:
        return None
    if all(spread <= 1e-7 * mean for spread, mean in found):
        return f"reward_variance is 0 in {over} steps"
    widest = max(spread for spread, _ in found)
    return f"rewards differ by about {widest:.0e} in {over} steps" if widest < 1e-6 else None


def both(first: AlarmCondition, second: AlarmCondition) -> AlarmCondition:
    """Make a condition that is met only if two conditions are both met."""

    def condition(history: History) -> str | None:
        seen = first(history), second(history)
        return None if None in seen else "; ".join(map(str, seen))

    return condition


class Either(NamedTuple):
    """A condition that is met if one of two conditions is met."""

    first: AlarmCondition
    """The condition that takes precedence."""
    second: AlarmCondition
    """The condition that is used if `first` is not met."""

    def __call__(self, history: History) -> str | None:
        """Describe the problem that `first`, or else `second`, detected; None if neither condition is met."""
        return self.first(history) or self.second(history)


def unless(excuse: Callable[[History], bool], condition: AlarmCondition) -> AlarmCondition:
    """Suppress a condition while an excuse applies."""
    return lambda history: None if excuse(history) else condition(history)


def accuracy_is_up(history: History) -> bool:
    """True if the accuracy has risen by at least 0.05 since the first steps."""
    mean, start = last_mean(history, "accuracy", BRIEF), start_mean(history, "accuracy")
    return mean is not None and start is not None and mean >= start + 0.05


def reward_is_up(history: History) -> bool:
    """True if the mean reward has risen since the first steps by at least a fifth of its standard deviation in those steps."""
    mean, start = last_mean(history, "reward", BRIEF), start_mean(history, "reward")
    variance = start_mean(history, "reward_variance")
    if mean is None or start is None or variance is None:
        return False
    return mean > start and mean >= start + 0.2 * math.sqrt(variance)


def has_improved(history: History) -> bool:
    """True if the accuracy or the reward has risen since the first steps."""
    return accuracy_is_up(history) or reward_is_up(history)


def is_one_sided(history: History) -> bool:
    """True if nearly all responses are right, or nearly all are wrong, so there is hardly any variation to predict."""
    mean = last_mean(history, "accuracy", LONG)
    return mean is not None and not 0.05 <= mean <= 0.95


def reward_falls(history: History) -> str | None:
    """Detect when the mean reward over `LONG` steps is more than half a standard deviation below the best recent mean."""
    rewards, variance = values(history.recent, "reward"), last_mean(history, "reward_variance", LONG)
    if variance is None or len(rewards) < 3 * LONG:
        return None
    means = [fmean(rewards[end - LONG : end]) for end in range(LONG, len(rewards) + 1)]
    spread = math.sqrt(max(variance, *values(history.recent, "reward_variance")))
    if max(means) - means[-1] <= 0.5 * spread:
        return None
    return (
        f"reward is {means[-1]:.3g}, the mean of {LONG} steps, and was {max(means):.3g} at its best (spread {spread:.3g})"
    )


def heldout_falls(history: History) -> str | None:
    """Detect when the last two evaluations are both more than 15 percentage points below the best evaluation."""
    found = values(history.heldout, "accuracy")
    if len(found) < 3 or max(found[-2:]) >= max(found) - 0.15:
        return None
    return f"held-out accuracy is {found[-2]:.1%} and {found[-1]:.1%} in the last two evaluations, and was {max(found):.1%}"


def reward_follows_length(history: History) -> str | None:
    """Detect when the reward correlates with length, and the length has changed by a factor of 1.5 in the rewarded direction."""
    correlation = last_mean(history, "reward_length_correlation", LONG)
    length, start = last_mean(history, "response_length", BRIEF), start_mean(history, "response_length")
    if correlation is None or length is None or start is None or abs(correlation) < 0.5:
        return None
    if not (length > 1.5 * start if correlation > 0 else length < start / 1.5):
        return None
    return f"reward_length_correlation is {correlation:.2f}, and responses have {length:.1f} tokens instead of {start:.1f}"


def nothing_is_trained(history: History) -> str | None:
    """Detect when each of the last steps had groups to train on, but no update changed anything."""
    rows = history.recent[-BRIEF:]
    trained = [values([row], "trained_groups") for row in rows]
    is_changed = any(row.get("grad_norm") not in (None, 0.0) for row in rows)
    if len(rows) < BRIEF or is_changed or not all(found and found[0] > 0 for found in trained):
        return None
    return f"the last {BRIEF} steps had groups to train on, and no update changed anything"


def groups_are_missing(history: History) -> str | None:
    """Detect when, over the last steps, more groups were missing than found."""
    missing, found = last_mean(history, "unfilled_groups", BRIEF), last_mean(history, "trained_groups", BRIEF)
    if missing is None or found is None or missing <= found:
        return None
    return f"{missing:.1f} groups are missing and {found:.1f} are trained on, the mean of {BRIEF} steps"
