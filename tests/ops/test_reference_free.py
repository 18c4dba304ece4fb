"""Preference losses without a reference, checked against loops, the papers' gradients, limits and extreme values."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops.direct_preference import dpo_loss
from rljax.ops.preference import bradley_terry_loss
from rljax.ops.reference_free import (
    alpha_reward,
    alphapo_loss,
    cpo_loss,
    log_odds,
    odds_ratio_loss,
    orpo_loss,
    simpo_loss,
    tpo_loss,
)

PAIRS = 4
# mean log-probabilities per token of the preferred and the rejected responses
means = hnp.arrays(np.float64, (2, PAIRS), elements=st.floats(-8, -0.01))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def slopes(loss, mean_logps):
    return jax.grad(lambda mean_logps: loss(*mean_logps).sum())(mean_logps)


@given(means, st.floats(0.5, 10), st.floats(0, 3))
def test_simpo_loss_and_gradient(mean_logps, beta, margin):
    expected, slope = np.zeros(PAIRS), np.zeros((2, PAIRS))
    for at in range(PAIRS):
        gap = beta * mean_logps[0, at] - beta * mean_logps[1, at] - margin
        expected[at] = -math.log(sigmoid(gap))
        slope[:, at] = -beta * sigmoid(-gap), beta * sigmoid(-gap)
    with jax.enable_x64(True):
        arrays = jnp.array(mean_logps)
        np.testing.assert_allclose(simpo_loss(*arrays, beta=beta, margin=margin), expected, rtol=1e-9, atol=1e-12)
        actual = slopes(lambda *mean_logps: simpo_loss(*mean_logps, beta=beta, margin=margin), arrays)
        np.testing.assert_allclose(actual, slope, rtol=1e-9, atol=1e-12)


@given(means, st.floats(-2, 2).filter(lambda alpha: abs(alpha) > 1e-3), st.floats(0.5, 10), st.floats(0, 3))
def test_alphapo_loss_and_gradient(mean_logps, alpha, beta, margin):
    """The oracle uses powers of probabilities, as printed; the derivative of the reward with respect to log P is P^-α."""
    expected, slope, rewards = np.zeros(PAIRS), np.zeros((2, PAIRS)), np.zeros((2, PAIRS))
    for at in range(PAIRS):
        powers = [math.exp(x) ** -alpha for x in mean_logps[:, at]]
        rewards[:, at] = [(1 - power) / alpha for power in powers]
        gap = beta * rewards[0, at] - beta * rewards[1, at] - margin
        expected[at] = np.logaddexp(0, -gap)
        weight = beta * math.exp(-np.logaddexp(0, gap))
        slope[:, at] = -weight * powers[0], weight * powers[1]
    with jax.enable_x64(True):
        arrays, options = jnp.array(mean_logps), {"alpha": alpha, "beta": beta, "margin": margin}
        np.testing.assert_allclose(alpha_reward(arrays, alpha=alpha), rewards, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(alphapo_loss(*arrays, **options), expected, rtol=1e-9, atol=1e-9)
        actual = slopes(lambda *mean_logps: alphapo_loss(*mean_logps, **options), arrays)
        np.testing.assert_allclose(actual, slope, rtol=1e-9, atol=1e-9)


@given(means, st.floats(0.5, 10), st.floats(0, 3))
def test_alphapo_tends_to_simpo_as_alpha_tends_to_0(mean_logps, beta, margin):
    with jax.enable_x64(True):
        arrays, options = jnp.array(mean_logps), {"beta": beta, "margin": margin}
        theirs, slope = (
            simpo_loss(*arrays, **options),
            slopes(lambda *mean_logps: simpo_loss(*mean_logps, **options), arrays),
        )
        for alpha, rtol in ((0.0, 1e-12), (1e-9, 1e-6), (-1e-9, 1e-6)):
            np.testing.assert_allclose(alphapo_loss(*arrays, alpha=alpha, **options), theirs, rtol=rtol, atol=1e-9)
            ours = slopes(lambda *mean_logps, alpha=alpha: alphapo_loss(*mean_logps, alpha=alpha, **options), arrays)
            np.testing.assert_allclose(ours, slope, rtol=rtol, atol=1e-9)


@given(means, st.floats(0.05, 2), st.floats(0, 2))
def test_cpo_loss_and_gradient(mean_logps, beta, coefficient):
    expected, slope = np.zeros(PAIRS), np.zeros((2, PAIRS))
    for at in range(PAIRS):
        gap = beta * mean_logps[0, at] - beta * mean_logps[1, at]
        expected[at] = -math.log(sigmoid(gap)) - coefficient * mean_logps[0, at]
        slope[:, at] = -beta * sigmoid(-gap) - coefficient, beta * sigmoid(-gap)
    with jax.enable_x64(True):
        arrays = jnp.array(mean_logps)
        np.testing.assert_allclose(cpo_loss(*arrays, beta=beta, coefficient=coefficient), expected, rtol=1e-9, atol=1e-12)
        actual = slopes(lambda *mean_logps: cpo_loss(*mean_logps, beta=beta, coefficient=coefficient), arrays)
        np.testing.assert_allclose(actual, slope, rtol=1e-9, atol=1e-12)


def test_alphapo_matches_its_authors_code_in_trl():
    """Their loss is -log σ(β (r_w - r_l - γ/β)), and our defaults are theirs for Mistral Instruct, with γ/β = 0.1."""
    log_p = np.random.default_rng(0).uniform(-3, -0.1, (2, PAIRS))
    chosen, rejected = ((1 - np.exp(-0.25 * x)) / 0.25 for x in log_p)
    expected = [-math.log(sigmoid(2.5 * gap)) for gap in chosen - rejected - 0.1]
    with jax.enable_x64(True):
        np.testing.assert_allclose(alphapo_loss(*jnp.array(log_p)), expected, rtol=1e-9)


@given(means, means, st.floats(0.005, 2), st.floats(0, 3), st.floats(0, 2))
def test_tpo_loss_and_gradient(mean_logps, third, beta, margin, coefficient):
    gold, expected, slope = third[0], np.zeros(PAIRS), np.zeros((3, PAIRS))
    for at in range(PAIRS):
        gap = beta * mean_logps[0, at] - beta * mean_logps[1, at] - margin
        expected[at] = -math.log(sigmoid(gap)) - coefficient * gold[at]
        slope[:, at] = -beta * sigmoid(-gap), beta * sigmoid(-gap), -coefficient
    with jax.enable_x64(True):
        arrays, options = jnp.array([*mean_logps, gold]), {"beta": beta, "margin": margin, "coefficient": coefficient}
        np.testing.assert_allclose(tpo_loss(*arrays, **options), expected, rtol=1e-9, atol=1e-12)
        actual = slopes(lambda *three: tpo_loss(*three, **options), arrays)
        np.testing.assert_allclose(actual, slope, rtol=1e-9, atol=1e-12)


@given(means, st.floats(0.05, 2), st.floats(0, 2))
def test_tpo_with_the_preferred_response_as_gold_is_cpo(mean_logps, beta, coefficient):
    with jax.enable_x64(True):
        arrays = jnp.array(mean_logps)
        theirs = cpo_loss(*arrays, beta=beta, coefficient=coefficient)
        ours = tpo_loss(*arrays, arrays[0], beta=beta, coefficient=coefficient)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@given(means, st.floats(0, 2))
def test_orpo_loss_and_gradient(mean_logps, coefficient):
    """∇L_OR = δ h with δ = [1 + odds(y_w)/odds(y_l)]⁻¹ and h = ∇log P(y_l)/(1 - P(y_l)) - ∇log P(y_w)/(1 - P(y_w))."""
    odds, penalty, expected, slope = np.zeros((2, PAIRS)), np.zeros(PAIRS), np.zeros(PAIRS), np.zeros((2, PAIRS))
    for at in range(PAIRS):
        chosen, rejected = math.exp(mean_logps[0, at]), math.exp(mean_logps[1, at])
        odds[:, at] = chosen / (1 - chosen), rejected / (1 - rejected)
        penalty[at] = -math.log(sigmoid(math.log(odds[0, at] / odds[1, at])))
        expected[at] = -mean_logps[0, at] + coefficient * penalty[at]
        delta = 1 / (1 + odds[0, at] / odds[1, at])
        slope[:, at] = -coefficient * delta / (1 - chosen) - 1, coefficient * delta / (1 - rejected)
    with jax.enable_x64(True):
        arrays = jnp.array(mean_logps)
        np.testing.assert_allclose(log_odds(arrays), np.log(odds), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(odds_ratio_loss(*arrays), penalty, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(orpo_loss(*arrays, coefficient=coefficient), expected, rtol=1e-9, atol=1e-12)
        actual = slopes(lambda *mean_logps: orpo_loss(*mean_logps, coefficient=coefficient), arrays)
        np.testing.assert_allclose(actual, slope, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_simpo_without_margin_is_dpo_with_a_uniform_reference():
    """If both responses have |y| tokens, β/|y| replaces DPO's β. A reference that finds both equally likely cancels."""
    sums = jnp.array(np.random.default_rng(1).uniform(-30, 0, (2, PAIRS)))
    uniform = jnp.full((2, PAIRS), -6 * math.log(50))
    np.testing.assert_allclose(
        simpo_loss(*(sums / 6), beta=2.4, margin=0.0), dpo_loss(*sums, *uniform, beta=0.4), rtol=1e-12
    )


