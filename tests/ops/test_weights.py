"""The weights of tokens in the loss, checked against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops import weights

P, G, T = 2, 3, 4
masks = hnp.arrays(bool, (P, G, T))
token_mean = jax.jit(weights.token_mean)
sequence_mean = jax.jit(weights.sequence_mean)
sequence_sum = jax.jit(weights.sequence_sum)
constant_length = jax.jit(weights.constant_length)
token_mean_per_group = jax.jit(weights.token_mean_per_group)


def rows(mask):
    return mask.reshape(-1, mask.shape[-1])


def count_responses(mask):
    return sum(1 for row in rows(mask) if any(row))


@given(masks)
def test_token_mean_matches_formula(mask):
    total = sum(1 for row in rows(mask) for m in row if m)
    expected = [[1 / total if m else 0.0 for m in row] for row in rows(mask)]
    np.testing.assert_allclose(rows(token_mean(jnp.array(mask))), expected, rtol=1e-6)


@given(masks)
def test_sequence_mean_matches_formula(mask):
    expected = [[1 / (count_responses(mask) * sum(row)) if m else 0.0 for m in row] for row in rows(mask)]
    np.testing.assert_allclose(rows(sequence_mean(jnp.array(mask))), expected, rtol=1e-6)


@given(masks, st.integers(1, 50))
def test_constant_length_matches_formula(mask, max_length):
    expected = [[1 / (count_responses(mask) * max_length) if m else 0.0 for m in row] for row in rows(mask)]
    actual = constant_length(jnp.array(mask), max_length=max_length)
    np.testing.assert_allclose(rows(actual), expected, rtol=1e-6)


@given(masks)
def test_sequence_sum_matches_formula(mask):
    expected = [[1 / count_responses(mask) if m else 0.0 for m in row] for row in rows(mask)]
    np.testing.assert_allclose(rows(sequence_sum(jnp.array(mask))), expected, rtol=1e-6)


@given(masks)
def test_token_mean_per_group_matches_formula(mask):
    groups = sum(1 for group in mask if group.any())
    expected = np.zeros(mask.shape)
    for p, i, t in zip(*np.nonzero(mask), strict=True):
        expected[p, i, t] = 1 / (groups * sum(1 for m in mask[p].ravel() if m))
    actual = token_mean_per_group(jnp.array(mask))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    np.testing.assert_allclose(actual.sum(), 1.0 if mask.any() else 0.0, rtol=1e-6)


def test_token_mean_per_group_weights_groups_equally():
    mask = jnp.array(np.arange(T) < np.array([[4, 4, 4], [1, 1, 1]])[..., None])
    assert token_mean(mask).sum((1, 2)).tolist() == pytest.approx([0.8, 0.2])
    assert token_mean_per_group(mask).sum((1, 2)).tolist() == pytest.approx([0.5, 0.5])


def test_token_mean_per_group_leading_axes():
    mask = np.random.default_rng(0).random((4, G, T)) < 0.5
    deep = token_mean_per_group(jnp.array(mask.reshape(2, 2, G, T)))
    np.testing.assert_allclose(deep.reshape(4, G, T), token_mean_per_group(jnp.array(mask)))


@given(masks, hnp.arrays(bool, (P, G)))
def test_overlong_filter_matches_formula(mask, truncated):
    expected = [[m and not cut for m in row] for row, cut in zip(rows(mask), truncated.ravel(), strict=True)]
    for kind in (jnp.bool_, jnp.int32, jnp.float32):
        kept = weights.overlong_filter(jnp.array(mask, kind), jnp.array(truncated))
        assert kept.dtype == kind
        np.testing.assert_array_equal(rows(kept), expected)


def test_overlong_filter_keeps_other_responses():
    mask = jnp.ones((2, T))
    assert sequence_mean(weights.overlong_filter(mask, jnp.array([True, False]))).sum(-1).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    "weighting",
    [
        weights.token_mean,
        weights.sequence_mean,
        weights.sequence_sum,
        weights.token_mean_per_group,
        lambda mask: weights.constant_length(mask, max_length=9),
    ],
)
def test_empty_batch_has_zero_weights(weighting):
    assert not weighting(jnp.zeros((P, G, T))).any()


def test_empty_batch_does_not_divide_by_zero():
    with jax.debug_nans(True):
        for weighting in (weights.token_mean, weights.sequence_mean):
            np.testing.assert_array_equal(weighting(jnp.zeros((2, 3), bool)), 0)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("weighting", [weights.token_mean, weights.sequence_sum, weights.token_mean_per_group])
def test_weights_have_the_default_float_precision(weighting):
    assert weighting(jnp.ones((P, T), bool)).dtype == jnp.float64


ROW = jnp.ones((2, 2))


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weights.token_mean(jnp.zeros((2, 0))), r"mask must have at least one token .* float32\[2, 0\]"),
        (lambda: weights.sequence_mean(jnp.array([0.5])), r"mask must contain only 0 and 1, got values \[0.5\]"),
        (lambda: weights.sequence_sum(jnp.array([0.5])), r"mask must contain only 0 and 1, got values \[0.5\]"),
        (lambda: weights.constant_length(ROW, max_length=0), "max_length must be at least 1, got 0"),
        (lambda: weights.token_mean_per_group(ROW[0]), r"mask must have at least 2 non-empty axes, got shape \[2\]"),
        (lambda: weights.token_mean_per_group(2 * ROW), "mask must contain only 0 and 1"),
        (lambda: weights.overlong_filter(2 * ROW, ROW[0] > 0), "mask must contain only 0 and 1"),
        (lambda: weights.overlong_filter(ROW, ROW[0]), r"truncated must be a boolean array, got float32\[2\]"),
        (lambda: weights.overlong_filter(ROW, ROW > 0), r"truncated must have one entry for each row .* got \[2, 2\]"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
