"""Quantize frozen matrices to 8 or 4 bits, with one scale per block of weights, for use under an adapter (QLoRA) or for inference.

Source: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", arXiv:2305.14314, equations 1, 2 and 5, appendix E.
The paper also quantizes the scales; we do not. A block contains adjacent weights of one output, along the last input axis.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import KeyPath
from jaxtyping import Array, Float, Int8, PyTree, UInt8

from rljax.errors import InputError
from rljax.models.axes import INPUT_AXES, PARAMETERS, count_shards, show_axes
from rljax.models.policy import Params, path_names

MAX_BLOCK = 64
"""Largest number of weights that share a scale, as in the paper."""

LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""The sixteen levels of NF4, appendix E: quantiles of a normal distribution, divided by the largest."""


class Quantized(NamedTuple):
    """A quantized matrix. The shapes of its two fields differ only along the axis that is divided into blocks."""

    codes: Int8[Array | np.ndarray, "*S"] | UInt8[Array | np.ndarray, "*S"]
    """int8: an integer for each weight; uint8: the NF4 codes of two adjacent weights along the blocked axis, the first one in
    the lower four bits."""
    scale: Float[Array | np.ndarray, "*S"]
    """Factor of each block: its largest absolute weight; for int8, divided by 127."""

    @property
    def axis(self) -> int:
        """The axis that is divided into blocks."""
        pairs = zip(self.codes.shape, self.scale.shape, strict=True)
        return next(axis for axis, (codes, scales) in enumerate(pairs) if codes != scales)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the original matrix."""
        weights_per_byte = 2 if self.codes.dtype == jnp.uint8 else 1
        return tuple(size * weights_per_byte if axis == self.axis else size for axis, size in enumerate(self.codes.shape))


def is_quantized(leaf: object) -> bool:
    """Return True for a `Quantized`; use it as `is_leaf` in pytree functions."""
    return isinstance(leaf, Quantized)


def choose_block(size: int) -> int:
    """Return the block size for an axis of this size: its largest divisor up to 64 that is a multiple of 4; 0 if there is none.

    Example:
        >>> [choose_block(size) for size in (1024, 896, 80, 4, 6)]
        [64, 64, 40, 4, 0]
    """
    return next((block for block in range(MAX_BLOCK, 0, -4) if size % block == 0), 0)


def _split_into_blocks(matrix: Float[Array, "*S"], axis: int) -> Float[Array, "*S_blocked"]:
    """Split the axis into two: the blocks, and the weights in each block."""
    block = choose_block(matrix.shape[axis])
    return matrix.astype(jnp.float32).reshape(
        *matrix.shape[:axis], matrix.shape[axis] // block, block, *matrix.shape[axis + 1 :]
    )


def _divide_by_scale(blocks: Array, scale: Array) -> Array:
    return blocks / jnp.where(scale > 0, scale, 1.0)


@partial(jax.jit, static_argnames="axis")
def quantize_int8(matrix: Float[Array, "*S"], *, axis: int) -> Quantized:
    """Quantize a matrix to 8 bits.

    ::

        c = max |w| / 127 in each block        q = round(w / c)        |w - c q| <= c / 2

    Args:
        matrix: w.
        axis: the axis to divide into blocks; `choose_block` must not return 0 for its size.

    Source:
        arXiv:2305.14314, equation 1, whose quantization constant is 1 / c.
    """
    blocks = _split_into_blocks(matrix, axis)
    scale = jnp.abs(blocks).max(axis + 1, keepdims=True) / 127
    return Quantized(
        jnp.round(_divide_by_scale(blocks, scale)).astype(jnp.int8).reshape(matrix.shape), scale.squeeze(axis + 1)
    )


@partial(jax.jit, static_argnames="axis")
def quantize_nf4(matrix: Float[Array, "*S"], *, axis: int) -> Quantized:
    """Quantize a matrix to 4 bits.

    ::

        c = max |w| in each block        q = index of the level l_q nearest to w / c        |w - c l_q| <= 0.152 c

    Args:
        matrix: w.
        axis: the axis to divide into blocks; `choose_block` must not return 0 for its size.

    Source:
        arXiv:2305.14314, appendix E.
    """
    blocks = _split_into_blocks(matrix, axis)
    scale = jnp.abs(blocks).max(axis + 1, keepdims=True)
    ratio = _divide_by_scale(blocks, scale)
    codes = sum((ratio > (low + high) / 2).astype(jnp.uint8) for low, high in pairwise(LEVELS))
    pairs = jnp.asarray(codes).reshape(*matrix.shape[:axis], matrix.shape[axis] // 2, 2, *matrix.shape[axis + 1 :])
    first, second = (jax.lax.index_in_dim(pairs, index, axis + 1, keepdims=False) for index in (0, 1))
    return Quantized(first | (second << 4), scale.squeeze(axis + 1))


QUANTIZERS: Mapping[str, Callable[..., Quantized]] = MappingProxyType({"int8": quantize_int8, "nf4": quantize_nf4})
"""Name of a quantized type -> the function that quantizes a matrix to it."""


def _select_levels(codes: UInt8[Array, "*S"]) -> Float[Array, "*S"]:
    """Return the level of each code with 15 selects, which fuse with the product; a table lookup on a TPU reads all 16 levels.

    Example:
        >>> _select_levels(jnp.array([0, 7, 15], jnp.uint8)).tolist() == [LEVELS[0], LEVELS[7], LEVELS[15]]
        True
    """
    values: list[Any] = [jnp.float32(level) for level in LEVELS]
    for bit in range(4):
        is_set = (codes >> bit) & 1 == 1
        values = [jnp.where(is_set, high, low) for low, high in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _look_up_levels(codes: UInt8[Array, "*S"]) -> Float[Array, "*S"]:
    """Return the level of each code."""
    return jax.lax.platform_dependent(
        codes, tpu=_select_levels, default=lambda codes: jnp.asarray(LEVELS, jnp.float32)[codes]
    )


def dequantize(quantized: Quantized) -> Float[Array, "*S"]:
    """Compute the float32 matrix that a quantized matrix represents.

    Source:
        arXiv:2305.14314, equation 2.

    Example:
        >>> matrix = jnp.array([[1.0], [-1.0], [0.2], [0.0]])
        >>> dequantize(quantize_nf4(matrix, axis=0))[:, 0].tolist()
        [1.0, -1.0, 0.16093020141124725, 0.0]
    """
    codes, scale, axis = jnp.asarray(quantized.codes), jnp.asarray(quantized.scale), quantized.axis
    if codes.dtype == jnp.uint8:
        pairs = jnp.stack([codes & 15, codes >> 4], axis=axis + 1)
        values = _look_up_levels(pairs)
    else:
        values = codes.astype(jnp.float32)
    count = scale.shape[axis]
    blocks = values.reshape(*quantized.shape[:axis], count, quantized.shape[axis] // count, *quantized.shape[axis + 1 :])
    return (blocks * jnp.expand_dims(scale, axis + 1)).reshape(quantized.shape)


def quantize_parameter(path: KeyPath, leaf: Float[Array, "*S"], *, kind: str, dtype: Any) -> Quantized | Float[Array, "*S"]:
    """Quantize or cast one parameter of a frozen model.

    Args:
        path: path of the parameter.
        leaf: the parameter. Matrices of layers are quantized; embedding and head are cast to `dtype`, because a frozen
            parameter needs no extra precision for small updates; norms and biases are unchanged.
        kind: "int8" or "nf4".
        dtype: dtype of the matrix products.

    Raises:
        InputError: no block size divides the last input axis, or the matrix belongs to experts.
    """
    names = path_names(path)
    name = names[-1]
    if name.startswith("expert_"):
        raise InputError(
            f"quantize={kind!r} cannot quantize the matrices of experts ({'/'.join(names)}); leave quantize out."
        )
    if name not in INPUT_AXES:
        return leaf.astype(dtype) if name in ("embedding", "head") else leaf
    axis = INPUT_AXES[name] - 1
    if not choose_block(leaf.shape[axis]):
        raise InputError(
            f"quantize={kind!r} divides the inputs of a matrix into blocks of 4, 8, ... or {MAX_BLOCK}, but {'/'.join(names)} of "
            f"shape {list(leaf.shape)} has {leaf.shape[axis]} inputs; leave quantize out, or use a model of another shape."
        )
    return QUANTIZERS[kind](leaf, axis=axis)


def quantize_params(params: Params, *, kind: str, dtype: Any) -> Params:
    """Quantize or cast all parameters of a frozen model; see `quantize_parameter`."""
    return jax.tree_util.tree_map_with_path(partial(quantize_parameter, kind=kind, dtype=dtype), params)


def matrix_shapes(params: PyTree) -> PyTree[jax.ShapeDtypeStruct]:
    """Return the shapes of the parameters; a quantized matrix has the shape of the matrix that it represents."""

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, jnp.float32 if is_quantized(leaf) else leaf.dtype)

    return jax.tree.map(shape, params, is_leaf=is_quantized)


def dequantize_params(params: PyTree) -> PyTree[Array]:
    """Dequantize all quantized matrices to float32; parameters without quantized matrices are returned unchanged."""
    if not any(map(is_quantized, jax.tree.leaves(params, is_leaf=is_quantized))):
        return params
    return jax.tree.map(lambda leaf: dequantize(leaf) if is_quantized(leaf) else leaf, params, is_leaf=is_quantized)


def check_blocks(params: PyTree, mesh: Mesh) -> None:
    """Refuse a mesh over which the blocks of a quantized matrix cannot be divided evenly.

    Args:
        params: parameters with `Quantized` matrices, or their shapes.
        mesh: the devices.

    Raises:
        InputError: an axis of the mesh does not divide a matrix's number of blocks; the message names both.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params, is_leaf=is_quantized):
        if not is_quantized(leaf):
            continue
        names, blocks = path_names(path), leaf.scale.shape[leaf.axis]
        name = PARAMETERS[names[-1]][leaf.axis]
        if blocks % count_shards(name, mesh):
            raise InputError(
                f"{show_axes(name, mesh)} cannot share the {blocks} blocks of the quantized {'/'.join(names)} equally; choose a "
                f"divisor of {blocks}, or leave quantize out."
            )


