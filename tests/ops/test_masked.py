"""Masked sums, means and z-scores, checked against loops written from the formulas; values outside the mask are not read."""

import functools
import operator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops import masked
from rljax.ops.value import explained_variance

values = hnp.arrays(np.float64, (3, 5), elements=st.integers(-30, 30).map(lambda k: k / 10))
masks = hnp.arrays(bool, (3, 5))
POISON = np.array([np.nan, np.inf, -np.inf])


def slow_zero_outside(row, mask):
    return [x if m else 0.0 for x, m in zip(row, mask, strict=True)]


def slow_sum(row, mask):
    return sum(x for x, m in zip(row, mask, strict=True) if m)


def slow_mean(row, mask):
    return slow_sum(row, mask) / sum(mask) if any(mask) else 0.0


def slow_centered(row, mask):
    if sum(mask) < 2:
        return [0.0] * len(row)
    return [x - slow_mean(row, mask) if m else 0.0 for x, m in zip(row, mask, strict=True)]


def slow_normalized(row, mask, eps=0.25, ddof=1):
    centered = slow_centered(row, mask)
    if max(map(abs, centered)) < 1e-12:
        return [0.0] * len(row)
    std = (sum(c * c for c in centered) / (sum(mask) - ddof)) ** 0.5
    return [c / (std + eps) for c in centered]


CASES = {
    "zero_outside": (jax.jit(masked.zero_outside), slow_zero_outside),
    "sum": (jax.jit(masked.masked_sum), slow_sum),
    "mean": (jax.jit(masked.masked_mean), slow_mean),
    "centered": (jax.jit(masked.masked_centered), slow_centered),
    "normalized": (jax.jit(partial(masked.masked_normalized, eps=0.25, ddof=1)), slow_normalized),
}
masked_normalized = jax.jit(masked.masked_normalized, static_argnames="ddof")
each_case = pytest.mark.parametrize("case", CASES)


@each_case
@given(values, masks)
def test_matches_formula(case, x, mask):
    fast, slow = CASES[case]
    expected = [slow(row, row_mask) for row, row_mask in zip(x, mask, strict=True)]
    with jax.enable_x64(True):
        np.testing.assert_allclose(fast(jnp.array(x), jnp.array(mask)), expected, rtol=1e-12, atol=1e-12)


@given(masks)
def test_count_tokens_matches_formula(mask):
    count = masked.count_tokens(jnp.array(mask))
    assert count.tolist() == [sum(1 for m in row if m) for row in mask]
    assert count.dtype == jnp.int32


@each_case
def test_masked_entries_affect_neither_value_nor_gradient(case, x64):
    fast, _ = CASES[case]
    rng = np.random.default_rng(0)
    mask = np.array([[1, 1, 1, 0, 1], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]])
    clean = rng.normal(size=mask.shape)
    dirty = np.where(mask, clean, rng.choice(POISON, size=mask.shape))
    cotangent = rng.normal(size=fast(jnp.array(clean), jnp.array(mask)).shape)

    total = jax.jit(lambda x: (cotangent * fast(x, jnp.array(mask))).sum())
    slope = jax.jit(jax.value_and_grad(total))
    numeric = np.zeros_like(clean)
    for index in zip(*np.nonzero(mask), strict=True):
        step = np.zeros_like(clean)
        step[index] = 1e-6
        numeric[index] = (total(jnp.array(clean + step)) - total(jnp.array(clean - step))) / 2e-6
    for x in (clean, dirty):
        value, gradient = slope(jnp.array(x))
        np.testing.assert_array_equal(value, total(jnp.array(clean)))
        np.testing.assert_allclose(gradient, numeric, atol=1e-8)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_identical_entries_give_exactly_0_despite_rounding(dtype, x64):
    tenths = jnp.full((1, 11), 0.1, dtype)
    mask = jnp.arange(11)[None] < 10
    assert (
        functools.reduce(operator.add, [0.1] * 10) / 10 != 0.1
    )  # not `sum`, which newer Python versions compensate for rounding
    for y in (CASES["centered"][0](tenths, mask), masked_normalized(tenths, mask, eps=0.0, ddof=1)):
        assert y.dtype == dtype
        assert not y.any()


