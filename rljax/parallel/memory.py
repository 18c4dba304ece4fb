"""The memory of the devices, and whether arrays fit into it: XLA ends the process if an allocation is far too large."""

import os

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from rljax.errors import InputError
from rljax.models.axes import is_on_cpus
from rljax.parallel.hosts import min_over_hosts

LARGE_STATE_BYTES = 2**28
"""A state of at least this many bytes is large, so that room for a second copy matters."""


def shares_memory(state: PyTree[jax.Array]) -> bool:
    """Return True if a state is large and in the host's memory, so that an update during a save needs room for a second copy."""
    leaves = jax.tree.leaves(state)
    is_large = sum(leaf.nbytes for leaf in leaves) >= LARGE_STATE_BYTES
    return is_large and all(device.platform == "cpu" for leaf in leaves for device in leaf.devices())


def device_bytes(mesh: Mesh) -> int | None:
    """Return the bytes of memory of all devices of a mesh together; None if unknown. CPU devices share the machine's memory.

    Each host assumes that the devices of other hosts have as much memory as its own; see `agreed_device_bytes`.
    """
    if is_on_cpus(mesh):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = 0
    for device in mesh.devices.flat:
        if device.process_index == jax.process_index():
            known = device.memory_stats()
            if known is None or "bytes_limit" not in known:
                return None
            total += int(known["bytes_limit"])
    return total * jax.process_count()


def agreed_device_bytes(mesh: Mesh) -> int | None:
    """Return the smallest `device_bytes` of all hosts. All processes must call it together."""
    return min_over_hosts(device_bytes(mesh))


def check_fits(parameters: int, available: int | None) -> None:
    """Reject a model whose parameters alone, of 4 bytes each, need more than the available memory.

    Args:
        parameters: number of parameters.
        available: available bytes; None if unknown.

    Raises:
        InputError: the model has too many parameters.

    Example:
        >>> check_fits(1000, 4000), check_fits(10**12, None)
        (None, None)
        >>> check_fits(10**12, 4000)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        rljax.errors.InputError: The model has 1,000,000,000,000 parameters, which take 4,000.0 GB; the devices have 0.0 GB. ...
    """
    if available is not None and 4 * parameters > available:
        raise InputError(
            f"The model has {parameters:,} parameters, which take {4 * parameters / 1e9:,.1f} GB; the devices have "
            f"{available / 1e9:,.1f} GB. Use a smaller model, or more devices."
        )
