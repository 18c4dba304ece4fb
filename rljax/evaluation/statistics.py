"""Measures for several answers to each problem: pass@k, avg@n and maj@k, with intervals over problems.

Every measure returns one number per problem, NaN if too few answers were judged; `over_problems` averages these numbers. The
problems are the statistical sample: an interval shows how much the average would change with other problems of the same kind. The
answers to one problem are correlated, so they count as one observation.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped

MAX_SAMPLES = 1_000
"""Largest number of answers to one problem, because binomial coefficients of much larger numbers overflow a float."""
RESAMPLES = 2_000
"""Number of bootstrap resamples."""
_AT_ONCE = 200  # resamples in memory at once


class Estimate(NamedTuple):
    """An average over problems, with its 95 % interval."""

    value: float
    """The average; NaN if there are no problems."""
    low: float
    """Lower end of the interval; NaN if there is none."""
    high: float
    """Upper end of the interval; NaN if there is none."""
    problems: int
    """Number of problems in the average."""

    def text(self) -> str:
        """Format a fraction as a percentage, with its interval.

        Example:
            >>> Estimate(0.5, 0.25, 0.75, 8).text(), Estimate(0.5, math.nan, math.nan, 1).text()
            ('50.0% (25 to 75)', '50.0%')
            >>> Estimate(0.0, -1e-17, 0.18, 17).text()
            '0.0% (0 to 18)'
        """
        if math.isnan(self.value):
            return "-"
        interval = "" if math.isnan(self.low) else f" ({100 * self.low:z.0f} to {100 * self.high:z.0f})"
        return f"{self.value:z.1%}{interval}"


def wilson_interval(successes: int, trials: int, *, z: float = 1.959964) -> tuple[float, float]:
    """Score interval for a binomial proportion (Wilson 1927); [0, 1] if there are no trials.

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
    return max(0.0, middle - half), min(1.0, middle + half)


def paired_share_difference(before: Bool[np.ndarray, "P"], after: Bool[np.ndarray, "P"]) -> Estimate:
    """Change in the fraction p of right answers to the same problems, after minus before, with its 95 % score interval.

    The interval combines the Wilson intervals [l, u] of both fractions with the correlation φ of the pairs. Its width is positive
    even if all pairs agree, and it stays within [-1, 1].

    ::

        θ = p₂ − p₁,    low = θ − √(a² − 2φab + b²),  a = p₂ − l₂,  b = u₁ − p₁
                        high = θ + √(c² − 2φcd + d²),  c = u₂ − p₂,  d = p₁ − l₁

        φ = m / √((n₁₁ + n₁₀)(n₀₁ + n₀₀)(n₁₁ + n₀₁)(n₁₀ + n₀₀)),  0 if this is 0 / 0
        m = n₁₁n₀₀ − n₁₀n₀₁; if this is positive, m = max(n₁₁n₀₀ − n₁₀n₀₁ − P/2, 0)

    For example, n₁₀ is the number of problems that were answered right before and wrong afterwards.

    Args:
        before: whether the answer to each problem was right before, `[P]`.
        after: whether the answer to each problem was right afterwards, `[P]`.

    Returns:
        Difference, interval, and the number of problems; NaN if there are no problems.

    Example:
        >>> paired_share_difference(np.array([False] * 9), np.array([True] * 8 + [False])).text()
        '88.9% (45 to 98)'

    Source:
        Newcombe, Improved Confidence Intervals for the Difference between Binomial Proportions Based on Paired Data (1998),
        method 10.
    """
    problems = len(before)
    if problems == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    first, second = int(before.sum()), int(after.sum())
    both, neither = int((before & after).sum()), int((~before & ~after).sum())
    excess = both * neither - (first - both) * (second - both)
    excess = max(excess - problems / 2, 0.0) if excess > 0 else excess
    scale = math.sqrt(first * (problems - first) * second * (problems - second))
    correlation = excess / scale if scale else 0.0

    def half_width(one: float, other: float) -> float:
        return math.sqrt(max(one * one - 2 * correlation * one * other + other * other, 0.0))  # rounding can go below 0

    p1, p2 = first / problems, second / problems
    (low1, high1), (low2, high2) = wilson_interval(first, problems), wilson_interval(second, problems)
    difference = p2 - p1
    low, high = difference - half_width(p2 - low2, high1 - p1), difference + half_width(high2 - p2, p1 - low1)
    return Estimate(difference, low, high, problems)


