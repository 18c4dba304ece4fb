"""Logical axes of the transformer's arrays, and the axes of the device mesh that they are sharded over.

The mesh has three axes: `data` x `fsdp` x `tensor`. Rows are divided over `data` and `fsdp`. A parameter is sharded over `fsdp`
along the width of the residual stream, and over `tensor` along heads, hidden features, experts or vocabulary; it is replicated
along `data`. The residual stream keeps its full width, so a layer's parameters are gathered over `fsdp` when the layer is
computed.

For long sequences, a mesh may have a fourth axis, `context`, before `tensor`. The tokens of a row are divided over it, and
parameters are sharded over it as over `fsdp`. Only attention mixes the tokens of a row: there, the devices along `context` exchange
tokens for heads (all-to-all, arXiv:2309.14509), so that each has all tokens of some heads. Sampling reads one new token per row, so
it has nothing to divide over this axis and uses `mesh_for_sampling`.

With `shard_sampler`, the sampler's weights stay divided among all devices that share a copy of them. They are on `sampler_mesh`,
whose axis `split` replaces `fsdp`. Each device computes its heads, hidden features and vocabulary entries for all rows of the copy;
in attention, a device reads only the keys and values of its own rows.
"""

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import KeyPath
from jaxtyping import PyTree

from rljax.errors import InputError
from rljax.models.config import TransformerConfig
from rljax.models.policy import path_names

Tree = TypeVar("Tree", bound=PyTree)

DATA, FSDP, CONTEXT, SPLIT, TENSOR = "data", "fsdp", "context", "split", "tensor"
USUAL_AXES = (DATA, FSDP, TENSOR)
"""Axes of a mesh without a context axis."""

MESH_AXES: Mapping[str, str | tuple[str, ...] | None] = MappingProxyType(
    {
        "rows": (DATA, FSDP, SPLIT),
        "stream_rows": (DATA, FSDP),
        "copy_rows": DATA,
        "tokens": CONTEXT,
        "slots": None,
        "features": None,
        "width": (FSDP, CONTEXT),
        "fsdp_width": FSDP,
        "vocab": (TENSOR, SPLIT),
        "vocab_parts": (TENSOR, FSDP, CONTEXT),
        "heads": (TENSOR, SPLIT),
        "kv_heads": TENSOR,
        "attention_heads": (TENSOR, CONTEXT),
        "hidden": (TENSOR, SPLIT),
        "experts": (TENSOR, SPLIT),
        "head_dim": None,
        "rank": None,
    }
)
"""Logical axis -> mesh axes. `width` is the residual stream's axis in a parameter, `features` is this axis in an activation.
`slots` are tokens that are not divided, as in attention, which divides its heads instead. In the embedding and the head, where
matrices are much larger than activations, the devices that share one copy of the parameters process all `copy_rows` together: each
device looks up its slice of the width, and computes its slice of the logits, `vocab_parts`."""

PARAMETERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "embedding": ("vocab", "width"),
        "head": ("vocab", "width"),
        "query": ("width", "heads", "head_dim"),
        "key": ("width", "kv_heads", "head_dim"),
        "value": ("width", "kv_heads", "head_dim"),
        "output": ("heads", "head_dim", "width"),
        "query_bias": ("heads", "head_dim"),
        "key_bias": ("kv_heads", "head_dim"),
        "value_bias": ("kv_heads", "head_dim"),
        "output_bias": ("width",),
        "sinks": ("heads",),
        "gate_bias": ("hidden",),
        "up_bias": ("hidden",),
        "down_bias": ("width",),
        "gate": ("width", "hidden"),
        "up": ("width", "hidden"),
        "down": ("hidden", "width"),
        "router": ("width", "features"),
        "expert_gate": ("experts", "width", "features"),
        "expert_up": ("experts", "width", "features"),
        "expert_down": ("experts", "features", "width"),
        "router_bias": ("features",),
        "expert_gate_bias": ("experts", "features"),
        "expert_up_bias": ("experts", "features"),
        "expert_down_bias": ("experts", "width"),
        "norm": ("width",),
        "attention_norm": ("width",),
        "feed_forward_norm": ("width",),
        "attention_outer_norm": ("width",),
        "feed_forward_outer_norm": ("width",),
        "query_norm": ("head_dim",),
        "key_norm": ("head_dim",),
    }
)
"""Name of a parameter (for the scale of a norm, the norm's name) -> the parameter's logical axes."""

INPUT_AXES: Mapping[str, int] = MappingProxyType(
    {
        **{"query": 1, "key": 1, "value": 1, "output": 2, "gate": 1, "up": 1, "down": 1},
        **{"expert_gate": 1, "expert_up": 1, "expert_down": 1},
    }
)
"""Name of a layer's matrix -> number of its input axes, which are multiplied with the input. If the matrix belongs to experts, the
experts' axis comes before the input axes; the output axes come after them."""


