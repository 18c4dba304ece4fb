"""Matrices with copies in the precision of the products, so that one cast serves all micro-batches of an update.

The products read the copy, and the gradient flows to the parameter in the parameter's own precision.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

Copies = PyTree[Any]
"""A pytree with the structure of the parameters, with a copy or None in place of each parameter."""


class Copied(NamedTuple):
    """A parameter and its copy, which replace the parameter in the pytree."""

    parameter: Float[Array | np.ndarray, "*S"]
    """The parameter, which receives the gradient."""
    copy: Float[Array, "*S"]
    """The same values in the precision of the products."""


def with_copies(params: PyTree[Array], copies: Copies | None) -> PyTree:
    """Pair each copy with its parameter.

    Args:
        params: any pytree of arrays.
        copies: a pytree of the same structure, with None for a parameter without a copy; None: no parameter has one.

    Returns:
        The parameters, with a `Copied` in place of each parameter that has a copy.

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
    """Return the copy; its derivative is the derivative of a cast of the parameter.

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
    """Return a parameter in this precision: its copy, or a cast.

    Raises:
        ValueError: the copy has another precision.
    """
    if not isinstance(held, Copied):
        return jnp.asarray(held).astype(dtype)
    if held.copy.dtype != dtype:
        raise ValueError(f"the copy of a parameter is {held.copy.dtype}, and the product needs {jnp.dtype(dtype)}")
    return copy_of(jnp.asarray(held.parameter), held.copy)


def uncopied(held: Array | np.ndarray | Copied) -> Array | np.ndarray:
    """Return the parameter itself."""
    return held.parameter if isinstance(held, Copied) else held
