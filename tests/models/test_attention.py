"""Blockwise attention: the same values and gradients as dense attention, in less memory."""

import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rljax.models import attention
from rljax.models.attention import LayerCache, attend, attend_cached, attend_within
from rljax.models.config import TransformerConfig
from rljax.models.packed import visible_slots
from rljax.models.transformer import Transformer
from rljax.parallel import make_mesh

ROWS, SLOTS, KV_HEADS, GROUP, FEATURES = 2, 13, 2, 3, 4
RANDOM = np.random.default_rng(0)
QUERY = jnp.array(RANDOM.normal(size=(ROWS, SLOTS, KV_HEADS, GROUP, FEATURES)), jnp.float32)
KEY, VALUE = jnp.array(RANDOM.normal(size=(2, ROWS, KV_HEADS, SLOTS, FEATURES)), jnp.float32)
SEGMENTS = jnp.array([[0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 0], [1] * 13])


SINKS = jnp.array(RANDOM.normal(size=(KV_HEADS, GROUP)), jnp.float32)


def attention_weights(scores, cap, sink):
    """Softmax of capped scores in float64; a sink takes some of the probability."""
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    return np.exp(scores) / (np.exp(scores).sum() + (0 if sink is None else np.exp(float(sink))))


def attend_by_loops(window=SLOTS, cap=None, sinks=None):
    """Attend to the nearest earlier tokens of the same segment, one token and head at a time, in float64."""
    query, keys, values = (np.asarray(array, np.float64) for array in (QUERY, KEY, VALUE))
    mixed = np.zeros(query.shape)
    for row, slot, key, group in np.ndindex(query.shape[:-1]):
        segment = int(SEGMENTS[row, slot])
        nearest = range(max(0, slot + 1 - window), slot + 1)
        seen = [s for s in nearest if s == slot or (segment > 0 and int(SEGMENTS[row, s]) == segment)]
        scores = np.array([query[row, slot, key, group] @ keys[row, key, s] for s in seen]) / FEATURES**0.5
        weights = attention_weights(scores, cap, None if sinks is None else sinks[key, group])
        mixed[row, slot, key, group] = sum(w * values[row, key, s] for w, s in zip(weights, seen, strict=True))
    return mixed


@pytest.mark.parametrize("block", [1, 4, 5, 13, 512])
@pytest.mark.parametrize("window", [None, 1, 2, 4, 100])
def test_blocks_match_a_softmax_by_loops(block, window):
    mixed = attend_within(QUERY, KEY, VALUE, SEGMENTS, block=block, window=window)
    np.testing.assert_allclose(mixed, attend_by_loops(SLOTS if window is None else window), atol=1e-5)


@pytest.mark.parametrize("block", [5, 512])
@pytest.mark.parametrize(("cap", "sinks"), [(0.5, None), (None, SINKS), (0.5, SINKS)])
@pytest.mark.parametrize("window", [None, 4])
def test_capped_scores_and_sinks_match_a_softmax_by_loops(block, cap, sinks, window):
    mixed = attend_within(QUERY, KEY, VALUE, SEGMENTS, block=block, window=window, cap=cap, sinks=sinks)
    np.testing.assert_allclose(mixed, attend_by_loops(SLOTS if window is None else window, cap, sinks), atol=1e-5)
    last = QUERY[:, -1:], LayerCache(KEY.swapaxes(2, 3), VALUE), jnp.ones_like(SEGMENTS), SLOTS - 1
    expected = attend(QUERY[:, -1:], KEY, VALUE, jnp.ones((ROWS, 1, SLOTS), bool), cap=cap, sinks=sinks)
    np.testing.assert_allclose(attend_cached(*last, cap=cap, sinks=sinks), expected, atol=1e-5)


