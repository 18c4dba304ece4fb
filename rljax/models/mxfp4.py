"""Read experts' matrices that are stored in the 4-bit format MXFP4, as in the model folders of GPT-OSS.

Source: OCP Microscaling Formats (MX) Specification, version 1.0, Sections 5.3 (E2M1) and 5.4 (E8M0).
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float32, UInt8

from rljax.errors import InputError
from rljax.models.model_folder import BLOCKS, SCALES

MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
"""Magnitude that the three lower bits of a code represent; the fourth bit is the sign."""
BIAS = 127
"""Bias that is subtracted from a stored exponent."""


def read_blocks(name: str, read: Callable[[str], np.ndarray]) -> Float32[np.ndarray, "E I O"]:
    """Read the matrices of all experts of a layer.

    Args:
        name: name of the tensor that the blocks and scales replace.
        read: name -> the stored tensor of that name; raises KeyError if there is none.

    Raises:
        InputError: one of the two tensors is missing, or their shapes or dtypes do not match.
    """
    try:
        blocks, scales = read(name + BLOCKS), read(name + SCALES)
    except KeyError as error:
        raise InputError(f"the tensor {error} is missing, so {name} cannot be read; download the folder again.") from error
    is_valid = blocks.dtype == scales.dtype == np.uint8 and blocks.ndim == 4 and blocks.shape[:-1] == scales.shape
    if not is_valid:
        raise InputError(
            f"{name + BLOCKS} of shape {blocks.shape} ({blocks.dtype}) and {name + SCALES} of shape {scales.shape} "
            f"({scales.dtype}) do not store matrices in MXFP4; download the folder again."
        )
    return decode_blocks(blocks, scales).transpose(0, 2, 1)


def decode_blocks(blocks: UInt8[np.ndarray, "E O N B"], scales: UInt8[np.ndarray, "E O N"]) -> Float32[np.ndarray, "E O I"]:
    """Compute the weights that 4-bit codes and the scales of their blocks represent.

    ::

        w = (-1)^s m 2^(scale - 127)        s, m: sign and magnitude of a code

    Args:
        blocks: two codes per byte, the first one in the lower four bits; N blocks of B bytes per output, so I = 2 N B.
        scales: stored exponent of each block.

    Example:
        >>> decode_blocks(np.array([[[[0x72, 0x0F]]]], np.uint8), np.array([[[126]]], np.uint8)).tolist()
        [[[0.5, 3.0, -3.0, 0.0]]]
    """
    codes = np.stack([blocks & 0x0F, blocks >> 4], axis=-1).reshape(*scales.shape, -1)
    signed = np.where(codes & 8, -MAGNITUDES[codes & 7], MAGNITUDES[codes & 7])
    return np.ldexp(signed, scales.astype(np.int32)[..., None] - BIAS).reshape(*scales.shape[:2], -1)
