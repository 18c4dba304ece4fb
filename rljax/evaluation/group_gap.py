"""Group fairness: the gap between the best and the worst group of problems."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri, stdtrit

from rljax.evaluation.statistics import Estimate, wilson_interval

MIN_PROBLEMS = 20
"""Minimum number of problems in a group that is compared."""
_LEVEL = 0.05  # probability that an interval of some pair misses the true difference


class Gap(NamedTuple):
    """The groups with the highest and the lowest accuracy, and the difference."""

    best: str
    """Label of the group with the highest accuracy."""
    worst: str
    """Label of the group with the lowest accuracy."""
    difference: Estimate
    """Highest minus lowest accuracy, with a simultaneous 95 % interval, and the number of problems in the two groups."""
    left_out: int
    """Number of groups with fewer than 20 problems, which are not compared."""

    def text(self) -> str:
        """Describe the gap in words."""
        value, low, high, _ = self.difference
        interval = f"95 % interval of all pairs of groups {100 * low:+z.1f} to {100 * high:+z.1f}"
        if math.isnan(low):
            interval = "no interval, because the accuracy varies within neither group"
        small = f"; groups of fewer than {MIN_PROBLEMS} problems left out: {self.left_out}" if self.left_out else ""
        return f"{self.best} is {100 * value:.1f} points above {self.worst} ({interval}{small})"


def group_gap(groups: Mapping[str, Float[np.ndarray, "_"]]) -> Gap | None:
    """Compute the gap between the best and the worst group, with an interval that accounts for selecting these two.

    With a probability of at least 95 %, the intervals for all m pairs of G groups contain the true differences (Bonferroni). If it
    contains 0, all groups may be equally accurate. If the fractions in both groups are all 0 or 1, the interval combines
    their Wilson intervals [l, u] at the Bonferroni level; otherwise it is Welch's interval from the variances v of the fractions,
    or NaN if neither group's fractions vary.
    Groups with fewer than 20 problems are omitted, because they are the best or worst mostly by chance, and their variances are too
    uncertain.

    ::

        d = p₁ − p₂,    m = G (G − 1) / 2
        0 or 1:    low = d − √((p₁ − l₁)² + (u₂ − p₂)²),    high = d + √((u₁ − p₁)² + (p₂ − l₂)²)
        otherwise: d ± t(1 − 0.025 / m; ν) √(v₁/n₁ + v₂/n₂),    ν = (v₁/n₁ + v₂/n₂)² / Σᵢ [(vᵢ/nᵢ)² / (nᵢ − 1)]

    Args:
        groups: label -> fraction of right answers to each problem in the group; NaN if it is unknown.

    Returns:
        The gap; None if fewer than two groups have at least 20 problems.

    Example:
        >>> gap = group_gap({"easy": np.repeat([1.0, 0.0], [180, 20]), "hard": np.repeat([1.0, 0.0], [80, 120])})
        >>> gap.best, gap.worst, round(gap.difference.low, 2), round(gap.difference.high, 2)
        ('easy', 'hard', 0.42, 0.57)

    Source:
        Newcombe, Interval Estimation for the Difference between Independent Proportions (1998), method 10, for one pair; Welch,
        The Generalization of "Student's" Problem when Several Different Population Variances are Involved (1947).
    """
    known = {label: shares[~np.isnan(shares)] for label, shares in groups.items()}
    large = {label: shares for label, shares in known.items() if len(shares) >= MIN_PROBLEMS}
    if len(large) < 2:
        return None
    worst, *_, best = sorted(large, key=lambda label: large[label].mean())
    first, second = large[best], large[worst]
    tail = _LEVEL / (len(large) * (len(large) - 1))  # one tail of one pair
    binary = np.isin(np.concatenate([first, second]), (0, 1)).all()
    low, high = (_newcombe if binary else _welch)(first, second, tail)
    value = float(first.mean() - second.mean())
    low, high = np.clip((low, high), -1.0, 1.0).tolist()  # NaN stays NaN
    difference = Estimate(value, low, high, len(first) + len(second))
    return Gap(best, worst, difference, len(known) - len(large))


def _newcombe(first: np.ndarray, second: np.ndarray, tail: float) -> tuple[float, float]:
    """Interval for the difference between two fractions of solved problems."""
    z = -float(ndtri(tail))
    p1, p2 = float(first.mean()), float(second.mean())
    (low1, high1), (low2, high2) = (wilson_interval(int(group.sum()), len(group), z=z) for group in (first, second))
    return p1 - p2 - math.hypot(p1 - low1, high2 - p2), p1 - p2 + math.hypot(high1 - p1, p2 - low2)


def _welch(first: np.ndarray, second: np.ndarray, tail: float) -> tuple[float, float]:
    """Interval for the difference between two means; NaN if neither group varies."""
    if np.ptp(first) == np.ptp(second) == 0:  # the variance of equal values need not be exactly 0
        return math.nan, math.nan
    variances = [float(group.var(ddof=1)) / len(group) for group in (first, second)]
    error, difference = math.sqrt(sum(variances)), float(first.mean() - second.mean())
    freedom = sum(variances) ** 2 / sum(v**2 / (len(g) - 1) for v, g in zip(variances, (first, second), strict=True))
    half_width = -float(stdtrit(freedom, tail)) * error
    return difference - half_width, difference + half_width
