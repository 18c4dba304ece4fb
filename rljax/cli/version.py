"""`rljax --version`: everything that a report of a fault needs."""

import platform
from importlib.metadata import version


def version_text() -> str:
    """Versions of rljax, Python, JAX and the libraries under it, and the devices that JAX finds."""
    import jax  # noqa: PLC0415  no other command waits for JAX to start

    import rljax  # noqa: PLC0415  as above

    devices = jax.devices()
    kinds = ", ".join(sorted({device.device_kind for device in devices}))
    libraries = ", ".join(f"{name} {version(name)}" for name in ("jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"))
    return "\n".join(
        [
            f"rljax {rljax.__version__}",
            f"Python {platform.python_version()} on {platform.platform()}",
            f"JAX {jax.__version__} ({libraries})",
            f"devices: {len(devices)} x {kinds} ({jax.default_backend()})",
        ]
    )
