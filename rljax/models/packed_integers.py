"""Model folders with weights in 4-bit or 8-bit integers, in the format "pack-quantized" of the library compressed-tensors.

`transformers` and vLLM open such folders. A linear layer's matrix `[out, in]` is stored as three tensors: `weight_packed`, the
integers, packed into words of 32 bits; `weight_scale`, one scale per output and group of inputs; and `weight_shape`.

Axes: O outputs, I inputs, G groups per output, W words per output.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int, Int32, Shaped

from rljax.errors import InputError
from rljax.models.model_folder import PACKED, SCALE, SHAPE, ModelContents, Tensor

BITS: Mapping[str, int] = MappingProxyType({"int8": 8, "int4": 4})
"""Name of an integer type -> its number of bits."""
GROUPS = (128, 64, 32)
"""Group sizes, in inputs per scale; the first size that divides the number of inputs of every matrix is used."""
WORD = 32
"""Number of bits in a word."""


def packed_contents(contents: ModelContents, kind: str) -> ModelContents:
    """Quantize the matrices of a model's layers to integers; embedding, head, norms and biases are unchanged.

    ::

        c = max |w| / (2^(b-1) - 1) in each group        q = round(w / c)        |w - c q| <= c / 2

    Args:
        contents: the model, before it is written.
        kind: "int8" or "int4"; b is 8 or 4.

    Raises:
        InputError: the type is unknown, the layers have experts or no matrices, or no group size divides all numbers of inputs.
    """
    if kind not in BITS:
        raise InputError(f"quantize={kind!r} is unknown; choose one of {', '.join(BITS)}.")
    bits, matrices = BITS[kind], [tensor for tensor in contents.tensors if tensor.is_layer_matrix]
    if not matrices or any(".experts." in tensor.name for tensor in matrices):
        raise InputError(f"quantize={kind!r} supports only layers with matrices and without experts; leave it out.")
    group = next((size for size in GROUPS if all(tensor.shape[1] % size == 0 for tensor in matrices)), None)
    if group is None:
        indivisible = next(tensor for tensor in matrices if tensor.shape[1] % GROUPS[-1])
        raise InputError(
            f"quantize={kind!r} divides inputs into groups of 32, 64 or 128, but {indivisible.name} has {indivisible.shape[1]} "
            "inputs; leave it out."
        )
    tensors = [
        part
        for tensor in contents.tensors
        for part in (_pack_tensor(tensor, bits, group) if tensor.is_layer_matrix else [tensor])
    ]
    return ModelContents(dict(contents.config) | {"quantization_config": _make_description(bits, group)}, tuple(tensors))


def _pack_tensor(tensor: Tensor, bits: int, group: int) -> list[Tensor]:
    """Return the three tensors that store a matrix."""

    def make_scale(*arrays: np.ndarray) -> np.ndarray:
        return _compute_scale(tensor.layout(*arrays), bits, group, tensor.dtype)

    def make_words(*arrays: np.ndarray) -> np.ndarray:
        matrix = tensor.layout(*arrays)
        return pack(_quantize_matrix(matrix, _compute_scale(matrix, bits, group, tensor.dtype), bits), bits)

    outputs, inputs = tensor.shape
    shape = np.array(tensor.shape)
    int32, int64 = np.dtype(np.int32), np.dtype(np.int64)
    return [
        tensor._replace(
            name=tensor.name + PACKED, dtype=int32, layout=make_words, stored_shape=(outputs, inputs * bits // WORD)
        ),
        tensor._replace(name=tensor.name + SCALE, layout=make_scale, stored_shape=(outputs, inputs // group)),
        tensor._replace(name=tensor.name + SHAPE, dtype=int64, layout=lambda *_: shape, stored_shape=(2,)),
    ]


def _compute_scale(matrix: Float[np.ndarray, "O I"], bits: int, group: int, dtype: np.dtype) -> Shaped[np.ndarray, "O G"]:
    """Compute the scale of each group of inputs, in the dtype in which the scale is stored."""
    groups = matrix.reshape(matrix.shape[0], -1, group).astype(np.float32)
    return (np.abs(groups).max(-1) / (2 ** (bits - 1) - 1)).astype(dtype)


def _quantize_matrix(
    matrix: Float[np.ndarray, "O I"], scale: Shaped[np.ndarray, "O G"], bits: int
) -> Int32[np.ndarray, "O I"]:
    """Compute the integers whose products with the stored scales are nearest to the matrix."""
    limit, factor = 2 ** (bits - 1) - 1, scale.astype(np.float32)[:, :, None]
    groups = matrix.reshape(*scale.shape, -1).astype(np.float32) / np.where(factor > 0, factor, 1)
    return np.clip(np.round(groups), -limit, limit).astype(np.int32).reshape(matrix.shape)


def pack(integers: Int[np.ndarray, "O I"], bits: int) -> Int32[np.ndarray, "O W"]:
    """Add 2^(bits - 1) to integers of `bits` bits, and pack the sums into words, the first sum into the lowest bits.

    Example:
        >>> pack(np.array([[-8, 7, 0, 0, 0, 0, 0, 0]], np.int32), 4).view(np.uint32).tolist()
        [[2290649328]]
    """
    per_word = WORD // bits
    shifts = bits * np.arange(per_word, dtype=np.uint32)
    unsigned = (integers + 2 ** (bits - 1)).astype("uint32").reshape(integers.shape[0], -1, per_word)
    return (unsigned << shifts).sum(-1, dtype="uint32").view("int32")


def unpack(
    words: Int32[np.ndarray, "O W"], scale: Float32[np.ndarray, "O G"], shape: tuple[int, int]
) -> Float32[np.ndarray, "O I"]:
    """Compute the matrix that integers and their scales represent.

    Args:
        words: the packed integers, whose number of bits follows from the shapes.
        scale: scale of each group of inputs.
        shape: shape of the matrix, O and I.

    Example:
        >>> words = pack(np.array([[-2, 7, 0, 0, 1, 0, 0, 3]], np.int32), 4)
        >>> unpack(words, np.array([[0.5, 1.0]], np.float32), (1, 8)).tolist()
        [[-1.0, 3.5, 0.0, 0.0, 1.0, 0.0, 0.0, 3.0]]
    """
    bits = WORD * words.shape[1] // shape[1]
    shifts = bits * np.arange(WORD // bits, dtype=np.uint32)
    integers = ((words.view(np.uint32)[:, :, None] >> shifts) & np.uint32(2**bits - 1)).reshape(shape)
    groups = integers.astype(np.float32).reshape(*scale.shape, -1) - 2 ** (bits - 1)
    return (groups * scale[:, :, None]).reshape(shape)


def _make_description(bits: int, group: int) -> dict[str, Any]:
    """Make the entry `quantization_config` of config.json."""
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": group,
        "dynamic": False,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


def check_description(description: object, file: Path) -> None:
    """Refuse an entry `quantization_config` that describes weights that cannot be read.

    Args:
        description: the entry.
        file: config.json, for the error message.

    Raises:
        InputError: the weights cannot be read; the message gives the reason.

    Example:
        >>> check_description(_make_description(4, 128), Path("config.json"))
        >>> check_description({"quant_method": "gptq"}, Path("config.json"))
        Traceback (most recent call last):
        rljax.errors.InputError: config.json has a quantization_config with quant_method 'gptq', but 'compressed-tensors' or \
