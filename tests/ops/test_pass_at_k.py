"""Pass@k credit, checked by enumerating subsets and outcomes, and in special cases."""

from itertools import combinations, product
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops import group, pass_at_k

P, G = 3, 5
rewards_of = hnp.arrays(np.float64, (P, G), elements=st.integers(-20, 20).map(lambda n: n / 10))
valid_of = hnp.arrays(bool, (P, G))


def mean_best_reward_with(rewards, k, i):
    """Sum of the best rewards of the k-subsets that contain response i, divided by the number of all k-subsets."""
    subsets = [s for s in combinations(range(len(rewards)), k) if i in s]
    return sum(max(rewards[j] for j in s) for s in subsets) / comb(len(rewards), k)


def slow_credit(rewards, k):
    return [len(rewards) * mean_best_reward_with(rewards, k, i) for i in range(len(rewards))]


def slow_leave_one_out(rewards, k):
    n, result = len(rewards), []
    for i in range(n):
        others = rewards[:i] + rewards[i + 1 :]
        baseline = sum(mean_best_reward_with(others, k, j) for j in range(n - 1)) / (n - 1)
        result.append(n * (mean_best_reward_with(rewards, k, i) - baseline))
    return result


def slow_marginal(rewards, k):
    n, result = len(rewards), []
    for i in range(n):
        subsets = [s for s in combinations(range(n), k) if i in s]
        gain = sum(max(rewards[j] for j in s) - max(rewards[j] for j in s if j != i) for s in subsets)
        result.append(n * gain / comb(n, k))
    return result


def slow_normalized(rewards, k, eps=1e-6):
    n = len(rewards)
    subsets = list(combinations(range(n), k))
    best = [float(any(rewards[j] > 0 for j in s)) for s in subsets]
    mean = sum(best) / len(best)
    std = (sum((b - mean) ** 2 for b in best) / len(best)) ** 0.5
    if std == 0:
        return [0.0] * n
    scores_with = [[(b - mean) / (std + eps) for s, b in zip(subsets, best, strict=True) if i in s] for i in range(n)]
    return [sum(each) / len(each) for each in scores_with]


# Name -> (equation, slow version, smallest k, number of responses needed beyond k).
CASES = {
    "credit": (pass_at_k.pass_at_k_credit, slow_credit, 1, 0),
    "leave one out": (pass_at_k.pass_at_k_leave_one_out, slow_leave_one_out, 1, 1),
    "marginal": (pass_at_k.pass_at_k_marginal, slow_marginal, 2, 0),
    "normalized": (pass_at_k.pass_at_k_normalized, slow_normalized, 1, 0),
}
each_case = pytest.mark.parametrize("case", CASES)
COMPILED = {case: jax.jit(row[0], static_argnames="k") for case, row in CASES.items()}


@each_case
@given(rewards_of, valid_of, st.integers(1, G))
def test_matches_enumeration_of_subsets(case, rewards, valid, k):
    _, slow, lowest, spare = CASES[case]
    k = min(max(k, lowest), G - spare)
    with jax.enable_x64(True):
        dirty = jnp.array(np.where(valid, rewards, np.nan))
        actual = np.array(COMPILED[case](dirty, k=k, valid=jnp.array(valid)))
    expected = np.zeros((P, G))
    for p, keep in enumerate(valid):
        if keep.sum() >= k + spare:
            expected[p, keep] = slow([float(r) for r in rewards[p, keep]], k)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


def log_policy_gradient(outcomes, probability):
    """∂ log π / ∂θ of each outcome, if a reward is 1 with probability σ(θ) and otherwise 0."""
    return outcomes - probability


def every_outcome(size, probability):
    outcomes = np.array(list(product([0.0, 1.0], repeat=size)))
    return outcomes, np.prod(np.where(outcomes == 1, probability, 1 - probability), -1)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.8])
@pytest.mark.parametrize(
    ("case", "k"), [("credit", 1), ("credit", 3), ("leave one out", 2), ("marginal", 2), ("marginal", 4)]
)
def test_pass_at_k_gradient_is_unbiased(case, k, probability, x64):
    outcomes, chance = every_outcome(G, probability)
    advantage = np.array(COMPILED[case](jnp.array(outcomes), k=k))
    estimate = (advantage * log_policy_gradient(outcomes, probability)).mean(-1)
    slope = probability * (1 - probability)
    np.testing.assert_allclose((chance * estimate).sum(), k * (1 - probability) ** (k - 1) * slope, rtol=1e-12)


def test_marginal_estimator_has_minimal_variance(x64):
    outcomes, chance = every_outcome(G, 0.3)
    variances = []
    for case in ("credit", "leave one out", "marginal"):
        advantage = np.array(COMPILED[case](jnp.array(outcomes), k=3))
        estimate = (advantage * log_policy_gradient(outcomes, 0.3)).mean(-1)
        variances.append((chance * estimate**2).sum() - (chance * estimate).sum() ** 2)
    assert variances[0] > variances[1] > variances[2]


def test_pass_at_1(x64):
    rewards = jnp.array([[0.3, 1.0, -2.0, 0.5]])
    np.testing.assert_allclose(pass_at_k.pass_at_k_credit(rewards, k=1), rewards, rtol=1e-12)
    others = rewards - group.leave_one_out(rewards)
    np.testing.assert_allclose(pass_at_k.pass_at_k_leave_one_out(rewards, k=1), rewards - 4 / 3 * others, rtol=1e-12)
    binary = jnp.array([[1.0, 0.0, 0.0, 1.0, 0.0]])
    z_score = group.group_normalized(binary, ddof=0, eps=1e-6)
    np.testing.assert_allclose(pass_at_k.pass_at_k_normalized(binary, k=1), z_score, rtol=1e-12)


def test_marginal_credit_of_two_responses_is_the_gain():
    assert pass_at_k.pass_at_k_marginal(jnp.array([0.25, 1.0]), k=2).tolist() == [0.0, 1.5]


@pytest.mark.parametrize("case", ["marginal", "normalized"])
def test_identical_rewards_get_exactly_zero(case):
    assert not COMPILED[case](jnp.full((1, 8), 0.1), k=3).any()


def test_many_responses_are_accurate_in_single_precision():
    rewards = (np.random.default_rng(0).random((1, 256)) < 0.1).astype(np.float32)
    with jax.enable_x64(True):
        expected = COMPILED["marginal"](jnp.array(rewards, float), k=64)
    actual = COMPILED["marginal"](jnp.array(rewards), k=64)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=0)


ROW = jnp.ones((1, 4))


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pass_at_k.pass_at_k_credit(ROW, k=0), "k must be at least 1, got 0"),
        (lambda: pass_at_k.pass_at_k_credit(ROW, k=5), "k must be at most 4 for groups of 4 responses, got 5"),
        (lambda: pass_at_k.pass_at_k_leave_one_out(ROW, k=4), "k must be at most 3 for groups of 4 responses, got 4"),
        (lambda: pass_at_k.pass_at_k_marginal(ROW, k=1), "k must be at least 2, got 1"),
        (lambda: pass_at_k.pass_at_k_normalized(ROW.astype(int), k=2), "rewards must be a floating-point array"),
        (lambda: pass_at_k.pass_at_k_normalized(ROW, k=2, eps=-1.0), "eps must not be negative, got -1.0"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