def test_single_entry_gives_0_even_if_infinite():
    x, mask = jnp.array([jnp.inf, 1.0, 2.0]), jnp.array([True, False, False])
    assert CASES["centered"][0](x, mask).tolist() == [0.0, 0.0, 0.0]
    assert masked_normalized(x, mask, eps=0.0, ddof=1).tolist() == [0.0, 0.0, 0.0]


def test_ddof_and_eps_are_used_as_in_the_formula(x64):
    x, mask = jnp.array([0.0, 2.0, 4.0]), jnp.ones(3, bool)
    np.testing.assert_allclose(masked_normalized(x, mask, eps=0.0, ddof=1)[2], 1.0)
    np.testing.assert_allclose(masked_normalized(x, mask, eps=0.0, ddof=0)[2], 2 / np.sqrt(8 / 3))
    np.testing.assert_allclose(masked_normalized(x, mask, eps=3.0, ddof=1)[2], 2 / (2 + 3))


@pytest.mark.parametrize("mask", [jnp.array([1, 0, 1]), jnp.array([1.0, 0.0, 1.0]), jnp.array([True, False, True])])
def test_masks_of_every_dtype_mean_the_same(mask):
    assert masked.masked_sum(jnp.array([1.0, 2.0, 4.0]), mask).item() == 5.0
    assert masked.group_members(jnp.array([1.0, 2.0, 4.0]), mask).tolist() == [True, False, True]
    assert masked.count_tokens(mask).item() == 2


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: masked.zero_outside(jnp.ones(2, int), jnp.ones(2)), "x must be a floating-point array"),
        (lambda: masked.masked_sum(jnp.ones(2), jnp.ones(3)), r"mask must have the shape of x \[2\], got \[3\]"),
        (lambda: masked.masked_mean(jnp.ones((2, 0)), jnp.ones((2, 0))), "mask must have at least one token"),
        (lambda: masked.masked_mean(jnp.ones(2), [1, 1]), r"mask must be a boolean or 0/1 array, got \[1, 1\]"),
        (lambda: masked.count_tokens(jnp.array([0.5])), "mask must contain only 0 and 1"),
        (lambda: masked.masked_centered(jnp.ones(2), jnp.ones(3)), "mask must have the shape of x"),
        (
            lambda: masked.masked_normalized(jnp.ones(2), jnp.ones(2), eps=-1.0, ddof=1),
            "eps must not be negative, got -1.0",
        ),
        (lambda: masked.masked_normalized(jnp.ones(2), jnp.ones(2), eps=0.0, ddof=2), "ddof must be one of 0, 1, got 2"),
        (lambda: masked.group_members(jnp.ones(2, int), None), "rewards must be a floating-point array"),
        (lambda: masked.group_members(jnp.ones((2, 1)), None), "rewards must contain groups of at least 2"),
        (lambda: masked.group_members(jnp.ones(2), jnp.array([1, 2])), "valid must contain only 0 and 1"),
        (lambda: masked.group_members(jnp.ones((2, 2)), jnp.ones(2)), "valid must have the shape of rewards"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_no_intermediate_value_is_nan_or_infinite():
    """With these debug settings, JAX raises if any is. The mask's rows contain two entries, one and none."""
    x, mask = jnp.array([[1.0, 2.0, 4.0]] * 3), jnp.array([[1, 1, 0], [0, 1, 0], [0, 0, 0]])
    with jax.debug_nans(True), jax.debug_infs(True):
        assert masked.masked_centered(x, mask).tolist() == [[-0.5, 0.5, 0.0], [0.0] * 3, [0.0] * 3]
        assert masked.masked_normalized(x, mask, eps=0.0, ddof=0).tolist() == [[-1.0, 1.0, 0.0], [0.0] * 3, [0.0] * 3]
        assert [explained_variance(x, x, token_mask).item() for token_mask in (mask, jnp.zeros_like(mask))] == [1.0, 0.0]
