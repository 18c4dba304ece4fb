"""Scaled dot-product attention with grouped heads: over complete sequences, and of new tokens over a cache.

Axes: B rows, T query tokens, S key slots, K key/value heads, G query heads per key head, H features per head; N blocks of C
queries.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rljax.models.packed import visible_slots
from rljax.ops.arrays import sum_dtype

MOST_QUERIES, FEWEST_QUERIES = 512, 64
"""Limits of the number of queries of a row that attend to all keys at once."""
SCORES_AT_ONCE = 2**24
"""Scores that a device computes at once, unless `FEWEST_QUERIES` queries have more: 64 MB per array."""


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
) -> Float[Array, "B T K G H"]:
    """Mix the values of the slots that each token sees.

    ::

        softmax(q k / √H + log visible) v        with scores and softmax in float32 at least
    """
    scores = jnp.einsum("BKQH,BKSH->BKQS", _by_group(query), keys, preferred_element_type=sum_dtype(query))
    return _mix(scores, values, visible, query)


def attend_cached(
    query: Float[Array, "B T K G H"],
    keys: Float[Array, "B K H S"],
    values: Float[Array, "B K S H"],
    segments: Int[Array, "B S"],
    slot: Int[Array, "*R"] | int,
    *,
    block: int | None = None,
    devices: int = 1,
    window: int | None = None,
) -> Float[Array, "B T K G H"]:
    """Attend from new tokens, which were just written, to the slots of a cache; see `visible_in_cache`.

    The slots are the last axis of the keys, because CPUs then multiply them with few queries faster. More than `block` tokens
    are computed block by block, so that no array has both axes. There is no custom derivative.

    Args:
        query: queries of the new tokens.
        keys: rotated keys of every slot.
        values: values of every slot.
        segments: above 0 if a slot holds a token.
        slot: slot of the first new token, one for all rows or one per row.
        block: queries that attend to all keys at once; None: `block_size` decides.
        devices: number of devices that share rows and heads.
        window: most tokens that a token sees, see `visible_in_cache`.
    """
    rows, length, key_heads, group, _ = query.shape
    block = block_size(rows, key_heads * group, keys.shape[3], devices=devices) if block is None else block

    def attended(first: Array | int, part: Float[Array, "B C K G H"]) -> Float[Array, "B C K G H"]:
        visible = visible_in_cache(segments, slot, new=length, first=first, count=part.shape[1], window=window)
        scores = jnp.einsum("BKQH,BKHS->BKQS", _by_group(part), keys, preferred_element_type=sum_dtype(part))
        return _mix(scores, values, visible, part)

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
        segments: above 0 if a slot holds a token.
        slot: slot of the first new token, one for all rows or one per row; the others follow it.
        new: number of new tokens.
        first: index of the first of the T tokens among the new tokens.
        count: T.
        window: most tokens that a token sees: itself and the nearest ones before it in the ring; None: all of them.
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
) -> Float[Array, "B T K G H"]:
    """Mix values by the softmax of scores, in the precision of `query`."""
    rows, length, key_heads, group, features = query.shape
    scores = scores.reshape(rows, key_heads, group, length, -1)
    scores = jnp.where(visible[:, None, None], scores, jnp.finfo(scores.dtype).min)
    attention = jax.nn.softmax(scores, axis=-1).astype(query.dtype).reshape(rows, key_heads, group * length, -1)
    mixed = jnp.einsum("BKQS,BKSH->BKQH", attention, values).reshape(rows, key_heads, group, length, features)
    return jnp.moveaxis(mixed, 3, 1)


def attend_within(
    query: Float[Array, "B S K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    segments: Int[Array, "B S"],
    *,
    block: int | None = None,
    devices: int = 1,
    window: int | None = None,
) -> Float[Array, "B S K G H"]:
    """Attend from each token to the earlier tokens of its sequence and to itself.

    Rows of more than `block` slots are computed block by block, in the forward and in the backward pass: no array has both axes.
    With a window, a block attends only to the slots that its tokens can see.

    Args:
        query: query of every token.
        keys: rotated key of every token.
        values: value of every token.
        segments: sequence of each token; 0 is padding, which sees itself.
        block: queries that attend to all keys at once; None: `block_size` decides.
        devices: number of devices that share rows and heads.
        window: most tokens that a token sees, see `visible_slots`.
    """
    rows, slots, key_heads, group, _ = query.shape
    if block is None:
        held = slots if window is None else min(slots, MOST_QUERIES + window - 1)
        block = block_size(rows, key_heads * group, held, devices=devices)
    if slots <= block:
        return attend(query, keys, values, visible_slots(segments, window=window))
    blocks = -(-slots // block)
    spare = blocks * block - slots
    padded = jnp.pad(query, ((0, 0), (0, spare), (0, 0), (0, 0), (0, 0)))
    laid_out = jnp.moveaxis(padded.reshape(rows, blocks, block, *query.shape[2:]), 1, 0)
    mixed = _over_blocks(laid_out, keys, values, segments, window)
    return jnp.moveaxis(mixed, 0, 1).reshape(padded.shape)[:, :slots]


class _Seen(NamedTuple):
    """Slots that the tokens of a block can see."""

    first: Int[Array, ""] | int
    count: int

    def of(self, array: Array, *, axis: int) -> Array:
        """Slice an array over all slots to these slots."""
        return jax.lax.dynamic_slice_in_dim(array, self.first, self.count, axis=axis)


def _seen(number: Array, length: int, slots: int, window: int | None) -> _Seen:
    if window is None or length + window - 1 >= slots:
        return _Seen(0, slots)
    count = length + window - 1
    return _Seen(jnp.clip(number * length - (window - 1), 0, slots - count), count)


def _attend_block(
    first: Array,
    block: Float[Array, "B C K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    segments: Int[Array, "B S"],
    window: int | None,
) -> Float[Array, "B C K G H"]:
    """Attend from a block whose first token is at slot `first` of the slots passed."""
    return attend(block, keys, values, visible_slots(segments, first=first, count=block.shape[1], window=window))


def _mixed(
    queries: Float[Array, "N B C K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    segments: Int[Array, "B S"],
    window: int | None,
) -> Float[Array, "N B C K G H"]:
    """Attend from N blocks of C queries, one after the other. Each result overwrites its queries.

    A loop that stacked its results would begin with an array of zeros, and a compiler may allocate the zeros of all layers at
    once.
    """
    length, slots = queries.shape[2], segments.shape[1]

    def step(number: Array, mixed: Array) -> Array:
        seen = _seen(number, length, slots, window)
        block = jax.lax.dynamic_index_in_dim(mixed, number, keepdims=False)
        parts = seen.of(keys, axis=2), seen.of(values, axis=2), seen.of(segments, axis=1)
        block = _attend_block(number * length - seen.first, block, *parts, window)
        return jax.lax.dynamic_update_index_in_dim(mixed, block, number, 0)

    return jax.lax.fori_loop(0, len(queries), step, queries)


def _forward(
    queries: Array, keys: Array, values: Array, segments: Array, window: int | None
) -> tuple[Array, tuple[Array, ...]]:
    return _mixed(queries, keys, values, segments, window), (queries, keys, values, segments)


def _backward(
    window: int | None, residuals: tuple[Array, ...], gradient: Float[Array, "N B C K G H"]
) -> tuple[Array, Array, Array, None]:
    """Recompute the scores of each block. The gradient of the queries overwrites the gradient of the result."""
    queries, keys, values, segments = residuals
    length, slots = queries.shape[2], segments.shape[1]

    def step(number: Array, carried: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        pulled, by_keys, by_values = carried
        seen = _seen(number, length, slots, window)
        block = jax.lax.dynamic_index_in_dim(queries, number, keepdims=False)
        own = partial(_attend_block, number * length - seen.first, segments=seen.of(segments, axis=1), window=window)
        _, pull = jax.vjp(own, block, seen.of(keys, axis=2), seen.of(values, axis=2))
        by_block, more_keys, more_values = pull(jax.lax.dynamic_index_in_dim(pulled, number, keepdims=False))
        pulled = jax.lax.dynamic_update_index_in_dim(pulled, by_block, number, 0)
        return pulled, _added(by_keys, more_keys, seen), _added(by_values, more_values, seen)

    nothing = jnp.zeros(keys.shape, sum_dtype(keys))
    gradient, zeros = jax.lax.optimization_barrier((gradient, nothing))  # no zeros are allocated before the layer's turn
    by_queries, by_keys, by_values = jax.lax.fori_loop(0, len(queries), step, (gradient, zeros, zeros))
    return by_queries, by_keys.astype(keys.dtype), by_values.astype(values.dtype), None


def _added(total: Float[Array, "B K S H"], more: Float[Array, "B K C H"], seen: _Seen) -> Float[Array, "B K S H"]:
    """Add to the slots that a block sees, in the precision of the total."""
    more = seen.of(total, axis=2) + more.astype(total.dtype)
    return jax.lax.dynamic_update_slice_in_dim(total, more, seen.first, axis=2)


_over_blocks = jax.custom_vjp(_mixed, nondiff_argnums=(4,))
_over_blocks.defvjp(_forward, _backward)
