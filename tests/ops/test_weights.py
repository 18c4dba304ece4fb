"""Loss weights against loops written from the formula."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops import weights

masks = hnp.array_shapes(min_dims=2, max_dims=3, max_side=5).flatmap(lambda shape: hnp.arrays(bool, shape))


def rows(mask):
    return mask.reshape(-1, mask.shape[-1])


@given(masks)
def test_token_mean_matches_formula(mask):
    total = sum(1 for row in rows(mask) for m in row if m)
    expected = [[1 / total if m else 0.0 for m in row] for row in rows(mask)]
    np.testing.assert_allclose(rows(weights.token_mean(jnp.array(mask))), expected, rtol=1e-6)


@given(masks)
def test_sequence_mean_matches_formula(mask):
    responses = sum(1 for row in rows(mask) if any(row))
    expected = [[1 / (responses * sum(row)) if m else 0.0 for m in row] for row in rows(mask)]
    np.testing.assert_allclose(rows(weights.sequence_mean(jnp.array(mask))), expected, rtol=1e-6)


@given(masks, st.integers(1, 50))
def test_constant_length_matches_formula(mask, max_length):
    responses = sum(1 for row in rows(mask) if any(row))
    expected = [[1 / (responses * max_length) if m else 0.0 for m in row] for row in rows(mask)]
    actual = weights.constant_length(jnp.array(mask), max_length=max_length)
    np.testing.assert_allclose(rows(actual), expected, rtol=1e-6)


@pytest.mark.parametrize("weighting", [weights.token_mean, weights.sequence_mean])
def test_empty_batch_weighs_nothing(weighting):
    assert not weighting(jnp.zeros((2, 3))).any()


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weights.token_mean(jnp.zeros((2, 0))), r"mask must have at least one token .* float32\[2, 0\]"),
        (lambda: weights.sequence_mean(jnp.array([0.5])), r"mask must hold only 0 and 1, got values \[0.5\]"),
        (lambda: weights.constant_length(jnp.ones((2, 2)), max_length=0), "max_length must be at least 1, got 0"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
