"""Scaled dot-product attention with grouped heads: over complete sequences, and of new tokens over a cache.

This module also has the kernels for NVIDIA GPUs and TPUs, and checks which implementations for complete sequences can run.

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
from rljax.models.axes import constrain_sharding, row_shards, shards_of, spec_of
from rljax.models.config import TransformerConfig
from rljax.models.packed import soft_cap, visible_slots
from rljax.ops.arrays import sum_dtype

MOST_QUERIES, FEWEST_QUERIES = 512, 64
"""Limits of the number of queries of a row that attend to all keys at once."""
SCORES_AT_ONCE = 2**24
"""Scores that a device computes at once, unless `FEWEST_QUERIES` queries have more: 64 MB per array."""


class LayerCache(NamedTuple):
    """Keys and values of one layer, with heads before slots, so that a decoded token's entries are written in place.

    The first axis is the row, or the page in a paged cache (`rljax.models.paged_cache`).
    """

    keys: Float[Array, "B K H S"] | Int8[Array, "B K H S"]
    """Rotated keys; slots last, see `attend_cached`."""
    values: Float[Array, "B K S H"] | Int8[Array, "B K S H"]
    """Values."""
    key_scale: Float[Array, "B K S"] | None = None
    """If the keys are integers: the factor of each head of each token; see `rljax.models.paged_cache.round_to_int8`."""
    value_scale: Float[Array, "B K S"] | None = None
    """The same for the values."""


Cache = tuple[LayerCache, ...]


def map_slots_of(function: Callable[..., Array], *layers: LayerCache) -> LayerCache:
    """Apply `function(array of each layer, axis=axis of the slots)` to each array of a layer."""
    names = {"keys": 3, "values": 2} | ({} if layers[0].key_scale is None else {"key_scale": 2, "value_scale": 2})
    arrays = {name: function(*(getattr(layer, name) for layer in layers), axis=axis) for name, axis in names.items()}
    return LayerCache(**arrays)


def block_size(rows: int, heads: int, slots: int, *, devices: int = 1) -> int:
    """Number of queries of a row that attend to all keys at once: a power of two.

    Args:
        rows: number of rows on all devices together.
        heads: number of query heads on all devices together.
        slots: number of key slots.
        devices: number of devices that share rows and heads.

    Example:
        >>> block_size(1, 16, 8_704), block_size(8, 16, 8_704, devices=8), block_size(64, 4, 140)
        (64, 64, 256)
        >>> block_size(8, 16, 2_048), block_size(8, 16, 2_048, devices=4)
        (64, 256)
    """
    fitting = max(1, SCORES_AT_ONCE * devices // (rows * heads * slots))
    return min(MOST_QUERIES, max(FEWEST_QUERIES, 1 << (fitting.bit_length() - 1)))


def attend(
    query: Float[Array, "B T K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    visible: Bool[Array, "B T S"],
    *,
    cap: float | None = None,
    sinks: Float[Array, "K G"] | None = None,
) -> Float[Array, "B T K G H"]:
    """Mix the values of the slots that each token sees.

    ::

        softmax(q k / √H + log visible) v        with scores and softmax in float32 at least

    With a `cap` c, the scores s = q k / √H become c tanh(s / c). With `sinks`, the softmax of each head has one more score, its
    sink, whose weight is dropped (arXiv:2309.17453, in the learned form of GPT-OSS).
    """
    scores = jnp.einsum("BKQH,BKSH->BKQS", _by_group(query), keys, preferred_element_type=sum_dtype(query))
    return _mix(soft_cap(scores, cap), values, visible, query, sinks)


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
    """Attend from new tokens, which were just written, to the slots of a cache; see `visible_in_cache`.

    The slots are the last axis of the keys, because CPUs are then faster at multiplying them with a few queries. More than
    `block` tokens are computed block by block, so that no array spans all tokens and all slots. There is no custom derivative.

    Args:
        query: queries of the new tokens.
        cache: rotated keys and values of every slot.
        segments: above 0 if a slot contains a token.
        slot: slot of the first new token, one for all rows or one per row.
        block: number of queries that attend to all keys at once; None: `block_size` decides.
        devices: number of devices that share rows and heads.
        window: largest number of tokens that a token sees, see `visible_in_cache`.
        cap: bound of the scores, see `attend`.
        sinks: additional score of each head, see `attend`.
    """
    rows, length, key_heads, group, _ = query.shape
    keys, values = cache.keys.astype(query.dtype), cache.values.astype(query.dtype)
    block = block_size(rows, key_heads * group, keys.shape[3], devices=devices) if block is None else block

    def attended(first: Array | int, part: Float[Array, "B C K G H"]) -> Float[Array, "B C K G H"]:
        visible = visible_in_cache(segments, slot, new=length, first=first, count=part.shape[1], window=window)
        scores = jnp.einsum("BKQH,BKHS->BKQS", _by_group(part), keys, preferred_element_type=sum_dtype(part))
        scores = scores if cache.key_scale is None else scores * cache.key_scale[:, :, None].astype(scores.dtype)
        return _mix(soft_cap(scores, cap), values, visible, part, sinks, cache.value_scale)

    if length <= block:
        return attended(0, query)
    padded = jnp.pad(query, ((0, 0), (0, -length % block), (0, 0), (0, 0), (0, 0)))
    parts = jnp.moveaxis(padded.reshape(rows, -1, block, *query.shape[2:]), 1, 0)
    mixed = jax.lax.map(lambda pair: attended(pair[0] * block, pair[1]), (jnp.arange(len(parts)), parts))
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
    """Mask of the slots that T new tokens see: all slots with a token except later new ones. Padding also sees itself.

    Args:
        segments: above 0 if a slot contains a token.
        slot: slot of the first new token, one for all rows or one per row; the others follow it.
        new: number of new tokens.
        first: index of the first of the T tokens among the new tokens.
        count: T.
        window: largest number of tokens that a token sees: itself and the nearest ones before it in the cache, a ring; None: all.
    """
    slots = segments.shape[1]
    place = (jnp.arange(slots)[None] - jnp.reshape(slot, (-1, 1)))[:, None]
    token = (first + jnp.arange(count))[None, :, None]
    is_seen = (segments > 0)[:, None] & ~((place > token) & (place < new))
    if window is not None:
        is_seen &= (token - place) % slots < window
    return is_seen | (place == token)


def _by_group(query: Float[Array, "B T K G H"]) -> Float[Array, "B K Q H"]:
    """q / √H, with the heads of a group and the tokens as one axis Q."""
    rows, length, key_heads, group, features = query.shape
    return jnp.moveaxis(query * features**-0.5, 1, 3).reshape(rows, key_heads, group * length, features)


def _mix(
    scores: Float[Array, "B K Q S"],
    values: Float[Array, "B K S H"],
    visible: Bool[Array, "B T S"],
    query: Float[Array, "B T K G H"],
    sinks: Float[Array, "K G"] | None,
    value_scale: Float[Array, "B K S"] | None = None,
) -> Float[Array, "B T K G H"]:
    """Mix values by the softmax of scores, in the precision of `query`; integers have a scale for each slot."""
    rows, length, key_heads, group, features = query.shape
    if length > 1:  # four axes instead of five: XLA's search for the tiles of a GPU kernel is then ten times faster
        scores = scores.reshape(rows, key_heads * group, length, -1)
    scores = jnp.where(visible[:, None], scores, jnp.finfo(scores.dtype).min)
    attention = _softmax(scores, sinks).astype(query.dtype).reshape(rows, key_heads, group * length, -1)
    attention = attention if value_scale is None else attention * value_scale[:, :, None].astype(query.dtype)
    mixed = jnp.einsum("BKQS,BKSH->BKQH", attention, values).reshape(rows, key_heads, group, length, features)
    return jnp.moveaxis(mixed, 3, 1)


def _softmax(scores: Float[Array, "B N T S"], sinks: Float[Array, "K G"] | None) -> Float[Array, "B N T S"]:
    """Softmax over the slots; the heads of a single token may be two axes, N T = K G."""
    if sinks is None:
        return jax.nn.softmax(scores, axis=-1)
    per_head = sinks.reshape(scores.shape[1], -1, 1)
    sink = jnp.broadcast_to(per_head.astype(scores.dtype), (*scores.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([scores, sink], axis=-1), axis=-1)[..., :-1]


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
        segments: sequence of each token; 0 is padding, which sees itself.
        block: number of queries that attend to all keys at once; None: `block_size` decides.
        devices: number of devices that share rows and heads.
        window: largest number of tokens that a token sees, see `visible_slots`.
        cap: bound of the scores, see `attend`.
        sinks: additional score of each head, see `attend`.
    """
    rows, slots, key_heads, group, _ = query.shape
    if block is None:
        held = slots if window is None else min(slots, MOST_QUERIES + window - 1)
        block = block_size(rows, key_heads * group, held, devices=devices)
    if slots <= block:
        return attend(query, keys, values, visible_slots(segments, window=window), cap=cap, sinks=sinks)
    blocks = -(-slots // block)
    spare = blocks * block - slots
    padded = jnp.pad(query, ((0, 0), (0, spare), (0, 0), (0, 0), (0, 0)))
    laid_out = jnp.moveaxis(padded.reshape(rows, blocks, block, *query.shape[2:]), 1, 0)
    mixed = _over_blocks(laid_out, keys, values, sinks, segments, window, cap)
    return jnp.moveaxis(mixed, 0, 1).reshape(padded.shape)[:, :slots]


class _VisibleSlots(NamedTuple):
    """Slots that the tokens of a block can see."""

    first: Int[Array, ""] | int
    count: int

    def of(self, array: Array, *, axis: int) -> Array:
        """Slice an array over all slots to these slots."""
        return jax.lax.dynamic_slice_in_dim(array, self.first, self.count, axis=axis)


def _seen_slots(number: Array, length: int, slots: int, window: int | None) -> _VisibleSlots:
    if window is None or length + window - 1 >= slots:
        return _VisibleSlots(0, slots)
    count = length + window - 1
    return _VisibleSlots(jnp.clip(number * length - (window - 1), 0, slots - count), count)


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

    A loop that stacked its results would begin with an array of zeros, and a compiler may allocate the zeros of all layers at
    once.
    """
    length, slots = queries.shape[2], segments.shape[1]

    def step(number: Array, mixed: Array) -> Array:
        seen = _seen_slots(number, length, slots, window)
        block = jax.lax.dynamic_index_in_dim(mixed, number, keepdims=False)
        parts = seen.of(keys, axis=2), seen.of(values, axis=2), sinks, seen.of(segments, axis=1)
        block = _attend_block(number * length - seen.first, block, *parts, window, cap)
        return jax.lax.dynamic_update_index_in_dim(mixed, block, number, 0)

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

    def step(number: Array, carried: tuple[Array, Array, Array, Any]) -> tuple[Array, Array, Array, Any]:
        pulled, keys_grad, values_grad, sinks_grad = carried
        seen = _seen_slots(number, length, slots, window)
        block = jax.lax.dynamic_index_in_dim(queries, number, keepdims=False)
        near = {"segments": seen.of(segments, axis=1), "window": window, "cap": cap}
        own = partial(_attend_block, number * length - seen.first, **near)
        _, pull = jax.vjp(own, block, seen.of(keys, axis=2), seen.of(values, axis=2), sinks)
        block_grad, more_keys, more_values, more = pull(jax.lax.dynamic_index_in_dim(pulled, number, keepdims=False))
        pulled = jax.lax.dynamic_update_index_in_dim(pulled, block_grad, number, 0)
        sinks_grad = jax.tree.map(jnp.add, sinks_grad, more)
        return pulled, _add_seen(keys_grad, more_keys, seen), _add_seen(values_grad, more_values, seen), sinks_grad

    nothing = jnp.zeros(keys.shape, sum_dtype(keys))
    gradient, zeros = jax.lax.optimization_barrier(
        (gradient, nothing)
    )  # delays the allocation until this layer is computed
    start = gradient, zeros, zeros, jax.tree.map(jnp.zeros_like, sinks)
    queries_grad, keys_grad, values_grad, sinks_grad = jax.lax.fori_loop(0, len(queries), step, start)
    return queries_grad, keys_grad.astype(keys.dtype), values_grad.astype(values.dtype), sinks_grad, None


def _add_seen(
    total: Float[Array, "B K S H"], more: Float[Array, "B K C H"], seen: _VisibleSlots
) -> Float[Array, "B K S H"]:
    """Add to the slots that a block sees, in the precision of the total."""
    more = seen.of(total, axis=2) + more.astype(total.dtype)
    return jax.lax.dynamic_update_slice_in_dim(total, more, seen.first, axis=2)


_over_blocks = jax.custom_vjp(_attend_blocks, nondiff_argnums=(5, 6))
_over_blocks.defvjp(_forward, _backward)


LANES = 128
"""Features that a TPU's vector unit handles at once, and slots in the smallest block of its kernel."""


class Facts(NamedTuple):
    """Properties of a model and its devices that decide which implementations can run."""

    platform: str
    """JAX's name for the platform of the devices: cpu, gpu or tpu."""
    capability: tuple[int, int] | None
    """Compute capability of an NVIDIA GPU; None: another device."""
    dtype: str
    """Dtype of the matrix products."""
    head_dim: int
    """H."""
    is_capped: bool = False
    """Whether the scores have a bound."""
    has_sinks: bool = False
    """Whether the heads have sinks."""


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
        return f"{implementation} attention has no sinks, but this model has one for each head"
    if implementation == "cudnn":
        return _why_cudnn_is_unsupported(facts)
    if implementation == "splash":
        if facts.platform != "tpu":
            return f"splash attention is a kernel for TPUs, but the devices are {describe_device(facts)}"
        if facts.head_dim % LANES:
            return f"splash attention needs a head_dim that is a multiple of {LANES}, but this model has {facts.head_dim}"
    return None


def _why_cudnn_is_unsupported(facts: Facts) -> str | None:
    most = 256 if facts.capability is not None and facts.capability >= (9, 0) else 128
    if facts.capability is None or facts.capability < (8, 0):
        return f"cuDNN needs an NVIDIA GPU of compute capability 8.0 or more, but the devices are {describe_device(facts)}"
    if facts.dtype not in ("bfloat16", "float16"):
        return f"cuDNN computes in bfloat16 or float16, but this model's matrix products are in {facts.dtype}"
    if facts.is_capped:
        return "cuDNN has no bound for attention scores, but this model has one"
    if facts.head_dim > most or facts.head_dim % 8:
        return f"cuDNN needs a head_dim that is a multiple of 8, at most {most}, but this model has {facts.head_dim}"
    return None


def describe_device(facts: Facts) -> str:
    """Describe the kind of device in words."""
    return f"{facts.platform} {facts.capability[0]}.{facts.capability[1]}" if facts.capability else facts.platform


def check_implementation(implementation: str, facts: Facts) -> None:
    """Refuse an implementation that cannot run.

    Args:
        implementation: "dense", "blockwise", "cudnn" or "splash".
        facts: facts about the model and the devices.

    Raises:
        InputError: the message has the reason.
    """
    reason = why_unsupported(implementation, facts)
    if reason is not None:
        raise InputError(
            f"attention={implementation!r} cannot run: {reason}. Leave it out: blockwise, the default, runs anywhere."
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
        segments: sequence of each token; 0 is padding, whose result is meaningless.
        config: configuration of the model.
        mesh: devices that share rows and heads.
        window: largest number of tokens that a token sees, see `rljax.models.packed.visible_slots`.
        sinks: additional score of each head, see `attend`.

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
    """Count the devices that share rows and heads."""
    return 1 if mesh is None else row_shards(mesh) * shards_of("attention_heads", mesh)


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

    It reads the visible slots from an array `[B, S, S]`, and its backward pass writes another array of that size.
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
    """Attend with the TPU kernel, which stores no scores and skips the blocks above the diagonal. Padding attends to padding.

    Args:
        query: query of every token.
        keys: rotated key of every token.
        values: value of every token.
        segments: sequence of each token; 0 is padding.
        mesh: devices that share rows and heads; each runs the kernel on its own part.
        window: largest number of tokens that a token sees; the kernel also skips the blocks before the window.
        cap: bound of the scores, see `attend`.
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
    places = (queries, cached, cached, rows)
    return jax.shard_map(kernel, mesh=mesh, in_specs=places, out_specs=queries, check_vma=False)(
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
    from jax.experimental.pallas.ops.tpu import splash_attention as splash  # noqa: PLC0415  most devices have no use for it

    rows, slots, key_heads, group, features = query.shape
    spare = -slots % LANES
    length = slots + spare
    block = next(size for size in (4 * LANES, 2 * LANES, LANES) if length % size == 0)
    scaled = (query * features**-0.5).reshape(rows, slots, key_heads * group, features).transpose(0, 2, 1, 3)
    heads, keys, values = (jnp.pad(part, ((0, 0), (0, 0), (0, spare), (0, 0))) for part in (scaled, keys, values))
    segments = jnp.pad(segments, ((0, 0), (0, spare))).astype(jnp.int32)
    sizes = splash.BlockSizes(
        block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, block_q_dq=block, block_kv_dq=block
    )
    near = None if window is None else window - 1
    mask = splash.LocalMask((length, length), (near, 0), offset=0)
    masks = splash.MultiHeadMask([mask] * (key_heads * group))
    options: dict[str, Any] = {"attn_logits_soft_cap": cap, "head_shards": 1, "q_seq_shards": 1, "interpret": interpret}
    kernel: Any = splash.make_splash_mha(masks, block_sizes=sizes, **options)
    mixed = jax.vmap(kernel)(heads, keys, values, splash.SegmentIds(segments, segments))
    return mixed.transpose(0, 2, 1, 3)[:, :slots].reshape(query.shape)
