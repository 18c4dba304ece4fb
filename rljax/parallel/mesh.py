"""Where arrays live: an explicit mesh of devices, and the rule that places parameters and rows on it.

The mesh has two axes. Rows of a batch are spread over both; parameters and optimiser moments are spread over `fsdp` and
repeated over `data`. One device is the 1 x 1 mesh: there is no other code path. The devices may belong to several processes.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from rljax.errors import InputError

DATA, FSDP = "data", "fsdp"


def make_mesh(data: int | None, fsdp: int, devices: list[jax.Device] | None = None) -> Mesh:
    """Lay devices out as `data x fsdp`.

    Args:
        data: replicas of the parameters; None takes all devices there are.
        fsdp: devices that share one replica.
        devices: which ones; all of this process group by default.

    Raises:
        InputError: the mesh asks for more devices than there are, does not divide them, or leaves a process without any.
    """
    available = jax.devices() if devices is None else devices
    if fsdp < 1 or (data is not None and data < 1):
        raise InputError(f"The mesh data={data} x fsdp={fsdp} has an axis below 1; give positive numbers.")
    if data is None:
        if len(available) % fsdp:
            raise InputError(
                f"fsdp={fsdp} does not divide the {len(available)} devices here; choose a divisor, or set data too."
            )
        data = len(available) // fsdp
    if data * fsdp > len(available):
        raise InputError(
            f"The mesh data={data} x fsdp={fsdp} needs {data * fsdp} devices and {len(available)} are here; "
            f"choose axes whose product is at most {len(available)}."
        )
    taken = available[: data * fsdp]
    idle = {device.process_index for device in available} - {device.process_index for device in taken}
    if idle:
        raise InputError(
            f"The mesh data={data} x fsdp={fsdp} has no device of host {min(idle)}; choose axes whose product is "
            f"{len(available)}, or run on fewer hosts."
        )
    grid = np.asarray(taken).reshape(data, fsdp)
    return Mesh(grid, (DATA, FSDP), axis_types=(AxisType.Auto, AxisType.Auto))


def check_rows(mesh: Mesh, **rows: int) -> None:
    """Refuse a number of rows that the mesh's devices cannot share equally."""
    for name, count in rows.items():
        if count % mesh.size:
            raise InputError(f"{name} is {count} rows, which {mesh.size} devices cannot share equally; choose a multiple.")


def parameter_sharding(mesh: Mesh, leaf: jax.ShapeDtypeStruct | Array) -> NamedSharding:
    """Spread the largest axis that `fsdp` divides; repeat what has none, and whole numbers: counters, random keys."""
    shards = mesh.shape[FSDP]
    divisible = [axis for axis, size in enumerate(leaf.shape) if size % shards == 0 and size >= shards]
    spec: list[str | None] = [None] * len(leaf.shape)
    if divisible and jnp.issubdtype(leaf.dtype, jnp.floating):
        spec[max(divisible, key=lambda axis: leaf.shape[axis])] = FSDP
    return NamedSharding(mesh, PartitionSpec(*spec))


def shardings(mesh: Mesh, tree: PyTree) -> PyTree[NamedSharding]:
    """Sharding of every leaf of parameters, of optimiser moments, or of a whole training state."""
    return jax.tree.map(lambda leaf: parameter_sharding(mesh, leaf), tree)


def replicated(mesh: Mesh) -> NamedSharding:
    """A full copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def row_sharding(mesh: Mesh, leading: int = 0) -> NamedSharding:
    """Rows spread over every device; `leading` axes before them are not split."""
    return NamedSharding(mesh, PartitionSpec(*([None] * leading), (DATA, FSDP)))


def put(tree: PyTree, places: PyTree[NamedSharding] | NamedSharding) -> PyTree[Array]:
    """Place arrays on their mesh; every process gives the same ones, and each moves only what its own devices hold."""

    def placed(array: np.ndarray | Array, place: NamedSharding) -> Array:
        is_spread = isinstance(array, jax.Array) and not array.is_fully_addressable
        if is_spread or place.is_fully_addressable:
            return jax.device_put(array, place)
        host = np.asarray(array)
        return jax.make_array_from_callback(host.shape, place, host.__getitem__)

    if isinstance(places, NamedSharding):
        return jax.tree.map(lambda array: placed(array, places), tree)
    return jax.tree.map(placed, tree, places)


def put_rows(mesh: Mesh, tree: PyTree, leading: int = 0) -> PyTree[Array]:
    """Place host arrays on the mesh, their rows spread over every device."""
    return put(tree, row_sharding(mesh, leading))
