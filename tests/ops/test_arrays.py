"""Conversions of arguments: traced or known values, and the resulting dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.arrays import as_float, common_dtype, is_concrete


def test_a_traced_value_is_not_concrete():
    seen = []
    jax.jit(lambda x: seen.extend([is_concrete(x), is_concrete(1.0, x), is_concrete(2)]))(1.0)
    assert seen == [False, False, True]
    assert is_concrete()


@pytest.mark.parametrize("dtype", [bool, jnp.int32, jnp.uint8])
def test_integers_and_booleans_become_the_precision_of_the_moment(dtype):
    x = jnp.array([0, 1], dtype)
    assert as_float(x).dtype == jnp.float32
    assert as_float(x).tolist() == [0.0, 1.0]
    with jax.enable_x64(True):
        assert as_float(x).dtype == jnp.float64


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_a_floating_point_array_stays_as_it_is(dtype, x64):
    x = jnp.ones(2, dtype)
    assert as_float(x) is x


@pytest.mark.parametrize("promotion", ["standard", "strict"])
def test_the_common_dtype_is_the_widest_under_any_promotion(promotion):
    narrow, wide = jnp.ones(2, jnp.bfloat16), np.ones(3, np.float32)
    with jax.numpy_dtype_promotion(promotion):
        assert common_dtype(narrow, jnp.asarray(wide)) == jnp.float32
        assert common_dtype(narrow, 0.5, 2) == jnp.bfloat16
