"""Sums over later tokens in rows longer than one tile, with and without gaps, checked against a token-by-token recursion."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.discounted_sums import TILE, compute_without_gaps, discounted_sums, next_values
from rljax.ops.gae import gae

EXACT = {"rtol": 1e-9, "atol": 1e-11}

jit_gae = jax.jit(gae)


def recursive_gae(rewards, values, mask, bootstrap, gamma, lambdas):
    """The recursion of Eq. 16 of the GAE paper, token by token."""
    out = np.zeros(rewards.shape)
    for row in range(len(rewards)):
        next_value, advantage = bootstrap[row], 0.0
        for t in reversed(np.flatnonzero(mask[row])):
            advantage = rewards[row, t] + gamma * next_value - values[row, t] + gamma * lambdas[row] * advantage
            next_value, out[row, t] = values[row, t], advantage
    return out


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("tokens", [1, TILE - 1, TILE, TILE + 1, 3 * TILE, 3 * TILE + 5])
@pytest.mark.parametrize("mask_rate", [0.6, 1.0])
def test_advantages_over_several_tiles_match_the_recursion(tokens, mask_rate):
    rng = np.random.default_rng(tokens)
    rewards, values, bootstrap = rng.normal(size=(4, tokens)), rng.normal(size=(4, tokens)), rng.normal(size=4)
    mask = (rng.random((4, tokens)) < mask_rate) & (
        np.arange(tokens) < np.array([tokens, tokens, 2 * tokens // 3, 0])[:, None]
    )
    bootstrap[~mask.any(-1)] = 0.0
    arrays = jnp.array(rewards), jnp.array(values), jnp.array(mask)
    for lambdas in (np.full(4, 0.95), np.array([0.0, 0.3, 0.97, 1.0])):
        lambda_ = jnp.array(lambdas) if lambdas[0] == 0 else 0.95
        actual = jit_gae(*arrays, gamma=0.99, lambda_=lambda_, bootstrap=jnp.array(bootstrap))
        expected = recursive_gae(rewards, values, mask, bootstrap, 0.99, lambdas)
        np.testing.assert_allclose(actual, expected, **EXACT)


@pytest.mark.usefixtures("x64")
def test_gradients_over_several_tiles_match_geometric_sums():
    tokens, decay = 2 * TILE + 3, 0.99 * 0.9
    mask = np.random.default_rng(0).random((1, tokens)) < 0.8
    zeros = jnp.zeros((1, tokens))
    slopes = jax.jit(jax.grad(lambda rewards: gae(rewards, zeros, jnp.array(mask), gamma=0.99, lambda_=0.9).sum()))(zeros)
    tokens_so_far = np.cumsum(mask, -1)
    expected = np.where(mask, (1 - decay**tokens_so_far) / (1 - decay), 0.0)
    np.testing.assert_allclose(slopes, expected, **EXACT)


def test_rows_with_and_without_gaps_agree_under_vmap():
    rng = np.random.default_rng(1)
    rewards, values = (jnp.array(rng.normal(size=(3, 2, 40)), jnp.float32) for _ in range(2))
    mask = jnp.array(np.stack([np.ones((2, 40)), np.arange(40) < np.array([[7], [0]]), rng.random((2, 40)) < 0.5]), bool)
    each = [jit_gae(*arrays) for arrays in zip(rewards, values, mask, strict=True)]
    np.testing.assert_allclose(jax.jit(jax.vmap(gae))(rewards, values, mask), jnp.stack(each), rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
def test_discounted_sums_over_zero_and_many_tokens(discount):
    x = np.random.default_rng(0).normal(size=(2, TILE + 1))
    weights = np.tril(discount ** np.maximum(np.subtract.outer(np.arange(TILE + 1), np.arange(TILE + 1)), 0.0))
    np.testing.assert_allclose(discounted_sums(jnp.array(x), jnp.array(discount)), x @ weights, **EXACT)
    assert discounted_sums(jnp.zeros((2, 0)), jnp.array(discount)).shape == (2, 0)


def test_nonfinite_input_stays_in_its_row_and_off_later_tiles():
    x = jnp.ones((2, 3 * TILE)).at[0, TILE + 3].set(jnp.nan)
    found = np.asarray(discounted_sums(x, jnp.float32(0.9)))
    assert np.isnan(found[0, : 2 * TILE]).all()
    assert np.isfinite(found[0, 2 * TILE :]).all()
    assert np.isfinite(found[1]).all()


def test_next_values_end_with_the_value_after_the_last_token():
    mask = jnp.array([[False, True, True, False], [True, True, True, True], [False] * 4])
    found = next_values(jnp.arange(12.0).reshape(3, 4), mask, jnp.array([-1.0, -2.0, -3.0]))
    np.testing.assert_array_equal(np.where(mask, found, 0), [[0, 2, -1, 0], [5, 6, 7, -2], [0, 0, 0, 0]])


def test_compute_without_gaps_moves_tokens_only_if_a_row_has_gaps():
    def token_indices(mask, x):
        return jnp.where(mask, jnp.arange(4, dtype=x.dtype)[None], x)

    contiguous = jnp.array([[False, True, True, False], [True, True, True, True]])
    gaps = jnp.array([[False, True, False, True], [True, True, True, True]])
    x = jnp.full((2, 4), jnp.nan)
    np.testing.assert_array_equal(compute_without_gaps(token_indices, contiguous, (x,), ()), [[0, 1, 2, 0], [0, 1, 2, 3]])
    np.testing.assert_array_equal(compute_without_gaps(token_indices, gaps, (x,), ()), [[0, 0, 0, 1], [0, 1, 2, 3]])