class MatrixAxes(NamedTuple):
    """The axes of a layer's matrix: their names, sizes, or indices."""

    experts: tuple[Any, ...]
    """The axis of the experts; empty if the matrix does not belong to experts."""
    inputs: tuple[Any, ...]
    """The axes that are multiplied with the input."""
    outputs: tuple[Any, ...]
    """The axes of the output."""


def matrix_axes(name: str, axes: tuple[Any, ...]) -> MatrixAxes:
    """Divide the axes of a layer's matrix into experts, inputs and outputs. `INPUT_AXES` must contain its name.

    Example:
        >>> matrix_axes("expert_up", (8, 64, 256)), matrix_axes("output", (4, 16, 64))
        (MatrixAxes(experts=(8,), inputs=(64,), outputs=(256,)), MatrixAxes(experts=(), inputs=(4, 16), outputs=(64,)))
    """
    first = PARAMETERS[name].count("experts")
    end = first + INPUT_AXES[name]
    return MatrixAxes(axes[:first], axes[first:end], axes[end:])


def is_on_cpus(mesh: Mesh) -> bool:
    """Return True if the devices of a mesh are CPUs."""
    return mesh.devices.flat[0].platform == "cpu"


def row_shards(mesh: Mesh) -> int:
    """Return the number of shards that the rows are divided into."""
    return count_shards("rows", mesh)


def count_shards(name: str, mesh: Mesh) -> int:
    """Return the number of shards that a logical axis is divided into."""
    return math.prod(mesh.shape[axis] for axis in _mesh_axes(name, mesh.axis_names))


def _mesh_axes(name: str, present: Collection[str]) -> tuple[str, ...]:
    """Return the mesh axes that a logical axis is sharded over, on a mesh that has the `present` axes."""
    axes = MESH_AXES[name]
    return tuple(axis for axis in ((axes,) if isinstance(axes, str) else axes or ()) if axis in present)


def mesh_for_sampling(mesh: Mesh) -> Mesh:
    """Return a mesh of the same devices without a context axis, so that they divide rows instead of the tokens of a row.

    Every device has the same shards of the parameters on both meshes.
    """
    if CONTEXT not in mesh.axis_names:
        return mesh
    data, fsdp, context, tensor = mesh.devices.shape
    devices = mesh.devices.reshape(data, fsdp * context, tensor)
    return Mesh(devices, USUAL_AXES, axis_types=(AxisType.Auto,) * 3)


def sampler_mesh(mesh: Mesh, *, is_sharded: bool) -> Mesh:
    """Return the mesh for the model that samples, with the devices of `mesh_for_sampling`.

    If the model is sharded, each device has a part of the weights; otherwise the weights are replicated along `fsdp`.
    """
    mesh = mesh_for_sampling(mesh)
    if not is_sharded or mesh.shape[FSDP] == 1:
        return mesh
    return Mesh(mesh.devices, (DATA, SPLIT, TENSOR), axis_types=(AxisType.Auto,) * 3)


