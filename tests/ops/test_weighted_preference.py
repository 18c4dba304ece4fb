"""Weighted preference optimization (WPO): weight and loss, checked against loops, and their limiting cases."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops.direct_preference import dpo_loss
from rljax.ops.weighted_preference import wpo_loss, wpo_weight

PAIRS = 4
logps = hnp.arrays(np.float64, (4, PAIRS), elements=st.floats(-20, 0))
weights = hnp.arrays(np.float64, (2, PAIRS), elements=st.floats(0.01, 3))


def slow_weight(logits, tokens):
    """exp(mean over tokens of log(π(token) / Σ_v π(v)²)); the sum is the expected probability of a sampled token."""
    total = 0.0
    for row, token in zip(logits, tokens, strict=True):
        exponentials = [math.exp(x) for x in row]
        probabilities = [x / sum(exponentials) for x in exponentials]
        total += math.log(probabilities[token] / sum(p * p for p in probabilities))
    return math.exp(total / len(tokens))


@given(hnp.arrays(np.float64, (3, 5), elements=st.floats(-4, 4)), hnp.arrays(np.int64, 3, elements=st.integers(0, 4)))
def test_wpo_weight_matches_loop(logits, tokens):
    with jax.enable_x64(True):
        logp = jax.nn.log_softmax(jnp.array(logits))
        token_logp = jnp.take_along_axis(logp, jnp.array(tokens)[:, None], 1)[:, 0]
        expected_logp = jnp.log(jnp.exp(2 * logp).sum(-1))
        found = wpo_weight(token_logp.mean()[None], expected_logp.mean()[None])
    np.testing.assert_allclose(found, [slow_weight(logits, tokens)], rtol=1e-9)


def test_wpo_weight_limits():
    for size in (1, 2, 100):
        uniform = jnp.log(jnp.array([1 / size]))
        np.testing.assert_allclose(wpo_weight(uniform, jnp.log(jnp.array([size * (1 / size) ** 2]))), 1.0, rtol=1e-5)
    assert float(wpo_weight(jnp.array([-1000.0]), jnp.zeros(1))[0]) == 0.0


@given(logps, weights, st.floats(0.05, 2), st.floats(0.5, 2))
def test_wpo_loss_and_its_gradient(pair_logps, pair_weights, beta, cap):
    expected, slopes = np.zeros(PAIRS), np.zeros(PAIRS)
    for pair in range(PAIRS):
        margin = beta * ((pair_logps[0, pair] - pair_logps[2, pair]) - (pair_logps[1, pair] - pair_logps[3, pair]))
        weight = min(pair_weights[0, pair] * pair_weights[1, pair], cap)
        expected[pair] = -weight * math.log(1 / (1 + math.exp(-margin)))
        slopes[pair] = -weight * beta / (1 + math.exp(margin))
    with jax.enable_x64(True):
        arrays = [*jnp.array(pair_logps), *jnp.array(pair_weights)]
        np.testing.assert_allclose(wpo_loss(*arrays, beta=beta, cap=cap), expected, rtol=1e-7, atol=1e-12)
        gradient = jax.grad(lambda arrays: wpo_loss(*arrays, beta=beta, cap=cap).sum())(arrays)
        np.testing.assert_allclose(gradient[0], slopes, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(gradient[1], -slopes, rtol=1e-7, atol=1e-12)
        assert not gradient[4].any(), "the weights are constants"
        assert not gradient[5].any()
        uncapped = wpo_loss(*arrays, beta=beta)
        np.testing.assert_allclose(
            uncapped, pair_weights[0] * pair_weights[1] * dpo_loss(*arrays[:4], beta=beta), rtol=1e-12
        )


def test_wpo_loss_ignores_pairs_of_weight_0():
    zero, zero_weight = jnp.zeros(1), jnp.zeros(1)
    assert float(wpo_loss(zero, zero, zero, zero, zero_weight, jnp.ones(1))[0]) == 0.0


@pytest.mark.usefixtures("without_type_checks")
def test_invalid_arguments_are_refused():
    one, two = jnp.ones(1), jnp.ones(2)
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="cap must be positive"):
            wpo_loss(one, one, one, one, one, one, cap=wrong)
        with pytest.raises(ValueError, match="beta must be positive"):
            wpo_loss(one, one, one, one, one, one, beta=wrong)
    with pytest.raises(ValueError, match=r"rejected_weight must have the shape of chosen \[1\], got \[2\]"):
        wpo_loss(one, one, one, one, one, two)
    with pytest.raises(ValueError, match=r"mean_log_expected must have the shape of mean_logp \[1\], got \[2\]"):
        wpo_weight(one, two)
    with pytest.raises(ValueError, match="chosen_weight must be a floating-point array, got int32"):
        wpo_loss(one, one, one, one, jnp.ones(1, int), one)
