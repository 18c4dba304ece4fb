"""Critic losses and explained variance, checked against direct evaluations of their formulas."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from op_oracles import arrays, poisoned

from rljax.ops import value as ops

ROWS, TOKENS = 2, 4
EXACT = {"rtol": 1e-10, "atol": 1e-11}

tokens = arrays(ROWS, TOKENS)
masks = hnp.arrays(bool, (ROWS, TOKENS))

jit_loss = jax.jit(ops.value_loss)
jit_clipped = jax.jit(ops.clipped_value_loss)
jit_explained = jax.jit(ops.explained_variance)
jit_explained_gradient = jax.jit(jax.grad(ops.explained_variance, (0, 1)))


# Losses


@given(tokens, tokens, masks)
def test_value_loss_matches_formula(values, returns, mask):
    with jax.enable_x64(True):
        expected = [
            [(v - r) ** 2 / 2 if m else 0.0 for v, r, m in zip(*row, strict=True)]
            for row in zip(values, returns, mask, strict=True)
        ]
        actual = jit_loss(poisoned(values, mask), poisoned(returns, mask, np.inf), jnp.array(mask))
        np.testing.assert_allclose(actual, expected, **EXACT)


@given(tokens, tokens, tokens, masks, st.floats(0.01, 4))
def test_clipped_value_loss_matches_formula(values, old, returns, mask, clip):
    with jax.enable_x64(True):
        expected = np.zeros((ROWS, TOKENS))
        for at in zip(*np.nonzero(mask), strict=True):
            clipped = min(max(values[at], old[at] - clip), old[at] + clip)
            expected[at] = max((values[at] - returns[at]) ** 2, (clipped - returns[at]) ** 2) / 2
        dirty = [poisoned(x, mask) for x in (values, old, returns)]
        actual = jit_clipped(*dirty, jnp.array(mask), clip=clip)
        np.testing.assert_allclose(actual, expected, **EXACT)
        assert (actual >= jit_loss(dirty[0], dirty[2], jnp.array(mask))).all()


def test_clipping_blocks_only_moves_towards_the_target():
    values, old, returns = jnp.array([1.0, -1.0, 0.1]), jnp.zeros(3), jnp.full(3, 2.0)
    gradient = jax.jit(jax.grad(lambda v: ops.clipped_value_loss(v, old, returns, jnp.ones(3)).sum()))(values)
    np.testing.assert_allclose(gradient, [0.0, -3.0, -1.9], rtol=1e-6)


@pytest.fixture(scope="module")
def other_library():
    path = Path(__file__).resolve().parents[3] / "shared" / "oracles" / "peer_values.npz"
    if not path.is_file():
        pytest.skip(f"another library's results, {path}, are not on this machine")
    return np.load(path)


@pytest.mark.usefixtures("x64")
def test_clipped_value_loss_agrees_with_another_library(other_library):
    # The other library clips at 0.5 by default, keeps the factor 1/2, and takes the token mean over the batch.
    values, old, returns, mask = (
        jnp.array(other_library[f"in_{name}"]) for name in ("new_values", "values", "value_returns", "mask")
    )
    loss = (jit_clipped(values, old, returns, mask, clip=0.5) * mask / mask.sum()).sum()
    np.testing.assert_allclose(loss, other_library["out_value_loss_clip05_token_mean"], rtol=1e-9, atol=1e-9)


# Explained variance


@given(tokens, tokens, masks)
def test_explained_variance_matches_formula(values, returns, mask):
    with jax.enable_x64(True):
        masked_returns, error = returns[mask], (returns - values)[mask]
        if masked_returns.size and 0 < np.ptp(masked_returns) < 1e-3:
            return  # the formula would divide one rounding error by another
        expected = 1 - np.var(error) / np.var(masked_returns) if masked_returns.size and np.ptp(masked_returns) else 0.0
        actual = jit_explained(poisoned(values, mask), poisoned(returns, mask), jnp.array(mask))
        np.testing.assert_allclose(actual, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("constant", [0.1, 1 / 3, -7.7e3])
def test_explained_variance_of_equal_returns_is_zero(constant):
    returns, mask = jnp.full((3, 7), constant), jnp.ones((3, 7)).at[2, 3].set(0)
    values = returns.at[0, 0].add(1.0)
    assert jit_explained(values, returns, mask) == 0
    assert not np.any(jit_explained_gradient(values, returns, mask))
    assert jit_explained(returns, returns, mask) == 0


def test_explained_variance_edge_cases():
    returns, mask = jnp.array([[0.0, 1.0, 4.0]]), jnp.ones((1, 3))
    assert jit_explained(returns + 5.0, returns, mask) == 1
    assert jit_explained(jnp.full((1, 3), 5.0), returns, mask) == 0
    assert jit_explained(-returns, returns, mask) == pytest.approx(-3.0)
    assert jit_explained(returns, returns, jnp.zeros((1, 3))) == 0


# Shapes, dtypes and units


def test_leading_axes_and_half_precision():
    x, mask = jnp.ones((2, 3, 4), jnp.bfloat16), jnp.ones((2, 3, 4), bool)
    outs = {
        "loss": jax.eval_shape(ops.value_loss, x, x, mask),
        "clipped": jax.eval_shape(ops.clipped_value_loss, x, x, x, mask),
    }
    assert {name: (out.shape, out.dtype.name) for name, out in outs.items()} == dict.fromkeys(outs, ((2, 3, 4), "float32"))
    assert jax.eval_shape(ops.explained_variance, x, x, mask).shape == ()


@pytest.mark.parametrize("scale", [1e20, 1e-25])
def test_explained_variance_is_scale_invariant(scale):
    values, returns, mask = np.array([0.0, 1.0, 5.0]), np.array([0.0, 2.0, 9.0]), jnp.array([1, 1, 0])
    actual = jit_explained(jnp.array(scale * values, jnp.float32), jnp.array(scale * returns, jnp.float32), mask)
    np.testing.assert_allclose(actual, 0.75, rtol=1e-6)


X, M = jnp.ones((2, 3)), jnp.ones((2, 3))
N = jnp.ones((2, 3), int)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.value_loss(N, X, M), r"values must be a floating-point array, got int32\[2, 3\]"),
        (lambda: ops.value_loss(X, N, M), "returns must be a floating-point array"),
        (lambda: ops.value_loss(X, X[:1], M), "returns must have the shape of values"),
        (lambda: ops.value_loss(X[:, :0], X[:, :0], M[:, :0]), "mask must have at least one token"),
        (lambda: ops.clipped_value_loss(X, N, X, M), "old_values must be a floating-point array"),
        (lambda: ops.clipped_value_loss(X, X, X[:1], M), "returns must have the shape of values"),
        (lambda: ops.clipped_value_loss(X, X, X, M, clip=0.0), "clip must be positive, got 0.0"),
        (lambda: ops.explained_variance(X, N, M), "returns must be a floating-point array"),
        (lambda: ops.explained_variance(X, X, M[:1]), "mask must have the shape of values"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
