"""Binary classifier optimization, checked against loops, the bound on DPO's loss, limits and extreme values."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops.binary_feedback import bco_loss, bco_reward_shift
from rljax.ops.direct_preference import dpo_loss

RESPONSES = 5
logps = hnp.arrays(np.float64, (2, RESPONSES), elements=st.floats(-30, 0))
labels = hnp.arrays(bool, RESPONSES)
scales = st.floats(0.05, 2)


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def slow_shift(logp, ref_logp, desirable, beta):
    """Midpoint of the mean rewards of desirable and undesirable responses; with only one kind, its mean."""
    kinds = {True: [], False: []}
    for policy, reference, wanted in zip(logp, ref_logp, desirable, strict=True):
        kinds[bool(wanted)].append(beta * (policy - reference))
    means = [sum(kind) / len(kind) for kind in kinds.values() if kind]
    return sum(means) / len(means)


@given(logps, labels, scales)
def test_shift_is_a_midpoint_without_gradient(two, desirable, beta):
    with jax.enable_x64(True):
        arrays = jnp.array(two[0]), jnp.array(two[1]), jnp.array(desirable)
        expected = slow_shift(*two, desirable, beta)
        np.testing.assert_allclose(bco_reward_shift(*arrays, beta=beta), expected, rtol=1e-9, atol=1e-9)
        for argument in (0, 1):
            assert not jax.grad(bco_reward_shift, argument)(*arrays, beta=beta).any()


@given(logps, labels, scales, st.floats(-5, 5))
def test_bco_loss_and_gradient(two, desirable, beta, shift):
    expected, slopes = np.zeros(RESPONSES), np.zeros(RESPONSES)
    for at in range(RESPONSES):
        logit = beta * (two[0, at] - two[1, at]) - shift
        expected[at] = math.log1p(math.exp(-logit)) if desirable[at] else math.log1p(math.exp(logit))
        # The slope of a wanted response is -β σ(-logit), without the factor σ(logit) of KTO's gradient.
        slopes[at] = -beta * sigmoid(-logit) if desirable[at] else beta * sigmoid(logit)
    with jax.enable_x64(True):
        logp, ref_logp, wanted = jnp.array(two[0]), jnp.array(two[1]), jnp.array(desirable)
        settings = {"reward_shift": shift, "beta": beta}
        np.testing.assert_allclose(bco_loss(logp, ref_logp, wanted, **settings), expected, rtol=1e-7, atol=1e-12)
        for argument, sign in ((0, 1), (1, -1)):
            slope = jax.grad(lambda *x: bco_loss(*x, wanted, **settings).sum(), argument)(logp, ref_logp)
            np.testing.assert_allclose(slope, sign * slopes, rtol=1e-7, atol=1e-12)


@given(hnp.arrays(np.float64, 4, elements=st.floats(-8, 0)), st.floats(0.1, 2), st.floats(-3, 3))
def test_pair_loss_bounds_dpo_loss_most_tightly_at_the_midpoint(four, beta, offset):
    """A pair's summed loss exceeds DPO's for every shift (Theorem 3), least at the midpoint of its two rewards (Theorem 4)."""
    with jax.enable_x64(True):
        logp, ref_logp = jnp.array(four[:2]), jnp.array(four[2:])
        wanted = jnp.array([True, False])
        middle = bco_reward_shift(logp, ref_logp, wanted, beta=beta)
        np.testing.assert_allclose(middle, beta * (four[0] - four[2] + four[1] - four[3]) / 2, atol=1e-9)
        dpo = dpo_loss(*logp, *ref_logp, beta=beta)
        at_middle, elsewhere = (
            bco_loss(logp, ref_logp, wanted, reward_shift=middle + shift, beta=beta).sum() for shift in (0.0, offset)
        )
        assert dpo < at_middle <= elsewhere + 1e-9


@pytest.mark.parametrize("size", [1e4, 1e18])
def test_large_rewards_overflow_neither_losses_nor_slopes(size):
    logp, zero, wanted = jnp.array([-size, size, -size, size]), jnp.zeros(4), jnp.array([True, True, False, False])
    loss = bco_loss(logp, zero, wanted, reward_shift=0.0, beta=0.1)
    np.testing.assert_allclose(loss, [0.1 * size, 0.0, 0.0, 0.1 * size], rtol=1e-6)
    slope = jax.grad(lambda logp: bco_loss(logp, zero, wanted, reward_shift=0.0, beta=0.1).sum())(logp)
    np.testing.assert_allclose(slope, [-0.1, 0.0, 0.0, 0.1], atol=1e-6)


@pytest.mark.usefixtures("without_type_checks")
def test_errors_name_the_argument():
    one, yes = jnp.zeros(1), jnp.ones(1, bool)
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="beta must be positive"):
            bco_loss(one, one, yes, reward_shift=0.0, beta=wrong)
        with pytest.raises(ValueError, match="beta must be positive"):
            bco_reward_shift(one, one, yes, beta=wrong)
    with pytest.raises(ValueError, match="desirable must be a boolean array, got float32"):
        bco_loss(one, one, one, reward_shift=0.0)
    with pytest.raises(ValueError, match=r"desirable must have the shape of logp \[1\], got \[2\]"):
        bco_loss(one, one, jnp.ones(2, bool), reward_shift=0.0)
    with pytest.raises(ValueError, match="logp must have at least 1 non-empty axes"):
        bco_reward_shift(jnp.zeros(0), jnp.zeros(0), jnp.zeros(0, bool))
