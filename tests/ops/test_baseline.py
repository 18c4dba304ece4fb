"""Baselines, checked against loops written from the formulas."""

import math
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops import baseline, group

P, G, T = 2, 3, 4  # prompts, responses per prompt, tokens per response
tenths = st.integers(-20, 20).map(lambda n: n / 10)
reward_arrays = hnp.arrays(np.float64, (P, G), elements=tenths)
length_arrays = hnp.arrays(np.int64, (P, G), elements=st.integers(0, T))
length_weighted = jax.jit(baseline.length_weighted_centered)


@given(reward_arrays, length_arrays, hnp.arrays(bool, (P, G)))
def test_length_weighted_matches_formula(rewards, lengths, valid):
    with jax.enable_x64(True):
        dirty = jnp.array(np.where(valid, rewards, np.nan))
        actual = np.array(length_weighted(dirty, jnp.array(lengths), valid=jnp.array(valid)))
    for p in range(P):
        members = [i for i in range(G) if valid[p, i]]
        total = sum(lengths[p, i] for i in members)
        for i in range(G):
            expected = 0.0
            if i in members and len(members) > 1 and total:
                expected = rewards[p, i] - sum(lengths[p, j] * rewards[p, j] for j in members) / total
            np.testing.assert_allclose(actual[p, i], expected, atol=1e-12)


@given(reward_arrays, hnp.arrays(bool, (P, G)), st.sampled_from([0.05, 0.5, 3.0]))
def test_soft_centered_matches_formula(rewards, valid, beta):
    with jax.enable_x64(True):
        dirty = jnp.array(np.where(valid, rewards, np.nan))
        actual = np.array(baseline.soft_centered(dirty, beta=beta, valid=jnp.array(valid)))
    for p in range(P):
        members = [i for i in range(G) if valid[p, i]]
        for i in range(G):
            expected = 0.0
            if i in members and len(members) > 1:
                mean = sum(math.exp(rewards[p, j] / beta) for j in members) / len(members)
                expected = rewards[p, i] - beta * math.log(mean)
            np.testing.assert_allclose(actual[p, i], expected, atol=1e-9)
        assert actual[p].sum() <= 1e-9, "the soft value is at least the mean"


def test_soft_value_is_between_mean_and_best_reward(x64):
    rewards = jnp.array([[1.0, 0.0, 0.25], [0.5, 0.5, 0.5]])
    np.testing.assert_allclose(baseline.soft_centered(rewards, beta=1e7), group.group_centered(rewards), atol=1e-6)
    best = baseline.soft_centered(rewards, beta=1e-4)
    np.testing.assert_allclose(best, rewards - rewards.max(-1, keepdims=True), atol=2e-4)
    # The soft value is E_q[r] - β KL(q || π_old), with the tilted policy q = π_old exp(r / β) / Z.
    tilted = jax.nn.softmax(rewards / 0.3)
    soft_value = (tilted * rewards).sum(-1) - 0.3 * (tilted * jnp.log(3 * tilted)).sum(-1)
    np.testing.assert_allclose(
        rewards - baseline.soft_centered(rewards, beta=0.3), jnp.tile(soft_value[:, None], 3), rtol=1e-12
    )


@pytest.mark.parametrize("beta", [0.01, 1.0, 30.0, 1e4, 1e8])
def test_soft_value_is_accurate_in_float32_for_any_beta(beta):
    rewards = np.random.default_rng(0).normal(size=8).astype(np.float32) + 3
    exact = [Decimal(float(reward)) / Decimal(beta) for reward in rewards]
    value = Decimal(beta) * (sum(x.exp() for x in exact) / 8).ln()
    actual = baseline.soft_centered(jnp.array(rewards), beta=beta)
    np.testing.assert_allclose(actual, [float(Decimal(float(reward)) - value) for reward in rewards], atol=1e-6)
    slope = jax.jacobian(lambda x: baseline.soft_centered(x, beta=beta))(jnp.array(rewards))
    weights = [float(x.exp() / sum(y.exp() for y in exact)) for x in exact]
    np.testing.assert_allclose(slope, np.eye(8) - np.array(weights), atol=1e-6)


@pytest.mark.parametrize("beta", [1e-6, 0.3, 1e6])
def test_soft_value_of_identical_rewards_is_exact(beta):
    rewards = jnp.array([[0.1] * 8, [jnp.nan] * 8, [0.7] + [jnp.nan] * 7])
    valid = ~jnp.isnan(rewards)
    assert not baseline.soft_centered(rewards, beta=beta, valid=valid).any()
    slope = jax.grad(lambda x: baseline.soft_centered(x, beta=beta, valid=valid).sum())(rewards)
    np.testing.assert_allclose(slope, 0, atol=1e-6)


def test_equal_lengths_give_the_group_mean(x64):
    rewards = jnp.array(np.random.default_rng(0).normal(size=(P, G)))
    actual = baseline.length_weighted_centered(rewards, jnp.full((P, G), 7))
    np.testing.assert_allclose(actual, group.group_centered(rewards), rtol=1e-12)


def test_length_weighted_baseline_has_minimal_variance(x64):
    """Assumes that the squared norm of each response's gradient equals the response's length."""
    rng = np.random.default_rng(1)
    rewards, lengths = rng.normal(size=(1, 6)), rng.integers(1, 9, (1, 6))
    advantage = baseline.length_weighted_centered(jnp.array(rewards), jnp.array(lengths))
    variance = (lengths * np.square(advantage)).sum()
    for shift in (-0.1, 0.1):
        assert (lengths * np.square(advantage + shift)).sum() > variance


