"""Best of N: accuracy of the response that a chooser selects from k responses, as a function of k."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from jaxtyping import Bool, Float
from rich.table import Table

from rljax.evaluation.answers import SampledAnswers
from rljax.evaluation.statistics import Estimate, majority_at_k, over_problems, pass_at_k

VERIFIER, VOTES = "verifier", "votes"
"""Choosers without scores: the verifier selects a right response if there is one; votes select the most frequent answer."""


def best_at_k(
    scores: Float[np.ndarray, "P N"], right: Bool[np.ndarray, "P N"], judged: Bool[np.ndarray, "P N"], *, k: int
) -> Float[np.ndarray, "P"]:
    """Probability that the response with the highest of k scores is right: the exact mean over all sets of k judged responses.

    Responses that tie for the highest score are chosen with equal probability.

    ::

        best@k = Σ_s (C(b_s + m_s, k) − C(b_s, k)) / C(n, k) · share_right(s)

    The sum is over the distinct scores s. Of the n judged responses, m_s have the score s, and b_s have a lower score;
    share_right(s) is the fraction of the m_s responses that is right.

    Args:
        scores: score of each of N responses to each of P problems, `[P, N]`; NaN (no score) ranks below every number.
        right: whether a response is right, `[P, N]`.
        judged: mask of the judged responses, `[P, N]`; the others are ignored.
        k: number of responses to choose from.

    Returns:
        One probability per problem, `[P]`; NaN if fewer than k responses were judged.

    Raises:
        ValueError: k is not between 1 and N, or the shapes differ.

    Example:
        >>> right = np.array([[True, False, False, False]])
        >>> judged = np.ones((1, 4), bool)
        >>> best_at_k(np.array([[0.9, 0.1, 0.2, 0.3]]), right, judged, k=2)
        array([0.5])
        >>> best_at_k(np.array([[0.5, 0.5, 0.5, 0.5]]), right, judged, k=4)
        array([0.25])

    Source:
        Nakano et al., WebGPT, arXiv:2112.09332, Appendix I, for scores without ties.
    """
    if not scores.shape == right.shape == judged.shape or scores.ndim != 2:
        raise ValueError(f"all arrays must be [P, N], got {scores.shape}, {right.shape} and {judged.shape}")
    if not 1 <= k <= scores.shape[1]:
        raise ValueError(f"k must be from 1 to {scores.shape[1]} for {scores.shape[1]} responses per problem, got {k}")
    lowest = np.where(np.isnan(scores), -np.inf, scores)
    return np.array([_best(*row, k) for row in zip(lowest, right, judged, strict=True)])


def _best(scores: np.ndarray, right: np.ndarray, judged: np.ndarray, k: int) -> float:
    """Compute best@k for one problem."""
    rows = sorted(zip(scores[judged].tolist(), right[judged].tolist(), strict=True))
    if len(rows) < k:
        return math.nan
    expected, below = 0.0, 0
    for _, tied in groupby(rows, key=lambda row: row[0]):
        outcomes = [good for _, good in tied]
        ways = math.comb(below + len(outcomes), k) - math.comb(below, k)
        expected += ways / math.comb(len(rows), k) * sum(outcomes) / len(outcomes)
        below += len(outcomes)
    return expected


def accuracy_of_chosen(
    sampled: SampledAnswers, chooser: str, *, k: int, right_above: float | None = None
) -> Float[np.ndarray, "P"]:
    """Compute, for each problem, the probability that the response a chooser selects from k responses is right.

    See `accuracy_by_chooser` for the arguments.
    """
    right, known = sampled.correctness_masks(right_above)
    if chooser == VERIFIER:
        return pass_at_k(right, known, k=k)
    if chooser == VOTES:
        return majority_at_k(sampled.answers, right, known, k=k)
    return best_at_k(sampled.scores[chooser], right, known, k=k)


def accuracy_by_chooser(
    sampled: SampledAnswers, choosers: Sequence[str], *, at: Sequence[int], right_above: float | None = None
) -> dict[str, dict[int, Estimate]]:
    """Accuracy of the chosen response as a function of the number of responses.

    Args:
        sampled: N responses to each of P problems, with the scores of every chooser except `verifier` and `votes`.
        choosers: `verifier` (pass@k), `votes` (maj@k), and names of `sampled.scores` (best@k).
        at: the values of k, at most N.
        right_above: a response is right if its reward exceeds this; None lets the verifier decide.

    Returns:
        Mapping chooser -> k -> accuracy with its 95 % interval over problems.

    Example:
        >>> rewards, scores = np.array([[1.0, 0.0]]), {"critic": np.array([[0.7, 0.2]])}
        >>> sampled = SampledAnswers(rewards, np.ones((1, 2), int), rewards < 0, [["2", "3"]], scores=scores)
        >>> accuracy_by_chooser(sampled, ["critic"], at=[1, 2])["critic"][2].value
        1.0
    """
    return {
        chooser: {k: over_problems(accuracy_of_chosen(sampled, chooser, k=k, right_above=right_above)) for k in at}
        for chooser in choosers
    }


def chosen_table(chosen: Mapping[str, Mapping[int, Estimate]]) -> Table:
    """Make a table with a row for each number of responses and a column for each chooser."""
    table = Table(title="Accuracy of the chosen response")
    table.add_column("responses", justify="right")
    for chooser in chosen:
        table.add_column(chooser, justify="right")
    for k in next(iter(chosen.values())):
        table.add_row(str(k), *(estimates[k].text() for estimates in chosen.values()))
    return table
