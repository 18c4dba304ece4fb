"""Scaled dot-product attention with grouped query heads: over complete sequences, and from new tokens to a cache.

For complete sequences, this module also has the kernels for NVIDIA GPUs and TPUs, and checks which implementations can run.

Axes: B rows, T query tokens, S key slots, K key/value heads, G query heads per key head, H features per head, and N blocks of C
queries each.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Int8

from rljax.errors import InputError
from rljax.models.axes import constrain_sharding, count_shards, row_shards, spec_of
from rljax.models.config import TransformerConfig
from rljax.models.packed import scale_vectors, soft_cap, visible_slots
from rljax.ops.arrays import sum_dtype

MOST_QUERIES, FEWEST_QUERIES = 512, 64
"""Largest size of a block of queries that attend to all keys at once, and smallest size of one of several blocks."""
SCORES_AT_ONCE = 2**24
"""Largest number of scores that a device computes at once, 64 MB per array, unless even `FEWEST_QUERIES` queries have more."""


class LayerCache(NamedTuple):
    """Keys and values of one layer, with heads before slots, so that a decoded token's entries are written in place.

    The first axis is the row, or the page in a paged cache (`rljax.models.paged_cache`).
    """

    keys: Float[Array, "B K H S"] | Int8[Array, "B K H S"]
    """Rotated keys; the slots are the last axis, see `attend_cached`."""
    values: Float[Array, "B K S H"] | Int8[Array, "B K S H"]
    """Values; the slots come before the features."""
    key_scale: Float[Array, "B K S"] | None = None
    """Scale of the int8 keys per head and token, see `rljax.models.paged_cache.quantize_to_int8`; None: keys are not quantized."""
    value_scale: Float[Array, "B K S"] | None = None
    """Scale of the int8 values per head and token; None: values are not quantized."""


Cache = tuple[LayerCache, ...]


def map_slots_of(function: Callable[..., Array], *layers: LayerCache) -> LayerCache:
    """Build a `LayerCache` by calling `function(*arrays, axis=axis of the slots)` on each field's arrays in `layers`."""
    names = {"keys": 3, "values": 2} | ({} if layers[0].key_scale is None else {"key_scale": 2, "value_scale": 2})
    arrays = {name: function(*(getattr(layer, name) for layer in layers), axis=axis) for name, axis in names.items()}
    return LayerCache(**arrays)


