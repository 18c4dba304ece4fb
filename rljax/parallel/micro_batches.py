"""Split rows into mini-batches and micro-batches, and sum the gradient over micro-batches.

Only one micro-batch's activations are in memory at a time.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

Tree = TypeVar("Tree", bound=PyTree)
Aux = TypeVar("Aux", bound=PyTree)


def mini_batches(tree: Tree, count: int) -> list[Tree]:
    """Split rows into `count` mini-batches.

    Example:
        >>> [part.tolist() for part in mini_batches(np.arange(6), 2)]
        [[0, 1, 2], [3, 4, 5]]
    """
    return [jax.tree.map(lambda array, i=i: np.split(np.asarray(array), count)[i], tree) for i in range(count)]


def micro_batches(tree: Tree, rows: int) -> Tree:
    """Reshape rows into micro-batches, `[micro-batches, rows, ...]`.

    Example:
        >>> micro_batches(np.arange(6), 2).tolist()
        [[0, 1], [2, 3], [4, 5]]
    """
    return jax.tree.map(lambda array: np.asarray(array).reshape(-1, rows, *array.shape[1:]), tree)


def _always(part: PyTree) -> Bool[Array, ""]:
    del part
    return jnp.bool_(True)


def accumulate(
    objective: Callable[[PyTree, Tree], tuple[Array, Aux]],
    params: PyTree,
    parts: Tree,
    *,
    counts: Callable[[Tree], Bool[Array, ""]] = _always,
) -> tuple[PyTree, Aux]:
    """Sum the gradient and the metrics of an objective over the leading axis of `parts`, one micro-batch at a time.

    Args:
        objective: (params, micro-batch) -> (loss, metrics); both must be sums over rows, so that they add up over micro-batches.
        params: parameters to differentiate with respect to.
        parts: micro-batches, stacked.
        counts: returns whether a micro-batch contributes to the sums; if not, it is skipped.

    Returns:
        The gradient and the metrics.
    """
    differentiate = jax.grad(objective, has_aux=True)
    count = jax.tree.leaves(parts)[0].shape[0]
    if count == 1:
        return differentiate(params, jax.tree.map(lambda x: x[0], parts))

    def add(total: PyTree, part: Tree) -> tuple[PyTree, None]:
        def add_gradient() -> PyTree:
            return jax.tree.map(jnp.add, total, differentiate(params, part))

        return jax.lax.cond(counts(part), add_gradient, lambda: total), None

    _, metrics = jax.eval_shape(
        objective, params, jax.tree.map(lambda x: x[0], parts)
    )  # gradients are shaped like parameters
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (params, metrics))
    return jax.lax.scan(add, zero, parts)[0]
