"""Credit from comparisons within a group, checked against loops, the gradient of DPO's loss, and optimal policies."""

import math
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops.online_preference import mixture_win_rate, online_dpo_credit, optimal_value, reference_weights, xpo_credit

P, G = 2, 4  # prompts, responses per prompt
rewards_of_groups = hnp.arrays(np.float64, (P, G), elements=st.sampled_from([-1.0, 0.0, 0.5, 1.0]))
log_ratios = hnp.arrays(np.float64, (P, G), elements=st.floats(-8, 8))
masks = hnp.arrays(bool, (P, G))
scales = st.floats(0.05, 2)
fractions = st.floats(0, 1)


def members(valid, p):
    return [i for i in range(G) if valid[p, i]]


def dpo_gradient(rewards, log_ratio, valid, beta):
    """Minus the group size times the gradient of the pairs' mean DPO loss in each log-ratio, by central differences."""

    def mean_loss(row, row_log_ratio):
        member_ids = members(valid, row)
        losses = [
            math.log1p(math.exp(-beta * (row_log_ratio[w] - row_log_ratio[j])))
            for w in member_ids
            for j in member_ids
            if rewards[row, w] > rewards[row, j]
        ]
        return sum(losses) / (len(member_ids) * (len(member_ids) - 1) / 2)

    slopes = np.zeros((P, G))
    for p in range(P):
        member_ids = members(valid, p)
        for i in member_ids if len(member_ids) > 1 else []:
            step = 1e-5 * (np.arange(G) == i)
            ends = [mean_loss(p, log_ratio[p] + sign * step) for sign in (1, -1)]
            slopes[p, i] = -len(member_ids) * (ends[0] - ends[1]) / 2e-5
    return slopes


def slow_weights(log_ratio, member_ids, power=1.0):
    weights = {i: math.exp(-power * log_ratio[i]) for i in member_ids}
    return {i: weight / sum(weights.values()) for i, weight in weights.items()}


@given(rewards_of_groups, log_ratios, masks, scales)
def test_online_dpo_credit_is_the_gradient_of_the_mean_dpo_loss(rewards, log_ratio, valid, beta):
    with jax.enable_x64(True):
        credit = np.asarray(online_dpo_credit(jnp.array(rewards), jnp.array(log_ratio), beta=beta, valid=jnp.array(valid)))
    np.testing.assert_allclose(credit, dpo_gradient(rewards, log_ratio, valid, beta), rtol=1e-5, atol=1e-8)
    assert not credit[~valid].any()
    np.testing.assert_allclose(credit.sum(-1), 0, atol=1e-12)


@given(rewards_of_groups, log_ratios, masks, scales)
def test_xpo_adds_the_reference_weights(rewards, log_ratio, valid, alpha):
    with jax.enable_x64(True):
        arrays = jnp.array(rewards), jnp.array(log_ratio)
        credit = xpo_credit(*arrays, beta=0.5, alpha=alpha, valid=jnp.array(valid))
        plain = online_dpo_credit(*arrays, beta=0.5, valid=jnp.array(valid))
        weights = reference_weights(*arrays, valid=jnp.array(valid))
        np.testing.assert_allclose(xpo_credit(*arrays, beta=0.5, alpha=0.0, valid=jnp.array(valid)), plain, atol=1e-12)
    expected, expected_weights = np.zeros((P, G)), np.zeros((P, G))
    for p in range(P):
        member_ids = members(valid, p)
        for i, weight in slow_weights(log_ratio[p], member_ids).items():
            expected_weights[p, i] = weight
            expected[p, i] = alpha * (1 - len(member_ids) * weight)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-9)
    np.testing.assert_allclose(credit - plain, expected, rtol=1e-7, atol=1e-9)


@given(rewards_of_groups, log_ratios, masks, fractions)
def test_mixture_win_rate_matches_formula(rewards, log_ratio, valid, mixture):
    expected = np.full((P, G), 0.5)
    for p in range(P):
        for i in members(valid, p):
            others = [j for j in members(valid, p) if j != i]
            weights = slow_weights(log_ratio[p], others, mixture)
            if others:
                wins = {j: (1 + np.sign(rewards[p, i] - rewards[p, j])) / 2 for j in others}
                expected[p, i] = sum(weights[j] * wins[j] for j in others)
    with jax.enable_x64(True):
        found = mixture_win_rate(jnp.array(rewards), jnp.array(log_ratio), mixture=mixture, valid=jnp.array(valid))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@given(rewards_of_groups, log_ratios, masks, scales)