def block_size(queries: int, rows: int, heads: int, slots: int, *, devices: int = 1) -> int:
    """Choose how many queries of a row attend to all keys at once: all of them, or blocks of about equal size.

    Args:
        queries: number of queries of a row.
        rows: total number of rows on all devices.
        heads: total number of query heads on all devices.
        slots: number of key slots.
        devices: number of devices that rows and heads are divided over.

    Example:
        >>> block_size(140, 64, 4, 140), block_size(564, 1, 9, 564), block_size(8_704, 1, 16, 8_704)
        (140, 320, 64)
        >>> block_size(2_048, 8, 16, 2_048), block_size(2_048, 8, 16, 2_048, devices=4)
        (64, 256)
    """
    fitting = max(1, SCORES_AT_ONCE * devices // (rows * heads * slots))
    most = min(MOST_QUERIES, max(FEWEST_QUERIES, 1 << (fitting.bit_length() - 1)))
    blocks = -(-queries // most)
    return queries if blocks == 1 else -(-queries // (blocks * FEWEST_QUERIES)) * FEWEST_QUERIES


def attend(
    query: Float[Array, "B T K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    visible: Bool[Array, "B T S"],
    *,
    cap: float | None = None,
    sinks: Float[Array, "K G"] | None = None,
) -> Float[Array, "B T K G H"]:
    """Average the values of the slots that each token sees, weighted by a softmax.

    ::

        softmax(q k / √H + log visible) v        with scores and softmax at least in float32

    With a `cap` c, the scores s = q k / √H become c tanh(s / c). With `sinks`, each head's softmax includes one more score, the
    head's sink, and the sink's weight is then dropped (arXiv:2309.17453, in the learned form of GPT-OSS).
    """
    scores = jnp.einsum("BKQH,BKSH->BKQS", _scale_and_merge(query), keys, preferred_element_type=sum_dtype(query))
    return _average_values(soft_cap(scores, cap), values, visible, query, sinks)


def attend_cached(
    query: Float[Array, "B T K G H"],
    cache: LayerCache,
    segments: Int[Array, "B S"],
    slot: Int[Array, "*R"] | int,
    *,
    block: int | None = None,
    devices: int = 1,
    window: int | None = None,
    cap: float | None = None,
    sinks: Float[Array, "K G"] | None = None,
) -> Float[Array, "B T K G H"]:
    """Attend from new tokens, whose keys and values are already in the cache, to the cache's slots; see `visible_in_cache`.

    The slots are the last axis of the keys, because CPUs multiply a few queries by such keys faster. More than `block` tokens are
    computed block by block, so that no array spans all tokens and all slots. There is no custom derivative.

    Args:
        query: queries of the new tokens.
        cache: rotated keys and values of every slot.
        segments: above 0 if a slot contains a token.
        slot: slot of the first new token, one for all rows or one per row.
        block: number of queries that attend to all keys at once; None: `block_size` decides.
        devices: number of devices that rows and heads are divided over.
        window: maximum number of tokens that a token sees, see `visible_in_cache`.
        cap: bound on the scores, see `attend`.
        sinks: additional score per head, see `attend`.
    """
    rows, length, key_heads, group, _ = query.shape
    keys, values = cache.keys.astype(query.dtype), cache.values.astype(query.dtype)
    block = block or block_size(length, rows, key_heads * group, keys.shape[3], devices=devices)

    def attend_part(first: Array | int, part: Float[Array, "B C K G H"]) -> Float[Array, "B C K G H"]:
        visible = visible_in_cache(segments, slot, new=length, first=first, count=part.shape[1], window=window)
        scores = jnp.einsum("BKQH,BKHS->BKQS", _scale_and_merge(part), keys, preferred_element_type=sum_dtype(part))
        scores = scores if cache.key_scale is None else scores * cache.key_scale[:, :, None].astype(scores.dtype)
        return _average_values(soft_cap(scores, cap), values, visible, part, sinks, cache.value_scale)

    if length <= block:
        return attend_part(0, query)
    padded = jnp.pad(query, ((0, 0), (0, -length % block), (0, 0), (0, 0), (0, 0)))
    parts = jnp.moveaxis(padded.reshape(rows, -1, block, *query.shape[2:]), 1, 0)
    mixed = jax.lax.map(lambda pair: attend_part(pair[0] * block, pair[1]), (jnp.arange(len(parts)), parts))
    return jnp.moveaxis(mixed, 0, 1).reshape(padded.shape)[:, :length]


def visible_in_cache(
    segments: Int[Array, "B S"],
    slot: Int[Array, "*R"] | int,
    *,
    new: int,
    first: Int[Array, ""] | int = 0,
    count: int,
    window: int | None = None,
) -> Bool[Array, "B T S"]:
    """Return the mask of the slots that T new tokens see: all slots that contain a token, except later new tokens.

    Each new token, even padding, sees itself.

    Args:
        segments: above 0 if a slot contains a token.
        slot: slot of the first new token, one for all rows or one per row; the other new tokens follow it.
        new: number of new tokens.
        first: index of the first of the T tokens among the new tokens.
        count: T.
        window: maximum number of tokens that a token sees, counting itself; the cache is a ring buffer. None: no limit.
    """
    slots = segments.shape[1]
    offset = (jnp.arange(slots)[None] - jnp.reshape(slot, (-1, 1)))[:, None]
    token = (first + jnp.arange(count))[None, :, None]
    is_seen = (segments > 0)[:, None] & ~((offset > token) & (offset < new))
    if window is not None:
        is_seen &= (token - offset) % slots < window
    return is_seen | (offset == token)


def _scale_and_merge(query: Float[Array, "B T K G H"]) -> Float[Array, "B K Q H"]:
    """Compute q / √H, and merge the axes of a group's heads and of the tokens into one axis Q."""
    rows, length, key_heads, group, features = query.shape
    return jnp.moveaxis(query * features**-0.5, 1, 3).reshape(rows, key_heads, group * length, features)


def _average_values(
    scores: Float[Array, "B K Q S"],
    values: Float[Array, "B K S H"],
    visible: Bool[Array, "B T S"],
    query: Float[Array, "B T K G H"],
    sinks: Float[Array, "K G"] | None,
    value_scale: Float[Array, "B K S"] | None = None,
) -> Float[Array, "B T K G H"]:
    """Average values, weighted by the softmax of scores, in the precision of `query`; int8 values have a scale per slot.

    ::

        o = (Σ_s w_s v_s) / Σ_s w_s        with w_s = exp(score_s - largest score)

    Dividing last saves a pass over the slots; in the gradient, o · do replaces another (arXiv:2307.08691, Algorithms 1 and 2).
    """
    rows, length, key_heads, group, features = query.shape
    if length > 1:  # four axes instead of five make XLA's search for the tiles of a GPU kernel ten times faster
        scores = scores.reshape(rows, key_heads * group, length, -1)
    scores = jnp.where(visible[:, None], scores, jnp.finfo(scores.dtype).min)
    weights, total = _exponentials(scores, sinks)
    weights = weights.astype(query.dtype).reshape(rows, key_heads, group * length, -1)
    weights = weights if value_scale is None else weights * value_scale[:, :, None].astype(query.dtype)
    summed = jnp.einsum("BKQS,BKSH->BKQH", weights, values, preferred_element_type=sum_dtype(query))
    mixed = scale_vectors(summed, 1 / total.reshape(rows, key_heads, -1))
    return jnp.moveaxis(mixed.astype(query.dtype).reshape(rows, key_heads, group, length, features), 3, 1)


def _exponentials(
    scores: Float[Array, "B N T S"], sinks: Float[Array, "K G"] | None
) -> tuple[Float[Array, "B N T S"], Float[Array, "B N T 1"]]:
    """Compute a softmax's weights before division, and their sum with the sink's; for a single token, N and T may be K and G."""
    sink = None if sinks is None else sinks.reshape(1, scores.shape[1], -1, 1).astype(scores.dtype)
    largest = scores.max(-1, keepdims=True)
    largest = jax.lax.stop_gradient(largest if sink is None else jnp.maximum(largest, sink))
    weights = jnp.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    return weights, total if sink is None else total + jnp.exp(sink - largest)


def attend_within(
    query: Float[Array, "B S K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    segments: Int[Array, "B S"],
    *,
    block: int | None = None,
    devices: int = 1,
    window: int | None = None,
    cap: float | None = None,
    sinks: Float[Array, "K G"] | None = None,
) -> Float[Array, "B S K G H"]:
    """Attend from each token to the earlier tokens of its sequence and to itself.

    Rows of more than `block` slots are computed block by block, in the forward and in the backward pass, so that no array spans
    all tokens and all slots. With a window, a block attends only to the slots that its tokens can see.

    Args:
        query: query of every token.
        keys: rotated key of every token.
        values: value of every token.
        segments: sequence number of each token, see `Packed.segments`; 0 is padding, which sees itself.
        block: number of queries that attend to all keys at once; None: `block_size` decides.
        devices: number of devices that rows and heads are divided over.
        window: maximum number of tokens that a token sees, see `visible_slots`.
        cap: bound on the scores, see `attend`.
        sinks: additional score per head, see `attend`.
    """
    rows, slots, key_heads, group, _ = query.shape
    most_seen = slots if window is None else min(slots, MOST_QUERIES + window - 1)
    block = block or block_size(slots, rows, key_heads * group, most_seen, devices=devices)
    if slots <= block:
        return attend(query, keys, values, visible_slots(segments, window=window), cap=cap, sinks=sinks)
    padded = jnp.pad(query, ((0, 0), (0, -slots % block), (0, 0), (0, 0), (0, 0)))
    queries = jnp.moveaxis(padded.reshape(rows, -1, block, *query.shape[2:]), 1, 0)
    mixed = _over_blocks(queries, keys, values, sinks, segments, window, cap)
    return jnp.moveaxis(mixed, 0, 1).reshape(padded.shape)[:, :slots]


class _VisibleSlots(NamedTuple):
    """The range of slots that the tokens of a block can see."""

    first: Int[Array, ""] | int
    count: int

    def slice(self, array: Array, *, axis: int) -> Array:
        """Select these slots of an array that has all slots."""
        return jax.lax.dynamic_slice_in_dim(array, self.first, self.count, axis=axis)


def _find_visible_slots(index: Array, length: int, slots: int, window: int | None) -> _VisibleSlots:
    if window is None or length + window - 1 >= slots:
        return _VisibleSlots(0, slots)
    count = length + window - 1
    return _VisibleSlots(jnp.clip(index * length - (window - 1), 0, slots - count), count)


def _attend_block(
    first: Array,
    block: Float[Array, "B C K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    sinks: Float[Array, "K G"] | None,
    segments: Int[Array, "B S"],
    window: int | None,
    cap: float | None,
) -> Float[Array, "B C K G H"]:
    """Attend from a block whose first token is at slot `first` of the keys."""
    visible = visible_slots(segments, first=first, count=block.shape[1], window=window)
    return attend(block, keys, values, visible, cap=cap, sinks=sinks)


def _attend_blocks(
    queries: Float[Array, "N B C K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    sinks: Float[Array, "K G"] | None,
    segments: Int[Array, "B S"],
    window: int | None,
    cap: float | None,
) -> Float[Array, "N B C K G H"]:
    """Attend from N blocks of C queries, one after the other. Each result overwrites its queries.

    If the loop stacked its results instead, it would begin with an array of zeros, and the compiler might allocate the zeros of
    all layers at once.
    """
    length, slots = queries.shape[2], segments.shape[1]

    def step(index: Array, mixed: Array) -> Array:
        seen = _find_visible_slots(index, length, slots, window)
        block = jax.lax.dynamic_index_in_dim(mixed, index, keepdims=False)
        parts = seen.slice(keys, axis=2), seen.slice(values, axis=2), sinks, seen.slice(segments, axis=1)
        block = _attend_block(index * length - seen.first, block, *parts, window, cap)
        return jax.lax.dynamic_update_index_in_dim(mixed, block, index, 0)

    return jax.lax.fori_loop(0, len(queries), step, queries)


def _forward(
    queries: Array,
    keys: Array,
    values: Array,
    sinks: Array | None,
    segments: Array,
    window: int | None,
    cap: float | None,
) -> tuple[Array, tuple[Array | None, ...]]:
    mixed = _attend_blocks(queries, keys, values, sinks, segments, window, cap)
    return mixed, (queries, keys, values, sinks, segments)


def _backward(
    window: int | None, cap: float | None, residuals: tuple, gradient: Float[Array, "N B C K G H"]
) -> tuple[Array, Array, Array, Array | None, None]:
    """Recompute the scores of each block. The gradient of the queries overwrites the gradient of the result."""
    queries, keys, values, sinks, segments = residuals
    length, slots = queries.shape[2], segments.shape[1]

    def step(index: Array, carried: tuple[Array, Array, Array, Any]) -> tuple[Array, Array, Array, Any]:
        gradients, keys_grad, values_grad, sinks_grad = carried
        seen = _find_visible_slots(index, length, slots, window)
        block = jax.lax.dynamic_index_in_dim(queries, index, keepdims=False)
        options = {"segments": seen.slice(segments, axis=1), "window": window, "cap": cap}
        attend_near = partial(_attend_block, index * length - seen.first, **options)
        _, pull_back = jax.vjp(attend_near, block, seen.slice(keys, axis=2), seen.slice(values, axis=2), sinks)
        block_grad, more_keys, more_values, more_sinks = pull_back(
            jax.lax.dynamic_index_in_dim(gradients, index, keepdims=False)
        )
        gradients = jax.lax.dynamic_update_index_in_dim(gradients, block_grad, index, 0)
        sinks_grad = jax.tree.map(jnp.add, sinks_grad, more_sinks)
        return gradients, _add_seen(keys_grad, more_keys, seen), _add_seen(values_grad, more_values, seen), sinks_grad

    zeros = jnp.zeros(keys.shape, sum_dtype(keys))
    # the barrier delays the allocation of the zeros until this layer's backward pass
    gradient, zeros = jax.lax.optimization_barrier((gradient, zeros))
    start = gradient, zeros, zeros, jax.tree.map(jnp.zeros_like, sinks)
    queries_grad, keys_grad, values_grad, sinks_grad = jax.lax.fori_loop(0, len(queries), step, start)
    return queries_grad, keys_grad.astype(keys.dtype), values_grad.astype(values.dtype), sinks_grad, None


def _add_seen(
    total: Float[Array, "B K S H"], more: Float[Array, "B K C H"], seen: _VisibleSlots
) -> Float[Array, "B K S H"]:
    """Add a block's gradient to the slots that the block sees, in the precision of the total."""
    more = seen.slice(total, axis=2) + more.astype(total.dtype)
    return jax.lax.dynamic_update_slice_in_dim(total, more, seen.first, axis=2)


_over_blocks = jax.custom_vjp(_attend_blocks, nondiff_argnums=(5, 6))
_over_blocks.defvjp(_forward, _backward)


LANES = 128
"""Number of features that a TPU's vector unit processes at once, and of slots in the smallest block of the TPU kernel."""


class Facts(NamedTuple):
    """Properties of a model and its devices that determine which implementations can run."""

    platform: str
    """JAX's name for the platform of the devices: cpu, gpu or tpu."""
    capability: tuple[int, int] | None
    """Compute capability of an NVIDIA GPU; None: the devices are not NVIDIA GPUs."""
    dtype: str
    """Dtype of the matrix products."""
    head_dim: int
    """Number of features per head, H."""
    is_capped: bool = False
    """Whether the attention scores are bounded, see `attend`."""
    has_sinks: bool = False
    """Whether the heads have sinks, see `attend`."""


def facts_of(config: TransformerConfig, mesh: Mesh | None) -> Facts:
    """Collect the facts about a model on the devices of a mesh, or on the default device."""
    device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    found = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(device, "compute_capability", "")))
    capability = None if found is None else (int(found[1]), int(found[2]))
    own = config.compute_dtype, config.head_dim, config.score_cap is not None, config.sinks
    return Facts(device.platform, capability, *own)


def why_unsupported(implementation: str, facts: Facts) -> str | None:
    """Return the reason why an implementation cannot run; None if it can.

    Args:
        implementation: "dense", "blockwise", "cudnn" or "splash".
        facts: facts about the model and the devices.

    Example:
        >>> why_unsupported("cudnn", Facts("gpu", (8, 0), "float32", 128))
        "cuDNN computes in bfloat16 or float16, but this model's matrix products are in float32"
        >>> why_unsupported("blockwise", Facts("cpu", None, "float32", 128))
    """
    if implementation in ("cudnn", "splash") and facts.has_sinks:
        return f"{implementation} attention does not support sinks, but this model has one per head"
    if implementation == "cudnn":
        return _why_cudnn_is_unsupported(facts)
    if implementation == "splash":
        if facts.platform != "tpu":
            return f"splash attention is a kernel for TPUs, but the devices are {describe_device(facts)}"
        if facts.head_dim % LANES:
            return f"splash attention needs a head_dim that is a multiple of {LANES}, but this model has {facts.head_dim}"
    return None


def _why_cudnn_is_unsupported(facts: Facts) -> str | None:
    largest = 256 if facts.capability is not None and facts.capability >= (9, 0) else 128
    if facts.capability is None or facts.capability < (8, 0):
        return f"cuDNN needs an NVIDIA GPU of compute capability 8.0 or more, but the devices are {describe_device(facts)}"
    if facts.dtype not in ("bfloat16", "float16"):
        return f"cuDNN computes in bfloat16 or float16, but this model's matrix products are in {facts.dtype}"
    if facts.is_capped:
        return "cuDNN cannot bound attention scores, but this model bounds them"
    if facts.head_dim > largest or facts.head_dim % 8:
        return f"cuDNN needs a head_dim that is a multiple of 8, at most {largest}, but this model has {facts.head_dim}"
    return None


def describe_device(facts: Facts) -> str:
    """Return the platform of the devices and, for NVIDIA GPUs, the compute capability, such as "gpu 8.0"."""
    return f"{facts.platform} {facts.capability[0]}.{facts.capability[1]}" if facts.capability else facts.platform


def check_implementation(implementation: str, facts: Facts) -> None:
    """Refuse an implementation that cannot run.

    Args:
        implementation: "dense", "blockwise", "cudnn" or "splash".
        facts: facts about the model and the devices.

    Raises:
        InputError: the implementation cannot run; the message gives the reason.
    """
    reason = why_unsupported(implementation, facts)
    if reason is not None:
        raise InputError(
            f"attention={implementation!r} cannot run: {reason}. Leave out `attention`: blockwise, the default, runs anywhere."
        )


def attend_rows(
    query: Float[Array, "B S K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    segments: Int[Array, "B S"],
    *,
    config: TransformerConfig,
    mesh: Mesh | None,
    window: int | None = None,
    sinks: Float[Array, "K G"] | None = None,
) -> Float[Array, "B S K G H"]:
    """Attend from each token to the earlier tokens of its sequence and to itself, with the configured implementation.

    Args:
        query: query of every token.
        keys: rotated key of every token.
        values: value of every token.
        segments: sequence number of each token, see `Packed.segments`; 0 is padding, whose result is meaningless.
        config: configuration of the model.
        mesh: devices that rows and heads are divided over.
        window: maximum number of tokens that a token sees, see `rljax.models.packed.visible_slots`.
        sinks: additional score per head, see `attend`.

    Raises:
        InputError: the configured implementation cannot run.
    """
    implementation, cap = config.attention, config.score_cap
    check_implementation(implementation, facts_of(config, mesh))
    if implementation == "cudnn":
        return attend_cudnn(query, keys, values, segments, mesh=mesh, window=window)
    if implementation == "splash":
        return attend_splash(query, keys, values, segments, mesh=mesh, window=window, cap=cap)
    block, devices = query.shape[1] if implementation == "dense" else None, count_attention_devices(mesh)
    options = {"block": block, "devices": devices, "window": window, "cap": cap, "sinks": sinks}
    return attend_within(query, keys, values, segments, **options)


def count_attention_devices(mesh: Mesh | None) -> int:
    """Count the devices that rows and heads are divided over."""
    return 1 if mesh is None else row_shards(mesh) * count_shards("attention_heads", mesh)


def attend_cudnn(
    query: Float[Array, "B S K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    segments: Int[Array, "B S"],
    *,
    mesh: Mesh | None = None,
    window: int | None = None,
) -> Float[Array, "B S K G H"]:
    """Attend with cuDNN's fused kernel, which stores no scores.

    The kernel reads a mask `[B, S, S]` of the visible slots, and its backward pass writes another array of that size.
    """
    rows, slots, key_heads, group, features = query.shape
    odd = slots % 2  # the backward pass needs an even number of slots
    query, segments = jnp.pad(query, ((0, 0), (0, odd), (0, 0), (0, 0), (0, 0))), jnp.pad(segments, ((0, 0), (0, odd)))
    keys, values = (jnp.pad(part, ((0, 0), (0, 0), (0, odd), (0, 0))).transpose(0, 2, 1, 3) for part in (keys, values))
    heads = query.reshape(rows, slots + odd, key_heads * group, features)
    heads = constrain_sharding(heads, ("rows", "slots", "attention_heads", "head_dim"), mesh)
    visible = constrain_sharding(visible_slots(segments, window=window), ("rows", "slots", "slots"), mesh)
    mixed = jax.nn.dot_product_attention(heads, keys, values, mask=visible[:, None], is_causal=True, implementation="cudnn")
    return mixed[:, :slots].reshape(query[:, :slots].shape)


def attend_splash(
    query: Float[Array, "B S K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    segments: Int[Array, "B S"],
    *,
    mesh: Mesh | None = None,
    window: int | None = None,
    cap: float | None = None,
    interpret: bool = False,
) -> Float[Array, "B S K G H"]:
    """Attend with the TPU kernel, which stores no scores and skips blocks of later tokens. Padding attends to padding.

    Args:
        query: query of every token.
        keys: rotated key of every token.
        values: value of every token.
        segments: sequence number of each token; 0 is padding.
        mesh: devices that rows and heads are divided over; each runs the kernel on its rows and heads.
        window: maximum number of tokens that a token sees; the kernel also skips the blocks before the window.
        cap: bound on the scores, see `attend`.
        interpret: emulate the kernel without a TPU, slowly.
    """
    kernel = partial(_splash, window=window, cap=cap, interpret=interpret)
    if mesh is None or mesh.size == 1:
        return kernel(query, keys, values, segments)
    rows, cached, queries = (
        spec_of(names, mesh.axis_names)
        for names in (
            ("rows", "slots"),
            ("rows", "attention_heads", "slots", "head_dim"),
            ("rows", "slots", "attention_heads", "features", "head_dim"),
        )
    )
    in_specs = (queries, cached, cached, rows)
    return jax.shard_map(kernel, mesh=mesh, in_specs=in_specs, out_specs=queries, check_vma=False)(
        query, keys, values, segments
    )


def _splash(
    query: Array,
    keys: Array,
    values: Array,
    segments: Array,
    *,
    window: int | None,
    cap: float | None,
    interpret: bool,
) -> Array:
    """Attend on one device."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash  # noqa: PLC0415  only TPUs need this import

    rows, slots, key_heads, group, features = query.shape
    padding = -slots % LANES
    length = slots + padding
    block = next(size for size in (4 * LANES, 2 * LANES, LANES) if length % size == 0)
    scaled = (query * features**-0.5).reshape(rows, slots, key_heads * group, features).transpose(0, 2, 1, 3)
    heads, keys, values = (jnp.pad(part, ((0, 0), (0, 0), (0, padding), (0, 0))) for part in (scaled, keys, values))
    segments = jnp.pad(segments, ((0, 0), (0, padding))).astype(jnp.int32)
    sizes = splash.BlockSizes(
        block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, block_q_dq=block, block_kv_dq=block
    )
    reach = None if window is None else window - 1
    mask = splash.LocalMask((length, length), (reach, 0), offset=0)
    masks = splash.MultiHeadMask([mask] * (key_heads * group))
    options: dict[str, Any] = {"attn_logits_soft_cap": cap, "head_shards": 1, "q_seq_shards": 1, "interpret": interpret}
    kernel: Any = splash.make_splash_mha(masks, block_sizes=sizes, **options)
    mixed = jax.vmap(kernel)(heads, keys, values, splash.SegmentIds(segments, segments))
    return mixed.transpose(0, 2, 1, 3)[:, :slots].reshape(query.shape)
