"""Dtypes of the matrix products, and which devices support them."""

import jax

from rljax.errors import InputError
from rljax.models.attention import Facts, describe_device

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""Dtypes in which products can be computed."""


def explain_unsupported_dtype(facts: Facts, *, x64: bool) -> str | None:
    """Return why matrix products cannot be computed in a dtype; None if they can. CPUs support all dtypes, some by conversion.

    Matrices stored in 8 or 4 bits (`rljax.models.quantization`) are also multiplied in this dtype.

    Args:
        facts: the dtype, and the platform and compute capability of the devices.
        x64: whether JAX computes in 64 bits (`jax_enable_x64`).

    Example:
        >>> explain_unsupported_dtype(Facts("gpu", (7, 5), "bfloat16", 64), x64=False)
        'bfloat16 needs an NVIDIA GPU of compute capability 8.0 or more, but the devices are gpu 7.5'
        >>> explain_unsupported_dtype(Facts("cpu", None, "bfloat16", 64), x64=False)
    """
    if facts.dtype not in DTYPES:
        return f"products are computed in one of {', '.join(DTYPES)}"
    lowest = {"bfloat16": (8, 0), "float16": (5, 3)}.get(facts.dtype)
    if lowest is not None and facts.capability is not None and facts.capability < lowest:
        version = ".".join(map(str, lowest))
        device = describe_device(facts)
        return f"{facts.dtype} needs an NVIDIA GPU of compute capability {version} or more, but the devices are {device}"
    if facts.dtype == "float16" and facts.platform == "tpu":
        return "TPUs multiply in bfloat16 and float32, not in float16"
    if facts.dtype == "float64" and not x64:
        return "without jax_enable_x64, JAX computes in 32 bits"
    return None


def check_dtype(facts: Facts, *, x64: bool | None = None) -> None:
    """Refuse a dtype that the devices do not support for matrix products.

    Args:
        facts: the dtype, and the platform and compute capability of the devices.
        x64: whether JAX computes in 64 bits; None: as configured.

    Raises:
        InputError: the dtype is not supported; the message gives the reason.
    """
    reason = explain_unsupported_dtype(facts, x64=jax.config.jax_enable_x64 if x64 is None else x64)  # pyright: ignore[reportAttributeAccessIssue]
    if reason is not None:
        raise InputError(
            f"dtype={facts.dtype!r} cannot be used: {reason}. Leave out `dtype`: float32, the default, runs anywhere."
        )
