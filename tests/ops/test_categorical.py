"""Values represented as distributions, checked against sums written from the formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from op_oracles import arrays, poisoned, unit

from rljax.ops import categorical as ops

ROWS, TOKENS, POINTS = 2, 4, 5  # sequences, tokens, support points
EXACT = {"rtol": 1e-10, "atol": 1e-11}

UNEVEN = np.array([-3.0, -1.0, 0.0, 0.5, 3.0])
EVEN = np.linspace(-3.0, 3.0, POINTS)


masks = hnp.arrays(bool, (ROWS, TOKENS))
distributions = arrays(ROWS, POINTS, elements=st.floats(0.01, 1)).map(lambda p: p / p.sum(-1, keepdims=True))

jit_mean = jax.jit(ops.categorical_mean)
jit_mean_of_logits = jax.jit(ops.categorical_mean_of_logits)
jit_two_hot = jax.jit(ops.two_hot)
jit_gauss = jax.jit(ops.hl_gauss)
jit_projection = jax.jit(ops.c51_projection)
jit_entropy = jax.jit(ops.categorical_cross_entropy)


def two_hot_by_hand(y, support):
    """Two-hot weights by hand: y's mass is split between the two nearest points, and the nearer point gets more."""
    p = np.zeros(len(support))
    y = min(max(y, support[0]), support[-1])
    right = next(i for i in range(1, len(support)) if y <= support[i])
    p[right] = (y - support[right - 1]) / (support[right] - support[right - 1])
    p[right - 1] = 1 - p[right]
    return p


@given(arrays(ROWS, TOKENS))
@pytest.mark.parametrize("support", [UNEVEN, EVEN], ids=["uneven", "even"])
def test_two_hot_matches_formula_and_keeps_the_mean(support, target):
    with jax.enable_x64(True):
        actual = jit_two_hot(jnp.array(target), jnp.array(support))
        np.testing.assert_allclose(actual, [[two_hot_by_hand(y, support) for y in row] for row in target], **EXACT)
        np.testing.assert_allclose(jit_mean(actual, jnp.array(support)), target, rtol=1e-10, atol=1e-10)


def test_two_hot_accepts_ends_of_a_negative_support():
    ends, support = jnp.array([-3.0, -1.0]), jnp.array([-3.0, -2.0, -1.0])
    np.testing.assert_array_equal(ops.two_hot(ends, support), np.eye(3)[[0, 2]])


@pytest.mark.usefixtures("x64")
def test_two_hot_at_a_support_point_is_one_hot():
    np.testing.assert_array_equal(jit_two_hot(jnp.array(UNEVEN), jnp.array(UNEVEN)), np.eye(POINTS))


def test_traced_target_beyond_the_support_is_clipped():
    beyond, support = jnp.array([-9.0, 9.0]), jnp.array(EVEN, jnp.float32)
    np.testing.assert_array_equal(jit_two_hot(beyond, support), np.eye(POINTS)[[0, -1]])
    at_the_ends = jit_gauss(jnp.array([-3.75, 3.75]), support)
    np.testing.assert_array_equal(jit_gauss(beyond, support), at_the_ends)
    assert np.isfinite(at_the_ends).all()


def gauss_by_hand(y, support, ratio):
    """The Gaussian's mass in each bin, by hand and not renormalized."""
    width = support[1] - support[0]
    below = [
        0.5 * (1 + math.erf((z - y) / (ratio * width * math.sqrt(2))))
        for z in (*(support - width / 2), support[-1] + width / 2)
    ]
    return np.diff(below)


@given(arrays(ROWS, elements=st.floats(-3.75, 3.75)), st.floats(0.3, 2))
def test_hl_gauss_matches_formula(target, ratio):
    with jax.enable_x64(True):
        expected = [gauss_by_hand(y, EVEN, ratio) / gauss_by_hand(y, EVEN, ratio).sum() for y in target]
        np.testing.assert_allclose(jit_gauss(jnp.array(target), jnp.array(EVEN), sigma_ratio=ratio), expected, **EXACT)