def quantized_product(x: Float[Array, "B T *I"], matrix: Quantized) -> Float[Array, "B T *O"]:
    """Multiply activations with a quantized matrix `[*I, *O]`, which is dequantized only for this product.

    ::

        x dequantize(q)        and for the gradient of x: g dequantize(q)ᵀ

    The backward pass dequantizes the matrix again, so that the forward pass need not keep it. The matrix has no gradient.

    Args:
        x: activations; the matrix is cast to their dtype.
        matrix: the quantized matrix.

    Source:
        arXiv:2305.14314, equation 5.
    """
    return _product(x, matrix)


def _dequantize_now(x: Array, matrix: Quantized) -> tuple[Array, Array]:
    """Dequantize a matrix in the dtype of the activations, but not before the product that needs it is computed."""
    x, matrix = jax.lax.optimization_barrier((x, matrix))
    return x, dequantize(matrix).astype(x.dtype)


@jax.custom_vjp
def _product(x: Array, matrix: Quantized) -> Array:
    return _forward(x, matrix)[0]


def _forward(x: Array, matrix: Quantized) -> tuple[Array, Quantized]:
    return jnp.tensordot(*_dequantize_now(x, matrix), axes=x.ndim - 2), matrix


def _backward(matrix: Quantized, gradient: Array) -> tuple[Array, None]:
    gradient, dense = _dequantize_now(gradient, matrix)
    contracted = tuple(range(2 - gradient.ndim, 0))
    return jnp.tensordot(gradient, dense, axes=(contracted, contracted)), None


_product.defvjp(_forward, _backward)
