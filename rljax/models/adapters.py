"""Low-rank adapters: a frozen matrix W is replaced by W + α/r · A B, and only A and B are trained.

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685, equation 3. A matrix may have
several input and output axes, such as `[D, N, H]`; A has the input axes and B the output axes. The matrices of a layer's
experts are one array, `[E, I, O]`, and each expert has its own A and B.
"""

import hashlib
import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_leaves_with_path
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from rljax.errors import InputError
from rljax.lazy import lazy_names
from rljax.models.axes import INPUT_AXES, matrix_axes
from rljax.models.path_patterns import select_paths
from rljax.models.policy import Copied, Copies, Params, path_names, with_copies
from rljax.models.quantization import Quantized, dequantize, dequantize_params

__getattr__ = lazy_names(__name__, renamed={"scoring_params": "unmerged_params"})[0]


class LowRank(NamedTuple):
    """The low-rank factors A and B of a matrix's update, or of the updates of all experts' matrices."""

    a: Float[Array | np.ndarray, "*I r"] | Float[Array | np.ndarray, "E I r"]
    """A: maps the inputs to the rank."""
    b: Float[Array | np.ndarray, "r *O"] | Float[Array | np.ndarray, "E r O"]
    """B: maps the rank to the outputs."""


Adapter = PyTree[Array | np.ndarray]
"""Nested dictionaries structured like the parameters, with a `LowRank` for each adapted matrix and no other entries."""


class Base(NamedTuple):
    """The frozen model under an adapter."""

    params: Params
    """Parameters of the frozen model; matrices may be `rljax.models.quantization.Quantized`."""
    scale: Float[Array | np.ndarray, ""]
    """α/r, by which A B is multiplied."""


class Adapted(NamedTuple):
    """A frozen matrix and its low-rank factors, which replace the matrix in the parameters to compute `x W + α/r (x A) B`."""

    matrix: Float[Array | np.ndarray, "*S"] | Copied | Quantized
    """W, the frozen matrix."""
    factors: LowRank
    """A and B."""
    scale: Float[Array | np.ndarray, ""]
    """α/r."""


