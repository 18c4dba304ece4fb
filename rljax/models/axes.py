"""Logical axes of the transformer's arrays, and the axes of the device mesh that they are sharded over.

The mesh has three axes: `data` x `fsdp` x `tensor`. Rows are divided over `data` and `fsdp`. A parameter is sharded over `fsdp`
along the width of the residual stream, and over `tensor` along heads, hidden features, experts or vocabulary; along `data` it
is copied. The residual stream keeps its full width, so a layer's parameters are gathered over `fsdp` when the layer is
computed.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from rljax.errors import InputError
from rljax.models.config import TransformerConfig

Tree = TypeVar("Tree", bound=PyTree)

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"

MESH_AXES: Mapping[str, str | tuple[str, ...] | None] = MappingProxyType(
    {
        "rows": (DATA, FSDP),
        "copy_rows": DATA,
        "tokens": None,
        "features": None,
        "width": FSDP,
        "vocab": TENSOR,
        "vocab_parts": (TENSOR, FSDP),
        "heads": TENSOR,
        "kv_heads": TENSOR,
        "hidden": TENSOR,
        "experts": TENSOR,
        "head_dim": None,
        "rank": None,
    }
)
"""Logical axis -> mesh axes. `width` is the residual stream's axis in a parameter, `features` is this axis in an activation. Around
the embedding and the head, where matrices are much larger than activations, the devices that share one copy of the parameters take
all `copy_rows` together: each looks up its part of the width, and computes its part of the logits, `vocab_parts`."""

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
"""Name of a parameter, or of the norm that a scale belongs to -> its logical axes."""

INPUT_AXES: Mapping[str, int] = MappingProxyType(
    {"query": 1, "key": 1, "value": 1, "output": 2, "gate": 1, "up": 1, "down": 1}
)
"""Matrix of a layer -> number of its leading axes that are multiplied with the input; the other axes belong to the output."""


def row_shards(mesh: Mesh) -> int:
    """Number of parts that the rows are divided into."""
    return mesh.shape[DATA] * mesh.shape[FSDP]


def spec_of(names: tuple[str, ...]) -> PartitionSpec:
    """Mesh axes of an array with these logical axes.

    Example:
        >>> tuple(spec_of(("width", "heads", "head_dim")))
        ('fsdp', 'tensor', None)
    """
    return PartitionSpec(*(MESH_AXES[name] for name in names))


def parameter_axes(path: tuple[str, ...]) -> tuple[str, ...]:
    """Logical axes of a parameter of the transformer, of a part of a quantized parameter, or of a low-rank factor.

    Example:
        >>> parameter_axes(("layers", "0", "attention", "output", "a"))
        ('heads', 'head_dim', 'rank')
        >>> parameter_axes(("layers", "0", "attention", "output", "codes"))
        ('heads', 'head_dim', 'width')
    """
    owner, name = ("", *path)[-2:]
    if owner in INPUT_AXES and name in ("a", "b"):
        axes, inputs = PARAMETERS[owner], INPUT_AXES[owner]
        return (*axes[:inputs], "rank") if name == "a" else ("rank", *axes[inputs:])
    return PARAMETERS[owner if name in ("scale", "codes") else name]


def parameter_spec(path: tuple[str, ...], shape: tuple[int, ...], *, tensor: int = 1) -> PartitionSpec:
    """Mesh axes of one of the transformer's parameters.

    If the number of devices does not divide the vocabulary, it is replicated on each of them, so that checkpoints and exported
    models have no padding rows. The products with it are still sharded: the compiler pads them, and drops the padding.

    Args:
        path: names of the parameter.
        shape: its shape.
        tensor: devices that share the vocabulary.

    Example:
        >>> tuple(parameter_spec(("layers", "0", "feed_forward", "down"), (256, 96)))
        ('tensor', 'fsdp')
    """
    names = parameter_axes(path)
    return spec_of(
        tuple("features" if name == "vocab" and size % tensor else name for name, size in zip(names, shape, strict=False))
    )


def parameter_partition(mesh: Mesh | None) -> Callable[[tuple[str, ...], tuple[int, ...]], PartitionSpec]:
    """Return the function that shards the transformer's parameters over a mesh; see `parameter_spec`."""
    return partial(parameter_spec, tensor=1 if mesh is None else mesh.shape[TENSOR])


def constrain_sharding(array: Tree, names: tuple[str, ...], mesh: Mesh | None) -> Tree:
    """Tell the compiler how an activation is sharded; without a mesh of several devices, do nothing."""
    if mesh is None or mesh.size == 1:
        return array
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec_of(names)))


def check_shape(config: TransformerConfig, mesh: Mesh) -> None:
    """Refuse a mesh whose axes do not divide the transformer's axes.

    Raises:
        InputError: the message names the first axis that cannot be shared.
    """
    sizes = {
        "width": config.width,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        **({"hidden": config.hidden} if config.routing is None else {"experts": config.routing.experts}),
    }
    for name, size in sizes.items():
        axis = MESH_AXES[name]
        shards = mesh.shape[axis]
        if size % shards:
            most = math.gcd(*(other for key, other in sizes.items() if MESH_AXES[key] == axis))
            raise InputError(f"{axis}={shards} cannot share the model's {name}={size} equally; choose a divisor of {most}.")
