"""Matrices beside their copies in the precision of the products, so that one cast serves all micro-batches of an update.

The products read the copy, and the derivative flows to the parameter in the parameter's own precision.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from rljax.records import documented

Copies = PyTree[Any]
"""The structure of the parameters, with a copy or None in the place of each."""


@documented
class Copied(NamedTuple):
    """A parameter beside its copy, in the place of the parameter among the others."""

    parameter: Float[Array | np.ndarray, "*S"]
    """The parameter, which the derivative is taken in."""
    copy: Float[Array, "*S"]
    """The same numbers in the precision of the products."""


def with_copies(params: PyTree[Array], copies: Copies | None) -> PyTree:
    """Put each copy beside its parameter.

    Args:
        params: any pytree of arrays.
        copies: of the same structure, with None where a parameter has no copy; None: no parameter has one.

    Returns:
        The parameters, with a `Copied` in the place of each that has a copy.

    Example:
        >>> import jax.numpy as jnp
        >>> found = with_copies({"gate": jnp.ones(2), "norm": jnp.ones(2)}, {"gate": jnp.ones(2, jnp.bfloat16), "norm": None})
        >>> type(found["gate"]).__name__, found["norm"].tolist()
        ('Copied', [1.0, 1.0])
    """
    if copies is None:
        return params
    return jax.tree.map(lambda leaf, copy: leaf if copy is None else Copied(leaf, copy), params, copies)


@jax.custom_jvp
def copy_of(parameter: Float[Array, "*S"], copy: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """The copy, whose derivative is that of a cast of the parameter.

    Example:
        >>> import jax.numpy as jnp
        >>> slope = jax.grad(lambda parameter: 3 * copy_of(parameter, jnp.bfloat16(2.0)))(jnp.float32(2.0))
        >>> slope.item(), slope.dtype.name
        (3.0, 'float32')
    """
    del parameter
    return copy


@copy_of.defjvp
def _derivative(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    copy = primals[1]
    return copy, tangents[0].astype(copy.dtype)


def in_precision(held: Array | np.ndarray | Copied, dtype: Any) -> Array:
    """A parameter as products of this precision read it: its copy, or a cast.

    Raises:
        ValueError: the copy has another precision.
    """
    if not isinstance(held, Copied):
        return jnp.asarray(held).astype(dtype)
    if held.copy.dtype != dtype:
        raise ValueError(f"the copy of a parameter is {held.copy.dtype}, and the product needs {jnp.dtype(dtype)}")
    return copy_of(jnp.asarray(held.parameter), held.copy)


def uncopied(held: Array | np.ndarray | Copied) -> Array | np.ndarray:
    """The parameter itself."""
    return held.parameter if isinstance(held, Copied) else held