@pytest.mark.usefixtures("x64")
def test_hl_gauss_is_biased_only_at_the_ends_of_the_support():
    tiles = np.linspace(0, 1, 52)
    tight = (tiles[1:] + tiles[:-1]) / 2
    zero = jnp.array([0.0])
    edge = jit_gauss(zero, jnp.array(tight))
    assert edge.sum() == pytest.approx(1.0)
    assert ops.categorical_mean(edge, jnp.array(tight)).item() == pytest.approx(0.0135, abs=5e-5)
    assert gauss_by_hand(0.0, tight, 0.75) @ tight == pytest.approx(0.0068, abs=5e-5)  # the mean without renormalization
    width = tight[1] - tight[0]
    roomy = ops.uniform_support(float(tight[0] - 3 * width), float(tight[-1] + 3 * width), 57)
    assert jit_mean(jit_gauss(zero, roomy), roomy).item() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_target_may_exceed_the_support_only_by_rounding(scale):
    support = jnp.array([-scale, 0.0, scale])
    a_little, too_far = (jnp.array([scale * (1 + ulps * np.finfo(np.float32).eps)]) for ulps in (4, 64))
    np.testing.assert_allclose(ops.two_hot(a_little, support), [[0.0, 0.0, 1.0]], atol=1e-6)
    with pytest.raises(ValueError, match="target must lie within the support"):
        ops.two_hot(too_far, support)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_target_at_a_rounded_end_is_accepted(dtype):
    # Of three bins that tile [0, 1], the first starts at 1.5e-8 in float32, and the last ends at 1 - 1e-16 in float64.
    support = jnp.array(np.array([1, 3, 5]) / 6, dtype)
    assert np.isfinite(ops.hl_gauss(jnp.array([0.0, 1.0], dtype), support)).all()


@given(arrays(ROWS), distributions, arrays(ROWS, elements=unit))
@pytest.mark.parametrize("support", [UNEVEN, EVEN], ids=["uneven", "even"])
def test_c51_projection_matches_formula(support, rewards, probs, discount):
    with jax.enable_x64(True):
        expected = [
            sum(p * two_hot_by_hand(r + g * z, support) for p, z in zip(row, support, strict=True))
            for r, row, g in zip(rewards, probs, discount, strict=True)
        ]
        actual = jit_projection(jnp.array(rewards), jnp.array(probs), jnp.array(support), jnp.array(discount))
        np.testing.assert_allclose(actual, expected, **EXACT)
        np.testing.assert_allclose(actual.sum(-1), 1, rtol=1e-12)


def test_c51_projection_with_discount_0_is_two_hot():
    returns, successor = jnp.linspace(-0.7, 1.7, 25), jnp.asarray(np.random.default_rng(3).dirichlet(np.ones(POINTS), 25))
    support = jnp.linspace(-0.5, 1.5, POINTS)
    projected = jit_projection(returns, successor.astype(returns.dtype), support, 0.0)
    np.testing.assert_allclose(projected, jit_two_hot(jnp.clip(returns, -0.5, 1.5), support), atol=1e-6)


@pytest.mark.usefixtures("x64")
def test_c51_projection_matches_the_papers_formula():
    # Eq. 7: q_i = Σ_j p_j [1 - |clip(r + γ z_j) - z_i| / Δz] clipped to [0, 1], on an even support.
    rewards, probs, discount = np.array([0.4, -2.0]), np.array([[0.1, 0.2, 0.3, 0.1, 0.3], [0.5, 0.0, 0.0, 0.0, 0.5]]), 0.9
    moved = np.clip(rewards[:, None] + discount * EVEN, EVEN[0], EVEN[-1])
    expected = np.zeros((2, POINTS))
    for i, j, row in np.ndindex(POINTS, POINTS, 2):
        expected[row, i] += probs[row, j] * np.clip(1 - abs(moved[row, j] - EVEN[i]) / 1.5, 0, 1)
    actual = jit_projection(jnp.array(rewards), jnp.array(probs), jnp.array(EVEN), discount)
    np.testing.assert_allclose(actual, expected, **EXACT)


