"""`rljax --version`: versions and system information for bug reports."""

import os
import platform
import re
from importlib.metadata import version

from rljax.cli.compilation_cache import cache_text
from rljax.errors import InputError
from rljax.package_metadata import links

MIN_JAX = (0, 10, 0)
"""Oldest version of JAX that works with rljax, as in pyproject.toml."""


def check_jax(installed: str) -> None:
    """Refuse a version of JAX that is too old.

    Raises:
        InputError: JAX is too old; the message contains the command to type.

    Example:
        >>> check_jax("0.10.2"), check_jax("1.0.0rc1")
        (None, None)
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", installed)[:3])
    if numbers < MIN_JAX:
        minimum = ".".join(map(str, MIN_JAX))
        raise InputError(
            f"JAX {installed} is installed, and rljax needs {minimum} or newer; run `pip install -U 'jax>={minimum}'`."
        )


def version_text() -> str:
    """Describe the versions of rljax and its dependencies, the devices, the compilation cache, and where to report bugs."""
    import jax  # noqa: PLC0415  other commands need not wait for JAX

    import rljax  # noqa: PLC0415  as above

    devices = jax.devices()
    kinds = ", ".join(sorted({device.device_kind for device in devices}))
    libraries = ", ".join(f"{name} {version(name)}" for name in ("jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"))
    issues = links().get("issues")
    return "\n".join(
        [
            f"rljax {rljax.__version__}",
            f"Python {platform.python_version()} on {platform.platform()}",
            f"JAX {jax.__version__}",
            libraries,
            f"devices: {len(devices)} x {kinds} ({jax.default_backend()})",
            cache_text(os.environ),
            *([f"report bugs at {issues}"] if issues else []),
        ]
    )