def pass_at_k(right: Bool[np.ndarray, "P N"], judged: Bool[np.ndarray, "P N"], *, k: int) -> Float[np.ndarray, "P"]:
    """Probability that at least one of k answers is right: an unbiased estimate from n >= k answers.

    The plug-in estimate 1 − (1 − c/n)ᵏ would be too low, because it samples with replacement.

    ::

        pass@k = 1 − C(n − c, k) / C(n, k) = 1 − ∏_{j<k} (n − c − j)⁺ / (n − j)

    Args:
        right: whether an answer is right, `[P, N]`.
        judged: mask of the judged answers; for a problem, n is the number of judged answers, and c is the number of these that are
            right.
        k: number of attempts.

    Returns:
        One probability per problem, `[P]`; NaN if n < k.

    Raises:
        ValueError: k is not between 1 and N, or the shapes differ.

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
    """Mean over all n judged answers to each problem; for values of 0 and 1 this is pass@1.

    This is also the expected mean of any k of these answers, so avg@k from n >= k answers is the same for every k.

    ::

        avg@n = Σᵢ xᵢ / n

    Args:
        values: 1 for right and 0 for wrong, or rewards, `[P, N]`.
        judged: mask of the judged answers; the values of the others are ignored.

    Returns:
        One mean per problem, `[P]`; NaN if no answer was judged.

    Raises:
        ValueError: the shapes differ.

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

    Answers that tie for the most votes win with equal probability. An answer of None casts no vote; if no answer casts a vote, the
    majority counts as wrong. If equal answers were judged differently, the winner counts as right by the fraction of its votes that
    are right.

    ::

        maj@k = 1/C(n, k) · Σ_{S, |S| = k} mean_{a ∈ argmax_a v_S(a)} share_right(a),    v_S(a) = |{i ∈ S : aᵢ = a}|

    Args:
        answers: answer of each of N responses to each of P problems; equal answers must compare equal; None means no answer.
        right: whether an answer is right, `[P, N]`.
        judged: mask of the judged answers; the others are ignored.
        k: number of answers that vote.

    Returns:
        One probability per problem, `[P]`; NaN if fewer than k answers were judged.

    Raises:
        ValueError: k is not between 1 and N, or the shapes differ.

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
    """Average a fraction over problems, ignoring NaN, with a 95 % interval.

    Args:
        values: one fraction per problem, from 0 to 1, `[P]`.
        seed: seed of the bootstrap, if one is used; see `ratio_over_problems`.

    Returns:
        Average, interval, and the number of problems in the average.

    Example:
        >>> over_problems(np.array([1.0, 1.0, 1.0, 0.0, np.nan])).text()
        '75.0% (30 to 95)'
    """
    known = ~np.isnan(values)
    return ratio_over_problems(np.where(known, values, 0.0), known, seed=seed)


