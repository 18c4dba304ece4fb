"""Scaled dot-product attention with grouped heads: over whole sequences, and of one new token over a cache.

Axes: B rows, T query tokens, S key slots, K key/value heads, G query heads of a key head, H features of a head.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rljax.models.packed import visible_slots

MOST_QUERIES, FEWEST_QUERIES = 512, 64
"""Queries of a row that are held against all keys at once."""
SCORES_AT_ONCE = 2**24
"""Scores that a device holds at once, unless the fewest queries have more: 64 MB in each array."""


def block_size(rows: int, heads: int, slots: int, *, devices: int = 1) -> int:
    """Queries of a row that are held against all keys at once: a power of two.

    Args:
        rows: of all devices.
        heads: of queries, of all devices.
        slots: of keys.
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

        softmax(q k / √H + log visible) v        with scores and softmax in float32
    """
    scaled = query * query.shape[-1] ** -0.5
    scores = jnp.einsum("BTKGH,BKSH->BKGTS", scaled, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None, None], scores, jnp.finfo(jnp.float32).min)
    attention = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    return jnp.einsum("BKGTS,BKSH->BTKGH", attention, values)


def attend_within(
    query: Float[Array, "B S K G H"],
    keys: Float[Array, "B K S H"],
    values: Float[Array, "B K S H"],
    segments: Int[Array, "B S"],
    *,
    block: int | None = None,
    devices: int = 1,
) -> Float[Array, "B S K G H"]:
    """Let each token see the earlier ones of its sequence, and itself.

    Rows of more than `block` slots are computed block by block, in the forward and in the backward pass: no array has both axes.

    Args:
        query: of every token.
        keys: of every token, rotated.
        values: of every token.
        segments: sequence of each token; 0 is padding, which sees itself.
        block: queries that are held against all keys at once; None: as many as `block_size` says.
        devices: number of devices that share rows and heads.
    """
    rows, slots, key_heads, group, _ = query.shape
    block = block_size(rows, key_heads * group, slots, devices=devices) if block is None else block
    if slots <= block:
        return attend(query, keys, values, visible_slots(segments))
    blocks = -(-slots // block)
    spare = blocks * block - slots
    padded = jnp.pad(query, ((0, 0), (0, spare), (0, 0), (0, 0), (0, 0)))
    laid_out = jnp.moveaxis(padded.reshape(query.shape[0], blocks, block, *query.shape[2:]), 1, 0)

    @jax.checkpoint
    def one(begin: Int[Array, ""], part: Float[Array, "B block K G H"]) -> Float[Array, "B block K G H"]:
        return attend(part, keys, values, visible_slots(segments, first=begin, count=block))

    mixed = jax.lax.map(lambda arguments: one(*arguments), (jnp.arange(blocks) * block, laid_out))
    return jnp.moveaxis(mixed, 0, 1).reshape(padded.shape)[:, :slots]
