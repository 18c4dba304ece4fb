"""Measures of several answers to each problem: pass@k, avg@n and maj@k, with intervals over problems.

Every measure gives one number a problem, NaN where too few answers were judged; `over_problems` averages them. The problems
are the sample: an interval says how much the average would change with other problems of the same kind. The answers to one problem
are correlated, so they count as one observation.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped

from rljax.records import documented

MOST_SAMPLES = 1_000
"""Answers to one problem; the number of ways to choose from more does not fit a float."""
RESAMPLES = 2_000
_AT_ONCE = 200  # resamples in one piece of memory


@documented
class Estimate(NamedTuple):
    """An average over problems, with its 95 % interval."""

    value: float
    low: float
    high: float
    problems: int
    """How many problems it is taken over."""

    def text(self) -> str:
        """Write a share for a person, in per cent.

        Example:
            >>> Estimate(0.5, 0.25, 0.75, 8).text(), Estimate(0.5, math.nan, math.nan, 1).text()
            ('50.0% (25 to 75)', '50.0%')
        """
        if math.isnan(self.value):
            return "-"
        interval = "" if math.isnan(self.low) else f" ({100 * self.low:.0f} to {100 * self.high:.0f})"
        return f"{self.value:.1%}{interval}"


def wilson_interval(successes: int, trials: int, *, z: float = 1.959964) -> tuple[float, float]:
    """Score interval of a share (Wilson 1927); [0, 1] without trials.

    Example:
        >>> low, high = wilson_interval(8, 10)
        >>> round(low, 3), round(high, 3)
        (0.49, 0.943)
    """
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    scale = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / scale
    return middle - half, middle + half


def pass_at_k(right: Bool[np.ndarray, "P N"], judged: Bool[np.ndarray, "P N"], *, k: int) -> Float[np.ndarray, "P"]:
    """Probability that at least one of k answers is right, without bias from n >= k of them.

    The plug-in 1 − (1 − c/n)ᵏ would be too low: it draws with replacement.

    ::

        pass@k = 1 − C(n − c, k) / C(n, k) = 1 − ∏_{j<k} (n − c − j)⁺ / (n − j)

    Args:
        right: whether an answer is right, `[P, N]`.
        judged: which answers were judged; n of a problem counts these, c those among them that are right.
        k: answers that one may give.

    Returns:
        One probability a problem, `[P]`; NaN where n < k.

    Raises:
        ValueError: k not from 1 to N, or shapes that differ.

    Example:
        >>> right = np.array([[True, False, False, False], [False] * 4])
        >>> pass_at_k(right, np.ones((2, 4), bool), k=2)
        array([0.5, 0. ])

    Source:
        Chen et al., Evaluating Large Language Models Trained on Code, arXiv:2107.03374, Eq. 1.
    """
    _check(right, judged, k=k)
    n = judged.sum(-1)
    wrong = n - (right & judged).sum(-1)
    missed = np.ones(len(n))
    for j in range(k):
        missed *= np.maximum(wrong - j, 0) / np.maximum(n - j, 1)
    return np.where(n >= k, 1 - missed, np.nan)


def average_at_n(values: Shaped[np.ndarray, "P N"], judged: Bool[np.ndarray, "P N"]) -> Float[np.ndarray, "P"]:
    """Mean over all n judged answers to each problem; of 0 and 1, this is pass@1.

    It is also the expected mean of any k of them, so avg@k from n >= k answers is this number for every k.

    ::

        avg@n = Σᵢ xᵢ / n

    Args:
        values: right or wrong, or rewards, `[P, N]`.
        judged: which answers were judged; the values of the others are not looked at.

    Returns:
        One mean a problem, `[P]`; NaN where none was judged.

    Raises:
        ValueError: shapes that differ.

    Example:
        >>> average_at_n(np.array([[1.0, 0.0], [1.0, np.nan]]), np.array([[True, True], [True, False]]))
        array([0.5, 1. ])

    Source:
        The avg@32 of Yu et al., DAPO, arXiv:2503.14476, Section 4.1.
    """
    _check(values, judged)
    n = judged.sum(-1)
    return np.where(n > 0, np.where(judged, values, 0).sum(-1) / np.maximum(n, 1), np.nan)


def majority_at_k(
    answers: Sequence[Sequence[Hashable | None]],
    right: Bool[np.ndarray, "P N"],
    judged: Bool[np.ndarray, "P N"],
    *,
    k: int,
) -> Float[np.ndarray, "P"]:
    """Probability that the most frequent of k answers is right: the exact expectation over all sets of k of the n answers.

    Answers that tie for the most votes win with equal probability. One that is None has no vote; where nobody votes, nothing
    is right. Should equal answers be judged differently, the winner counts with the share of its voters that are right.

    ::

        maj@k = 1/C(n, k) · Σ_{S, |S| = k} mean_{a ∈ argmax_a v_S(a)} share_right(a),    v_S(a) = |{i ∈ S : aᵢ = a}|

    Args:
        answers: what each of N responses to each of P problems answers, equal objects for equal answers; None for no answer.
        right: whether an answer is right, `[P, N]`.
        judged: which answers were judged; the others take no part.
        k: how many vote.

    Returns:
        One probability a problem, `[P]`; NaN where fewer than k answers were judged.

    Raises:
        ValueError: k not from 1 to N, or shapes that differ.

    Example:
        >>> right = np.array([[True, True, False, False]])
        >>> majority_at_k([["7", "7", "5", "6"]], right, np.ones((1, 4), bool), k=4)
        array([1.])
        >>> majority_at_k([["7", "7", "5", "6"]], right, np.ones((1, 4), bool), k=1)
        array([0.5])

    Source:
        Wang et al., Self-Consistency Improves Chain of Thought Reasoning in Language Models, arXiv:2203.11171, Section 2
        (the unweighted sum of its Table 1).
    """
    _check(right, judged, k=k)
    if [len(row) for row in answers] != [right.shape[1]] * right.shape[0]:
        raise ValueError(
            f"answers must have the shape of right, {right.shape}, got rows of {[len(row) for row in answers]}"
        )
    return np.array([_majority(*row, k) for row in zip(answers, right, judged, strict=True)])


def over_problems(values: Float[np.ndarray, "P"], *, seed: int = 0) -> Estimate:
    """Average of shares over problems, NaN left out, with a 95 % interval.

    Args:
        values: one a problem, from 0 to 1, `[P]`.
        seed: of the bootstrap, where there is one; see `ratio_over_problems`.

    Returns:
        Average, interval, and the number of problems that it is taken over.

    Example:
        >>> over_problems(np.array([1.0, 1.0, 1.0, 0.0, np.nan])).text()
        '75.0% (30 to 95)'
    """
    known = ~np.isnan(values)
    return ratio_over_problems(np.where(known, values, 0.0), known, seed=seed)


def ratio_over_problems(
    totals: Shaped[np.ndarray, "P"], counts: Shaped[np.ndarray, "P"], *, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """Share of the answers, of which problems have different numbers, with a 95 % interval over problems.

    Where each problem is all right or all wrong and all weigh the same, or all are right, or all wrong, the number of right
    problems is a count, and the interval is Wilson's. Elsewhere it is that of the bootstrap: whole problems are drawn with
    replacement, and the interval holds the middle 95 % of the averages.

    ::

        θ = Σ_p totals_p / Σ_p counts_p

    Args:
        totals: how many of a problem's answers count, `[P]`.
        counts: how many answers these are, `[P]`; a problem with 0 takes no part.
        seed: of the bootstrap; the same one gives the same interval.
        resamples: of the bootstrap.

    Returns:
        Average, interval, and the number of problems with answers. NaN without answers; no interval for a single problem
        that is neither all right nor all wrong.

    Example:
        >>> ratio_over_problems(np.array([2.0, 0.0, 3.0]), np.array([4, 2, 4])).text()
        '50.0% (0 to 75)'

    Source:
        Efron and Tibshirani, An Introduction to the Bootstrap (1993), Section 13.3; Wilson (1927).
    """
    totals, counts = totals[counts > 0].astype(float), counts[counts > 0].astype(float)
    share = totals / counts
    if len(counts) and np.isin(share, (0, 1)).all() and (np.ptp(counts) == 0 or np.ptp(share) == 0):
        return Estimate(float(totals.sum() / counts.sum()), *wilson_interval(int(share.sum()), len(counts)), len(counts))
    return _bootstrap(totals, counts, seed, resamples)


def mean_over_problems(values: Float[np.ndarray, "P"], *, seed: int = 0) -> Estimate:
    """Average over problems of what is no share, such as rewards and lengths; NaN left out, with the bootstrap's interval.

    Args:
        values: one a problem, `[P]`.
        seed: of the bootstrap.

    Returns:
        Average, interval, and the number of problems that it is taken over; no interval for a single problem.

    Example:
        >>> mean_over_problems(np.array([1.0, 1.0, np.nan]))
        Estimate(value=1.0, low=1.0, high=1.0, problems=2)
    """
    known = values[~np.isnan(values)]
    return _bootstrap(known, np.ones(len(known)), seed, RESAMPLES)


def _bootstrap(totals: np.ndarray, counts: np.ndarray, seed: int, resamples: int) -> Estimate:
    """Draw problems with replacement; the interval holds the middle 95 % of the averages."""
    problems = len(counts)
    if problems == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    value = float(totals.sum() / counts.sum())
    if problems == 1:
        return Estimate(value, math.nan, math.nan, 1)
    rng = np.random.default_rng(seed)
    means = []
    for begin in range(0, resamples, _AT_ONCE):
        drawn = rng.integers(problems, size=(min(_AT_ONCE, resamples - begin), problems))
        means.append(totals[drawn].sum(-1) / counts[drawn].sum(-1))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return Estimate(value, float(low), float(high), problems)


def _check(values: np.ndarray, judged: np.ndarray, *, k: int = 1) -> None:
    if values.ndim != 2 or values.shape != judged.shape:
        raise ValueError(
            f"the answers and where they were judged must both be [P, N], got {values.shape} and {judged.shape}"
        )
    most = min(values.shape[1], MOST_SAMPLES)
    if not 1 <= k <= most:
        raise ValueError(f"k must be from 1 to {most} for {values.shape[1]} answers a problem, got {k}")


def _majority(answers: Sequence[Hashable | None], right: np.ndarray, judged: np.ndarray, k: int) -> float:
    """maj@k of one problem."""
    rows = [(answer, bool(good)) for answer, good, seen in zip(answers, right, judged, strict=True) if seen]
    if len(rows) < k:
        return math.nan
    votes = Counter(answer for answer, _ in rows)
    silent = votes.pop(None, 0)
    agreed = Counter(answer for answer, good in rows if good)
    camps = sorted((count, agreed[answer] / count) for answer, count in votes.items())
    return _expected_majority(tuple(camps), silent, k)


@lru_cache(maxsize=100_000)  # with few samples most problems split alike
def _expected_majority(camps: tuple[tuple[int, float], ...], silent: int, k: int) -> float:
    """maj@k from the sizes of the camps that answer alike, and their share of right answers.

    For each number of votes t that may win, `ways[w, s]` counts the ways to pick w answers such that s camps have t of them and
    no camp more; `worth[w, s]` adds the shares right of these s camps up over the same ways.
    """
    n = silent + sum(size for size, _ in camps)
    expected = 0.0
    for t in range(1, min(k, max((size for size, _ in camps), default=0)) + 1):
        ways = np.zeros((k + 1, k // t + 1))
        ways[: min(silent, k) + 1, 0] = [math.comb(silent, w) for w in range(min(silent, k) + 1)]
        worth = np.zeros_like(ways)
        for size, share in camps:
            more_ways, more_worth = np.zeros_like(ways), np.zeros_like(ways)
            for picked in range(min(size, t - 1) + 1):
                more_ways[picked:] += math.comb(size, picked) * ways[: k + 1 - picked]
                more_worth[picked:] += math.comb(size, picked) * worth[: k + 1 - picked]
            if size >= t:
                more_ways[t:, 1:] += math.comb(size, t) * ways[:-t, :-1]
                more_worth[t:, 1:] += math.comb(size, t) * (worth[:-t, :-1] + share * ways[:-t, :-1])
            ways, worth = more_ways, more_worth
        expected += float((worth[k, 1:] / np.arange(1, worth.shape[1])).sum())
    return expected / math.comb(n, k)
