"""Types of the equations' arguments, and their conversion to floating point.

One rule sets the dtype of every equation: it computes in float32 at least. `in_float32` widens bfloat16 and float16 arguments,
unless the equation first passes them to others that do. The result stays wide: float16 or bfloat16 in gives float32 out, and
float64 in gives float64 out. The gradient with respect to an argument has that argument's dtype. Three functions return the
dtype of what they update: `divergence.ema_update` and `reference.reset_reference` keep the reference's dtype,
`weights.overlong_filter` the mask's.
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
"""Counts of tokens, not negative."""
Number = float | int | Num[Array, ""]
"""A hyperparameter, which may be traced."""
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
    """True if all values are known now, that is, none is traced."""
    return not any(isinstance(value, Tracer) for value in values)


def at_least_float32(x: Any) -> Any:
    """Widen a half-precision array to float32; return anything else unchanged.

    Example:
        >>> import jax.numpy as jnp
        >>> at_least_float32(jnp.ones(2, jnp.bfloat16)).dtype.name, at_least_float32(0.5)
        ('float32', 0.5)
    """
    if not (hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)):
        return x
    return x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < jnp.finfo(jnp.float32).bits else x


def sum_dtype(x: Array) -> jnp.dtype:
    """The dtype in which to sum an array: its own, or float32 if that is wider.

    Example:
        >>> import jax.numpy as jnp
        >>> sum_dtype(jnp.ones(2, jnp.bfloat16)).name
        'float32'
    """
    return x.dtype if jnp.finfo(x.dtype).bits > jnp.finfo(jnp.float32).bits else jnp.dtype(jnp.float32)


def in_float32(equation: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compute an equation in float32 at least: widen half-precision arrays among its arguments, including those inside pytrees.

    bfloat16 has 8 significant bits: a sum of ones stops growing before 300, and two nearby numbers have difference 0.

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
    """Convert integers or booleans to JAX's default floating-point type; return a floating-point array unchanged.

    Like JAX's strict dtype promotion, this library refuses to mix integers with floating point.
    """
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def ratio_or_zero(numerator: Float[Array, "..."], denominator: Float[Array, "..."]) -> Float[Array, "..."]:
    """`numerator / denominator`, or 0 where the denominator is 0, in both value and gradient.

    Example:
        >>> import jax.numpy as jnp
        >>> ratio_or_zero(jnp.array([1.0, 1.0]), jnp.array([4.0, 0.0])).tolist()
        [0.25, 0.0]
    """
    defined = denominator.astype(bool)
    return jnp.where(defined, numerator / jnp.where(defined, denominator, jnp.ones_like(denominator)), 0.0)


def power_of_two(x: Float[Array, "*rows T"]) -> Float[Array, "*rows 1"]:
    """The largest power of two not above max |x| of each row, a constant under differentiation; 1/2 for a row of zeros.

    Dividing by it is exact, and afterwards the sum of squares neither overflows nor underflows.

    Example:
        >>> import jax.numpy as jnp
        >>> power_of_two(jnp.array([[3.0, -5.0], [0.0, 0.0]])).tolist()
        [[4.0], [0.5]]
    """
    _, exponent = jnp.frexp(jax.lax.stop_gradient(jnp.abs(x).max(-1, keepdims=True)))
    return jnp.ldexp(jnp.ones(exponent.shape, x.dtype), exponent - 1)


def common_dtype(*arrays: Array | Number) -> jnp.dtype:
    """The common dtype of arrays of mixed precision, even under strict promotion; a Python number does not widen it."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*arrays)