def adapted_paths(params: PyTree[Array | jax.ShapeDtypeStruct], targets: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Return the paths of the layer matrices that the patterns select.

    Args:
        params: parameters of the transformer, or their shapes.
        targets: patterns of paths, see `rljax.models.path_patterns.matches`.

    Raises:
        InputError: a pattern matches no matrix of a layer.
    """
    paths = (path_names(path) for path, _ in tree_leaves_with_path(params))
    return select_paths(targets, (path for path in paths if path[-1] in INPUT_AXES), setting="lora_targets")


def init_adapter(
    key: PRNGKeyArray, params: PyTree[Array | jax.ShapeDtypeStruct], *, rank: int, targets: Collection[str]
) -> Adapter:
    """Initialize an adapter that changes nothing yet: A is normal with variance 1 / (number of inputs), and B is 0.

    Args:
        key: random key.
        params: parameters of the transformer, or their shapes.
        rank: r, at most the smaller side of each matrix.
        targets: patterns of the paths of the matrices to adapt, see `rljax.models.path_patterns.matches`.

    Raises:
        InputError: a pattern matches nothing, or the rank is larger than a side of a matrix.
    """
    paths = set(adapted_paths(params, targets))

    def init_factors(path: tuple[str, ...], shape: tuple[int, ...], index: int) -> LowRank:
        experts, inputs, outputs = matrix_axes(path[-1], shape)
        largest = min(math.prod(inputs), math.prod(outputs))
        if rank > largest:
            raise InputError(
                f"lora_rank is {rank}, but {'/'.join(path)} of shape {list(shape)} has a rank of at most {largest}; lower "
                "lora_rank."
            )
        a = jax.random.normal(jax.random.fold_in(key, index), (*experts, *inputs, rank)) / math.sqrt(math.prod(inputs))
        return LowRank(a, jnp.zeros((*experts, rank, *outputs)))

    adapter: dict[Any, Any] = {}
    for index, (path, leaf) in enumerate(tree_leaves_with_path(params)):
        names = path_names(path)
        if names in paths:
            *parents, last = [entry.key for entry in path]
            node = adapter
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = init_factors(names, tuple(leaf.shape), index)
    return adapter


def merge(params: Params, adapter: Adapter, scale: Float[Array | np.ndarray, ""]) -> Params:
    """Add an adapter to the parameters.

    ::

        W' = W + (α/r) A B

    Args:
        params: parameters of the base; a quantized matrix is dequantized if the adapter has factors for it.
        adapter: the low-rank factors.
        scale: α/r.

    Returns:
        Parameters with the base's structure, differentiable with respect to the adapter.

    Example:
        >>> base = {"gate": jnp.ones((2, 2)), "norm": jnp.ones(2)}
        >>> adapter = {"gate": LowRank(jnp.array([[1.0], [0.0]]), jnp.array([[2.0, 3.0]]))}
        >>> merge(base, adapter, jnp.float32(0.5))["gate"].tolist()
        [[2.0, 2.5], [1.0, 1.0]]
    """
    if isinstance(adapter, LowRank):
        matrix = dequantize(params) if isinstance(params, Quantized) else params
        return matrix + scale * _multiply_factors(adapter, matrix.ndim)
    if not isinstance(params, dict):
        return params
    return {name: merge(value, adapter[name], scale) if name in adapter else value for name, value in params.items()}


def _multiply_factors(factors: LowRank, ndim: int) -> Array:
    """Compute A B for a matrix of `ndim` axes; if the matrix belongs to experts, compute A B for each expert."""
    a, b = factors
    product = partial(jnp.tensordot, axes=1)
    return jax.vmap(product)(a, b) if a.ndim + b.ndim - 2 > ndim else product(a, b)


def effective_params(base: Base | None, params: Params | None) -> Params:
    """Return the parameters that the policy computes with: the base, dequantized, with the adapter merged in.

    Args:
        base: the frozen model under the adapter; None: there is no adapter, and `params` are returned.
        params: the trained parameters, which are an adapter if there is a base; None: an adapter that changes nothing.
    """
    if base is None:
        return params
    return dequantize_params(base.params if params is None else merge(base.params, params, base.scale))


def attach_factors(params: Params, adapter: Adapter, scale: Float[Array | np.ndarray, ""]) -> Params:
    """Store each pair of factors with its matrix, so that a layer computes `x W + (α/r) (x A) B`.

    Unlike `merge`, this makes no second copy of the matrices, and the gradient of the factors needs no gradient of the
    matrices.

    Args:
        params: parameters of the base.
        adapter: the low-rank factors.
        scale: α/r.

    Returns:
        Parameters with an `Adapted` in place of each adapted matrix.
    """
    if isinstance(adapter, LowRank):
        return Adapted(params, adapter, scale)  # pyright: ignore[reportArgumentType]  one matrix
    if not isinstance(params, dict):
        return params
    return {
        name: attach_factors(value, adapter[name], scale) if name in adapter else value for name, value in params.items()
    }


def unmerged_params(base: Base, params: Params | None, copies: Copies | None = None) -> Params:
    """Return the parameters of the adapted model: unlike in `effective_params`, the factors stay separate (`Adapted`).

    Args:
        base: the frozen model under the adapter.
        params: the adapter; None: an adapter that changes nothing.
        copies: copies of the base's parameters; see `Policy.copies`.
    """
    frozen = with_copies(base.params, copies)
    return frozen if params is None else attach_factors(frozen, params, base.scale)


def fingerprint(
    config: object, params: Params, fetch: Callable[[PyTree[Array]], PyTree[np.ndarray]] = jax.device_get
) -> str:
    """Compute a short hash that identifies a base, from its configuration and the start of every parameter.

    Args:
        config: configuration of the model, whose `repr` is hashed.
        params: parameters of the model.
        fetch: function that copies arrays to this host.

    Example:
        >>> fingerprint("shape", {"embedding": jnp.ones((2, 2)), "norm": jnp.ones(2)})
        'b5108ab4e749c190'
    """
    starts = {"/".join(path_names(path)): leaf[:16] for path, leaf in tree_leaves_with_path(params)}
    digest = hashlib.sha256(repr(config).encode())
    for name, array in sorted(fetch(starts).items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
