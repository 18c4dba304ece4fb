"""pass@k, avg@n and maj@k, checked by enumerating all subsets, and intervals, checked for published values and coverage."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from rljax.evaluation.statistics import (
    MAX_SAMPLES,
    Estimate,
    average_at_n,
    majority_at_k,
    mean_over_problems,
    over_problems,
    paired_share_difference,
    pass_at_k,
    ratio_over_problems,
    wilson_interval,
)

N = 6
RNG = np.random.default_rng(0)


def subsets(judged, k):
    return list(itertools.combinations(np.flatnonzero(judged), k))


def enumerate_pass(right, judged, k):
    picks = subsets(judged, k)
    return sum(any(right[i] for i in pick) for pick in picks) / len(picks) if picks else math.nan


def enumerate_majority(answers, right, judged, k):
    """The mean score over all subsets. Tied winners count equally.

    A winner scores the fraction of all judged answers equal to it that are right.
    """
    picks, total = subsets(judged, k), 0.0
    for pick in picks:
        votes = Counter(answers[i] for i in pick if answers[i] is not None)
        most = max(votes.values(), default=0)
        winners = [answer for answer, count in votes.items() if count == most]
        for winner in winners:
            voters = [i for i in np.flatnonzero(judged) if answers[i] == winner]
            total += sum(bool(right[i]) for i in voters) / len(voters) / len(winners)
    return total / len(picks) if picks else math.nan


@pytest.mark.parametrize("k", range(1, N + 1))
def test_pass_at_k_matches_enumeration(k):
    right = np.array(list(itertools.product([False, True], repeat=N)))
    judged = RNG.random(right.shape) < 0.8
    expected = [enumerate_pass(*row, k) for row in zip(right, judged, strict=True)]
    np.testing.assert_allclose(pass_at_k(right, judged, k=k), expected, rtol=1e-12, atol=1e-15)


def test_pass_at_k_of_many_samples():
    right = (np.arange(200) < np.array([[0], [1], [37], [200]]))[:, RNG.permutation(200)]
    found = pass_at_k(right, np.ones_like(right), k=100)
    expected = [1 - math.comb(200 - c, 100) / math.comb(200, 100) for c in (0, 1, 37, 200)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("k", range(1, N + 1))
def test_majority_at_k_matches_enumeration(k):
    answers = RNG.choice(np.array(["a", "b", "c", None], object), size=(150, N))
    right = (answers == "a") | ((answers == "b") & (RNG.random(answers.shape) < 0.3))
    judged = RNG.random(right.shape) < 0.85
    expected = [enumerate_majority(*row, k) for row in zip(answers, right, judged, strict=True)]
    np.testing.assert_allclose(majority_at_k(answers.tolist(), right, judged, k=k), expected, rtol=1e-12, atol=1e-15)


def test_majority_at_1_is_pass_at_1():
    answers = RNG.choice(np.array(["a", "b", None], object), size=(20, N))
    right, judged = answers == "a", np.ones((20, N), bool)
    np.testing.assert_allclose(majority_at_k(answers.tolist(), right, judged, k=1), pass_at_k(right, judged, k=1))


def test_majority_at_k_of_many_samples_is_finite():
    answers = [[str(i % 3) if i % 5 else None for i in range(MAX_SAMPLES)]]
    right = np.array([[answer == "1" for answer in answers[0]]])
    (accuracy,) = majority_at_k(answers, right, np.ones_like(right), k=3)
    assert 0.3 < accuracy < 0.37


def test_average_at_n_ignores_unjudged():
    values = np.array([[1.0, np.nan, 0.5], [np.nan, np.inf, np.nan]])
    judged = np.array([[True, False, True], [False, False, False]])
    np.testing.assert_array_equal(average_at_n(values, judged), [0.75, np.nan])


@pytest.mark.parametrize("measure", [pass_at_k, lambda *arrays, k: majority_at_k([[None] * 3] * 2, *arrays, k=k)])
@pytest.mark.parametrize("k", [0, 4])
def test_k_out_of_range(measure, k):
    with pytest.raises(ValueError, match=f"k must be from 1 to 3 for 3 answers per problem, got {k}"):
        measure(np.ones((2, 3), bool), np.ones((2, 3), bool), k=k)


def test_mismatched_shapes(without_type_checks):
    ones = np.ones((2, 3), bool)
    with pytest.raises(ValueError, match=r"must both be \[P, N\], got \(2, 3\) and \(3, 2\)"):
        average_at_n(ones, ones.T)
    with pytest.raises(ValueError, match=r"must both be \[P, N\]"):
        pass_at_k(ones[0], ones[0], k=1)
    with pytest.raises(ValueError, match=r"answers must have the shape of right, \(2, 3\), got rows of \[3, 2\]"):
        majority_at_k([["a"] * 3, ["a"] * 2], ones, ones, k=1)


def test_wilson_interval():
    low, high = wilson_interval(50, 100)
    assert (low, high) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_binary_problems_have_wilson_interval():
    found = over_problems(np.array([1.0] * 8 + [0.0] * 2 + [np.nan]))
    assert found == pytest.approx((0.8, 0.4901625, 0.9433178, 10), abs=1e-6)
    assert ratio_over_problems(np.array([4.0, 7.0]), np.array([4, 7])).low == pytest.approx(2 / (2 + 1.959964**2))


def test_partial_credit_has_bootstrap_interval():
    """A resample of two problems has the first twice (probability 1/4), the second twice (1/4), or both."""
    found = ratio_over_problems(np.array([1.0, 6.0, 0.0]), np.array([4, 8, 0]))
    assert found == Estimate(7 / 12, 0.25, 0.75, 2)


def test_bootstrap_width_and_seed():
    values = RNG.random(400)
    found = over_problems(values)
    width = 2 * 1.96 * values.std() / math.sqrt(400)
    assert found.high - found.low == pytest.approx(width, rel=0.08)
    assert found == over_problems(values)
    assert found != over_problems(values, seed=1)


def test_intervals_depend_on_problems_not_answers():
    """More answers per problem do not narrow the interval if each problem's accuracy stays the same."""
    accuracy = np.arange(20) % 2 * 0.9 + 0.05
    few = ratio_over_problems(accuracy * 2, np.full(20, 2.0))
    assert ratio_over_problems(accuracy * 1000, np.full(20, 1000.0)) == pytest.approx(few)
    assert few.high - few.low > 0.3