'mxfp4' is expected; pass the folder of the original weights.
    """
    reason = _why_unreadable(description)
    if reason is not None:
        raise InputError(f"{file} has a quantization_config with {reason}; pass the folder of the original weights.")


def _why_unreadable(description: object) -> str | None:
    method = description.get("quant_method") if isinstance(description, dict) else description
    if method == "mxfp4":
        return None
    if not isinstance(description, dict) or method != "compressed-tensors":
        return f"quant_method {method!r:.40}, but 'compressed-tensors' or 'mxfp4' is expected"
    groups = description.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(entry, dict) for entry in groups.values()):
        return "no config_groups"
    reasons = (
        _why_group_is_unreadable(entry, entry.get("format") or description.get("format")) for entry in groups.values()
    )
    return next((reason for reason in reasons if reason is not None), None)


def _why_group_is_unreadable(entry: Mapping[str, Any], form: object) -> str | None:
    weights = entry.get("weights")
    if form != "pack-quantized" or not isinstance(weights, dict):
        return f"the format {form!r:.40}, but 'pack-quantized' is expected"
    wanted = {"num_bits": (4, 8), "type": ("int",), "symmetric": (True,), "actorder": (None, False)}
    wrong = next((name for name, known in wanted.items() if weights.get(name) not in known), None)
    if wrong is not None:
        return f"weights with {wrong} {weights.get(wrong)!r:.40}"
    return None if entry.get("input_activations") is None else "quantized activations"


def read_packed(name: str, read: Callable[[str], np.ndarray]) -> Float32[np.ndarray, "O I"]:
    """Read a matrix that is stored as integers.

    Args:
        name: name of the matrix.
        read: name -> the stored tensor of that name; raises KeyError if there is none.

    Raises:
        InputError: one of the three tensors is missing, or their shapes do not match.
    """
    try:
        words, scale, shape = (read(name + end) for end in (PACKED, SCALE, SHAPE))
    except KeyError as error:
        raise InputError(f"the tensor {error} is missing, so {name} cannot be read; download the folder again.") from error
    sizes = tuple(shape.reshape(-1).tolist())
    fits = len(sizes) == words.ndim == scale.ndim == 2 and words.shape[0] == scale.shape[0] == sizes[0]
    fits = fits and math.prod(sizes) > 0 and sizes[1] % scale.shape[1] == 0
    if not fits or WORD * words.shape[1] not in (4 * sizes[1], 8 * sizes[1]):
        raise InputError(
            f"{name + PACKED} of shape {words.shape} and {name + SCALE} of shape {scale.shape} do not store a matrix of shape "
            f"{sizes}; download the folder again."
        )
    return unpack(words, scale.astype(np.float32), sizes)