def test_optimal_value_and_gradients(rewards, log_ratio, valid, beta):
    expected, by_reward, by_ratio = np.zeros(P), np.zeros((P, G)), np.zeros((P, G))
    for p in range(P):
        member_ids = members(valid, p)
        weights = slow_weights(log_ratio[p], member_ids)
        tilted = {i: weights[i] * math.exp((rewards[p, i] - max(rewards[p])) / beta) for i in member_ids}
        total = sum(tilted.values())
        expected[p] = beta * math.log(total) + max(rewards[p]) if member_ids else 0.0
        for i in member_ids:
            by_reward[p, i] = tilted[i] / total
            by_ratio[p, i] = beta * (weights[i] - tilted[i] / total)
    with jax.enable_x64(True):
        arrays = jnp.array(rewards), jnp.array(log_ratio)
        np.testing.assert_allclose(
            optimal_value(*arrays, beta=beta, valid=jnp.array(valid)), expected, rtol=1e-9, atol=1e-9
        )
        for argument, slopes in enumerate((by_reward, by_ratio)):
            found = jax.grad(lambda *x: optimal_value(*x, beta=beta, valid=jnp.array(valid)).sum(), argument)(*arrays)
            np.testing.assert_allclose(found, slopes, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("beta", [0.01, 1.0, 30.0, 1e4, 1e8])
def test_optimal_value_is_accurate_in_float32_for_any_beta(beta):
    rewards, log_ratio = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    weights = [Decimal(-float(ratio)).exp() for ratio in log_ratio]
    tilted = [
        weight * (Decimal(float(reward)) / Decimal(beta)).exp() for weight, reward in zip(weights, rewards, strict=True)
    ]
    expected = Decimal(beta) * (sum(tilted) / sum(weights)).ln()
    value, slopes = jax.value_and_grad(lambda *x: optimal_value(*x, beta=beta), (0, 1))(
        jnp.array(rewards), jnp.array(log_ratio)
    )
    np.testing.assert_allclose(value, float(expected), atol=1e-6)
    shares = [
        (float(t / sum(tilted)), float(Decimal(beta) * (w / sum(weights) - t / sum(tilted))))
        for t, w in zip(tilted, weights, strict=True)
    ]
    np.testing.assert_allclose(slopes, np.transpose(shares), atol=1e-6)


def test_credit_ignores_response_order_and_reward_scale():
    rewards, log_ratio = np.array([1.0, 0.0, 0.5, 0.0], np.float32), np.array([0.5, -1.0, 2.0, 0.0], np.float32)
    order = np.array([2, 0, 3, 1])
    for equation in (online_dpo_credit, xpo_credit, mixture_win_rate):
        found = equation(jnp.array(rewards), jnp.array(log_ratio))
        np.testing.assert_allclose(
            equation(jnp.array(rewards[order]), jnp.array(log_ratio[order])), found[order], rtol=1e-6
        )
        np.testing.assert_allclose(equation(jnp.array(100 * rewards + 3), jnp.array(log_ratio)), found, rtol=1e-6)


def test_far_from_the_reference_nothing_overflows():
    far = jnp.array([1e4, -1e4, 0.0])
    rewards = jnp.array([0.0, 1.0, 1.0])
    assert online_dpo_credit(rewards, far, beta=1.0).tolist() == [-2.0, 1.0, 1.0]
    assert reference_weights(rewards, far).tolist() == [0.0, 1.0, 0.0]
    assert mixture_win_rate(rewards, far, mixture=1.0).tolist() == [0.0, 0.5, 0.5]
    assert optimal_value(rewards, far, beta=0.5).tolist() == 1.0


@pytest.mark.usefixtures("x64")
def test_optimal_policy_has_optimal_advantage_0():
    """π_ref is uniform over two responses and π = (3/4, 1/4), so a group of four in these proportions represents π exactly."""
    beta, best = 0.3, 1.0
    rewards = jnp.array([best, best, best, best - beta * math.log(3)])
    log_ratio = jnp.log(jnp.array([1.5, 1.5, 1.5, 0.5]))
    value = optimal_value(rewards, log_ratio, beta=beta)
    expected = beta * math.log((math.exp(best / beta) + math.exp(float(rewards[-1]) / beta)) / 2)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(rewards - value - beta * log_ratio, 0, atol=1e-12)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("equation", "options", "message"),
    [
        (online_dpo_credit, {"beta": 0.0}, r"beta must be positive, got 0\.0"),
        (xpo_credit, {"alpha": -1.0}, r"alpha must not be negative, got -1\.0"),
        (mixture_win_rate, {"mixture": 1.5}, r"mixture must lie in \[0, 1\], got 1\.5"),
        (optimal_value, {"beta": -1.0}, r"beta must be positive, got -1\.0"),
        (reference_weights, {"valid": jnp.array([2, 0])}, "valid"),
    ],
)
def test_invalid_arguments_are_refused(equation, options, message):
    with pytest.raises(ValueError, match=message):
        equation(jnp.ones(2), jnp.zeros(2), **options)