@given(distributions, arrays(ROWS, POINTS))
def test_categorical_means_match_formula(probs, logits):
    with jax.enable_x64(True):
        support = jnp.array(UNEVEN)
        expected = [sum(p * z for p, z in zip(row, UNEVEN, strict=True)) for row in probs]
        np.testing.assert_allclose(jit_mean(jnp.array(probs), support), expected, **EXACT)
        expected = [
            sum(math.exp(x) * z for x, z in zip(row, UNEVEN, strict=True)) / sum(map(math.exp, row)) for row in logits
        ]
        np.testing.assert_allclose(jit_mean_of_logits(jnp.array(logits), support), expected, **EXACT)


@given(arrays(ROWS, TOKENS, POINTS), distributions, masks)
def test_categorical_cross_entropy_matches_formula(logits, probs, mask):
    with jax.enable_x64(True):
        target = np.repeat(probs[:, None], TOKENS, 1)
        expected = np.zeros((ROWS, TOKENS))
        for i, t in np.ndindex(ROWS, TOKENS):
            normalizer = math.log(sum(map(math.exp, logits[i, t])))
            expected[i, t] = -sum(p * (x - normalizer) for p, x in zip(target[i, t], logits[i, t], strict=True))
        np.testing.assert_allclose(jit_entropy(jnp.array(logits), jnp.array(target)), expected, **EXACT)
        keep = mask[..., None]
        masked = jit_entropy(poisoned(logits, keep), poisoned(target, keep, np.inf), jnp.array(mask))
        np.testing.assert_allclose(masked, np.where(mask, expected, 0), **EXACT)


def test_cross_entropy_gradient_is_finite_if_masked_or_impossible():
    logits = jnp.array([[[0.0, -jnp.inf, 0.0], [jnp.nan, jnp.nan, jnp.inf]]])
    target = jnp.array([[[1.0, 0.0, 0.0], [jnp.nan, 0.0, 0.0]]])

    def total(logits):
        return ops.categorical_cross_entropy(logits, target, jnp.array([[1, 0]])).sum()

    loss, slope = jax.jit(jax.value_and_grad(total))(logits)
    assert loss == pytest.approx(math.log(2))
    np.testing.assert_allclose(slope, [[[-0.5, 0.0, 0.5], [0.0, 0.0, 0.0]]], atol=1e-7)


@given(st.floats(-5, 0), st.floats(0.5, 5), st.integers(2, 9))
def test_uniform_support_matches_formula(low, high, bins):
    with jax.enable_x64(True):
        expected = [low + i * (high - low) / (bins - 1) for i in range(bins)]
        np.testing.assert_allclose(ops.uniform_support(low, high, bins), expected, rtol=1e-12, atol=1e-12)


def test_any_leading_axes_and_half_precision_is_widened():
    x, mask, probs = jnp.ones((2, 3, 4), jnp.bfloat16), jnp.ones((2, 3, 4), bool), jnp.full((2, 3, 4, 5), 0.2, jnp.bfloat16)
    support = jnp.arange(5, dtype=jnp.bfloat16)
    outs = {
        "mean": jax.eval_shape(ops.categorical_mean, probs, support),
        "entropy": jax.eval_shape(ops.categorical_cross_entropy, probs, probs, mask),
    }
    assert {name: (out.shape, out.dtype.name) for name, out in outs.items()} == dict.fromkeys(outs, ((2, 3, 4), "float32"))
    for spread in (ops.two_hot, ops.hl_gauss):
        assert jax.eval_shape(spread, x.astype(float), support.astype(float)).shape == (2, 3, 4, 5)
    assert jax.eval_shape(ops.c51_projection, x, probs, support, 0.5).shape == (2, 3, 4, 5)