@pytest.mark.usefixtures("x64")
def test_simpo_and_orpo_are_bradley_terry_losses():
    mean_logps = jnp.array(np.random.default_rng(2).uniform(-3, -0.1, (2, PAIRS)))
    np.testing.assert_allclose(
        simpo_loss(*mean_logps, beta=2.0, margin=0.5), bradley_terry_loss(*(2 * mean_logps), margin=0.5), rtol=1e-12
    )
    np.testing.assert_allclose(odds_ratio_loss(*mean_logps), bradley_terry_loss(*log_odds(mean_logps)), rtol=1e-12)
    np.testing.assert_allclose(orpo_loss(*mean_logps, coefficient=0.0), -mean_logps[0], rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_odds_of_unlikely_responses_are_their_probabilities():
    rare = jnp.array([[-30.0], [-31.0]])
    np.testing.assert_allclose(log_odds(rare), rare, rtol=1e-12)
    np.testing.assert_allclose(odds_ratio_loss(*rare), simpo_loss(*rare, beta=1.0, margin=0.0), rtol=1e-9)


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_large_margins_overflow_neither_losses_nor_slopes(size):
    mean_logps = jnp.array([[-size, -1.0], [-1.0, -size]])
    np.testing.assert_allclose(simpo_loss(*mean_logps, beta=2.0, margin=0.0), [2 * size, 0.0], rtol=1e-3)
    np.testing.assert_allclose(orpo_loss(*mean_logps, coefficient=1.0), [2 * size, 1.0], rtol=1e-3)
    for loss in (simpo_loss, orpo_loss):
        assert np.isfinite(slopes(loss, mean_logps)).all()


@pytest.mark.parametrize("certain", [0.0, -1e-30, -1e-9])
def test_certain_response_has_finite_odds_and_no_gradient(certain):
    one = jnp.array([certain])
    assert 15 < float(log_odds(one)[0]) < 17
    assert not jax.grad(lambda x: log_odds(x).sum())(one).any()
    assert np.isfinite(orpo_loss(one, one)).all()
    assert np.isfinite(slopes(orpo_loss, jnp.stack([one, one]))).all()


@pytest.mark.usefixtures("without_type_checks")
def test_errors_name_the_argument():
    one, two = jnp.zeros(1), jnp.zeros(2)
    with pytest.raises(ValueError, match=r"rejected must have the shape of chosen \[1\], got \[2\]"):
        simpo_loss(one, two)
    with pytest.raises(ValueError, match="chosen must be a floating-point array, got int32"):
        orpo_loss(jnp.array([1]), one)
    with pytest.raises(ValueError, match="mean_logp must be a floating-point array"):
        log_odds([0.5])
    for wrong in (11.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"alpha must lie in \[-10, 10\]"):
            alphapo_loss(one, one, alpha=wrong)
    for wrong in (-0.1, math.nan):
        with pytest.raises(ValueError, match="margin must not be negative"):
            simpo_loss(one, one, margin=wrong)
        with pytest.raises(ValueError, match="beta must be positive"):
            simpo_loss(one, one, beta=wrong)
        with pytest.raises(ValueError, match="coefficient must not be negative"):
            orpo_loss(one, one, coefficient=wrong)
