"""Attention block by block: the values and gradients of the dense form, in less memory."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.models.attention import attend, attend_within
from rljax.models.packed import visible_slots

ROWS, SLOTS, KEYS, GROUP, FEATURES = 2, 13, 2, 3, 4
RANDOM = np.random.default_rng(0)
QUERY = jnp.array(RANDOM.normal(size=(ROWS, SLOTS, KEYS, GROUP, FEATURES)), jnp.float32)
KEY, VALUE = jnp.array(RANDOM.normal(size=(2, ROWS, KEYS, SLOTS, FEATURES)), jnp.float32)
SEGMENTS = jnp.array([[0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 0], [1] * 13])


def by_loops():
    """Softmax over the earlier tokens of the same segment, one token and head at a time, in float64."""
    query, keys, values = (np.asarray(array, np.float64) for array in (QUERY, KEY, VALUE))
    mixed = np.zeros(query.shape)
    for row, slot, key, group in np.ndindex(query.shape[:-1]):
        segment = int(SEGMENTS[row, slot])
        seen = [s for s in range(slot + 1) if s == slot or (segment > 0 and int(SEGMENTS[row, s]) == segment)]
        scores = np.array([query[row, slot, key, group] @ keys[row, key, s] for s in seen]) / FEATURES**0.5
        weights = np.exp(scores) / np.exp(scores).sum()
        mixed[row, slot, key, group] = sum(w * values[row, key, s] for w, s in zip(weights, seen, strict=True))
    return mixed


@pytest.mark.parametrize("block", [1, 4, 5, 13, 512])
def test_blocks_give_the_softmax_by_hand(block):
    np.testing.assert_allclose(attend_within(QUERY, KEY, VALUE, SEGMENTS, block=block), by_loops(), atol=1e-5)


@pytest.mark.parametrize("block", [4, 5])
def test_the_gradient_is_that_of_the_dense_form(block):
    weights = jnp.array(RANDOM.normal(size=QUERY.shape), jnp.float32)

    def dense(*arrays):
        return (weights * attend(*arrays, visible_slots(SEGMENTS))).sum()

    def blocked(*arrays):
        return (weights * attend_within(*arrays, SEGMENTS, block=block)).sum()

    actual, expected = (jax.jit(jax.grad(function, (0, 1, 2)))(QUERY, KEY, VALUE) for function in (blocked, dense))
    chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_no_array_has_both_axes():
    """Temporaries of the gradient over 4,096 slots: less than one matrix of scores."""
    slots, heads = 4096, 2
    query = jax.ShapeDtypeStruct((1, slots, 1, heads, 8), jnp.float32)
    cache = jax.ShapeDtypeStruct((1, 1, slots, 8), jnp.float32)
    segments = jax.ShapeDtypeStruct((1, slots), jnp.int32)

    def total(query, keys, values, segments):
        return attend_within(query, keys, values, segments).sum()

    compiled = jax.jit(jax.grad(total, (0, 1, 2))).lower(query, cache, cache, segments).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < heads * slots * slots * 4
