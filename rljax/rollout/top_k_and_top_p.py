"""Top-k and top-p without sorting the vocabulary: a search over the bits of floating-point numbers.

The logits are mapped to integers that have the same order. The smallest integer to keep is then found digit by digit, from the
most significant digit down. Each pass over the logits tests all values of one digit. On accelerators, where reading the logits
takes longer than comparing them, a digit has 4 bits: 8 passes of 15 comparisons. On CPUs a digit has one bit: 32 passes.

Axes: B rows, V vocabulary.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int32, Num

CPU_DIGIT_BITS, DIGIT_BITS = 1, 4
"""Number of bits found per pass over the vocabulary, on CPUs and on other devices. Both must divide 32."""
LOWEST = -(2**31)
"""The smallest 32-bit integer."""


def ordered_integers(numbers: Float[Array, "B V"]) -> Int32[Array, "B V"]:
    """Map float32 numbers to integers that have the same order; 0.0 and -0.0 both become 0.

    Example:
        >>> import jax.numpy as jnp
        >>> integers = ordered_integers(jnp.array([[-jnp.inf, -1.0, 0.0, 1e-30, 2.0]]))[0]
        >>> bool((integers[1:] > integers[:-1]).all())
        True
    """
    numbers = numbers.astype(jnp.float32)
    return _flip_negative(jax.lax.bitcast_convert_type(jnp.where(numbers == 0, 0.0, numbers), jnp.int32))


def _flip_negative(bits: Int32[Array, "B V"]) -> Int32[Array, "B V"]:
    """Invert all bits of negative integers except the sign bit. Applied twice, this changes nothing."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _to_floats(integers: Int32[Array, "B V"]) -> Float[Array, "B V"]:
    """Invert `ordered_integers`."""
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
        integers: the logits, as `ordered_integers`.
        weigh: function from the integers to their weights, which must not be negative. It is called in each pass, so that an
            accelerator can recompute the weights instead of reading them from memory.
        needed: the sum that the weights of each row must reach.
        digit_bits: bits found in each pass, a divisor of 32.

    Returns:
        The threshold of each row. If all weights together are below `needed`, it is the smallest integer, which keeps everything.
    """

    def find_digit(step: Array, threshold: Int32[Array, "B 1"]) -> Int32[Array, "B 1"]:
        weights, shift = weigh(integers), jnp.int32(32) - digit_bits * (step + 1)
        candidates = [threshold + (jnp.int32(value) << shift) for value in range(1, 2**digit_bits)]
        kept = [jnp.where(integers >= candidate, weights, jnp.zeros((), weights.dtype)) for candidate in candidates]
        suffices = [kept_weights.sum(-1, keepdims=True) >= needed for kept_weights in kept]
        for candidate, is_enough in zip(candidates, suffices, strict=True):
            threshold = jnp.where(is_enough, candidate, threshold)
        return threshold

    return jax.lax.fori_loop(0, 32 // digit_bits, find_digit, jnp.full((integers.shape[0], 1), LOWEST, jnp.int32))


def _keep_above(
    logits: Float[Array, "B V"],
    weigh: Callable[[Int32[Array, "B V"]], Num[Array, "#B #V"]],
    needed: Num[Array, "#B 1"],
) -> Float[Array, "B V"]:
    """Keep the logits from the largest threshold on at which the kept weights still sum to `needed`; set the others to -inf."""
    integers = ordered_integers(logits)

    def on_cpu(integers: Int32[Array, "B V"]) -> Int32[Array, "B 1"]:
        weights = weigh(integers)  # on CPUs, reading the weights is faster than computing them again
        return largest_threshold(integers, lambda _: weights, needed, digit_bits=CPU_DIGIT_BITS)

    on_accelerator = partial(largest_threshold, weigh=weigh, needed=needed, digit_bits=DIGIT_BITS)
    threshold = jax.lax.platform_dependent(integers, cpu=on_cpu, default=on_accelerator)
    return jnp.where(integers >= threshold, logits, -jnp.inf)


def keep_top_k(logits: Float[Array, "B V"], k: int | Int[Array, "B"]) -> Float[Array, "B V"]:
    """Set all but the k largest logits to -inf (ties with the k-th are kept); k is one number, or one per row."""
    return _keep_above(logits, lambda integers: jnp.ones((1, 1), jnp.int32), jnp.reshape(k, (-1, 1)))


def keep_top_p(logits: Float[Array, "B V"], p: float | Float[Array, "B"]) -> Float[Array, "B V"]:
    """Keep the smallest set of likeliest tokens whose total probability reaches p; the likeliest token is always kept.

    Tokens that tie with the set's least likely one are kept, too. p is one number, or one per row; p >= 1 keeps every token.
    """
    fraction, largest = jnp.reshape(p, (-1, 1)), logits.astype(jnp.float32).max(-1, keepdims=True)

    def weigh(integers: Int32[Array, "B V"]) -> Float[Array, "B V"]:
        # The total below is computed with this function too, so that a CPU computes the weights only once.
        return jnp.exp(_to_floats(integers) - largest)

    total = weigh(ordered_integers(logits)).sum(-1, keepdims=True)
    return _keep_above(logits, weigh, jnp.where(fraction < 1, fraction * total, jnp.inf))
