"""The tensors of a checkpoint: their names in its files, and their paths in the parameters."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from rljax.models.config import Routing, TransformerConfig

ParameterPath = tuple[str | int, ...]


class Entry(NamedTuple):
    """One tensor of a checkpoint, and where and how it is stored in the parameters."""

    name: str
    """Name of the tensor in `transformers`, and in the file unless the tensor is stored as part of another (`fused`)."""
    path: ParameterPath
    """Keys of the array in the pytree of parameters."""
    read: Callable[[np.ndarray], np.ndarray]
    """Converts the tensor to the array."""
    write: Callable[[np.ndarray], np.ndarray]
    """Converts the array to the tensor; it is also traced, to find the tensor's shape."""
    fused: str | None = None
    """Name of the stored tensor that this tensor is part of, usually after the rows of earlier entries; None: stored alone."""
    index: int | None = None
    """Index of this entry's expert, if a checkpoint stores experts separately but the parameters stack them; otherwise None."""
    interleaved_index: int | None = None
    """Index of this tensor among those whose columns the stored tensor interleaves; None: the stored tensor concatenates rows."""

    @property
    def stored_name(self) -> str:
        """Name, in the file, of this tensor or of the tensor that contains it."""
        return self.name if self.fused is None else self.fused


NORM_NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "before": {"input": "attention_norm", "post_attention": "feed_forward_norm"},
        "after": {"post_attention": "attention_outer_norm", "post_feedforward": "feed_forward_outer_norm"},
        "both": {
            "input": "attention_norm",
            "post_attention": "attention_outer_norm",
            "pre_feedforward": "feed_forward_norm",
            "post_feedforward": "feed_forward_outer_norm",
        },
    }
)
"""Placement of the norms -> name of each norm in a checkpoint -> the norm's name in a layer."""
AnyArray = TypeVar("AnyArray", np.ndarray, Array)


def identity(x: AnyArray) -> AnyArray:
    """Return an array unchanged."""
    return x


def _transpose(x: AnyArray) -> AnyArray:
    return x.T


def _head_conversions(heads: int, width: int) -> tuple[Callable, Callable]:
    """Return `read` and `write` for a linear weight that is `[N H, D]` in the file and `[D, N, H]` in the parameters."""
    return (
        lambda x: x.reshape(heads, -1, width).transpose(2, 0, 1),
        lambda x: x.transpose(1, 2, 0).reshape(-1, width),
    )


def entries(config: TransformerConfig) -> Iterator[Entry]:
    """Iterate over all tensors of a checkpoint with this configuration."""
    yield Entry("model.embed_tokens.weight", ("embedding",), identity, identity)
    yield Entry("model.norm.weight", ("norm", "scale"), identity, identity)
    if not config.tied_head:
        yield Entry("lm_head.weight", ("head",), identity, identity)
    for index in range(config.layers):
        yield from _layer_entries(config, index)


def _layer_entries(config: TransformerConfig, index: int) -> Iterator[Entry]:
    prefix, path = f"model.layers.{index}", ("layers", index)
    for name, norm in NORM_NAMES[config.norms].items():
        yield Entry(f"{prefix}.{name}_layernorm.weight", (*path, norm, "scale"), identity, identity)
    for letter, name, heads in (
        ("q", "query", config.heads),
        ("k", "key", config.kv_heads),
        ("v", "value", config.kv_heads),
    ):
        projection = f"{prefix}.self_attn.{letter}_proj"
        fused = f"{prefix}.self_attn.qkv_proj.weight" if config.fused else None
        yield Entry(f"{projection}.weight", (*path, "attention", name), *_head_conversions(heads, config.width), fused)
        if config.qkv_bias:
            parameter_path = (*path, "attention", f"{name}_bias")
            yield Entry(f"{projection}.bias", parameter_path, lambda x, n=heads: x.reshape(n, -1), lambda x: x.reshape(-1))
    if config.qk_norm:
        for letter, name in (("q", "query"), ("k", "key")):
            parameter_path = (*path, "attention", f"{name}_norm", "scale")
            yield Entry(f"{prefix}.self_attn.{letter}_norm.weight", parameter_path, identity, identity)
    yield Entry(
        f"{prefix}.self_attn.o_proj.weight",
        (*path, "attention", "output"),
        lambda x: x.reshape(config.width, config.heads, -1).transpose(1, 2, 0),
        lambda x: x.transpose(2, 0, 1).reshape(config.width, -1),
    )
    if config.sinks:
        yield Entry(f"{prefix}.self_attn.sinks", (*path, "attention", "sinks"), identity, identity)
    if config.output_bias:
        yield Entry(f"{prefix}.self_attn.o_proj.bias", (*path, "attention", "output_bias"), identity, identity)
    if config.routing is not None:
        yield from _expert_entries(config.routing, f"{prefix}.{config.routing.names[0]}", (*path, "feed_forward"))
        return
    for name in ("gate", "up", "down"):
        fused = f"{prefix}.mlp.gate_up_proj.weight" if config.fused and name != "down" else None
        yield Entry(f"{prefix}.mlp.{name}_proj.weight", (*path, "feed_forward", name), _transpose, _transpose, fused)
        if config.hidden_bias:
            yield Entry(f"{prefix}.mlp.{name}_proj.bias", (*path, "feed_forward", f"{name}_bias"), identity, identity)


