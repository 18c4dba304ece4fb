"""Kinds of arguments that the equations take, and their conversion to floating point."""

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Num

Mask = Bool[Array, "..."] | Num[Array, "..."]
"""Boolean, or the numbers 0 and 1."""
Lengths = Int[Array, "..."] | Float[Array, "..."]
"""Tokens, not negative."""
Number = float | int | Num[Array, ""]
"""A hyper-parameter, which may be traced."""
Step = float | int | Num[Array, "..."]
"""A training step, or several."""


def is_concrete(*values: object) -> bool:
    """Whether the values are known now: none of them is traced."""
    return not any(isinstance(value, Tracer) for value in values)


def as_float(x: Mask | Lengths) -> Float[Array, "..."]:
    """An array of integers or booleans in JAX's default floating-point type; a floating-point array as it is.

    Strict dtype promotion refuses to mix integers with floating point, and so does this library.
    """
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def common_dtype(*arrays: Array | Number) -> jnp.dtype:
    """The dtype of arrays of mixed precision together, also under strict promotion; a Python number does not widen it."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*arrays)


def at_least_float32(*arrays: Float[Array, "..."]) -> tuple[Float[Array, "..."], ...]:
    """The same arrays in their common precision, float32 at least."""
    dtype = common_dtype(jnp.zeros((), jnp.float32), *arrays)
    return tuple(array.astype(dtype) for array in arrays)
