"""Micro-batches: the gradient is summed over a few rows at a time, so that only their activations are in memory."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

Tree = TypeVar("Tree", bound=PyTree)
Aux = TypeVar("Aux", bound=PyTree)


def micro_batches(tree: Tree, count: int, rows: int) -> list[Tree]:
    """Cut rows into `count` mini-batches, each laid out `[micro-batches, rows, ...]`.

    Example:
        >>> [part.tolist() for part in micro_batches(np.arange(8), 2, 2)]
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    """

    def cut(array: np.ndarray) -> np.ndarray:
        return np.asarray(array).reshape(count, -1, rows, *array.shape[1:])

    laid_out = jax.tree.map(cut, tree)
    return [jax.tree.map(lambda array, index=index: array[index], laid_out) for index in range(count)]


def filled_first(tree: Tree, mask: Bool[np.ndarray, "B T"], count: int) -> Tree:
    """Move rows without a trained token to the end of their mini-batch: micro-batches of such rows alone need not be computed."""
    empty = ~mask.any(-1).reshape(count, -1)
    order = empty.argsort(axis=-1, stable=True) + np.arange(count)[:, None] * empty.shape[1]
    return jax.tree.map(lambda array: np.asarray(array)[order.reshape(-1)], tree)


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
        objective: (params, micro-batch) -> (loss, metrics); both add up over micro-batches.
        params: parameters that are differentiated.
        parts: micro-batches, stacked.
        counts: whether anything in a micro-batch has a weight; the other micro-batches are not computed.

    Returns:
        The gradient and the metrics.
    """
    differentiate = jax.grad(objective, has_aux=True)
    count = jax.tree.leaves(parts)[0].shape[0]
    if count == 1:
        return differentiate(params, jax.tree.map(lambda x: x[0], parts))

    def add(total: PyTree, part: Tree) -> tuple[PyTree, None]:
        def added() -> PyTree:
            return jax.tree.map(jnp.add, total, differentiate(params, part))

        return jax.lax.cond(counts(part), added, lambda: total), None

    shapes = jax.eval_shape(differentiate, params, jax.tree.map(lambda x: x[0], parts))
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(add, zero, parts)[0]
