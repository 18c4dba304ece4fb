"""Prune a model before it is saved: set the smallest weights of its layers to zero.

The zeros are stored like other weights, so any program can open the folder, but the folder is not smaller. Hardware that skips
zeros needs a pattern N:M, such as 2:4 on NVIDIA GPUs since the A100.

Axes: O outputs, I inputs of a linear layer.
"""

import re
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from rljax.errors import InputError
from rljax.models.model_folder import ModelContents, Tensor


class ZeroPattern(NamedTuple):
    """Which weights are set to zero."""

    share: float
    """Fraction of a matrix's weights that is set to zero."""
    group: int | None = None
    """M: the fraction applies to each group of this many adjacent inputs of an output; None: to the entire matrix."""


def read_pattern(text: str) -> ZeroPattern:
    """Parse a pattern: the fraction to set to zero, such as `0.5`, or `N:M`, which keeps N of every M adjacent inputs.

    Raises:
        InputError: the text is neither.

    Example:
        >>> read_pattern("0.3"), read_pattern("1:4")
        (ZeroPattern(share=0.3, group=None), ZeroPattern(share=0.75, group=4))
    """
    pair = re.fullmatch(r"(\d+):(\d+)", text)
    if pair and 0 < int(pair[1]) < int(pair[2]):
        return ZeroPattern(1 - int(pair[1]) / int(pair[2]), int(pair[2]))
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise InputError(f"prune is {text!r}; give a fraction of the weights above 0 and below 1, or N:M such as 2:4.")
    return ZeroPattern(share)


def prune_matrix(matrix: Float[np.ndarray, "O I"], pattern: ZeroPattern) -> Float[np.ndarray, "O I"]:
    """Set the weights with the smallest absolute values to zero.

    Args:
        matrix: the weights.
        pattern: the fraction s and the group size M. Without groups, ⌊s O I⌋ weights of the matrix become zero; with groups, s M
            of each M adjacent inputs of an output.

    Source:
        arXiv:2104.08378 for the pattern 2:4.

    Example:
        >>> prune_matrix(np.array([[0.1, -2.0, 0.5, 3.0]]), ZeroPattern(0.5, group=4)).tolist()
        [[0.0, -2.0, 0.0, 3.0]]
    """
    groups = matrix.reshape(-1, matrix.size if pattern.group is None else pattern.group)
    count = int(pattern.share * groups.shape[1] + 1e-9)
    smallest = np.argpartition(np.abs(groups), max(count - 1, 0), axis=1)[:, :count]
    pruned = groups.copy()
    np.put_along_axis(pruned, smallest, 0, axis=1)
    return pruned.reshape(matrix.shape)


def prune_contents(contents: ModelContents, pattern: ZeroPattern) -> ModelContents:
    """Prune the matrices of a model's layers; the embedding, head, norms and biases are unchanged.

    Raises:
        InputError: no layer has a prunable matrix, or the group size does not divide a matrix's number of inputs.
    """
    matrices = [tensor for tensor in contents.tensors if tensor.is_layer_matrix]
    if not matrices:
        raise InputError(
            "prune needs layers that the folder stores as linear layers, and this model has none; leave prune out."
        )
    odd = next((tensor for tensor in matrices if pattern.group and tensor.shape[1] % pattern.group), None)
    if odd is not None:
        raise InputError(
            f"prune: {odd.name} has {odd.shape[1]} inputs, which groups of {pattern.group} do not divide; give a fraction instead."
        )
    tensors = tuple(_prune_tensor(tensor, pattern) if tensor.is_layer_matrix else tensor for tensor in contents.tensors)
    return contents._replace(tensors=tensors)


def _prune_tensor(tensor: Tensor, pattern: ZeroPattern) -> Tensor:
    def pruned_layout(*arrays: np.ndarray) -> np.ndarray:
        return prune_matrix(np.asarray(tensor.layout(*arrays)), pattern)

    return tensor._replace(layout=pruned_layout, stored_shape=tensor.shape)
