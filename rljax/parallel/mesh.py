"""The device mesh, and the rules that place parameters and rows on it.

The mesh has three axes, `data` x `fsdp` x `tensor`. Rows of a batch are sharded over the first two. The policy model decides which
axes of a parameter are sharded over `fsdp` and `tensor`; optimizer moments are sharded like their parameter. One device is a
1 x 1 x 1 mesh and takes the same code path. An optional additional axis, `context`, divides the tokens of a row; see
`rljax.models.axes`. The devices may belong to several processes.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.mesh_utils import create_hybrid_device_mesh
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import KeyPath, tree_leaves_with_path
from jaxtyping import Array, PyTree

from rljax.errors import InputError
from rljax.machine import processor_name, usable_processors
from rljax.models.axes import CONTEXT, DATA, FSDP, TENSOR, row_shards
from rljax.models.policy import path_names
from rljax.text import counted


def make_mesh(
    replicas: int | None,
    fsdp: int,
    tensor: int = 1,
    context: int | None = None,
    *,
    devices: list[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]  JAX declares it as a variable
) -> Mesh:
    """Arrange devices as a `data x fsdp x tensor` mesh, in which devices with a fast connection are next to each other.

    The network between slices of TPUs, or between machines with GPUs, is slow. Therefore each slice has complete copies of the
    parameters if possible; otherwise, the shards of one copy are divided over as few slices as possible.

    Args:
        replicas: number of copies of the parameters; None: as many as all devices hold.
        fsdp: number of shards of one copy's parameters; rows are sharded over this axis as well.
        tensor: number of shards of one copy's heads, hidden features and vocabulary.
        context: number of devices over which the tokens of each row are split, along an additional axis between `fsdp` and
            `tensor`; the parameters of one copy are split along it as well. None: there is no such axis.
        devices: the devices to use; by default the devices of all processes.

    Raises:
        InputError: the mesh needs more devices than there are, the number of devices is not a multiple of the devices per copy,
            some process has no device in the mesh, or the mesh cannot be divided over the slices.
    """
    available = jax.devices() if devices is None else devices
    axes = {FSDP: fsdp, **({} if context is None else {CONTEXT: context}), TENSOR: tensor}
    shown = " x ".join(f"{name}={size}" for name, size in axes.items())
    shape, per_copy = f"replicas={replicas} x {shown}", math.prod(axes.values())
    if min(*axes.values(), 1 if replicas is None else replicas) < 1:
        raise InputError(f"The mesh {shape} has an axis below 1; set every axis to at least 1.")
    if replicas is None:
        if len(available) % per_copy:
            raise InputError(
                f"{shown} does not divide the {counted(len(available), 'device')}; choose axes whose product is a divisor, or set "
                "replicas as well."
            )
        replicas = len(available) // per_copy
    if replicas * per_copy > len(available):
        raise InputError(
            f"The mesh {shape} needs {replicas * per_copy} devices, but there are {len(available)}; "
            f"choose axes whose product is at most {len(available)}."
        )
    mesh_devices = available[: replicas * per_copy]
    idle = {device.process_index for device in available} - {device.process_index for device in mesh_devices}
    if idle:
        raise InputError(
            f"The mesh {shape} has no device of host {min(idle)}; choose axes whose product is {len(available)}, or run on "
            "fewer hosts."
        )
    axes = {DATA: replicas, **axes}
    names, types = tuple(axes), (AxisType.Auto,) * len(axes)
    if len({slice_of(device) for device in mesh_devices}) == 1:
        return jax.make_mesh(tuple(axes.values()), names, axis_types=types, devices=mesh_devices)
    return Mesh(arrange_slices(axes, mesh_devices), names, axis_types=types)


def slice_of(device: Any) -> int:
    """Return the index of a device's slice. A slice is a set of TPUs with a fast network, or the GPUs of one machine."""
    return getattr(device, "slice_index", 0)


