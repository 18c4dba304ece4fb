"""Kendall's rank correlation of two lists, for example a paper's scores and our measurements, and its exact null distribution."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class RankCorrelation(NamedTuple):
    """Kendall's rank correlation of two lists, and its distribution if all orders were equally likely."""

    tau: float
    """Pairs in the same order minus pairs in opposite orders, as a fraction of all pairs; ties count for neither side."""
    low: float
    """Lower end of the central 95 % of the null distribution, in which all orders are equally likely."""
    high: float
    """Upper end of this central range."""
    share: float
    """Fraction of all orders of one list whose correlation is at least as far from 0 as `tau`: a two-sided p-value."""

    def text(self) -> str:
        """Format the correlation with the range expected by chance.

        Example:
            >>> permutation_test([1, 2, 3, 4], [0.1, 0.2, 0.4, 0.3]).text()
            'τ = 0.67; 95 % of all orders have a τ from -1.00 to 1.00, and 33 % one at least as far from 0'
        """
        return (
            f"τ = {self.tau:.2f}; 95 % of all orders have a τ from {self.low:.2f} to {self.high:.2f}, "
            f"and {100 * self.share:.0f} % one at least as far from 0"
        )


def kendall(one: Sequence[float], other: Sequence[float]) -> float:
    """Compute Kendall's rank correlation τ_a; ties count for neither side.

    ::

        τ = (pairs in the same order - pairs in opposite orders) / all pairs

    Args:
        one: a value for each of at least two items.
        other: another value for each item.

    Example:
        >>> kendall([1, 2, 3], [10, 30, 20])
        0.3333333333333333
    """
    pairs = [*itertools.combinations(range(len(one)), 2)]
    signs = [np.sign(one[right] - one[left]) * np.sign(other[right] - other[left]) for left, right in pairs]
    return float(np.sum(signs) / len(pairs))


def permutation_test(one: Sequence[float], other: Sequence[float]) -> RankCorrelation:
    """Compare a rank correlation with those of all permutations of one list.

    Args:
        one: a value for each of two to nine items.
        other: another value for each item.

    Raises:
        ValueError: the lists differ in length, or do not have two to nine items (with more, the permutations take too long).

    Example:
        >>> permutation_test([1, 2, 3, 4], [4, 3, 2, 1]).tau
        -1.0
    """
    if len(one) != len(other) or not 2 <= len(one) <= 9:
        raise ValueError(
            f"both lists must have the same number of items, from two to nine, got {len(one)} and {len(other)}"
        )
    left, right = np.array([*itertools.combinations(range(len(one)), 2)]).T
    orders = np.array([*itertools.permutations(range(len(one)))])
    signs = np.sign(np.asarray(one, float)[right] - np.asarray(one, float)[left]).astype(np.int8)
    values = np.asarray(other, float)[orders]
    taus = (np.sign(values[:, right] - values[:, left]).astype(np.int8) @ signs.astype(np.int32)) / len(left)
    tau = kendall(one, other)
    low, high = np.quantile(taus, [0.025, 0.975], method="inverted_cdf")
    return RankCorrelation(tau, float(low), float(high), float(np.mean(np.abs(taus) >= abs(tau) - 1e-12)))
