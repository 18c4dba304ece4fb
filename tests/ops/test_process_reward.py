"""The cross-entropy of step labels, checked against a loop written from the formula, in value and gradient."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops.process_reward import process_reward_loss

SHAPE = (2, 5)
outputs = hnp.arrays(np.float64, SHAPE, elements=st.floats(-20, 20))
label_arrays = hnp.arrays(np.float64, SHAPE, elements=st.floats(0, 1))
masks = hnp.arrays(bool, SHAPE)

jit_loss = jax.jit(process_reward_loss)
jit_slopes = jax.jit(
    jax.grad(lambda logits, labels, ends, weight: (weight * process_reward_loss(logits, labels, ends)).sum())
)


def by_hand(logits, labels, ends):
    """The negative log-likelihood of each label at a step's end, and its derivative with respect to the logit."""
    loss, slope = np.zeros(SHAPE), np.zeros(SHAPE)
    for at in np.ndindex(*SHAPE):
        if ends[at]:
            right = 1 / (1 + math.exp(-logits[at]))
            wrong = 1 / (1 + math.exp(logits[at]))
            loss[at] = -labels[at] * math.log(right) - (1 - labels[at]) * math.log(wrong)
            slope[at] = right - labels[at]
    return loss, slope


@given(outputs, label_arrays, masks)
def test_loss_and_gradient_match_formula(logits, labels, ends):
    with jax.enable_x64(True):
        arrays = jnp.array(logits), jnp.array(labels), jnp.array(ends)
        loss, slope = by_hand(logits, labels, ends)
        np.testing.assert_allclose(jit_loss(*arrays), loss, rtol=1e-9, atol=1e-12)
        weight = np.linspace(0.5, 2, loss.size).reshape(SHAPE)
        np.testing.assert_allclose(jit_slopes(*arrays, jnp.array(weight)), weight * slope, rtol=1e-9, atol=1e-12)


def test_best_logit_of_a_soft_label_is_its_log_odds():
    logits = jnp.linspace(-4, 4, 801)
    loss = process_reward_loss(logits, jnp.full(801, 0.25), jnp.ones(801, bool))
    assert logits[loss.argmin()] == pytest.approx(math.log(0.25 / 0.75), abs=0.01)


def test_extreme_logits_give_finite_losses_and_inner_tokens_are_ignored():
    logits, labels = jnp.array([1e30, -1e30, 1e30, jnp.nan]), jnp.array([1.0, 0.0, 0.0, jnp.inf])
    ends = jnp.array([1, 1, 1, 0])
    np.testing.assert_array_equal(process_reward_loss(logits, labels, ends), np.float32([0, 0, 1e30, 0]))
    slopes = jax.grad(lambda logits: process_reward_loss(logits, labels, ends).sum())(logits)
    np.testing.assert_array_equal(slopes, [0, 0, 1, 0])


@pytest.mark.usefixtures("without_type_checks")
def test_wrong_arguments_are_refused():
    one = jnp.ones((2, 3))
    with pytest.raises(ValueError, match="labels"):
        process_reward_loss(one, one.astype(int), one)
    with pytest.raises(ValueError, match="step_end"):
        process_reward_loss(one, one, one[:, :2])
