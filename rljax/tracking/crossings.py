"""Tests for numbers of a run that are out of their range: pure functions of the history of its metric rows.

A crossing returns what it saw, in words, or None. Numbers that are absent, or not finite, are left out; without enough of them a
crossing sees nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from rljax.records import documented

FIRST, RECENT = 10, 100
"""Rows that a history keeps of the beginning, and of the present."""
BRIEF, LONG = 5, 10
"""Rows whose mean is compared with a limit: where a number is steady, and where it is noisy."""

Row = Mapping[str, Any]


@documented
class History(NamedTuple):
    """The rows of RL and of the evaluations that alarms look at. It does not grow with the run."""

    first: tuple[Row, ...] = ()
    """The first rows of RL."""
    recent: tuple[Row, ...] = ()
    """The last rows of RL."""
    heldout: tuple[Row, ...] = ()
    """The last evaluations."""
    steps: int = 0
    """Rows of RL so far."""

    def followed_by(self, row: Row) -> "History":
        """The history with one more row; rows of other phases than `rl` and `eval` change nothing."""
        if row["phase"] == "eval":
            return self._replace(heldout=(*self.heldout, row)[-RECENT:])
        if row["phase"] != "rl":
            return self
        first = (*self.first, row) if len(self.first) < FIRST else self.first
        return self._replace(first=first, recent=(*self.recent, row)[-RECENT:], steps=self.steps + 1)


Crossing = Callable[[History], str | None]
"""History -> what was seen, in words; None if all is well."""


def values(rows: Sequence[Row], name: str) -> list[float]:
    """Finite values of a number, oldest first."""
    found = (row.get(name) for row in rows)
    return [float(value) for value in found if value is not None and math.isfinite(value)]


def last_mean(history: History, name: str, count: int) -> float | None:
    """Mean of the last `count` values among the last `2 * count` rows; None if there are fewer: older ones say nothing of now."""
    found = values(history.recent[-2 * count :], name)[-count:]
    return fmean(found) if len(found) == count else None


def start_mean(history: History, name: str) -> float | None:
    """Mean of the values in the first rows of RL; None while these are still the last ones, too."""
    found = values(history.first, name)
    return fmean(found) if len(found) == FIRST and history.steps >= FIRST + BRIEF else None


def above(name: str, limit: float, *, over: int = BRIEF, after: int = 0) -> Crossing:
    """A mean of the last `over` values above a limit, once `after` steps are made."""

    def crossing(history: History) -> str | None:
        mean = last_mean(history, name, over)
        if mean is None or mean <= limit or history.steps < after:
            return None
        return f"{name} is {mean:.3g}, the mean of {over} steps (limit {limit:g})"

    return crossing


def below(name: str, limit: float, *, over: int = BRIEF, after: int = 0) -> Crossing:
    """A mean of the last `over` values below a limit, once `after` steps are made."""

    def crossing(history: History) -> str | None:
        mean = last_mean(history, name, over)
        if mean is None or mean >= limit or history.steps < after:
            return None
        return f"{name} is {mean:.3g}, the mean of {over} steps (limit {limit:g})"

    return crossing


def fallen_to(name: str, share: float) -> Crossing:
    """A number below a share of what it was in the first steps."""

    def crossing(history: History) -> str | None:
        mean, start = last_mean(history, name, BRIEF), start_mean(history, name)
        if mean is None or start is None or mean >= share * start:
            return None
        return f"{name} is {mean:.3g}, and was {start:.3g} in the first {FIRST} steps (limit {share:g} times that)"

    return crossing


def risen_to(name: str, factor: float, *, by: float = 0.0) -> Crossing:
    """A number above a multiple of what it was in the first steps, and above it by some amount."""

    def crossing(history: History) -> str | None:
        mean, start = last_mean(history, name, BRIEF), start_mean(history, name)
        if mean is None or start is None or mean <= max(factor * start, start + by):
            return None
        limit = f"{factor:g} times that" if factor * start >= start + by else f"{by:g} more than that"
        return f"{name} is {mean:.3g}, and was {start:.3g} in the first {FIRST} steps (limit {limit})"

    return crossing


def spiked(name: str, factor: float, *, after: int = 20) -> Crossing:
    """The mean of the last three values above a multiple of the median of those before them."""

    def crossing(history: History) -> str | None:
        found, now = values(history.recent, name), last_mean(history, name, 3)
        if now is None or len(found) < after:
            return None
        usual = median(found[:-3])
        if now <= factor * usual or usual <= 0:
            return None
        return f"{name} is {now:.3g}, the mean of 3 steps, and was usually {usual:.3g} (limit {factor:g} times that)"

    return crossing


def absent(name: str, *, over: int = BRIEF) -> Crossing:
    """A number that none of the last rows has."""

    def crossing(history: History) -> str | None:
        rows = history.recent[-over:]
        return f"no {name} in {over} steps" if len(rows) == over and not values(rows, name) else None

    return crossing


def vanished(name: str, *, over: int = BRIEF, least: float = 1e-12) -> Crossing:
    """A number that is 0, up to rounding, in each of the last rows."""

    def crossing(history: History) -> str | None:
        found = values(history.recent[-over:], name)
        return f"{name} is 0 in {over} steps" if len(found) == over and max(map(abs, found)) <= least else None

    return crossing


def both(first: Crossing, second: Crossing) -> Crossing:
    """Two crossings at once."""

    def crossing(history: History) -> str | None:
        seen = first(history), second(history)
        return None if None in seen else "; ".join(map(str, seen))

    return crossing


def either(first: Crossing, second: Crossing) -> Crossing:
    """One of two crossings; the first one that sees something says what."""
    return lambda history: first(history) or second(history)


def unless(excuse: Callable[[History], bool], crossing: Crossing) -> Crossing:
    """A crossing that is silent where there is a reason for it."""
    return lambda history: None if excuse(history) else crossing(history)


def accuracy_is_up(history: History) -> bool:
    """True if more of the responses are right than in the first steps, by a twentieth of all or more."""
    mean, start = last_mean(history, "accuracy", BRIEF), start_mean(history, "accuracy")
    return mean is not None and start is not None and mean >= start + 0.05


def reward_is_up(history: History) -> bool:
    """True if the mean reward is above that of the first steps, by a fifth of the reward's standard deviation there or more."""
    mean, start = last_mean(history, "reward", BRIEF), start_mean(history, "reward")
    variance = start_mean(history, "reward_variance")
    if mean is None or start is None or variance is None:
        return False
    return mean > start and mean >= start + 0.2 * math.sqrt(variance)


