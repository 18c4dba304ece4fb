"""The bounded importance ratio: values, gradient, and refused arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops.unpublished import ratio_bound

log_ratios = hnp.arrays(np.float64, (2, 3, 4), elements=st.integers(-40, 40).map(lambda k: k / 10 + 0.013))


@jax.jit
def value_and_slope(log_ratio):
    value, vjp = jax.vjp(lambda x: ratio_bound.bounded_ratio(x, bound=10.0), log_ratio)
    return value, vjp(jnp.ones_like(log_ratio))[0]


@given(log_ratios)
def test_bounded_ratio_matches_formula(log_ratio):
    with jax.enable_x64(True):
        value, slope = (np.asarray(x) for x in value_and_slope(jnp.array(log_ratio)))
    for index in np.ndindex(*log_ratio.shape):
        x = log_ratio[index]
        assert np.exp(value[index]) == pytest.approx(max(1 / 10, min(10, np.exp(x))))
        assert slope[index] == (abs(x) < np.log(10))


def test_infinite_log_ratios_are_bounded():
    extremes = jnp.array([jnp.inf, -jnp.inf])
    np.testing.assert_allclose(jnp.exp(ratio_bound.bounded_ratio(extremes, bound=10.0)), [10.0, 0.1], rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_dtype_is_preserved(dtype, x64):
    assert ratio_bound.bounded_ratio(jnp.full((2, 3), -1.0, dtype), bound=10.0).dtype == dtype


X = jnp.zeros((2, 3))


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ratio_bound.bounded_ratio(X, bound=0.5), "bound must be at least 1, got 0.5"),
        (lambda: ratio_bound.bounded_ratio(X.astype(int), bound=2.0), "log_ratio must be a floating-point array"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