def arrange_slices(axes: Mapping[str, int], devices: Sequence[Any]) -> np.ndarray:
    """Arrange the devices of several slices: `data` is divided over slices as far as possible, then `fsdp`.

    Args:
        axes: sizes of the mesh's axes, in order.
        devices: all devices of the mesh.

    Raises:
        InputError: the mesh uses unequal numbers of devices per slice, or an axis other than `data` and `fsdp` would be split
            across slices.
    """
    counts = Counter(map(slice_of, devices))
    shape = " x ".join(f"{name}={size}" for name, size in axes.items())
    if len({*counts.values()}) > 1:
        raise InputError(
            f"The mesh {shape} uses {min(counts.values())} devices of one slice and {max(counts.values())} of another; "
            "choose axes that use the same number of devices from each slice."
        )
    copies = math.gcd(axes[DATA], len(counts))
    slices_along = {DATA: copies, FSDP: len(counts) // copies}
    if axes[FSDP] % slices_along[FSDP]:
        raise InputError(
            f"The mesh {shape} cannot be divided over {len(counts)} slices; choose replicas as a multiple of {len(counts)}, so "
            f"that each slice has its own copies, or choose replicas x fsdp as a multiple of {len(counts)}."
        )
    between = [slices_along.get(name, 1) for name in axes]
    within = [size // count for size, count in zip(axes.values(), between, strict=True)]
    return create_hybrid_device_mesh(within, between, devices, allow_split_physical_axes=True)


@runtime_checkable
class MeshSettings(Protocol):
    """Any object with the sizes of a mesh's axes, such as `rljax.settings.shared_groups.MeshConfig`; see `make_mesh`."""

    @property
    def replicas(self) -> int | None: ...  # noqa: D102
    @property
    def fsdp(self) -> int: ...  # noqa: D102
    @property
    def tensor(self) -> int: ...  # noqa: D102
    @property
    def context(self) -> int | None: ...  # noqa: D102


def mesh_of(sizes: MeshSettings, *, devices: list[jax.Device] | None = None) -> Mesh:  # pyright: ignore[reportInvalidTypeForm]
    """Make the mesh that a run's settings describe; see `make_mesh`."""
    return make_mesh(sizes.replicas, sizes.fsdp, sizes.tensor, sizes.context, devices=devices)


def check_rows(mesh: Mesh, **rows: int) -> None:
    """Reject numbers of rows that cannot be split evenly over the devices that rows are sharded over."""
    parts = row_shards(mesh)
    for name, count in rows.items():
        if count % parts:
            raise InputError(
                f"{name} is {count} rows, which cannot be split evenly over {parts} devices; choose a multiple of {parts}."
            )


Partition = Callable[[tuple[str, ...], tuple[int, ...]], PartitionSpec]
"""(path of a parameter, its shape) -> the mesh axes that the parameter's axes are sharded over."""


def shardings(mesh: Mesh, tree: PyTree) -> PyTree[NamedSharding]:
    """Return a sharding for each leaf: floating-point arrays are sharded over `fsdp` along the largest axis that it divides."""
    return jax.tree.map(lambda leaf: NamedSharding(mesh, _default_spec(mesh, leaf)), tree)


def policy_shardings(
    mesh: Mesh, tree: PyTree, params: PyTree, partition: Partition, *, extra_params: PyTree | None = None
) -> PyTree[NamedSharding]:
    """Return a sharding for each leaf of a training state, for a policy that partitions its own parameters.

    A leaf that belongs to a parameter, such as an optimizer moment, is sharded like the parameter: its path ends with the
    parameter's path, and it has the parameter's shape. All other leaves are sharded as in `shardings`.

    Args:
        mesh: the devices.
        tree: arrays or their shapes.
        params: the policy's parameters or their shapes.
        partition: how a parameter is sharded.
        extra_params: further parameters that leaves may belong to, such as those under an adapter.

    Raises:
        InputError: `partition` does not return a PartitionSpec; or the spec has more axes than the parameter, names an axis twice,
            names an axis that the mesh lacks, or shards an axis whose size the mesh axes do not divide.
    """
    specs: dict[tuple[tuple[str, ...], tuple[int, ...]], PartitionSpec] = {}
    for path, leaf in [*tree_leaves_with_path(params), *tree_leaves_with_path(extra_params)]:
        names, shape = path_names(path), tuple(leaf.shape)
        specs[names, shape] = _check_spec(mesh, names, shape, partition(names, shape))

    def place(path: KeyPath, leaf: jax.ShapeDtypeStruct | Array) -> NamedSharding:
        names, shape = path_names(path), tuple(leaf.shape)
        ends = (specs.get((names[begin:], shape)) for begin in range(len(names)))
        spec = next((found for found in ends if found is not None), None)
        return NamedSharding(mesh, _default_spec(mesh, leaf) if spec is None else spec)

    return jax.tree_util.tree_map_with_path(place, tree)


def _check_spec(mesh: Mesh, names: tuple[str, ...], shape: tuple[int, ...], spec: object) -> PartitionSpec:
    """Return a policy's partition of a parameter, or raise an error if the partition does not fit the mesh."""
    if not isinstance(spec, PartitionSpec):
        raise InputError(
            f"policy.partition: the parameter {'/'.join(names)} of shape {list(shape)} needs a jax.sharding.PartitionSpec; "
            f"got {spec!r:.80}."
        )
    shown = f"PartitionSpec{tuple(spec)}"  # the repr of a PartitionSpec differs between versions of JAX
    for size, axes in zip(shape, spec, strict=False):
        mesh_axes = () if axes is None else (axes,) if isinstance(axes, str) else axes
        unknown = [axis for axis in mesh_axes if axis not in mesh.shape]
        if unknown or size % math.prod(mesh.shape[axis] for axis in mesh_axes):
            raise InputError(
                f"policy.partition: the parameter {'/'.join(names)} of shape {list(shape)} must be sharded over axes of the mesh "
                f"({', '.join(f'{name}={count}' for name, count in mesh.shape.items())}) that divide it; got {shown}."
            )
    all_axes = [axis for axes in spec if axes is not None for axis in ((axes,) if isinstance(axes, str) else axes)]
    if len(set(all_axes)) < len(all_axes):
        raise InputError(
            f"policy.partition: the parameter {'/'.join(names)} of shape {list(shape)} must be sharded over each axis "
            f"of the mesh at most once; got {shown}."
        )
    if len(spec) > len(shape):
        raise InputError(
            f"policy.partition: the parameter {'/'.join(names)} has {len(shape)} axes, but its partition has {len(spec)}: {shown}."
        )
    return spec


def _default_spec(mesh: Mesh, leaf: jax.ShapeDtypeStruct | Array | np.ndarray) -> PartitionSpec:
    """Shard the largest axis that `fsdp` divides. Replicate integers (counters, random keys) and arrays without such an axis."""
    shards = mesh.shape[FSDP]
    divisible = [axis for axis, size in enumerate(leaf.shape) if size % shards == 0 and size >= shards]
    spec: list[str | None] = [None] * len(leaf.shape)
    if divisible and jnp.issubdtype(leaf.dtype, jnp.floating):
        spec[max(divisible, key=lambda axis: leaf.shape[axis])] = FSDP
    return PartitionSpec(*spec)


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding that puts a full copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def row_sharding(mesh: Mesh, leading: int = 0) -> NamedSharding:
    """Return the sharding of rows over `data` and `fsdp`; the first `leading` axes, before the rows, are not sharded."""
    return NamedSharding(mesh, PartitionSpec(*([None] * leading), (DATA, FSDP)))


def put(tree: PyTree, places: PyTree[NamedSharding] | NamedSharding) -> PyTree[Array]:
    """Place arrays on a mesh. Every process must pass the same arrays; each copies only the parts for its own devices."""

    def place_one(array: np.ndarray | Array, place: NamedSharding) -> Array:
        is_spread = isinstance(array, jax.Array) and not array.is_fully_addressable
        if is_spread or place.is_fully_addressable:
            return jax.device_put(array, place)
        host = np.asarray(array)
        return jax.make_array_from_callback(host.shape, place, host.__getitem__)

    if isinstance(places, NamedSharding):
        return jax.tree.map(lambda array: place_one(array, places), tree)
    return jax.tree.map(place_one, tree, places)


def add_shardings(shapes: PyTree, places: PyTree[NamedSharding]) -> PyTree[jax.ShapeDtypeStruct]:
    """Add shardings to the shapes and dtypes of arrays, to make a template for restoring the arrays from a checkpoint."""
    return jax.tree.map(lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes, places)


def abstract_arrays(tree: PyTree[Array]) -> PyTree[jax.ShapeDtypeStruct]:
    """Return the shapes, dtypes and shardings of placed arrays."""
    return add_shardings(tree, jax.tree.map(lambda leaf: leaf.sharding, tree))


def put_rows(mesh: Mesh, tree: PyTree, leading: int = 0) -> PyTree[Array]:
    """Place host arrays on the mesh, with their rows sharded over `data` and `fsdp`."""
    return put(tree, row_sharding(mesh, leading))


def numerical_setup() -> dict[str, str]:
    """Return what influences a program's results, apart from its code and devices: compiler settings, and the host's processors.

    Example:
        >>> sorted(numerical_setup())[:3]
        ['LIBTPU_INIT_ARGS', 'NVIDIA_TF32_OVERRIDE', 'XLA_FLAGS']
    """
    variables = {name: os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")}
    names = ("jax_default_matmul_precision", "jax_default_prng_impl", "jax_enable_x64", "jax_threefry_partitionable")
    settings = {name: str(getattr(jax.config, name)) for name in names}
    settings["jax_disable_most_optimizations"] = str(jax.config.read("jax_disable_most_optimizations"))  # not an attribute
    return variables | settings | {"processor": processor_name(), "processors": str(usable_processors())}
