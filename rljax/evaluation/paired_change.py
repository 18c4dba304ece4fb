"""Paired change in per-problem accuracy between two evaluations."""

import math

import numpy as np
from jaxtyping import Float

from rljax.evaluation.statistics import Estimate, mean_over_problems, paired_share_difference


def format_points(estimate: Estimate) -> str:
    """Format a difference between two fractions in percentage points, with its interval.

    Example:
        >>> format_points(Estimate(-0.031, -0.05, 0.01, 256))
        '-3.1 points (-5.0 to +1.0)'
    """
    if math.isnan(estimate.value):
        return "-"
    ends = "" if math.isnan(estimate.low) else f" ({100 * estimate.low:+z.1f} to {100 * estimate.high:+z.1f})"
    return f"{100 * estimate.value:+z.1f} points{ends}"


def paired_change(before: Float[np.ndarray, "P"], after: Float[np.ndarray, "P"]) -> Estimate:
    """Compute the mean change in a per-problem fraction, after minus before, with a 95 % interval over problems.

    Args:
        before: a fraction for each problem, such as its accuracy; NaN if it is unknown.
        after: the same fractions afterwards.

    Returns:
        The estimate over problems that are NaN in neither array. The interval is the score interval if all fractions are 0 or 1,
        else a bootstrap interval, which is NaN if all differences are equal, because their variance is then unknown.

    Example:
        >>> paired_change(np.array([1.0, 1.0, np.nan]), np.array([0.0, 1.0, 1.0])).value
        -0.5
    """
    known = ~np.isnan(before) & ~np.isnan(after)
    first, second = before[known], after[known]
    if np.isin(first, (0, 1)).all() and np.isin(second, (0, 1)).all():
        return paired_share_difference(first > 0, second > 0)
    return mean_over_problems(second - first)
