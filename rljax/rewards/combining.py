"""Combination of several rewards into one number for each completion."""

from collections.abc import Callable
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool, Float32

Combination = Callable[
    [Float32[np.ndarray, "K N"], Bool[np.ndarray, "K N"], Float32[np.ndarray, "K"]], Float32[np.ndarray, "N"]
]
"""(rewards of K parts for N completions, which of them have an opinion, weights) -> one number for each completion; 0 where no part
has an opinion."""


def weighted_sum(
    values: Float32[np.ndarray, "K N"], valid: Bool[np.ndarray, "K N"], weights: Float32[np.ndarray, "K"]
) -> Float32[np.ndarray, "N"]:
    """Sum of the weighted rewards that have an opinion.

    Args:
        values: r, rewards of K parts.
        valid: which of them have an opinion.
        weights: w, of the parts.

    Example:
        >>> values, valid = np.float32([[1, 2], [3, 0]]), np.array([[True, True], [True, False]])
        >>> weighted_sum(values, valid, np.float32([1, 0.5])).tolist()
        [2.5, 2.0]
    """
    total = np.zeros(values.shape[1], np.float32)
    for weight, row, has_opinion in zip(weights, values, valid, strict=True):
        total += weight * np.where(has_opinion, row, np.float32(0))
    return total


def least(
    values: Float32[np.ndarray, "K N"], valid: Bool[np.ndarray, "K N"], weights: Float32[np.ndarray, "K"]
) -> Float32[np.ndarray, "N"]:
    """The smallest of the weighted rewards that have an opinion: what one part overrates gains nothing while another does not.

    ::

        r = min_k w_k r_k

    The parts need scores of the same scale, as those of reward models that were trained alike on the same pairs.

    Args:
        values: r, rewards of K parts.
        valid: which of them have an opinion.
        weights: w, of the parts.

    Example:
        >>> values, valid = np.float32([[1, 2], [-3, 0]]), np.array([[True, True], [True, False]])
        >>> least(values, valid, np.float32([1, 0.5])).tolist()
        [-1.5, 2.0]

    Source:
        Coste et al., "Reward Model Ensembles Help Mitigate Overoptimization", arXiv:2310.02743, worst-case optimisation.
    """
    smallest = np.where(valid, weights[:, None] * values, np.float32(np.inf)).min(axis=0)
    return np.where(valid.any(axis=0), smallest, np.float32(0))


COMBINATIONS: MappingProxyType[str, Combination] = MappingProxyType({"sum": weighted_sum, "min": least})
"""Name in `--reward-combine` -> the function."""
