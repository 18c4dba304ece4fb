"""Array helpers: dtypes, traced and concrete values, scaling and safe division."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.arrays import (
    as_float,
    at_least_float32,
    common_dtype,
    in_float32,
    is_concrete,
    power_of_two,
    ratio_or_zero,
)


def test_traced_value_is_not_concrete():
    seen = []
    jax.jit(lambda x: seen.extend([is_concrete(x), is_concrete(1.0, x), is_concrete(2)]))(1.0)
    assert seen == [False, False, True]
    assert is_concrete()


@pytest.mark.parametrize("dtype", [bool, jnp.int32, jnp.uint8])
def test_integers_and_booleans_become_default_floats(dtype):
    x = jnp.array([0, 1], dtype)
    assert as_float(x).dtype == jnp.float32
    assert as_float(x).tolist() == [0.0, 1.0]
    with jax.enable_x64(True):
        assert as_float(x).dtype == jnp.float64


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_float_array_is_unchanged(dtype, x64):
    x = jnp.ones(2, dtype)
    assert as_float(x) is x


@pytest.mark.parametrize("promotion", ["standard", "strict"])
def test_common_dtype_is_the_widest_under_any_promotion(promotion):
    narrow, wide = jnp.ones(2, jnp.bfloat16), np.ones(3, np.float32)
    with jax.numpy_dtype_promotion(promotion):
        assert common_dtype(narrow, jnp.asarray(wide)) == jnp.float32
        assert common_dtype(narrow, 0.5, 2) == jnp.bfloat16


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_arguments_are_widened(dtype):
    x = jnp.ones(300, dtype)
    assert at_least_float32(x).dtype == jnp.float32
    total = in_float32(lambda tree, *, more: tree["x"].sum() + more)
    assert total({"x": x}, more=x[0]) == 301.0
    assert jax.grad(lambda x: total({"x": x}, more=x[0]))(x).dtype == dtype


def test_wide_or_non_real_values_are_unchanged(x64):
    wide = np.ones(2), np.ones(2, np.float32), jnp.ones(2, jnp.float32)
    for x in (*wide, jnp.ones(2, bool), jax.random.key(0), 0.5, None, "a"):
        assert at_least_float32(x) is x


def test_values_get_a_dtype_that_jax_has():
    for x in (np.ones(2), np.float64(1), np.float16(1), jnp.ones(2, jnp.bfloat16)):
        assert at_least_float32(x).dtype == jnp.float32


def test_power_of_two_is_within_a_factor_of_2_of_the_maximum():
    x = np.array([[3e38, 1.0], [-1e-37, 0.0], [4.0, 1.0], [0.1, -0.3], [0.0, 0.0]], np.float32)
    scale = np.asarray(power_of_two(jnp.asarray(x)))[:, 0]
    mantissa, _ = np.frexp(scale)
    np.testing.assert_array_equal(mantissa, 0.5)
    largest = np.abs(x).max(1)[:-1]
    assert ((scale[:-1] <= largest) & (largest / 2 < scale[:-1])).all()
    assert power_of_two(jnp.asarray(x[None])).tolist() == scale[None, :, None].tolist()


def test_ratio_with_denominator_0_is_0_in_value_and_gradient():
    numerator, denominator = jnp.array([3.0, 3.0, 3.0]), jnp.array([-2.0, 0.0, 0.5])
    with jax.debug_nans(True):
        assert ratio_or_zero(numerator, denominator).tolist() == [-1.5, 0.0, 6.0]
        gradient = jax.grad(lambda n, d: ratio_or_zero(n, d).sum(), (0, 1))(numerator, denominator)
    assert [x.tolist() for x in gradient] == [[-0.5, 0.0, 2.0], [-0.75, 0.0, -12.0]]