@given(reward_arrays, length_arrays)
def test_length_weighted_returns_match_response_advantages(rewards, lengths):
    mask = np.arange(T) < lengths[..., None]
    last = np.arange(T) == lengths[..., None] - 1
    token_rewards = np.where(mask, np.where(last, rewards[..., None], 0.0), np.nan)
    with jax.enable_x64(True):
        actual = np.array(baseline.length_weighted_returns(jnp.array(token_rewards), jnp.array(mask)))
        per_response = np.array(length_weighted(jnp.array(rewards), jnp.array(lengths), valid=jnp.array(lengths > 0)))
    np.testing.assert_allclose(actual, np.where(mask, per_response[..., None], 0.0), atol=1e-12)


def test_identical_rewards_get_exactly_zero():
    assert not length_weighted(jnp.full((1, 3), 0.1), jnp.array([[3, 1, 7]])).any()


def test_greedy_centered():
    actual = baseline.greedy_centered(jnp.array([[1.0, 0.0], [0.5, 0.5]]), jnp.array([1.0, 0.25]))
    assert actual.tolist() == [[0.0, -1.0], [0.25, 0.25]]
    assert baseline.greedy_centered(jnp.array([[1.0]]), jnp.array([0.25])).tolist() == [[0.75]]


@pytest.mark.parametrize("weighted", [False, True])
def test_optimal_token_baseline_matches_formula(x64, weighted):
    rng = np.random.default_rng(2)
    lengths = np.array([[4, 2, 3], [1, 1, 4]])
    mask = np.arange(T) < lengths[..., None]
    returns, logp = rng.normal(size=(2, P, G, T))
    logp = -np.abs(logp)
    squares = np.exp(2 * logp) + rng.uniform(0.0, 0.2, (P, G, T))

    def dirty(x):
        return jnp.array(np.where(mask, x, np.nan))

    inputs, rho = (dirty(returns), dirty(logp), dirty(squares), jnp.array(mask)), np.ones((P, G, T))
    if weighted:
        rho = rng.uniform(0.0, 2.0, (P, G, T))
    importance = {"importance": dirty(rho)} if weighted else {}
    actual = jax.jit(baseline.optimal_token_baseline)(*inputs, **importance)
    for p, i, t in np.ndindex(P, G, T):
        if not mask[p, i, t]:
            assert actual[p, i, t] == 0
            continue
        numerator = denominator = 0.0
        for j in range(G):
            if mask[p, j, t]:
                energy = [1 - 2 * np.exp(logp[p, j, k]) + squares[p, j, k] for k in range(t + 1)]
                weight = sum(rho[p, j, k] ** 2 * energy[k] for k in range(t + 1))
                numerator, denominator = numerator + weight * returns[p, j, t], denominator + weight
        np.testing.assert_allclose(actual[p, i, t], returns[p, i, t] - numerator / denominator, rtol=1e-12, atol=1e-12)


def test_optimal_token_baseline_does_not_count_gaps():
    rng = np.random.default_rng(3)
    returns, logp, squares = rng.uniform(0.1, 1.0, (3, 1, 2, 3))
    mask = np.array([[[1, 1, 1], [1, 1, 0]]])
    order = np.array([[[0, 1, 2], [0, 2, 1]]])  # moves the second response's tokens to indices 0 and 2

    def move(x):
        return jnp.array(np.take_along_axis(x, order, -1), jnp.float32)

    plain = baseline.optimal_token_baseline(*(jnp.array(x, jnp.float32) for x in (returns, -logp, squares, mask)))
    spread = baseline.optimal_token_baseline(*(move(x) for x in (returns, -logp, squares, mask)))
    np.testing.assert_allclose(spread, move(np.asarray(plain)), rtol=1e-6)


@pytest.mark.parametrize("noisy_squares", [False, True])
def test_optimal_token_baseline_is_between_the_returns(noisy_squares):
    rng = np.random.default_rng(4)
    returns, logp = rng.normal(size=(2, 200, G, T)).astype(np.float32)
    logp = -np.abs(0.02 * logp)  # tokens so certain that 1 - 2 p + Σ π² is near 0
    squares = np.exp(2 * logp) + (rng.normal(scale=0.02, size=logp.shape) if noisy_squares else 1e-4)
    arrays = (jnp.array(x, jnp.float32) for x in (returns, logp, squares))
    baseline_values = returns - np.asarray(baseline.optimal_token_baseline(*arrays, jnp.ones(returns.shape)))
    without_energy = baseline_values == 0  # without gradient energy, the baseline is 0
    low, high = returns.min(-2, keepdims=True), returns.max(-2, keepdims=True)
    between = (baseline_values >= low - 1e-4) & (baseline_values <= high + 1e-4)
    assert (between | without_energy).all()
    assert without_energy.mean() < 0.2
    assert ((1 - 2 * np.exp(logp) + squares).min() < 0) == noisy_squares


def test_tokens_with_probability_1_have_no_baseline():
    ones = jnp.ones((2, 1))
    assert baseline.optimal_token_baseline(jnp.array([[1.0], [0.0]]), 0 * ones, ones, ones).tolist() == [[1.0], [0.0]]


ONES = jnp.ones((2, 2))


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: baseline.length_weighted_centered(ONES, ONES[0]), "lengths must have the shape of rewards"),
        (lambda: baseline.length_weighted_centered(ONES, -ONES), "lengths must not be negative"),
        (
            lambda: baseline.length_weighted_returns(ONES[:1], ONES[:1]),
            "token_rewards must contain groups of at least 2 responses",
        ),
        (lambda: baseline.greedy_centered(ONES, jnp.ones(3)), "greedy_reward must have one entry for each row of rewards"),
        (lambda: baseline.optimal_token_baseline(ONES, ONES, ONES[0], ONES), "square_sum must have the shape of returns"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
