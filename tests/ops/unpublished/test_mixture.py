"""Mixtures of advantages, values and policies: formulas, gradients, and refused arguments."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from op_oracles import arrays

from rljax.ops.unpublished import mixture

P, T = 4, 5
tenths = st.integers(-30, 30).map(lambda k: k / 10)
token_arrays = hnp.arrays(np.float64, (P, T), elements=tenths)
masks = hnp.arrays(bool, (P, T))
weights = st.integers(0, 4).map(lambda k: k / 4)
unit = st.floats(0, 1, allow_subnormal=False)  # XLA treats subnormal numbers as 0
EXACT = {"rtol": 1e-10, "atol": 1e-11}
ROWS, TOKENS = 2, 4
tokens = arrays(ROWS, TOKENS)
log_probabilities = arrays(3, 4, elements=st.floats(-400, 0) | st.just(-math.inf))
entropy_bonus = jax.jit(mixture.entropy_bonus)
mix_advantages = jax.jit(mixture.mix_advantages)
jit_heads = jax.jit(mixture.multi_head_value)
jit_mixture = jax.jit(mixture.neural_symbolic_mixture)


@given(token_arrays, token_arrays, weights)
def test_mixtures_match_their_formulas(first, second, weight):
    with jax.enable_x64(True):
        a, b = jnp.array(first), jnp.array(second)
        np.testing.assert_allclose(mix_advantages(a, b, weight=weight), weight * first + (1 - weight) * second)
        bonus = mixture.with_exploration_bonus(a, b, beta=weight)
        np.testing.assert_allclose(bonus, first + weight * second)


def minus_mean(x, peers):
    return x - sum(peers) / len(peers) if len(peers) > 1 else 0.0


@given(token_arrays, masks)
def test_entropy_bonus_matches_formula(entropy, mask):
    pairs = list(zip(entropy.ravel(), mask.ravel(), strict=True))
    members = [h for h, m in pairs if m]
    expected = np.array([minus_mean(h, members) if m else 0.0 for h, m in pairs]).reshape(mask.shape)
    with jax.enable_x64(True):
        bonus = entropy_bonus(jnp.array(np.where(mask, entropy, np.nan)), jnp.array(mask))
        np.testing.assert_allclose(bonus, expected, atol=1e-12)


@given(tokens, tokens, unit)
def test_mix_values_matches_formula(pretrained, critic, weight):
    with jax.enable_x64(True):
        expected = weight * pretrained + (1 - weight) * critic
        np.testing.assert_allclose(mixture.mix_values(jnp.array(pretrained), jnp.array(critic), weight), expected, **EXACT)


@given(st.integers(0, 500), st.integers(1, 400), unit, st.floats(0, 5), st.floats(0, 1), st.floats(0, 4))
def test_pretrained_value_weight_matches_formula(step, total, initial, decay, reliability, eta):
    with jax.enable_x64(True):
        settings = {"total_steps": total, "initial": initial, "decay": decay, "reliability": reliability, "eta": eta}
        actual = mixture.pretrained_value_weight(step, **settings)
        assert actual == pytest.approx(initial * math.exp(-decay * step / total) / (1 + eta * reliability), rel=1e-12)
        assert 0 <= actual <= initial


@pytest.mark.usefixtures("x64")
def test_pretrained_value_weight_defaults():
    weight = partial(mixture.pretrained_value_weight, total_steps=100, reliability=jnp.array(0.5), eta=1.0)
    expected = [0.8 / 1.5, 0.8 * math.exp(-1) / 1.5, 0.8 * math.exp(-2) / 1.5]
    np.testing.assert_allclose(jax.jit(weight)(jnp.array([0, 50, 100])), expected, rtol=1e-12)


@given(arrays(ROWS, 3), arrays(ROWS, 3))
def test_multi_head_value_matches_formula(values, logits):
    with jax.enable_x64(True):
        weights = np.exp(logits)
        expected = (weights * values).sum(-1) / weights.sum(-1)
        np.testing.assert_allclose(jit_heads(jnp.array(values), jnp.array(logits)), expected, **EXACT)


def test_multi_head_value_ignores_disabled_heads():
    values, logits = jnp.array([1.0, 5.0, 3.0]), jnp.array([0.0, -jnp.inf, 0.0])
    out, slope = jax.jit(jax.value_and_grad(mixture.multi_head_value, argnums=1))(values, logits)
    assert out == 2.0
    assert np.isfinite(slope).all()


def test_value_mixtures_leading_axes_and_half_precision():
    x, heads = jnp.ones((2, 3, 4), jnp.bfloat16), jnp.ones((2, 3, 4, 5), jnp.bfloat16)
    mixed = jax.eval_shape(partial(mixture.mix_values, weight=0.5), x, x)
    blended = jax.eval_shape(mixture.multi_head_value, heads, heads)
    assert [(out.shape, out.dtype.name) for out in (mixed, blended)] == [((2, 3, 4), "float32")] * 2


@given(log_probabilities, log_probabilities, unit)
def test_mixture_matches_formula(logp, symbolic, alpha):
    with jax.enable_x64(True):
        expected = np.logaddexp(
            np.log(alpha) + logp if alpha > 0 else np.full_like(logp, -np.inf),
            np.log1p(-alpha) + symbolic if alpha < 1 else np.full_like(logp, -np.inf),
        )
        actual = jit_mixture(jnp.array(logp), jnp.array(symbolic), alpha=jnp.array(alpha))
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mixture_is_exact_at_alpha_0_and_1(dtype, traced):
    with jax.enable_x64(True):
        logp = jnp.array([-0.3, -500.0, -jnp.inf, -0.1, -jnp.inf], dtype)
        symbolic = jnp.array([-0.7, -1.0 / 3, -0.2, -jnp.inf, -jnp.inf], dtype)
        for weight, expected in ((1, logp), (0, symbolic)):
            alpha = jnp.array(weight, dtype) if traced else weight
            mix = jit_mixture if traced else mixture.neural_symbolic_mixture
            np.testing.assert_array_equal(mix(logp, symbolic, alpha=alpha), expected)


@jax.jit
def mixture_slopes(logp, symbolic, alpha, possible):
    def total(logp, symbolic, alpha):
        return mixture.neural_symbolic_mixture(logp, symbolic, alpha=alpha).sum(where=possible)

    return jax.grad(total, (0, 1, 2))(logp, symbolic, alpha)


@jax.jit
def mixture_probability_slopes(logp, symbolic, alpha):
    def total(logp, symbolic, alpha):
        return jnp.exp(mixture.neural_symbolic_mixture(logp, symbolic, alpha=alpha)).sum()

    return jax.grad(total, (0, 1, 2))(logp, symbolic, alpha)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("alpha", [0.0, 1e-30, 0.3, 1.0])
def test_mixture_gradients_match_the_formula(alpha):
    # d log π / d log π_n = α π_n / π, the same for π_s with 1 - α, and d log π / dα = (π_n - π_s) / π.
    logp, symbolic = np.array([-0.3, -2.0, -math.inf, -0.1]), np.array([-0.7, -0.2, -0.2, -3.0])
    neural, rules = np.exp(logp), np.exp(symbolic)
    mixed = alpha * neural + (1 - alpha) * rules
    possible = mixed > 0
    mixed = np.where(possible, mixed, 1)
    slopes = mixture_slopes(jnp.array(logp), jnp.array(symbolic), jnp.array(alpha), jnp.array(possible))
    np.testing.assert_allclose(slopes[0], np.where(possible, alpha * neural / mixed, 0), rtol=1e-9)
    np.testing.assert_allclose(slopes[1], np.where(possible, (1 - alpha) * rules / mixed, 0), rtol=1e-9)
    np.testing.assert_allclose(slopes[2], np.where(possible, (neural - rules) / mixed, 0).sum(), rtol=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 1e-30, 0.5, 1.0])
def test_mixture_gradient_is_finite_at_probability_0(alpha):
    logp, symbolic = jnp.array([-jnp.inf, -jnp.inf, 0.0, -300.0, -300.0]), jnp.array([-jnp.inf, 0.0, -jnp.inf, 0.0, -800.0])
    slopes = mixture_probability_slopes(logp, symbolic, jnp.array(alpha))
    assert all(np.isfinite(slope).all() for slope in slopes)
    assert slopes[0][0] == slopes[1][0] == 0


PAIR, X = jnp.ones((2, 2)), jnp.ones((2, 3))
INTEGERS = X.astype(int)
WEIGHT = {"total_steps": 10, "reliability": 0.5, "eta": 1.0}


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mixture.mix_advantages(PAIR, PAIR, weight=-0.1), r"weight must lie in \[0, 1\], got -0.1"),
        (lambda: mixture.mix_advantages(PAIR, PAIR[0], weight=0.1), "second must have the shape of first"),
        (lambda: mixture.mix_advantages(PAIR, PAIR.astype(int), weight=0.1), "second must be a floating-point array"),
        (lambda: mixture.with_exploration_bonus(PAIR, PAIR[0], beta=0.1), "bonus must have the shape of advantage"),
        (lambda: mixture.with_exploration_bonus(PAIR.astype(int), PAIR, beta=0.1), "advantage must be a floating"),
        (lambda: mixture.with_exploration_bonus(PAIR, PAIR, beta=-1.0), "beta must not be negative, got -1.0"),
        (lambda: mixture.entropy_bonus(PAIR.astype(int), PAIR), "entropy must be a floating-point array"),
        (lambda: mixture.entropy_bonus(PAIR, PAIR[0]), "mask must have the shape of entropy"),
        (lambda: mixture.entropy_bonus(PAIR, PAIR / 2), "mask must contain only 0 and 1"),
        (lambda: mixture.mix_values(X, X, 1.5), r"weight must lie in \[0, 1\], got 1.5"),
        (lambda: mixture.mix_values(X, INTEGERS, 0.5), "critic must be a floating-point array"),
        (lambda: mixture.mix_values(X, X[:1], 0.5), "critic must have the shape of pretrained"),
        (lambda: mixture.pretrained_value_weight(1, initial=1.5, **WEIGHT), r"initial must lie in \[0, 1\]"),
        (lambda: mixture.pretrained_value_weight(1, **{**WEIGHT, "reliability": -0.5}), "reliability must not be negative"),
        (lambda: mixture.pretrained_value_weight(1, **{**WEIGHT, "eta": -0.5}), "eta must not be negative, got -0.5"),
        (lambda: mixture.multi_head_value(INTEGERS, X), "values must be a floating-point array"),
        (lambda: mixture.multi_head_value(X, X[:1]), "weight_logits must have the shape of values"),
        (lambda: mixture.multi_head_value(X[:, :0], X[:, :0]), r"values must have at least one head .* \[2, 0\]"),
        (lambda: mixture.neural_symbolic_mixture(X.astype(int), X, alpha=0.5), "logp must be a floating-point array"),
        (
            lambda: mixture.neural_symbolic_mixture(X, X.astype(int), alpha=0.5),
            "symbolic_logp must be a floating-point array",
        ),
        (lambda: mixture.neural_symbolic_mixture(X, X[:1], alpha=0.5), "symbolic_logp must have the shape of logp"),
        (lambda: mixture.neural_symbolic_mixture(X, X, alpha=1.5), r"alpha must lie in \[0, 1\], got 1.5"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
