"""Rule-based rewards, and bonuses and penalties that are added to a response's reward before responses are compared.

Lengths are counted in tokens, never in characters. Nothing here carries a gradient to the policy.
"""

import functools
from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import (
    Lengths,
    Number,
    as_float,
    check_between,
    check_boolean,
    check_floating,
    check_lengths,
    check_positive,
    check_same_shape,
    in_float32,
)


def rule_reward(correct: Bool[Array, "..."]) -> Float[Array, "..."]:
    """Reward of a rule: 1 for a correct response, -1 for any other.

    ::

        R(y) = 1 if y is correct else -1

    Args:
        correct: whether the final answer is equivalent to the reference answer, bool, any shape.

    Returns:
        The rewards, 1 or -1, in the shape of `correct`.

    Raises:
        ValueError: `correct` is not boolean; graded scores are refused.

    Example:
        >>> import jax.numpy as jnp
        >>> rule_reward(jnp.array([True, False])).tolist()
        [1.0, -1.0]

    Source:
        DAPO, arXiv:2503.14476, Eq. 7.
    """
    check_boolean(correct=correct)
    return jnp.where(correct, jnp.ones(correct.shape), -1.0)


@in_float32
def soft_overlong_penalty(lengths: Lengths, *, max_length: Number, cache: Number) -> Float[Array, "..."]:
    """Soft overlong punishment: no penalty, then a ramp over the last `cache` tokens, then -1.

    ::

                ⎧ 0                                  |y| ≤ L_max - L_cache
        R(y) =  ⎨ (L_max - L_cache - |y|) / L_cache  otherwise
                ⎩ -1                                 |y| > L_max

    Args:
        lengths: response lengths |y| in tokens, EOS included, integer or floating point, any shape.
        max_length: L_max in tokens, positive; 20480 in the paper.
        cache: L_cache in tokens, in (0, L_max]; 4096 in the paper.

    Returns:
        The penalties, in [-1, 0], in the shape of `lengths`; add them to the rewards.

    Raises:
        ValueError: negative or boolean lengths, `max_length` or `cache` not positive, `cache` above `max_length`.

    Example:
        >>> import jax.numpy as jnp
        >>> soft_overlong_penalty(jnp.array([10, 12, 15, 16, 99]), max_length=16, cache=4).tolist()
        [0.0, 0.0, -0.75, -1.0, -1.0]

    Source:
        DAPO, arXiv:2503.14476, Eq. 13.
    """
    check_positive(max_length=max_length, cache=cache)
    check_between(0, max_length, cache=cache)
    check_lengths(lengths=lengths)
    return jnp.clip((max_length - cache - as_float(lengths)) / cache, -1.0, 0.0)


@in_float32
def weighted_composite(parts: Mapping[str, Float[Array, "..."]], weights: Mapping[str, Number]) -> Float[Array, "..."]:
    """Weighted sum of named rewards.

    ::

        R = Σ_k w_k R_k

    Args:
        parts: rewards R_k by name, all of the same shape.
        weights: weights w_k by the same names, of either sign.

    Returns:
        The sum, in the shape of each part.

    Raises:
        ValueError: no part, a name in only one of the two mappings, integer rewards, or mismatched shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> parts = {"answer": jnp.array([1.0, 0.0]), "format": jnp.array([1.0, 1.0])}
        >>> weighted_composite(parts, {"answer": 1.0, "format": 0.25}).tolist()
        [1.25, 0.25]

    Source:
        Rule-based reward of DeepSeek-R1, arXiv:2501.12948, Section 2.2.2 (answer plus format).
    """
    if not parts or set(parts) != set(weights):
        raise ValueError(
            f"weights must have the same names as parts, at least one: expected {sorted(parts)}, got {sorted(weights)}"
        )
    check_floating(**parts)
    check_same_shape(**parts)
    return functools.reduce(jnp.add, (weights[name] * part for name, part in parts.items()))
