"""Preference losses relative to a reference, checked against loops, the papers' gradients, limits and extreme values."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from op_oracles import central_differences

from rljax.ops.direct_preference import (
    apo_down_loss,
    apo_zero_loss,
    conservative_dpo_loss,
    dpo_loss,
    hinge_preference_loss,
    implicit_reward,
    ipo_loss,
    kto_loss,
    kto_reference_point,
    rebel_loss,
    robust_dpo_loss,
)

PAIRS = 5
# log π(y_w), log π(y_l), log π_ref(y_w) and log π_ref(y_l) of each pair
logps = hnp.arrays(np.float64, (4, PAIRS), elements=st.floats(-30, 0))
scales = st.floats(0.05, 2)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def margin(four, pair):
    """The margin of a pair: log(π(y_w)/π_ref(y_w)) - log(π(y_l)/π_ref(y_l))."""
    chosen, rejected, ref_chosen, ref_rejected = four[:, pair]
    return math.log(math.exp(chosen) / math.exp(ref_chosen)) - math.log(math.exp(rejected) / math.exp(ref_rejected))


def gradients(loss, four, **settings):
    """Gradients of the summed loss with respect to the policy's two log-probabilities."""
    return jax.grad(lambda a, b: loss(a, b, *four[2:], **settings).sum(), (0, 1))(*four[:2])


