"""The Bradley-Terry loss, checked against a loop written from the formula, in value and gradient, and for extreme scores."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops.preference import bradley_terry_loss

SHAPE = (2, 3)
scores = hnp.arrays(np.float64, SHAPE, elements=st.floats(-20, 20))
margins = hnp.arrays(np.float64, SHAPE, elements=st.floats(0, 3))

jit_loss = jax.jit(bradley_terry_loss)
jit_slopes = jax.jit(
    jax.grad(
        lambda chosen, rejected, margin, weight: (weight * bradley_terry_loss(chosen, rejected, margin=margin)).sum(),
        (0, 1, 2),
    )
)


def by_hand(chosen, rejected, margin):
    """Each pair's negative log-probability that the preferred response wins."""
    loss = np.zeros(SHAPE)
    for at in np.ndindex(*SHAPE):
        wins = 1 / (1 + math.exp(-(chosen[at] - rejected[at] - margin[at])))
        loss[at] = -math.log(wins)
    return loss


@given(scores, scores, margins)
def test_loss_matches_formula(chosen, rejected, margin):
    with jax.enable_x64(True):
        actual = jit_loss(jnp.array(chosen), jnp.array(rejected), margin=jnp.array(margin))
        np.testing.assert_allclose(actual, by_hand(chosen, rejected, margin), rtol=1e-9, atol=1e-12)
        scalar_margin = jit_loss(jnp.array(chosen), jnp.array(rejected), margin=jnp.array(0.7))
        np.testing.assert_allclose(scalar_margin, by_hand(chosen, rejected, np.full(SHAPE, 0.7)), rtol=1e-9, atol=1e-12)
        without_margin = jit_loss(jnp.array(chosen), jnp.array(rejected))
        np.testing.assert_allclose(without_margin, by_hand(chosen, rejected, np.zeros(SHAPE)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_extreme_scores_overflow_neither_loss_nor_slope(size):
    chosen, rejected = jnp.array([size, -size]), jnp.array([-size, size])
    np.testing.assert_allclose(jit_loss(chosen, rejected), [0.0, 2 * size], rtol=1e-6)
    on_chosen, on_rejected, on_margin = jit_slopes(chosen, rejected, jnp.zeros(2), jnp.ones(2))
    np.testing.assert_allclose(on_chosen, [0.0, -1.0], atol=1e-6)
    np.testing.assert_allclose(on_rejected, [0.0, 1.0], atol=1e-6)
    np.testing.assert_allclose(on_margin, [0.0, 1.0], atol=1e-6)


@pytest.mark.usefixtures("x64")
def test_loss_is_shift_invariant_and_probabilities_sum_to_1():
    rng = np.random.default_rng(1)
    chosen, rejected = map(jnp.array, rng.normal(size=(2, *SHAPE)))
    before = bradley_terry_loss(chosen, rejected)
    np.testing.assert_allclose(bradley_terry_loss(chosen + 5, rejected + 5), before, rtol=1e-9)
    np.testing.assert_allclose(jnp.exp(-before) + jnp.exp(-bradley_terry_loss(rejected, chosen)), 1.0, rtol=1e-12)


@pytest.mark.usefixtures("without_type_checks")
def test_errors_name_the_argument():
    one, two = jnp.zeros(1), jnp.zeros(2)
    with pytest.raises(ValueError, match="chosen must be a floating-point array, got int32"):
        bradley_terry_loss(jnp.array([1]), one)
    with pytest.raises(ValueError, match="rejected must be a floating-point array"):
        bradley_terry_loss(one, [1.0])
    with pytest.raises(ValueError, match=r"rejected must have the shape of chosen \[1\], got \[2\]"):
        jax.eval_shape(bradley_terry_loss, one, two)
    with pytest.raises(ValueError, match=r"margin must have the shape of chosen \[2\], got \[1\]"):
        bradley_terry_loss(two, two, margin=one)
    for wrong in (-0.1, math.nan, jnp.array([0.0, -1.0])):
        with pytest.raises(ValueError, match="margin must not be negative"):
            bradley_terry_loss(two, two, margin=wrong)
