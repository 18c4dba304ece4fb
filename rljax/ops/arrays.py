"""Kinds of arguments that the equations take, and their conversion to floating point.

One rule holds for the dtype of every equation. It computes in float32 at least: `in_float32` widens bfloat16 and float16, unless
the equation hands its arguments first to others that do. What comes back stays wide, so float16 and bfloat16 in mean float32 out,
and float64 in means float64 out. The gradient of an argument has that argument's dtype. Three functions return the dtype of what
they update: `divergence.ema_update` and `reference.reset_reference` that of the reference, `weights.overlong_filter` that of the
mask.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Num

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

Mask = Bool[Array, "..."] | Num[Array, "..."]
"""Boolean, or the numbers 0 and 1."""
Lengths = Int[Array, "..."] | Float[Array, "..."]
"""Tokens, not negative."""
Number = float | int | Num[Array, ""]
"""A hyper-parameter, which may be traced."""
Step = float | int | Num[Array, "..."]
"""A training step, or several."""
if TYPE_CHECKING:
    Tree = Any
    FloatTree = Any
else:  # pyright cannot read jaxtyping's PyTree
    from jaxtyping import PyTree

    Tree = PyTree
    FloatTree = PyTree[Float[Array, "..."]]


def is_concrete(*values: object) -> bool:
    """True if the values are known now: none of them is traced."""
    return not any(isinstance(value, Tracer) for value in values)


def at_least_float32(x: Any) -> Any:
    """An array of half precision in float32; anything else as it is.

    Example:
        >>> import jax.numpy as jnp
        >>> at_least_float32(jnp.ones(2, jnp.bfloat16)).dtype.name, at_least_float32(0.5)
        ('float32', 0.5)
    """
    if not (hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)):
        return x
    return x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < jnp.finfo(jnp.float32).bits else x


def sum_dtype(x: Array) -> jnp.dtype:
    """The dtype of sums over an array's numbers: its own, and float32 at least.

    Example:
        >>> import jax.numpy as jnp
        >>> sum_dtype(jnp.ones(2, jnp.bfloat16)).name
        'float32'
    """
    return x.dtype if jnp.finfo(x.dtype).bits > jnp.finfo(jnp.float32).bits else jnp.dtype(jnp.float32)


def in_float32(equation: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compute an equation in float32 at least: arrays of half precision among its arguments, and in their trees, are widened.

    bfloat16 has 8 significant bits: a sum over 300 of its numbers stops growing, and a difference of neighbours is 0.

    Example:
        >>> import jax.numpy as jnp
        >>> total = in_float32(lambda x: x.sum())
        >>> total(jnp.ones(3, jnp.bfloat16)).dtype.name
        'float32'
    """

    @functools.wraps(equation)
    def widened(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        wide_args, wide_kwargs = jax.tree.map(at_least_float32, (args, kwargs))
        return equation(*wide_args, **wide_kwargs)  # pyright: ignore[reportCallIssue]  the tree keeps their structure

    return widened


def as_float(x: Mask | Lengths) -> Float[Array, "..."]:
    """An array of integers or booleans in JAX's default floating-point type; a floating-point array as it is.

    Strict dtype promotion refuses to mix integers with floating point, and so does this library.
    """
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def ratio_or_zero(numerator: Float[Array, "..."], denominator: Float[Array, "..."]) -> Float[Array, "..."]:
    """`numerator / denominator`, and 0 where the denominator is 0, in value and gradient.

    Example:
        >>> import jax.numpy as jnp
        >>> ratio_or_zero(jnp.array([1.0, 1.0]), jnp.array([4.0, 0.0])).tolist()
        [0.25, 0.0]
    """
    defined = denominator.astype(bool)
    return jnp.where(defined, numerator / jnp.where(defined, denominator, jnp.ones_like(denominator)), 0.0)


def power_of_two(x: Float[Array, "*rows T"]) -> Float[Array, "*rows 1"]:
    """The largest power of two that is not above max |x| of each row, as a constant under differentiation; 1/2 for zeros.

    To divide by it is exact, and then the sum of the squares neither overflows nor vanishes.

    Example:
        >>> import jax.numpy as jnp
        >>> power_of_two(jnp.array([[3.0, -5.0], [0.0, 0.0]])).tolist()
        [[4.0], [0.5]]
    """
    _, exponent = jnp.frexp(jax.lax.stop_gradient(jnp.abs(x).max(-1, keepdims=True)))
    return jnp.ldexp(jnp.ones(exponent.shape, x.dtype), exponent - 1)


def common_dtype(*arrays: Array | Number) -> jnp.dtype:
    """The dtype of arrays of mixed precision together, also under strict promotion; a Python number does not widen it."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*arrays)