@pytest.mark.parametrize(("cap", "sinks"), [(0.5, None), (0.5, SINKS)])
def test_gradients_with_a_cap_and_sinks_match_dense_attention(cap, sinks):
    def gradients(block):
        def loss(query, keys, values, sinks):
            mixed = attend_within(query, keys, values, SEGMENTS, block=block, window=4, cap=cap, sinks=sinks)
            return jnp.sin(mixed).sum()

        return jax.grad(loss, argnums=(0, 1, 2, 3))(QUERY, KEY, VALUE, sinks)

    chex.assert_trees_all_close(gradients(4), gradients(SLOTS), atol=1e-5)


@pytest.mark.parametrize("block", [1, 2, 3, 5, 512])
@pytest.mark.parametrize(("slot", "new"), [(0, 13), (3, 5), (8, 5), (6, 1)])
@pytest.mark.parametrize("window", [None, 1, 3])
def test_new_tokens_attend_to_the_cache_and_themselves(block, slot, new, window):
    """Compare with a float64 softmax over all filled slots; in a ring buffer, old tokens may be after the new ones."""
    query, keys, values = (np.asarray(array, np.float64) for array in (QUERY[:, :new], KEY, VALUE))
    expected = np.zeros(query.shape)
    for row, token, key, group in np.ndindex(query.shape[:-1]):
        later = range(slot + token + 1, slot + new)
        near = {(slot + token - age) % SLOTS for age in range(SLOTS if window is None else window)}
        seen = [s for s in range(SLOTS) if s == slot + token or (SEGMENTS[row, s] > 0 and s in near and s not in later)]
        scores = np.array([query[row, token, key, group] @ keys[row, key, s] for s in seen]) / FEATURES**0.5
        weights = np.exp(scores) / np.exp(scores).sum()
        expected[row, token, key, group] = sum(w * values[row, key, s] for w, s in zip(weights, seen, strict=True))
    for slots in (slot, jnp.full(ROWS, slot)):
        cache = LayerCache(KEY.swapaxes(2, 3), VALUE)
        mixed = attend_cached(QUERY[:, :new], cache, SEGMENTS, slots, block=block, window=window)
        np.testing.assert_allclose(mixed, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("slots", "window", "at_once", "block"),
    [(600, None, attention.SCORES_AT_ONCE, 320), (600, 40, attention.SCORES_AT_ONCE, 320), (150, None, 1, 64)],
)
def test_default_blocks_match_dense_attention(monkeypatch, slots, window, at_once, block):
    """Test several rows and heads in two large blocks of equal size and in three of the smallest; the last block is not full."""
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
    rows, heads, group = 3, 2, 2
    assert attention.block_size(slots, rows, heads * group, slots) == block
    random = np.random.default_rng(1)
    query = jnp.array(random.normal(size=(rows, slots, heads, group, 4)), jnp.float32)
    keys, values = jnp.array(random.normal(size=(2, rows, heads, slots, 4)), jnp.float32)
    segments = jnp.array(np.sort(random.integers(0, 4, (rows, slots))), jnp.int32)

    def dense(query, keys, values):
        return attend(query, keys, values, visible_slots(segments, window=window))

    def blocked(query, keys, values):
        return attend_within(query, keys, values, segments, window=window)

    def value_and_gradients(function):
        return jax.jit(
            lambda *arrays: (function(*arrays), jax.grad(lambda *a: (function(*a) ** 2).sum(), (0, 1, 2))(*arrays))
        )

    assert "scan" in str(jax.make_jaxpr(blocked)(query, keys, values)), "block by block"
    chex.assert_trees_all_close(
        value_and_gradients(blocked)(query, keys, values),
        value_and_gradients(dense)(query, keys, values),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_blocks_have_little_padding(rows):
    """There are no more blocks than a block of the largest size requires, and each has less than `FEWEST_QUERIES` of padding."""
    for queries in range(1, 4_097, 37):
        block = attention.block_size(queries, rows, 16, queries)
        count = -(-queries // block)
        assert count * block - queries < count * attention.FEWEST_QUERIES
        assert block <= attention.MOST_QUERIES
        assert block * rows * 16 * queries <= attention.SCORES_AT_ONCE or block <= attention.FEWEST_QUERIES


@pytest.mark.parametrize(("replicas", "tensor"), [(4, 1), (2, 2)])
def test_block_size_is_per_device(monkeypatch, replicas, tensor):
    config = TransformerConfig(vocab_size=8, width=8, layers=1, heads=4, kv_heads=2, head_dim=4, hidden=8)
    recorded = []

    def record_block_size(*sizes, devices):
        recorded.append(block_size(*sizes, devices=devices))
        return recorded[-1]

    block_size = attention.block_size
    monkeypatch.setattr(attention, "block_size", record_block_size)
    jax.clear_caches()  # equal layers are traced once in a process

    def trace(rows, mesh):
        module = nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0), mesh=mesh))
        tokens = jax.ShapeDtypeStruct((rows, 4096), jnp.int32)
        nnx.eval_shape(lambda module, tokens: module(tokens, tokens, tokens)[0], module, tokens)

    trace(32, make_mesh(replicas, 1, tensor))
    trace(8, None)
    assert recorded == [128, 128]


