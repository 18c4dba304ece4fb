"""Types of the equations' arguments, conversions to floating point, and argument checks.

Every equation computes in float32 or wider. The decorator `in_float32` widens bfloat16 and float16 arguments; an equation without
the decorator calls equations that have it. Results are not narrowed again: bfloat16 or float16 arguments give a float32 result, and
float64 arguments give a float64 result; without `jax_enable_x64`, a NumPy array in float64 counts as float32. The gradient with
respect to an argument has that argument's dtype. Three functions keep the dtype of the array they update: `divergence.ema_update`
and `reference.reset_reference` return the reference's dtype, and `weights.overlong_filter` returns the mask's.

Shapes and dtypes are known while JAX traces, so wrong ones are rejected even under `jit`. Values are known only outside a
trace: a hyperparameter passed as a Python number is always checked, a traced one never.
Every failed check raises a `ValueError` that names the argument, what was expected, and what was passed.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Num

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

Mask = Bool[Array, "..."] | Num[Array, "..."]
"""A mask: booleans, or the numbers 0 and 1."""
Lengths = Int[Array, "..."] | Float[Array, "..."]
"""Lengths in tokens, not negative."""
Number = float | int | Num[Array, ""]
"""A hyperparameter, which may be traced."""
Step = float | int | Num[Array, "..."]
"""The index of a training step, or an array of indices."""
if TYPE_CHECKING:
    Tree = Any
    FloatTree = Any
else:  # pyright cannot read jaxtyping's PyTree
    from jaxtyping import PyTree

    Tree = PyTree
    FloatTree = PyTree[Float[Array, "..."]]


def is_concrete(*values: object) -> bool:
    """True if no value is traced, so that all of them can be inspected."""
    return not any(isinstance(value, Tracer) for value in values)


def at_least_float32(x: Any) -> Any:
    """Cast half-precision arrays to float32 and other floating-point arrays to their JAX dtype; return anything else unchanged.

    Example:
        >>> import jax.numpy as jnp
        >>> at_least_float32(jnp.ones(2, jnp.bfloat16)).dtype.name, at_least_float32(0.5)
        ('float32', 0.5)
        >>> at_least_float32(np.ones(2)).dtype.name
        'float32'
    """
    if not (hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)):
        return x
    return x if x.dtype == sum_dtype(x) else x.astype(sum_dtype(x))


def sum_dtype(x: Array | np.ndarray | np.generic) -> jnp.dtype:
    """The dtype in which to sum an array: the array's JAX dtype, but at least float32.

    Without `jax_enable_x64`, the float64 of a NumPy array is float32 in JAX.

    Example:
        >>> import jax.numpy as jnp
        >>> sum_dtype(jnp.ones(2, jnp.bfloat16)).name, sum_dtype(np.ones(2)).name
        ('float32', 'float32')
    """
    dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    return dtype if jnp.finfo(dtype).bits > jnp.finfo(jnp.float32).bits else jnp.dtype(jnp.float32)


def in_float32(equation: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compute an equation in float32 or wider: widen half-precision arrays among its arguments, including those inside pytrees.

    bfloat16 has 8 significant bits: a sum of ones stops growing before 300, and the difference of two nearby numbers rounds to 0.

    Example:
        >>> import jax.numpy as jnp
        >>> total = in_float32(lambda x: x.sum())
        >>> total(jnp.ones(3, jnp.bfloat16)).dtype.name
        'float32'
    """

    @functools.wraps(equation)
    def wide_equation(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        wide_args, wide_kwargs = jax.tree.map(at_least_float32, (args, kwargs))
        return equation(*wide_args, **wide_kwargs)  # pyright: ignore[reportCallIssue]  tree.map keeps the structure

    return wide_equation


def as_float(x: Mask | Lengths) -> Float[Array, "..."]:
    """Convert integers or booleans to JAX's default floating-point type; return a floating-point array unchanged.

    Like JAX's strict dtype promotion, this library does not mix integers with floating point implicitly.
    """
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def ratio_or_zero(numerator: Float[Array, "..."], denominator: Float[Array, "..."]) -> Float[Array, "..."]:
    """`numerator / denominator`, or 0 (with gradient 0) where the denominator is 0.

    Example:
        >>> import jax.numpy as jnp
        >>> ratio_or_zero(jnp.array([1.0, 1.0]), jnp.array([4.0, 0.0])).tolist()
        [0.25, 0.0]
    """
    defined = denominator.astype(bool)
    return jnp.where(defined, numerator / jnp.where(defined, denominator, jnp.ones_like(denominator)), 0.0)


def log_mean_exp(x: Float[Array, "*rows T"], log_weights: Float[Array, "*rows T"]) -> Float[Array, "*rows"]:
    """log Σ_t w_t e^{x_t}, accurate for small and large x, if the weights w sum to 1 and the weighted mean of x is 0.

    Example:
        >>> import jax.numpy as jnp
        >>> f"{log_mean_exp(jnp.array([1e-3, -1e-3]), jnp.log(jnp.array([0.5, 0.5]))):.1e}"
        '5.0e-07'
    """
    is_small = jnp.abs(x).max(-1, keepdims=True) <= 1
    small = jnp.log1p((jnp.exp(log_weights) * jnp.expm1(jnp.where(is_small, x, 0.0))).sum(-1))
    large = jax.nn.logsumexp(jnp.where(is_small, 0.0, x + log_weights), axis=-1)
    return jnp.where(is_small.squeeze(-1), small, large)


def power_of_two(x: Float[Array, "*rows T"]) -> Float[Array, "*rows 1"]:
    """The largest power of two that is at most each row's max |x|, or 1/2 for a row of zeros. No gradient flows through it.

    Dividing a row by this power is exact, and the sum of the quotients' squares neither overflows nor underflows.

    Example:
        >>> import jax.numpy as jnp
        >>> power_of_two(jnp.array([[3.0, -5.0], [0.0, 0.0]])).tolist()
        [[4.0], [0.5]]
    """
    _, exponent = jnp.frexp(jax.lax.stop_gradient(jnp.abs(x).max(-1, keepdims=True)))
    return jnp.ldexp(jnp.ones(exponent.shape, x.dtype), exponent - 1)


def common_dtype(*arrays: Array | Number) -> jnp.dtype:
    """The common dtype of arrays with mixed precision, even under strict dtype promotion; Python numbers do not widen it."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*arrays)


def _describe(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else repr(value)


def check_floating(**arrays: Any) -> None:
    """Reject an array that is not floating point: with integer rewards, for example, a mean would be silently truncated."""
    for name, value in arrays.items():
        if not hasattr(value, "dtype") or not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(f"{name} must be a floating-point array, got {_describe(value)}")


def check_mask(**masks: Any) -> None:
    """Reject a mask that is neither boolean nor numeric with only 0 and 1, or that has an empty token axis."""
    for name, value in masks.items():
        if not hasattr(value, "dtype") or jnp.issubdtype(value.dtype, jnp.complexfloating):
            raise ValueError(f"{name} must be a boolean or 0/1 array, got {_describe(value)}")
        if value.shape[-1:] in ((), (0,)):
            raise ValueError(f"{name} must have at least one token on its last axis, got {_describe(value)}")
        is_numeric = not jnp.issubdtype(value.dtype, jnp.bool_)
        if is_numeric and is_concrete(value) and not np.isin(np.asarray(value), (0, 1)).all():
            raise ValueError(f"{name} must contain only 0 and 1, got values {np.unique(np.asarray(value))[:5]}")


def check_same_shape(**arrays: Any) -> None:
    """Reject arrays that do not all have the same shape."""
    (first_name, first), *others = arrays.items()
    for name, value in others:
        if np.shape(value) != np.shape(first):
            raise ValueError(
                f"{name} must have the shape of {first_name} {list(np.shape(first))}, got {list(np.shape(value))}"
            )


def check_same_structure(**trees: Tree) -> None:
    """Reject trees that differ in structure or array shapes, or contain arrays that are not floating point."""
    (first_name, first), *others = trees.items()
    leaves, structure = cast(tuple[Any, Any], jax.tree_util.tree_flatten_with_path(first))
    for path, leaf in leaves:
        check_floating(**{f"{first_name}{jax.tree_util.keystr(path)}": leaf})
    for name, tree in others:
        if jax.tree.structure(tree) != structure:
            raise ValueError(f"{name} must have the structure of {first_name} {structure}, got {jax.tree.structure(tree)}")
        for (path, leaf), other in zip(leaves, jax.tree.leaves(tree), strict=True):
            where = jax.tree_util.keystr(path)
            check_floating(**{f"{name}{where}": other})
            check_same_shape(**{f"{first_name}{where}": leaf, f"{name}{where}": other})


def check_rank(minimum: int, /, **arrays: Any) -> None:
    """Reject an array with fewer than `minimum` axes, or with an empty axis among the last `minimum`."""
    for name, value in arrays.items():
        shape = np.shape(value)
        if len(shape) < minimum or 0 in shape[len(shape) - minimum :]:
            raise ValueError(f"{name} must have at least {minimum} non-empty axes, got shape {list(shape)}")


def check_group(**arrays: Any) -> None:
    """Reject groups (on the last axis) of fewer than two responses: a response is compared with the others in its group."""
    for name, value in arrays.items():
        shape = np.shape(value)
        if not shape or shape[-1] < 2:
            raise ValueError(f"{name} must contain groups of at least 2 responses on its last axis, got {list(shape)}")


def check_steps(step_rewards: Any, step_end: Any) -> None:
    """Reject step rewards that are not floating point, groups of fewer than 2 responses, or a `step_end` of a different shape."""
    check_floating(step_rewards=step_rewards)
    check_rank(2, step_rewards=step_rewards)
    if step_rewards.shape[-2] < 2:
        shape = list(step_rewards.shape)
        raise ValueError(
            f"step_rewards must contain groups of at least 2 responses on its second-to-last axis, got {shape}"
        )
    check_mask(step_end=step_end)
    check_same_shape(step_rewards=step_rewards, step_end=step_end)


def check_between(low: Number, high: Number, /, **numbers: Any) -> None:
    """Reject a number outside the closed interval [low, high] (NaN is outside every interval)."""
    for name, value in numbers.items():
        if all(map(is_concrete, (low, high, value))):
            values = np.asarray(value)
            if not ((values >= low) & (values <= high)).all():
                raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value}")


def check_positive(**numbers: Any) -> None:
    """Reject a number that is not above zero."""
    for name, value in numbers.items():
        if is_concrete(value) and not (np.asarray(value) > 0).all():
            raise ValueError(f"{name} must be positive, got {value}")


def check_nonnegative(**numbers: Any) -> None:
    """Reject a number below zero."""
    for name, value in numbers.items():
        if is_concrete(value) and not (np.asarray(value) >= 0).all():
            raise ValueError(f"{name} must not be negative, got {value}")


def check_at_least(minimum: int, /, **numbers: Any) -> None:
    """Reject a number below the integer `minimum`."""
    for name, value in numbers.items():
        if is_concrete(value) and not (np.asarray(value) >= minimum).all():
            raise ValueError(f"{name} must be at least {minimum}, got {value}")


def check_count(minimum: int, /, **numbers: Any) -> None:
    """Reject a number that is not an integer, or is below `minimum`."""
    for name, value in numbers.items():
        if is_concrete(value) and not np.issubdtype(np.asarray(value).dtype, np.integer):
            raise ValueError(f"{name} must be an integer, got {value}")
    check_at_least(minimum, **numbers)


def check_one_of(options: tuple[object, ...], /, **numbers: Any) -> None:
    """Reject a value that is not one of the options. The value must not be traced, because it selects the equation."""
    for name, value in numbers.items():
        if value not in options:
            raise ValueError(f"{name} must be one of {', '.join(map(str, options))}, got {value}")


def check_boolean(**arrays: Any) -> None:
    """Reject an array that is not boolean, such as scores where yes-or-no verdicts are expected."""
    for name, value in arrays.items():
        if not hasattr(value, "dtype") or not jnp.issubdtype(value.dtype, jnp.bool_):
            raise ValueError(f"{name} must be a boolean array, got {_describe(value)}")


def check_integer(**arrays: Any) -> None:
    """Reject an array that does not contain integers, such as ids stored as floating point."""
    for name, value in arrays.items():
        if not hasattr(value, "dtype") or not jnp.issubdtype(value.dtype, jnp.integer):
            raise ValueError(f"{name} must be an integer array, got {_describe(value)}")


def check_lengths(**arrays: Any) -> None:
    """Reject lengths that are negative or not numbers."""
    for name, value in arrays.items():
        kinds = (jnp.integer, jnp.floating)
        if not hasattr(value, "dtype") or not any(jnp.issubdtype(value.dtype, kind) for kind in kinds):
            raise ValueError(f"{name} must be an integer or floating-point array, got {_describe(value)}")
        check_nonnegative(**{name: value})


def check_one_per_row(**arrays: Any) -> None:
    """Reject arrays that do not have one entry per row of the first array; a row is a slice along its last axis."""
    (first_name, first), *others = arrays.items()
    for name, value in others:
        rows = np.shape(first)[:-1]
        if np.shape(value) != rows:
            raise ValueError(
                f"{name} must have one entry for each row of {first_name} {list(rows)}, got {list(np.shape(value))}"
            )


def check_ascending(**arrays: Any) -> None:
    """Reject an array that decreases anywhere along its last axis."""
    for name, value in arrays.items():
        if is_concrete(value) and not bool((np.diff(np.asarray(value, float)) >= 0).all()):
            raise ValueError(f"{name} must be ascending, got {value}")


def check_tokens(mask: Mask, gamma: Number, /, **arrays: Any) -> None:
    """Reject arrays that are not floating point or differ from the mask in shape, a malformed mask, and a gamma outside [0, 1]."""
    check_floating(**arrays)
    check_mask(mask=mask)
    check_same_shape(**arrays, mask=mask)
    check_between(0, 1, gamma=gamma)
