"""Rewards that depend on a completion's length. Each takes a function that counts the tokens."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from rljax.ops.arrays import check_positive
from rljax.ops.shaping import soft_overlong_penalty


def soft_overlong(count: Callable[[str], int], *, max_length: float | int, cache: float | int) -> Callable:
    """Make a reward function: DAPO's soft overlong penalty, from 0 down to -1.

    Args:
        count: a function that counts the tokens of a completion, for example `lambda text: len(tokenizer.encode(text))`.
        max_length: length in tokens at and above which the penalty is -1; see `rljax.ops.shaping.soft_overlong_penalty`.
        cache: width of the ramp: over the last `cache` tokens before `max_length`, the penalty falls from 0 to -1.

    Returns:
        A reward function of `completions`; use it with a positive weight.

    Raises:
        ValueError: `soft_overlong_penalty` rejects `max_length` or `cache`.

    Example:
        >>> soft_overlong(len, max_length=16, cache=4)(completions=["a" * 12, "a" * 15, "a" * 99])
        [0.0, -0.75, -1.0]

    Source:
        DAPO, arXiv:2503.14476, Eq. 13.
    """
    soft_overlong_penalty(jnp.zeros(1, jnp.int32), max_length=max_length, cache=cache)

    def overlong(completions: Sequence[str], **columns: Sequence) -> list[float]:
        del columns
        lengths = jnp.asarray(list(map(count, completions)), jnp.int32)
        return np.asarray(soft_overlong_penalty(lengths, max_length=max_length, cache=cache)).tolist()

    return overlong


def length_penalty(count: Callable[[str], int], *, max_length: float | int) -> Callable:
    """Make a reward function: a completion's length as a fraction of the maximum. Use it with a negative weight.

    ::

        penalty(y) = min(1, |y| / L_max)

    Args:
        count: a function that counts the tokens of a completion.
        max_length: L_max in tokens, positive.

    Returns:
        A reward function of `completions`, with values in [0, 1].

    Raises:
        ValueError: `max_length` is not positive.

    Example:
        >>> length_penalty(len, max_length=8)(completions=["", "aa", "a" * 99])
        [0.0, 0.25, 1.0]
    """
    check_positive(max_length=max_length)

    def penalty(completions: Sequence[str], **columns: Sequence) -> list[float]:
        del columns
        return [min(1.0, count(completion) / max_length) for completion in completions]

    return penalty