@pytest.mark.parametrize("block", [4, 5])
@pytest.mark.parametrize("window", [None, 1, 3, 7])
def test_the_gradient_matches_dense_attention(block, window):
    weights = jnp.array(RANDOM.normal(size=QUERY.shape), jnp.float32)

    def dense(*arrays):
        return (weights * attend(*arrays, visible_slots(SEGMENTS, window=window))).sum()

    def blocked(*arrays):
        return (weights * attend_within(*arrays, SEGMENTS, block=block, window=window)).sum()

    actual, expected = (jax.jit(jax.grad(function, (0, 1, 2)))(QUERY, KEY, VALUE) for function in (blocked, dense))
    chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_no_array_has_the_size_of_the_score_matrix():
    """The gradient's temporaries over 4,096 slots take less memory than one matrix of scores."""
    slots, heads = 4096, 2
    query = jax.ShapeDtypeStruct((1, slots, 1, heads, 8), jnp.float32)
    cache = jax.ShapeDtypeStruct((1, 1, slots, 8), jnp.float32)
    segments = jax.ShapeDtypeStruct((1, slots), jnp.int32)

    def total(query, keys, values, segments):
        return attend_within(query, keys, values, segments).sum()

    compiled = jax.jit(jax.grad(total, (0, 1, 2))).lower(query, cache, cache, segments).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < heads * slots * slots * 4


@pytest.mark.parametrize("block", [16, 64])
def test_a_softmax_has_four_axes(block):
    """XLA's search for GPU tile sizes tries powers of two on each axis; with five axes, it takes ten times as long."""
    shapes = [jax.ShapeDtypeStruct(sizes, jnp.float32) for sizes in ((2, 64, 2, 2, 8), (2, 2, 64, 8), (2, 2, 64, 8))]
    segments = jax.ShapeDtypeStruct((2, 64), jnp.int32)
    traced = str(jax.make_jaxpr(jax.vjp, static_argnums=0)(partial(attend_within, block=block), *shapes, segments))
    reduced = re.findall(r":f32\[([\d,]*)\] = reduce_max\[", traced)
    assert reduced
    assert all(sizes.count(",") == 2 for sizes in reduced), "the maximum of four axes has three"


def test_a_window_limits_the_products_of_a_block():
    """Products of one block of 64 queries use 127 slots instead of 4,096, in the forward and the backward pass."""
    slots = 4096
    query = jax.ShapeDtypeStruct((1, slots, 1, 2, 8), jnp.float32)
    cache = jax.ShapeDtypeStruct((1, 1, slots, 8), jnp.float32)
    segments = jax.ShapeDtypeStruct((1, slots), jnp.int32)

    def products(window):
        def total(query, keys, values, segments):
            return attend_within(query, keys, values, segments, block=64, window=window).sum()

        compiled = jax.jit(jax.grad(total, (0, 1, 2))).lower(query, cache, cache, segments).compile()
        return compiled.cost_analysis()["flops"]

    assert products(64) < products(None) / 16
