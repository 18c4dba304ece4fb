"""Rewards that depend on a response's length as well as on its correctness."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from rljax.ops.arrays import (
    Mask,
    Number,
    as_float,
    check_between,
    check_boolean,
    check_lengths,
    check_mask,
    check_positive,
    check_same_shape,
    in_float32,
)


@in_float32
def cosine_length_reward(
    correct: Bool[Array, "*rows"],
    lengths: Num[Array, "*rows"],
    *,
    max_length: Number,
    correct_short: Number = 2.0,
    correct_long: Number = 1.0,
    wrong_short: Number = -10.0,
    wrong_long: Number = 0.0,
    cut_off: Number = -10.0,
) -> Float[Array, "*rows"]:
    """Reward that follows half a cosine period as the length goes from 0 to its maximum.

    The defaults favor short correct responses, and long wrong ones, because an unsure model should think longer.

    ::

        R = r_long + ½ (r_short - r_long) (1 + cos(π L / L_max))        r_short, r_long depend on correctness
        R = r_e                                                         if L >= L_max

    Args:
        correct: whether each response is correct, boolean, `[...]`.
        lengths: L, tokens of each response, `[...]`.
        max_length: L_max in tokens, positive.
        correct_short: reward of a correct response of length 0.
        correct_long: reward of a correct response just below L_max.
        wrong_short: reward of a wrong response of length 0.
        wrong_long: reward of a wrong response just below L_max.
        cut_off: r_e, reward of a response that reaches L_max, correct or not.

    Returns:
        `[...]`, units of reward.

    Raises:
        ValueError: `correct` is not boolean, the shapes differ, a length is negative, `max_length` is not positive, or a reward is
            NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> right, lengths = jnp.array([True, True, False, False]), jnp.array([0, 4, 4, 8])
        >>> [round(number, 3) for number in cosine_length_reward(right, lengths, max_length=8).tolist()]
        [2.0, 1.5, -5.0, -10.0]

    Source:
        Yeo et al., "Demystifying Long Chain-of-Thought Reasoning in LLMs", arXiv:2502.03373, Section 4.2 and Eq. 1. The defaults
        are those of the authors' scripts. Their code also treats a response within a margin of L_max as cut off.
    """
    check_boolean(correct=correct)
    check_same_shape(correct=correct, lengths=lengths)
    check_lengths(lengths=lengths)
    check_positive(max_length=max_length)
    correct_rewards = {"correct_short": correct_short, "correct_long": correct_long}
    check_between(-jnp.inf, jnp.inf, **correct_rewards, wrong_short=wrong_short, wrong_long=wrong_long, cut_off=cut_off)
    lengths = as_float(lengths)
    short, long = (
        jnp.where(correct, right, wrong) for right, wrong in ((correct_short, wrong_short), (correct_long, wrong_long))
    )
    cosine_reward = long + (short - long) / 2 * (1 + jnp.cos(jnp.pi * lengths / max_length))
    return jnp.where(lengths >= max_length, cut_off, cosine_reward).astype(lengths.dtype)


@in_float32
def group_length_reward(
    correct: Bool[Array, "*P G"], lengths: Num[Array, "*P G"], *, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Reward for being short, relative to the other responses to the prompt: from 1/2 for the shortest to -1/2 for the longest.

    A wrong response is never rewarded for being short, only penalized for being long. Multiply this reward by a weight and
    add the product to the outcome reward.

    ::

        λ_i = 1/2 - (L_i - min L) / (max L - min L)        R_i = λ_i if correct, min(0, λ_i) if not
        R_i = 0                                            if all responses to the prompt have the same length

    Args:
        correct: whether each response is correct, boolean, `[..., G]`.
        lengths: L, tokens of each response, `[..., G]`.
        valid: which responses are compared, bool or 0/1, `[..., G]`; None: all of them. The others get 0.

    Returns:
        `[..., G]`, in [-1/2, 1/2].

    Raises:
        ValueError: `correct` is not boolean, the shapes differ, a length is negative, or `valid` is malformed.

    Example:
        >>> import jax.numpy as jnp
        >>> right, lengths = jnp.array([[True, False, True, False]]), jnp.array([[10, 10, 30, 20]])
        >>> group_length_reward(right, lengths).tolist()
        [[0.5, 0.0, -0.5, 0.0]]

    Source:
        Kimi k1.5, arXiv:2501.12599, Section 2.3.3.
    """
    check_boolean(correct=correct)
    check_same_shape(correct=correct, lengths=lengths)
    check_lengths(lengths=lengths)
    lengths = as_float(lengths)
    valid = jnp.ones_like(correct) if valid is None else valid
    check_mask(valid=valid)
    check_same_shape(correct=correct, valid=valid)
    compared = valid.astype(bool)
    shortest = jnp.where(compared, lengths, jnp.inf).min(-1, keepdims=True)
    longest = jnp.where(compared, lengths, -jnp.inf).max(-1, keepdims=True)
    differ = compared & (longest > shortest)
    fraction = (lengths - jnp.where(differ, shortest, 0)) / jnp.where(differ, longest - shortest, 1)
    reward = jnp.where(correct, 0.5 - fraction, jnp.minimum(0, 0.5 - fraction))
    return jnp.where(differ, reward, 0)
