"""Tests of top-k and top-p against their definitions, computed in float64 with NumPy's sort."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rljax.rollout import top_k_and_top_p
from rljax.rollout.top_k_and_top_p import (
    CPU_DIGIT_BITS,
    DIGIT_BITS,
    keep_top_k,
    keep_top_p,
    largest_threshold,
    ordered_integers,
)

SHAPE = (2, 11)
FLOATS = st.floats(-40, 40, width=32, allow_subnormal=False)
LOGITS = arrays.arrays(np.float32, SHAPE, elements=st.one_of(FLOATS, st.sampled_from([-np.inf, 0.0, -0.0, 1.5, 3e38])))
"""Logits with ties, zeros of both signs, excluded tokens and one-hot rows."""
PROBABILITIES = st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, 1.0, 1.5])


KTH_LARGEST = {
    bits: jax.jit(partial(largest_threshold, weigh=lambda integers: jnp.ones((1, 1), jnp.int32), digit_bits=bits))
    for bits in (1, 2, 4)
}
"""Bits per digit -> compiled search for the k-th largest integer in each row."""


class Truncations(NamedTuple):
    """Compiled functions that map (logits, k or p per row) to truncated logits."""

    top_k: Callable[..., jax.Array]
    top_p: Callable[..., jax.Array]


@pytest.fixture(params=[CPU_DIGIT_BITS, DIGIT_BITS], scope="module")
def keep(request):
    """Compiled top-k and top-p, with the search for CPUs or accelerators; `partial` prevents cache hits in JAX."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_k_and_top_p, "CPU_DIGIT_BITS", request.param)
        logits, k, p = jnp.zeros(SHAPE), jnp.ones(SHAPE[0], jnp.int32), jnp.ones(SHAPE[0])
        yield Truncations(
            jax.jit(partial(keep_top_k)).lower(logits, k).compile(),
            jax.jit(partial(keep_top_p)).lower(logits, p).compile(),
        )


def kept_mask(result):
    return np.isfinite(np.asarray(result))


@given(logits=LOGITS, each=st.tuples(st.integers(1, 15), st.integers(1, 15)))
def test_top_k_keeps_the_kth_largest_and_ties(keep, logits, each):
    expected = [(row >= np.sort(row)[-min(k, row.size)]) & np.isfinite(row) for row, k in zip(logits, each, strict=True)]
    np.testing.assert_array_equal(kept_mask(keep.top_k(jnp.array(logits), jnp.array(each))), expected)


@given(logits=LOGITS, each=st.tuples(PROBABILITIES, PROBABILITIES))
def test_top_p_keeps_the_smallest_sufficient_set(keep, logits, each):
    logits[:, 0] = np.where(np.isneginf(logits).all(-1), 0.0, logits[:, 0])
    chosen = kept_mask(keep.top_p(jnp.array(logits), jnp.array(each)))
    for row, is_kept, p in zip(logits.astype(np.float64), chosen, each, strict=True):
        odds = np.exp(row - row.max())
        probability, finite = odds / odds.sum(), np.isfinite(row)
        if p >= 1:
            np.testing.assert_array_equal(is_kept, finite)
            continue
        smallest_kept = row[is_kept].min()
        # Ties with the smallest kept logit are kept too.
        np.testing.assert_array_equal(is_kept, (row >= smallest_kept) & finite)
        assert probability[is_kept].sum() >= p - 1e-6
        assert probability[row > smallest_kept].sum() < p + 1e-6


def test_single_k_or_p_applies_to_all_rows(keep):
    logits = jnp.array(np.random.default_rng(0).normal(size=SHAPE).astype(np.float32))
    np.testing.assert_array_equal(keep_top_k(logits, 3), keep.top_k(logits, jnp.array([3, 3])))
    np.testing.assert_array_equal(keep_top_p(logits, 0.8), keep.top_p(logits, jnp.array([0.8, 0.8])))


@given(
    integers=arrays.arrays(np.int64, SHAPE, elements=st.integers(-(2**31), 2**31 - 1)),
    count=st.integers(1, 12),
    bits=st.sampled_from([1, 2, 4]),
)
def test_largest_threshold_finds_the_kth_largest_integer(integers, count, bits):
    found = KTH_LARGEST[bits](jnp.array(integers, jnp.int32), needed=jnp.array([[count]]))
    expected = [np.sort(row)[-count] if count <= row.size else -(2**31) for row in integers]
    np.testing.assert_array_equal(found[:, 0], expected)


@given(arrays.arrays(np.float32, SHAPE, elements=st.floats(width=32, allow_nan=False, allow_subnormal=False)))
def test_ordered_integers_keep_the_order_of_floats(numbers):
    integers = np.asarray(ordered_integers(jnp.array(numbers)))
    np.testing.assert_array_equal(integers[:, :, None] < integers[:, None], numbers[:, :, None] < numbers[:, None])


def test_top_p_matches_sorting_for_large_vocabularies():
    logits = np.random.default_rng(0).normal(size=(3, 20_000)).astype(np.float32) * np.array([[0.1], [1], [4]], np.float32)
    order = np.sort(logits.astype(np.float64), -1)[:, ::-1]
    odds = np.exp(order - order[:, :1])
    size = (np.cumsum(odds / odds.sum(-1, keepdims=True), -1) < 0.9).sum(-1) + 1
    np.testing.assert_allclose(kept_mask(keep_top_p(jnp.array(logits), 0.9)).sum(-1), size, atol=1)
