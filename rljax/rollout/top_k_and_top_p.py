"""Top-k and top-p without sorting the vocabulary: a search over the bits of floating-point numbers.

Floating-point numbers are mapped to integers in the same order. The smallest integer that is kept is then found digit by digit,
from the highest digit down. Each pass over the logits tests all values of a digit. On accelerators, which read the logits more
slowly than they compare them, a digit has 4 bits: 8 passes of 15 comparisons. On CPUs it has one bit: 32 passes.

Axes: B rows, V vocabulary.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int32, Num

CPU_DIGIT_BITS, DIGIT_BITS = 1, 4
"""Bits that a pass over the vocabulary finds, on CPUs and on other devices; divisors of 32."""
LOWEST = -(2**31)
"""The smallest integer of 32 bits."""


def ordered_integers(numbers: Float[Array, "B V"]) -> Int32[Array, "B V"]:
    """Map float32 numbers to integers in the same order; both zeros become 0.

    Example:
        >>> import jax.numpy as jnp
        >>> integers = ordered_integers(jnp.array([[-jnp.inf, -1.0, 0.0, 1e-30, 2.0]]))[0]
        >>> bool((integers[1:] > integers[:-1]).all())
        True
    """
    numbers = numbers.astype(jnp.float32)
    return _flip_negative(jax.lax.bitcast_convert_type(jnp.where(numbers == 0, 0.0, numbers), jnp.int32))


def _flip_negative(bits: Int32[Array, "B V"]) -> Int32[Array, "B V"]:
    """Invert all bits but the sign of negative integers; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _numbers(integers: Int32[Array, "B V"]) -> Float[Array, "B V"]:
    """Map the integers of `ordered_integers` back to numbers."""
    return jax.lax.bitcast_convert_type(_flip_negative(integers), jnp.float32)


def largest_threshold(
    integers: Int32[Array, "B V"],
    weigh: Callable[[Int32[Array, "B V"]], Num[Array, "#B #V"]],
    needed: Num[Array, "#B 1"],
    *,
    digit_bits: int,
) -> Int32[Array, "B 1"]:
    """Return the largest integer t for which the weights of {v : integers_v >= t} sum to at least `needed`.

    Args:
        integers: the numbers to compare.
        weigh: function from the integers to their weights, which must not be negative. It is called in each pass, so that an
            accelerator can compute the weights instead of reading them.
        needed: smallest sufficient sum of each row.
        digit_bits: bits found in each pass, a divisor of 32.

    Returns:
        The threshold of each row; the smallest integer, which keeps everything, if no sum suffices.
    """

    def find_digit(step: Array, threshold: Int32[Array, "B 1"]) -> Int32[Array, "B 1"]:
        weights, place = weigh(integers), jnp.int32(32) - digit_bits * (step + 1)
        higher = [threshold + (jnp.int32(value) << place) for value in range(1, 2**digit_bits)]
        kept = [jnp.where(integers >= each, weights, jnp.zeros((), weights.dtype)) for each in higher]
        suffices = [part.sum(-1, keepdims=True) >= needed for part in kept]
        for each, is_enough in zip(higher, suffices, strict=True):
            threshold = jnp.where(is_enough, each, threshold)
        return threshold

    return jax.lax.fori_loop(0, 32 // digit_bits, find_digit, jnp.full((integers.shape[0], 1), LOWEST, jnp.int32))


def _keep_above(
    logits: Float[Array, "B V"],
    weigh: Callable[[Int32[Array, "B V"]], Num[Array, "#B #V"]],
    needed: Num[Array, "#B 1"],
) -> Float[Array, "B V"]:
    """Set the logits below the largest sufficient threshold to -inf."""
    integers = ordered_integers(logits)

    def on_cpu(integers: Int32[Array, "B V"]) -> Int32[Array, "B 1"]:
        weights = weigh(integers)  # CPUs read them faster than they compute them
        return largest_threshold(integers, lambda _: weights, needed, digit_bits=CPU_DIGIT_BITS)

    elsewhere = partial(largest_threshold, weigh=weigh, needed=needed, digit_bits=DIGIT_BITS)
    threshold = jax.lax.platform_dependent(integers, cpu=on_cpu, default=elsewhere)
    return jnp.where(integers >= threshold, logits, -jnp.inf)


def keep_top_k(logits: Float[Array, "B V"], k: int | Int[Array, "B"]) -> Float[Array, "B V"]:
    """Set all but the k largest logits to -inf (ties with the k-th are kept); k is one number, or one per row."""
    return _keep_above(logits, lambda integers: jnp.ones((1, 1), jnp.int32), jnp.reshape(k, (-1, 1)))


def keep_top_p(logits: Float[Array, "B V"], p: float | Float[Array, "B"]) -> Float[Array, "B V"]:
    """Keep the smallest set of likeliest tokens whose total probability reaches p; the likeliest token is always kept.

    Ties with the least likely of them are kept, too. p is one number, or one per row; a p of 1 or more keeps every token.
    """
    share, largest = jnp.reshape(p, (-1, 1)), logits.astype(jnp.float32).max(-1, keepdims=True)

    def weigh(integers: Int32[Array, "B V"]) -> Float[Array, "B V"]:
        # The total below calls this function too, so that a CPU computes the weights once.
        return jnp.exp(_numbers(integers) - largest)

    total = weigh(ordered_integers(logits)).sum(-1, keepdims=True)
    return _keep_above(logits, weigh, jnp.where(share < 1, share * total, jnp.inf))