def _expert_entries(routing: Routing, prefix: str, path: ParameterPath) -> Iterator[Entry]:
    if routing.stacked:
        yield from _stacked_entries(routing, prefix, path)
        return
    yield Entry(f"{prefix}.gate.weight", (*path, "router"), _transpose, _transpose)
    for own, name in zip(("gate", "up", "down"), routing.names[1:], strict=True):
        for index in range(routing.experts):
            stored = f"{prefix}.experts.{index}.{name}.weight"
            yield Entry(stored, (*path, f"expert_{own}"), _transpose, _transpose, index=index)


def _stacked_entries(routing: Routing, prefix: str, path: ParameterPath) -> Iterator[Entry]:
    """Iterate over the tensors of a layer that stores all experts' matrices together, with the axes expert, input, output."""
    yield Entry(f"{prefix}.router.weight", (*path, "router"), _transpose, _transpose)
    if routing.has_bias:
        yield Entry(f"{prefix}.router.bias", (*path, "router_bias"), identity, identity)
    for end in ("", "_bias") if routing.has_bias else ("",):
        both = f"{prefix}.experts.gate_up_proj{end}"
        for index, name in enumerate(("gate", "up")):
            yield Entry(f"{both}.{name}", (*path, f"expert_{name}{end}"), identity, identity, both, interleaved_index=index)
        yield Entry(f"{prefix}.experts.down_proj{end}", (*path, f"expert_down{end}"), identity, identity)


def entries_by_stored_name(config: TransformerConfig) -> dict[str, list[Entry]]:
    """Group the entries by the stored tensor that contains them, in the order in which it contains them."""
    together: dict[str, list[Entry]] = {}
    for entry in entries(config):
        together.setdefault(entry.stored_name, []).append(entry)
    return together


def joiner_of(parts: list[Entry]) -> Callable[..., Any]:
    """Return the function that converts the parameters of entries that are stored together into the stored tensor."""
    if len(parts) == 1:
        return parts[0].write

    def write(*arrays: Any) -> Any:
        tensors = [part.write(array) for part, array in zip(parts, arrays, strict=True)]
        # NumPy preserves every dtype; with JAX, only the tensor's shape is traced
        module = np if isinstance(tensors[0], np.ndarray) else jnp
        if parts[0].interleaved_index is None:
            return module.concatenate(tensors)
        return module.stack(tensors, axis=-1).reshape(*tensors[0].shape[:-1], -1)

    return write


def split_tensor(tensor: np.ndarray, parts: list[Entry], sizes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Split a stored tensor into the tensors of its entries, whose shapes are `sizes`; `joiner_of` joins them."""
    if len(parts) == 1:
        return [tensor]
    if parts[0].interleaved_index is None:
        return np.split(tensor, np.cumsum([size[0] for size in sizes])[:-1])
    return [tensor[..., start :: len(parts)] for start in range(len(parts))]


def put_at(tree: dict[str | int, Any], path: ParameterPath, value: Any) -> None:
    """Put a value into nested dictionaries, and create missing dictionaries."""
    *parents, last = path
    for key in parents:
        tree = tree.setdefault(key, {})
    tree[last] = value


def get_at(tree: PyTree, path: ParameterPath) -> Any:
    """Return the value at a path of keys."""
    for key in path:
        tree = tree[key]
    return tree