def ratio_over_problems(
    totals: Shaped[np.ndarray, "P"], counts: Shaped[np.ndarray, "P"], *, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """Fraction over all answers, with a 95 % interval over problems; problems may have different numbers of answers.

    If the answers to each problem are all right or all wrong, and all problems have the same number of answers or the same outcome,
    then the number of solved problems is binomial, and the interval is Wilson's. In all other cases the interval is a bootstrap
    interval: problems are resampled with replacement, and it contains the middle 95 % of the resampled averages.

    ::

        θ = Σ_p totals_p / Σ_p counts_p

    Args:
        totals: sum over the answers to each problem, such as the number of right answers, `[P]`.
        counts: number of answers to each problem, `[P]`; a problem without answers is ignored.
        seed: seed of the bootstrap; the same seed gives the same interval.
        resamples: number of resamples of the bootstrap.

    Returns:
        Average, interval, and the number of problems with answers. The average is NaN if there are no answers. The interval is NaN
        if all problems have the same fraction, other than 0 or 1, because the variance is then unknown.

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
    """Average values that are not fractions, such as rewards, over problems, ignoring NaN, with a bootstrap interval.

    Args:
        values: one number per problem, `[P]`.
        seed: seed of the bootstrap.

    Returns:
        Average, interval, and the number of problems in the average. The interval is NaN if all values are equal.

    Example:
        >>> mean_over_problems(np.array([1.0, 1.0, np.nan]))
        Estimate(value=1.0, low=nan, high=nan, problems=2)
    """
    known = values[~np.isnan(values)]
    return _bootstrap(known, np.ones(len(known)), seed, RESAMPLES)


def _bootstrap(totals: np.ndarray, counts: np.ndarray, seed: int, resamples: int) -> Estimate:
    """Resample problems with replacement; the interval is the middle 95 % of the averages, NaN if all fractions are equal."""
    problems = len(counts)
    if problems == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    value = float(totals.sum() / counts.sum())
    share = totals / counts
    if np.allclose(share, share[0], rtol=1e-12, atol=1e-12):  # equal up to rounding
        return Estimate(value, math.nan, math.nan, problems)
    rng = np.random.default_rng(seed)
    means = []
    for begin in range(0, resamples, _AT_ONCE):
        resampled = rng.integers(problems, size=(min(_AT_ONCE, resamples - begin), problems))
        means.append(totals[resampled].sum(-1) / counts[resampled].sum(-1))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return Estimate(value, float(low), float(high), problems)


def _check(values: np.ndarray, judged: np.ndarray, *, k: int = 1) -> None:
    if values.ndim != 2 or values.shape != judged.shape:
        raise ValueError(f"the answers and `judged` must both be [P, N], got {values.shape} and {judged.shape}")
    most = min(values.shape[1], MAX_SAMPLES)
    if not 1 <= k <= most:
        raise ValueError(f"k must be from 1 to {most} for {values.shape[1]} answers per problem, got {k}")


def _majority(answers: Sequence[Hashable | None], right: np.ndarray, judged: np.ndarray, k: int) -> float:
    """Compute maj@k for one problem."""
    rows = [(answer, bool(good)) for answer, good, is_judged in zip(answers, right, judged, strict=True) if is_judged]
    if len(rows) < k:
        return math.nan
    votes = Counter(answer for answer, _ in rows)
    abstentions = votes.pop(None, 0)
    right_votes = Counter(answer for answer, good in rows if good)
    groups = sorted((count, right_votes[answer] / count) for answer, count in votes.items())
    return _expected_majority(tuple(groups), abstentions, k)


@lru_cache(maxsize=100_000)  # with few samples, many problems have the same groups
def _expected_majority(groups: tuple[tuple[int, float], ...], abstentions: int, k: int) -> float:
    """Compute maj@k from the size of each group of equal answers and the fraction of right answers in each group.

    For each possible number t of winning votes, `ways[w, s]` counts the ways to pick w answers such that s groups have t of these
    and no group has more; `worth[w, s]` is the sum of these s groups' fractions over the same ways.
    """
    n = abstentions + sum(size for size, _ in groups)
    expected = 0.0
    for t in range(1, min(k, max((size for size, _ in groups), default=0)) + 1):
        ways = np.zeros((k + 1, k // t + 1))
        ways[: min(abstentions, k) + 1, 0] = [math.comb(abstentions, w) for w in range(min(abstentions, k) + 1)]
        worth = np.zeros_like(ways)
        for size, fraction in groups:
            more_ways, more_worth = np.zeros_like(ways), np.zeros_like(ways)
            for picked in range(min(size, t - 1) + 1):
                more_ways[picked:] += math.comb(size, picked) * ways[: k + 1 - picked]
                more_worth[picked:] += math.comb(size, picked) * worth[: k + 1 - picked]
            if size >= t:
                more_ways[t:, 1:] += math.comb(size, t) * ways[:-t, :-1]
                more_worth[t:, 1:] += math.comb(size, t) * (worth[:-t, :-1] + fraction * ways[:-t, :-1])
            ways, worth = more_ways, more_worth
        expected += float((worth[k, 1:] / np.arange(1, worth.shape[1])).sum())
    return expected / math.comb(n, k)
