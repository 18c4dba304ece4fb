"""Top-k and top-p without sorting the vocabulary: a bisection over the bits of floating-point numbers.

Floating-point numbers are mapped to integers in the same order. The smallest integer that is kept is then found bit by bit, from
the highest bit down, in 32 passes over the logits, each a comparison and a sum.

Axes: B rows, V vocabulary.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32


def ordered_bits(numbers: Float[Array, "B V"]) -> UInt32[Array, "B V"]:
    """Map float32 numbers to integers in the same order.

    Example:
        >>> import jax.numpy as jnp
        >>> bits = ordered_bits(jnp.array([[-jnp.inf, -1.0, 0.0, 1e-30, 2.0]]))[0]
        >>> bool((bits[1:] > bits[:-1]).all())
        True
    """
    bits = jax.lax.bitcast_convert_type(numbers.astype(jnp.float32), jnp.uint32)
    is_negative = bits >> 31 == 1
    return jnp.where(is_negative, ~bits, bits | jnp.uint32(1 << 31))


def _largest_threshold(
    bits: UInt32[Array, "B V"], suffices: Callable[[Bool[Array, "B V"]], Bool[Array, "B"]]
) -> UInt32[Array, "B 1"]:
    """Return the largest integer t for which the set {v : bits_v >= t} suffices; if none does, 0, which keeps everything."""

    def decide(step: Array, threshold: UInt32[Array, "B 1"]) -> UInt32[Array, "B 1"]:
        higher = threshold | (jnp.uint32(1 << 31) >> step.astype(jnp.uint32))
        return jnp.where(suffices(bits >= higher)[:, None], higher, threshold)

    return jax.lax.fori_loop(0, 32, decide, jnp.zeros((bits.shape[0], 1), jnp.uint32))


def keep_top_k(logits: Float[Array, "B V"], k: int | Int[Array, "B"]) -> Float[Array, "B V"]:
    """Set all but the k largest logits to -inf (ties with the k-th are kept); k is one number, or one per row."""
    bits = ordered_bits(logits)
    threshold = _largest_threshold(bits, lambda kept: kept.sum(-1) >= k)
    return jnp.where(bits >= threshold, logits, -jnp.inf)


def keep_top_p(logits: Float[Array, "B V"], p: float | Float[Array, "B"]) -> Float[Array, "B V"]:
    """Keep the smallest set of likeliest tokens whose total probability reaches p; the likeliest token is always kept.

    p is one number, or one per row; a p above 1 keeps every token.
    """
    bits, probability = ordered_bits(logits), jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    threshold = _largest_threshold(bits, lambda kept: jnp.where(kept, probability, 0.0).sum(-1) >= p)
    return jnp.where(bits >= threshold, logits, -jnp.inf)