def learning_shows(history: History) -> bool:
    """True if responses are more often right than in the first steps, or earn more."""
    return accuracy_is_up(history) or reward_is_up(history)


def is_one_sided(history: History) -> bool:
    """True if nearly all responses are right, or nearly all wrong: outcomes that hardly vary cannot be predicted."""
    mean = last_mean(history, "accuracy", LONG)
    return mean is not None and not 0.05 <= mean <= 0.95


def reward_falls(history: History) -> str | None:
    """The mean reward of `LONG` steps, half a standard deviation of the reward below the best mean of the recent past."""
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
    """The last two evaluations, both 15 % of all problems below the best one."""
    found = values(history.heldout, "accuracy")
    if len(found) < 3 or max(found[-2:]) >= max(found) - 0.15:
        return None
    return f"held-out accuracy is {found[-2]:.1%} and {found[-1]:.1%} in the last two evaluations, and was {max(found):.1%}"


def reward_follows_length(history: History) -> str | None:
    """Reward that correlates with length, while the length has moved by half its start in the direction that pays."""
    pull = last_mean(history, "reward_length_correlation", LONG)
    length, start = last_mean(history, "response_length", BRIEF), start_mean(history, "response_length")
    if pull is None or length is None or start is None or abs(pull) < 0.5:
        return None
    if not (length > 1.5 * start if pull > 0 else length < start / 1.5):
        return None
    return f"reward_length_correlation is {pull:.2f}, and responses have {length:.1f} tokens in place of {start:.1f}"


def groups_are_missing(history: History) -> str | None:
    """More groups missing than found over the last steps."""
    missing, found = last_mean(history, "unfilled_groups", BRIEF), last_mean(history, "trained_groups", BRIEF)
    if missing is None or found is None or missing <= found:
        return None
    return f"{missing:.1f} groups are missing and {found:.1f} are trained on, the mean of {BRIEF} steps"