def sampler_spec(path: tuple[str, ...], shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    """Return the mesh axes of a parameter of the transformer that samples: its width is not sharded.

    An axis is sharded over `split` if the number of devices divides its size. If that number does not divide the key/value heads,
    they are replicated over `split`, and only the query heads are sharded.

    Args:
        path: path of the parameter.
        shape: shape of the parameter.
        mesh: a mesh that `sampler_mesh` returned.

    Example:
        >>> mesh = jax.sharding.AbstractMesh((1, 4, 2), ("data", "split", "tensor"))
        >>> tuple(sampler_spec(("query",), (64, 8, 16), mesh)), tuple(sampler_spec(("key",), (64, 2, 16), mesh))
        ((None, ('tensor', 'split'), None), (None, 'tensor', None))
    """
    names = ({"width": "features", "kv_heads": "heads"}.get(name, name) for name in parameter_axes(path))
    parts = [dividing_axes(name, size, mesh) for name, size in zip(names, shape, strict=False)]
    return PartitionSpec(*(axes if len(axes) > 1 else axes[0] if axes else None for axes in parts))


def count_sampler_weights(shapes: PyTree[jax.ShapeDtypeStruct], mesh: Mesh, *, is_sharded: bool) -> int:
    """Count the weights that each device has for sampling; see `sampler_mesh`."""
    if not is_sharded:
        return sum(leaf.size for leaf in jax.tree.leaves(shapes)) // mesh.shape[TENSOR]
    mesh = sampler_mesh(mesh, is_sharded=True)

    def count_shard(path: KeyPath, leaf: jax.ShapeDtypeStruct) -> int:
        return math.prod(NamedSharding(mesh, sampler_spec(path_names(path), leaf.shape, mesh)).shard_shape(leaf.shape))

    return sum(jax.tree.leaves(jax.tree_util.tree_map_with_path(count_shard, shapes)))


def dividing_axes(name: str, size: int, mesh: Mesh | AbstractMesh) -> tuple[str, ...]:
    """Return the first mesh axes of a logical axis, as many of them as can divide its size evenly."""
    axes = _mesh_axes(name, mesh.axis_names)
    while axes and size % math.prod(mesh.shape[axis] for axis in axes):
        axes = axes[:-1]
    return axes


def spec_of(names: tuple[str, ...], present: Collection[str] = USUAL_AXES) -> PartitionSpec:
    """Return the mesh axes of an array with these logical axes, on a mesh that has the `present` axes.

    Example:
        >>> tuple(spec_of(("width", "heads", "head_dim")))
        ('fsdp', 'tensor', None)
        >>> tuple(spec_of(("width", "heads", "head_dim"), ("data", "fsdp", "context", "tensor")))
        (('fsdp', 'context'), 'tensor', None)
    """
    found = (_mesh_axes(name, present) for name in names)
    return PartitionSpec(*(axes if len(axes) > 1 else axes[0] if axes else None for axes in found))


def parameter_axes(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the logical axes of a parameter, of the codes or scales of a quantized parameter, or of a low-rank factor.

    Example:
        >>> parameter_axes(("layers", "0", "attention", "output", "a"))
        ('heads', 'head_dim', 'rank')
        >>> parameter_axes(("layers", "0", "attention", "output", "codes"))
        ('heads', 'head_dim', 'width')
    """
    owner, name = ("", *path)[-2:]
    if owner in INPUT_AXES and name in ("a", "b"):
        experts, inputs, outputs = matrix_axes(owner, PARAMETERS[owner])
        return (*experts, *inputs, "rank") if name == "a" else (*experts, "rank", *outputs)
    return PARAMETERS[owner if name in ("scale", "codes") else name]


def parameter_spec(path: tuple[str, ...], shape: tuple[int, ...], *, mesh: Mesh | None = None) -> PartitionSpec:
    """Return the mesh axes of one of the transformer's parameters.

    If the size of the axis `tensor` does not divide the vocabulary, the vocabulary is replicated along this axis, so that
    checkpoints and exported models have no padding rows. The logits are still sharded: the compiler pads them, and drops the
    padding.

    Args:
        path: path of the parameter.
        shape: shape of the parameter.
        mesh: the mesh; None: any mesh with the three usual axes whose axis `tensor` divides the vocabulary.

    Example:
        >>> tuple(parameter_spec(("layers", "0", "feed_forward", "down"), (256, 96)))
        ('tensor', 'fsdp')
    """
    tensor, present = (1, USUAL_AXES) if mesh is None else (mesh.shape[TENSOR], mesh.axis_names)
    named = zip(parameter_axes(path), shape, strict=False)
    return spec_of(tuple("features" if name == "vocab" and size % tensor else name for name, size in named), present)


def parameter_partition(mesh: Mesh | None) -> Callable[[tuple[str, ...], tuple[int, ...]], PartitionSpec]:
    """Return the function that shards the transformer's parameters over a mesh; see `parameter_spec`."""
    return partial(parameter_spec, mesh=mesh)


def constrain_sharding(array: Tree, names: tuple[str, ...], mesh: Mesh | None) -> Tree:
    """Tell the compiler how an activation is sharded; without a mesh of several devices, do nothing."""
    if mesh is None or mesh.size == 1:
        return array
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec_of(names, mesh.axis_names)))


def check_shape(config: TransformerConfig, mesh: Mesh) -> None:
    """Refuse a mesh whose axes do not divide the transformer's axes evenly.

    Raises:
        InputError: an axis of the model cannot be divided; the message names it.
    """
    sizes = {
        "width": config.width,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        **({"hidden": config.hidden} if config.routing is None else {"experts": config.routing.experts}),
    }
    present = mesh.axis_names
    for name, size in sizes.items():
        if size % count_shards(name, mesh):
            most = math.gcd(
                *(other for key, other in sizes.items() if _mesh_axes(key, present) == _mesh_axes(name, present))
            )
            raise InputError(
                f"{show_axes(name, mesh)} cannot share the model's {name}={size} equally; choose a divisor of {most}."
            )
    heads = {"heads": config.heads, "kv_heads": config.kv_heads * key_copies(config, mesh)}
    for name, size in heads.items():
        if size % count_shards("attention_heads", mesh):
            raise InputError(
                f"{show_axes('attention_heads', mesh)} cannot share the model's {name}={getattr(config, name)} equally in "
                f"attention; choose axes whose product divides heads={config.heads}, and divides kv_heads={config.kv_heads} or is "
                "a multiple of it."
            )


def key_copies(config: TransformerConfig, mesh: Mesh) -> int:
    """Return the number of copies of each key/value head that attention needs, so that each device has its query heads' keys."""
    return max(count_shards("attention_heads", mesh) // config.kv_heads, 1)


def show_axes(name: str, mesh: Mesh) -> str:
    """Format the mesh axes that divide a logical axis, with their sizes."""
    return " x ".join(f"{axis}={mesh.shape[axis]}" for axis in _mesh_axes(name, mesh.axis_names) if mesh.shape[axis] > 1)