X, M, Z, P = jnp.ones((2, 3)), jnp.ones((2, 3)), jnp.array([0.0, 1.0, 2.0]), jnp.full((2, 3), 1 / 3)
N = jnp.ones((2, 3), int)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.uniform_support(1.0, 1.0, 3), "must be finite, and low below high, got low 1.0 and high 1.0"),
        (lambda: ops.uniform_support(1.0, 0.5, 3), "must be finite, and low below high, got low 1.0 and high 0.5"),
        (lambda: ops.uniform_support(0.0, float("inf"), 3), "must be finite"),
        (lambda: ops.uniform_support(0.0, 1.0, 1), "bins must be at least 2, got 1"),
        (lambda: ops.two_hot(N, Z), "target must be a floating-point array"),
        (lambda: ops.two_hot(X, Z[::-1]), "support must increase strictly"),
        (lambda: ops.two_hot(X, Z[:1]), r"support must be one axis of at least 2 points, got shape \[1\]"),
        (lambda: ops.two_hot(X, Z.astype(int)), "support must be a floating-point array"),
        (lambda: ops.two_hot(3 * X, Z), r"target must lie within the support \[0, 2\], got values from 3 to 3"),
        (lambda: ops.two_hot(-X, Z), r"target must lie within the support \[0, 2\], got values from -1 to -1"),
        (lambda: ops.two_hot(jnp.nan * X, Z), "target must lie within the support"),
        (lambda: ops.hl_gauss(3 * X, Z), r"target must lie within the support \[-0.5, 2.5\], got values from 3 to 3"),
        (lambda: ops.hl_gauss(N, Z), "target must be a floating-point array"),
        (lambda: ops.hl_gauss(X, Z, sigma_ratio=0.0), "sigma_ratio must be positive, got 0.0"),
        (lambda: ops.hl_gauss(X, Z**2), "support must be evenly spaced, got spacings from 1 to 3"),
        (
            lambda: ops.c51_projection(X[0], P, Z, 0.5),
            r"rewards and discount must have one value per distribution \[2\], got \[3\]",
        ),
        (lambda: ops.c51_projection(X[:, 0], P, Z, X[0]), r"one value per distribution \[2\], got \[2\] and \[3\]"),
        (
            lambda: ops.c51_projection(X[0], jnp.stack([P, P]), Z, 0.5),
            r"rewards and discount must have one value per distribution \[2, 2\], got \[3\] and \[\]",
        ),
        (lambda: ops.c51_projection(X[:, 0], P, Z, 1.5), r"discount must lie in \[0, 1\], got 1.5"),
        (lambda: ops.c51_projection(N[:, 0], P, Z, 0.5), "rewards must be a floating-point array"),
        (lambda: ops.c51_projection(X[:, 0], P, Z[:2], 0.5), "probs must have 2 entries on its last axis"),
        (lambda: ops.categorical_mean(P, Z[:2]), r"probs must have 2 entries on its last axis, got shape \[2, 3\]"),
        (lambda: ops.categorical_mean(N, Z), "probs must be a floating-point array"),
        (lambda: ops.categorical_mean_of_logits(P, Z[:2]), "logits must have 2 entries on its last axis"),
        (lambda: ops.categorical_cross_entropy(N, P), "logits must be a floating-point array"),
        (lambda: ops.categorical_cross_entropy(P, N), "target_probs must be a floating-point array"),
        (lambda: ops.categorical_cross_entropy(P, P[:1]), "target_probs must have the shape of logits"),
        (
            lambda: ops.categorical_cross_entropy(P, P, M),
            r"mask must have one value per distribution \[2\], got shape \[2, 3\]",
        ),
        (lambda: ops.categorical_cross_entropy(P, P, 2 * M[:, 0]), "mask must contain only 0 and 1"),
        (
            lambda: ops.categorical_cross_entropy(jnp.stack([P, P]), jnp.stack([P, P]), M),
            r"mask must have one value per distribution \[2, 2\], got shape \[2, 3\]",
        ),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
