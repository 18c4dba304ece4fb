"""Check that arrays can fit into the memory of the devices at all: XLA ends the process where an allocation is far too large."""

import os

import jax
from jax.sharding import Mesh

from rljax.errors import InputError
from rljax.parallel.hosts import least


def device_bytes(mesh: Mesh) -> int | None:
    """Memory of all devices of a mesh together, in bytes; None if they do not say. CPU devices share that of the machine.

    Of several hosts each takes the others' devices for as large as its own; see `agreed_device_bytes`.
    """
    devices = list(mesh.devices.flat)
    if devices[0].platform == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = 0
    for device in devices:
        if device.process_index == jax.process_index():
            known = device.memory_stats()
            if known is None or "bytes_limit" not in known:
                return None
            total += int(known["bytes_limit"])
    return total * jax.process_count()


def agreed_device_bytes(mesh: Mesh) -> int | None:
    """`device_bytes`, the same on all hosts: that of the host with the least. All call it together."""
    return least(device_bytes(mesh))


def check_fits(parameters: int, available: int | None) -> None:
    """Refuse a model whose parameters alone, of 4 bytes each, are larger than the memory.

    Args:
        parameters: how many.
        available: bytes; None if they are not known.

    Raises:
        InputError: it has too many parameters.

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
            f"{available / 1e9:,.1f} GB. Take a smaller model, or more devices."
        )