def test_no_interval_for_fewer_than_two_problems():
    assert np.isnan(over_problems(np.array([np.nan]))[:3]).all()
    single = over_problems(np.array([0.5]))
    assert single.value == 0.5
    assert np.isnan([single.low, single.high]).all()
    assert single.text() == "50.0%"
    assert over_problems(np.array([np.nan])).text() == "-"


@pytest.mark.parametrize("measure", [over_problems, mean_over_problems])
def test_no_interval_for_equal_problems(measure):
    """The variance of equal fractions is unknown, not 0; if all are 0 or 1, only their number has a distribution."""
    found = measure(np.array([0.5, 0.5, np.nan, 0.5]))
    assert found[::3] == (0.5, 3)
    assert np.isnan([found.low, found.high]).all()
    assert np.isnan(ratio_over_problems(np.array([1.0, 2.0]), np.array([3, 6])).low)


def test_mean_over_problems_uses_bootstrap():
    values = RNG.normal(5, 2, 300)
    found = mean_over_problems(values)
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / math.sqrt(300), rel=0.08)
    assert np.isnan(mean_over_problems(np.array([np.nan])).value)


def pairs(both, first, second, neither):
    before = [True] * (both + first) + [False] * (second + neither)
    return np.array(before, bool), np.array([True] * both + [False] * first + [True] * second + [False] * neither, bool)


def test_paired_share_difference_matches_newcombe():
    """The paper's figures for method 10: the first proportion minus the second."""
    for counts, low, high in (((36, 12, 2, 0), 0.0569, 0.3404), ((54, 0, 0, 0), -0.0664, 0.0664)):
        before, after = pairs(*counts)
        found = paired_share_difference(after, before)
        assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))
        swapped = paired_share_difference(before, after)
        assert (swapped.low, swapped.high) == (pytest.approx(-high, abs=5e-5), pytest.approx(-low, abs=5e-5))
    assert math.isnan(paired_share_difference(*pairs(0, 0, 0, 0)).value)


def test_paired_share_difference_coverage():
    """Exact coverage: every possible table of 10 pairs, weighted by its probability."""
    n = 10
    tables = [(a, b, c, n - a - b - c) for a in range(n + 1) for b in range(n + 1 - a) for c in range(n + 1 - a - b)]
    intervals = [paired_share_difference(*pairs(*table)) for table in tables]
    ways = [math.factorial(n) // math.prod(map(math.factorial, table)) for table in tables]
    for chances in ((0.4, 0.1, 0.3, 0.2), (0.7, 0.05, 0.05, 0.2), (0.25, 0.25, 0.25, 0.25), (0.9, 0.0, 0.1, 0.0)):
        weights = [
            way * math.prod(p**k for p, k in zip(chances, t, strict=True)) for way, t in zip(ways, tables, strict=True)
        ]
        difference = chances[2] - chances[1]
        covered = [found.low <= difference <= found.high for found in intervals]
        assert sum(weights) == pytest.approx(1)
        assert sum(w for w, inside in zip(weights, covered, strict=True) if inside) > 0.93