@given(logps, scales)
def test_dpo_loss_and_gradient(four, beta):
    with jax.enable_x64(True):
        arrays = jnp.array(four)
        expected = [-math.log(sigmoid(beta * margin(four, pair))) for pair in range(PAIRS)]
        np.testing.assert_allclose(dpo_loss(*arrays, beta=beta), expected, rtol=1e-9, atol=1e-12)
        # -β σ(r̂_l - r̂_w) [∇log π(y_w) - ∇log π(y_l)], whose weight is larger for a pair in the wrong order
        weight = np.array([-beta * sigmoid(-beta * margin(four, pair)) for pair in range(PAIRS)])
        on_chosen, on_rejected = gradients(dpo_loss, arrays, beta=beta)
        np.testing.assert_allclose(on_chosen, weight, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(on_rejected, -weight, rtol=1e-9, atol=1e-12)


@given(logps, scales, st.floats(0, 0.5))
def test_conservative_dpo_loss_and_gradient(four, beta, epsilon):
    with jax.enable_x64(True):
        arrays = jnp.array(four)
        expected, slopes = np.zeros(PAIRS), np.zeros(PAIRS)
        for pair in range(PAIRS):
            right = sigmoid(beta * margin(four, pair))
            wrong = sigmoid(-beta * margin(four, pair))
            expected[pair] = -(1 - epsilon) * math.log(right) - epsilon * math.log(wrong)
            slopes[pair] = -beta * ((1 - epsilon) * wrong - epsilon * right)
        actual = conservative_dpo_loss(*arrays, beta=beta, epsilon=epsilon)
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)
        on_chosen, _ = gradients(conservative_dpo_loss, arrays, beta=beta, epsilon=epsilon)
        np.testing.assert_allclose(on_chosen, slopes, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(
            conservative_dpo_loss(*arrays, beta=beta, epsilon=0.0), dpo_loss(*arrays, beta=beta), rtol=1e-12
        )


@given(logps, scales, st.floats(0, 0.45))
def test_robust_dpo_loss_and_gradient_are_unbiased(four, beta, epsilon):
    with jax.enable_x64(True):
        arrays = jnp.array(four)
        expected, slopes, clean = np.zeros(PAIRS), np.zeros(PAIRS), np.zeros(PAIRS)
        for pair in range(PAIRS):
            right, wrong = sigmoid(beta * margin(four, pair)), sigmoid(-beta * margin(four, pair))
            expected[pair] = (-(1 - epsilon) * math.log(right) + epsilon * math.log(wrong)) / (1 - 2 * epsilon)
            slopes[pair] = -beta * ((1 - epsilon) * wrong + epsilon * right) / (1 - 2 * epsilon)
            clean[pair] = -math.log(right)
        actual = robust_dpo_loss(*arrays, beta=beta, epsilon=epsilon)
        np.testing.assert_allclose(actual, expected, rtol=1e-7, atol=1e-9)
        on_chosen, on_rejected = gradients(robust_dpo_loss, arrays, beta=beta, epsilon=epsilon)
        np.testing.assert_allclose(on_chosen, slopes, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(on_rejected, -slopes, rtol=1e-7, atol=1e-12)
        # Averaged over labels flipped with probability ε, the loss is DPO's loss under the correct labels.
        flipped = robust_dpo_loss(*arrays[jnp.array([1, 0, 3, 2])], beta=beta, epsilon=epsilon)
        np.testing.assert_allclose((1 - epsilon) * actual + epsilon * flipped, clean, rtol=1e-7, atol=1e-9)


@given(logps, scales)
def test_hinge_preference_loss_and_gradient(four, beta):
    with jax.enable_x64(True):
        arrays = jnp.array(four)
        shortfall = np.array([1 - beta * margin(four, pair) for pair in range(PAIRS)])
        np.testing.assert_allclose(
            hinge_preference_loss(*arrays, beta=beta), np.maximum(shortfall, 0), rtol=1e-9, atol=1e-9
        )
        on_chosen, on_rejected = gradients(hinge_preference_loss, arrays, beta=beta)
        away_from_the_kink = np.abs(shortfall) > 1e-6
        np.testing.assert_allclose(on_chosen[away_from_the_kink], -beta * (shortfall > 0)[away_from_the_kink])
        np.testing.assert_allclose(on_rejected[away_from_the_kink], beta * (shortfall > 0)[away_from_the_kink])


@given(logps, scales)
def test_apo_losses_and_gradients(four, beta):
    """APO-zero always widens a pair's margin; APO-down lowers the preferred response's probability if the margin is large."""
    with jax.enable_x64(True):
        arrays = jnp.array(four)
        chosen, rejected = beta * (four[0] - four[2]), beta * (four[1] - four[3])
        s_chosen, s_rejected, s_margin = (np.array([*map(sigmoid, x)]) for x in (chosen, rejected, chosen - rejected))
        tolerance = {"rtol": 1e-7, "atol": 1e-12}
        np.testing.assert_allclose(apo_zero_loss(*arrays, beta=beta), s_rejected - s_chosen, **tolerance)
        np.testing.assert_allclose(apo_down_loss(*arrays, beta=beta), s_chosen - s_margin, **tolerance)
        on_chosen, on_rejected = gradients(apo_zero_loss, arrays, beta=beta)
        np.testing.assert_allclose(on_chosen, -beta * s_chosen * (1 - s_chosen), **tolerance)
        np.testing.assert_allclose(on_rejected, beta * s_rejected * (1 - s_rejected), **tolerance)
        on_chosen, on_rejected = gradients(apo_down_loss, arrays, beta=beta)
        np.testing.assert_allclose(on_chosen, beta * (s_chosen * (1 - s_chosen) - s_margin * (1 - s_margin)), **tolerance)
        np.testing.assert_allclose(on_rejected, beta * s_margin * (1 - s_margin), **tolerance)


@given(logps, hnp.arrays(np.float64, PAIRS, elements=st.floats(-3, 3)), scales)
def test_rebel_loss_and_gradient(four, gaps, eta):
    with jax.enable_x64(True):
        arrays, gap = jnp.array(four), jnp.array(gaps)
        errors = np.array([margin(four, pair) / eta - gaps[pair] for pair in range(PAIRS)])
        np.testing.assert_allclose(rebel_loss(*arrays, gap, eta=eta), errors**2, rtol=1e-9, atol=1e-9)
        on_chosen, on_rejected = gradients(rebel_loss, [*arrays, gap], eta=eta)
        np.testing.assert_allclose(on_chosen, 2 / eta * errors, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(on_rejected, -2 / eta * errors, rtol=1e-9, atol=1e-9)
        swapped = rebel_loss(*arrays[jnp.array([1, 0, 3, 2])], -gap, eta=eta)
        np.testing.assert_allclose(swapped, errors**2, rtol=1e-9, atol=1e-9)
        # The authors' code scales the loss by η².
        authors = [(margin(four, pair) - eta * gaps[pair]) ** 2 for pair in range(PAIRS)]
        np.testing.assert_allclose(eta**2 * rebel_loss(*arrays, gap, eta=eta), authors, rtol=1e-9, atol=1e-9)


def test_rebel_special_cases_are_leave_one_out_and_ipo(x64):
    """Before the first update, REBEL's gradient is -4/η times RLOO's on two responses; with η = 1 and gap 1/(2τ) it is IPO's."""
    logp, rewards = jnp.array([[-2.0, -5.0], [-1.0, -7.0]]), jnp.array([[1.0, 0.25], [0.5, 0.5]])

    def loss(now):
        return rebel_loss(*now.T, *logp.T, rewards[:, 0] - rewards[:, 1], eta=0.5).sum()

    advantages = rewards - rewards[:, ::-1]
    np.testing.assert_allclose(jax.grad(loss)(logp), -4 / 0.5 * advantages / 2)
    four = jnp.array([[-3.0], [-4.0], [-2.0], [-6.0]])
    np.testing.assert_allclose(rebel_loss(*four, jnp.array([1 / 0.8])), ipo_loss(*four, tau=0.4))


@given(logps, scales)
def test_ipo_loss_and_gradient(four, tau):
    with jax.enable_x64(True):
        arrays = jnp.array(four)
        margins = np.array([margin(four, pair) for pair in range(PAIRS)])
        np.testing.assert_allclose(ipo_loss(*arrays, tau=tau), (margins - 0.5 / tau) ** 2, rtol=1e-9, atol=1e-9)
        on_chosen, on_rejected = gradients(ipo_loss, arrays, tau=tau)
        np.testing.assert_allclose(on_chosen, 2 * (margins - 0.5 / tau), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(on_rejected, -2 * (margins - 0.5 / tau), rtol=1e-9, atol=1e-9)


@given(logps, scales, hnp.arrays(bool, PAIRS), st.floats(0, 5))
def test_kto_loss_and_gradient(four, beta, desirable, point):
    settings = {"beta": beta, "reference_point": point, "desirable_weight": 1.5, "undesirable_weight": 0.5}
    expected, slopes = np.zeros(PAIRS), np.zeros(PAIRS)
    for index in range(PAIRS):
        reward = four[0, index] - four[1, index]
        if desirable[index]:
            value = 1.5 * sigmoid(beta * (reward - point))
            expected[index] = 1.5 - value
            slopes[index] = -1.5 * beta * sigmoid(beta * (reward - point)) * (1 - sigmoid(beta * (reward - point)))
        else:
            value = 0.5 * sigmoid(beta * (point - reward))
            expected[index] = 0.5 - value
            slopes[index] = 0.5 * beta * sigmoid(beta * (point - reward)) * (1 - sigmoid(beta * (point - reward)))
    with jax.enable_x64(True):
        logp, ref_logp, wanted = jnp.array(four[0]), jnp.array(four[1]), jnp.array(desirable)
        np.testing.assert_allclose(kto_loss(logp, ref_logp, wanted, **settings), expected, rtol=1e-7, atol=1e-12)
        slope = jax.grad(lambda logp: kto_loss(logp, ref_logp, wanted, **settings).sum())(logp)
        np.testing.assert_allclose(slope, slopes, rtol=1e-7, atol=1e-12)


@given(logps)
def test_reference_point_is_a_nonnegative_mean_without_gradient(four):
    total = 0.0
    for index in range(PAIRS):
        total += four[0, index] - four[1, index]
    with jax.enable_x64(True):
        logp, ref_logp = jnp.array(four[0]), jnp.array(four[1])
        np.testing.assert_allclose(kto_reference_point(logp, ref_logp), max(0.0, total / PAIRS), rtol=1e-9, atol=1e-12)
        for argument in (0, 1):
            assert not jax.grad(kto_reference_point, argument)(logp, ref_logp).any()


@pytest.mark.usefixtures("x64")
def test_kto_slopes_match_central_differences():
    four = np.random.default_rng(0).uniform(-4, 0, (4, PAIRS))
    desirable = jnp.array([[True] * PAIRS, [False] * PAIRS])
    total = jax.jit(lambda four: kto_loss(four[:2], four[2:], desirable, reference_point=0.3, beta=0.7).sum())
    slope = jax.grad(total)(jnp.array(four))
    np.testing.assert_allclose(slope, central_differences(total, four), rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("x64")
def test_gradients_at_the_reference_match_the_papers():
    """The gradients' absolute values: β/2 for DPO, 1/τ for IPO, and β λ/8 for KTO with weight 1/2 per response of a pair."""
    ref = jnp.array(np.random.default_rng(1).uniform(-9, 0, (2, PAIRS)))
    at_reference = jnp.concatenate([ref, ref])
    np.testing.assert_allclose(dpo_loss(*at_reference, beta=0.3), math.log(2), rtol=1e-12)
    on_chosen, on_rejected = gradients(dpo_loss, at_reference, beta=0.3)
    np.testing.assert_allclose([on_chosen, on_rejected], np.repeat([[-0.15], [0.15]], PAIRS, axis=1), rtol=1e-12)
    on_chosen, on_rejected = gradients(ipo_loss, at_reference, tau=0.25)
    np.testing.assert_allclose([on_chosen, on_rejected], np.repeat([[-4.0], [4.0]], PAIRS, axis=1), rtol=1e-12)
    wanted = jnp.array([[True] * PAIRS, [False] * PAIRS])
    point = kto_reference_point(ref, ref)
    assert float(point) == 0.0
    slope = jax.grad(lambda logp: (kto_loss(logp, ref, wanted, reference_point=point, beta=0.3) / 2).sum())(ref)
    np.testing.assert_allclose(slope, np.repeat([[-0.0375], [0.0375]], PAIRS, axis=1), rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_dpo_with_a_small_beta_is_ipo():
    """At margin h, DPO's loss is log 2 - βh/2 + (βh)²/8 + O(β⁴) = (β²/8)(h - 2/β)² + log 2 - 1/2 + O(β⁴): IPO with τ = β/4."""
    four = jnp.array(np.random.default_rng(2).uniform(-3, 0, (4, PAIRS)))
    beta = 1e-3
    quadratic = beta**2 / 8 * ipo_loss(*four, tau=beta / 4) + math.log(2) - 0.5
    np.testing.assert_allclose(dpo_loss(*four, beta=beta), quadratic, atol=1e-11)


@pytest.mark.usefixtures("x64")
def test_conservative_loss_minimum_predicts_1_minus_epsilon():
    zero, best = jnp.zeros(1), jnp.array([math.log(0.9 / 0.1) / 0.5])
    (slope, _) = gradients(conservative_dpo_loss, (best, zero, zero, zero), beta=0.5, epsilon=0.1)
    np.testing.assert_allclose(slope, 0.0, atol=1e-12)
    (beyond, _) = gradients(conservative_dpo_loss, (best + 1, zero, zero, zero), beta=0.5, epsilon=0.1)
    assert beyond > 0


def test_dpo_depends_on_the_difference_of_implicit_rewards():
    four = jnp.array(np.random.default_rng(3).uniform(-9, 0, (4, PAIRS)), jnp.float32)
    rewards = implicit_reward(four[:2], four[2:], beta=0.3)
    np.testing.assert_allclose(dpo_loss(*four, beta=0.3), jax.nn.softplus(rewards[1] - rewards[0]), rtol=1e-5)
    assert not implicit_reward(four, four, beta=0.3).any()


@pytest.mark.parametrize("size", [1e4, 1e18])
def test_large_margins_overflow_neither_losses_nor_slopes(size):
    four = jnp.array([[-size, 0.0], [0.0, -size], [0.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(dpo_loss(*four, beta=0.1), [0.1 * size, 0.0], rtol=1e-6)
    np.testing.assert_allclose(gradients(dpo_loss, four, beta=0.1)[0], [-0.1, 0.0], atol=1e-6)
    smoothed = conservative_dpo_loss(*four, beta=0.1, epsilon=0.25)
    np.testing.assert_allclose(smoothed, [0.075 * size, 0.025 * size], rtol=1e-6)
    assert np.isfinite(ipo_loss(*four, tau=0.1)).all()
    for wanted, losses in ((True, [1.0, 0.0]), (False, [0.0, 1.0])):
        desirable = jnp.full(2, wanted)
        arguments = four[0] - four[1], four[2], desirable
        np.testing.assert_allclose(kto_loss(*arguments, reference_point=0.0), losses, atol=1e-6)
        slope = jax.grad(lambda logp, rest=arguments[1:]: kto_loss(logp, *rest, reference_point=0.0).sum())(arguments[0])
        assert not slope.any(), "an example far from the reference point has no gradient"


def test_impossible_response_gives_a_loss_of_0_or_infinity():
    zero, never = jnp.zeros(1), jnp.array([-jnp.inf])
    assert float(dpo_loss(zero, never, zero, zero)[0]) == 0.0
    assert float(dpo_loss(never, zero, zero, zero)[0]) == math.inf


@pytest.mark.usefixtures("without_type_checks")
def test_errors_name_the_argument():
    one, two = jnp.zeros(1), jnp.zeros(2)
    with pytest.raises(ValueError, match=r"ref_rejected must have the shape of chosen \[1\], got \[2\]"):
        dpo_loss(one, one, one, two)
    with pytest.raises(ValueError, match="rejected must be a floating-point array, got int32"):
        ipo_loss(one, jnp.array([1]), one, one)
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="beta must be positive"):
            dpo_loss(one, one, one, one, beta=wrong)
        with pytest.raises(ValueError, match="tau must be positive"):
            ipo_loss(one, one, one, one, tau=wrong)
        with pytest.raises(ValueError, match="eta must be positive"):
            rebel_loss(one, one, one, one, one, eta=wrong)
    with pytest.raises(ValueError, match=r"reward_gap must have the shape of chosen \[1\], got \[2\]"):
        rebel_loss(one, one, one, one, two)
    with pytest.raises(ValueError, match=r"epsilon must lie in \[0, 0\.5\], got 0\.6"):
        conservative_dpo_loss(one, one, one, one, epsilon=0.6)
    with pytest.raises(ValueError, match=r"1 - 2 \* epsilon must be positive, got 0"):
        robust_dpo_loss(one, one, one, one, epsilon=0.5)
    with pytest.raises(ValueError, match="desirable must be a boolean array, got float32"):
        kto_loss(one, one, one, reference_point=0.0)
    with pytest.raises(ValueError, match="reference_point must not be negative, got -1"):
        kto_loss(one, one, one > 0, reference_point=-1.0)
    with pytest.raises(ValueError, match="logp must have at least 1 non-empty axes"):
        kto_reference_point(jnp.zeros(0), jnp.zeros(0))
