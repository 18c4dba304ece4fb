"""Choosing which prompts to train on, from the rewards of their responses.

Rewards are `[..., P, G]`; a function that reduces groups returns one value per prompt, `[..., P]`. Nothing here carries a gradient.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import (
    Mask,
    Number,
    check_between,
    check_floating,
    check_positive,
    in_float32,
)
from rljax.ops.masked import group_members


def has_mixed_outcomes(rewards: Float[Array, "*P G"], *, valid: Mask | None = None) -> Bool[Array, "*P"]:
    """Whether the rewards within each group differ; dynamic sampling keeps only the groups in which they do.

    The paper counts correct responses. For binary rewards its condition is equivalent to "not all identical", which is used
    here because it also covers graded rewards; the comparison is exact. Pass rewards without any length shaping; otherwise a
    group in which every response is wrong would be kept because its responses differ in length.

    ::

        keep = 0 < |{i : o_i is correct}| < G    ⟺    max_i r_i ≠ min_i r_i

    Args:
        rewards: one number per response, `[..., G]`.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        bool, `[...]`; False for a group with fewer than 2 valid responses. A NaN reward marked valid keeps its
        group, so that the fault shows in the loss instead of disappearing.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, or `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> has_mixed_outcomes(jnp.array([[1.0, -1.0, 1.0], [-1.0, -1.0, -1.0]])).tolist()
        [True, False]

    Source:
        DAPO, arXiv:2503.14476, Eq. 11.
    """
    member = group_members(rewards, valid)
    highest = jnp.where(member, rewards, -jnp.inf).max(-1)
    lowest = jnp.where(member, rewards, jnp.inf).min(-1)
    return member.any(-1) & (highest != lowest)


@in_float32
def pass_rate(rewards: Float[Array, "*P G"], *, threshold: Number = 0.0, valid: Mask | None = None) -> Float[Array, "*P"]:
    """Fraction of a prompt's responses that are correct.

    ::

        p = (1/G) |{i : r_i > r_threshold}|

    Args:
        rewards: one number per response, `[..., G]`.
        threshold: reward above which a response is correct; 0 suits both 1 / -1 and 1 / 0.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[...]`, in [0, 1]; 0 for a group without a valid response.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, `valid` of a different shape, or `threshold` NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> pass_rate(jnp.array([[1.0, -1.0, -1.0, -1.0], [1.0, 0.0, 1.0, 1.0]])).tolist()
        [0.25, 0.75]

    Source:
        Bae et al., arXiv:2504.03380 (a prompt's pass rate under the current policy).
    """
    check_between(-jnp.inf, jnp.inf, threshold=threshold)
    member = group_members(rewards, valid)
    correct = (member & (rewards > threshold)).sum(-1)
    return correct.astype(rewards.dtype) / jnp.maximum(member.sum(-1), 1).astype(rewards.dtype)


@in_float32
def in_difficulty_window(
    rewards: Float[Array, "*P G"], *, low: Number, high: Number, threshold: Number = 0.0, valid: Mask | None = None
) -> Bool[Array, "*P"]:
    """Whether each prompt is neither too hard nor too easy for the current policy.

    ::

        keep = p_low ≤ p ≤ p_high        p = the group's pass rate

    Args:
        rewards: one number per response, `[..., G]`.
        low: p_low, in [0, p_high]. No value from the paper could be confirmed, so there is no default; a balanced window has
            low + high = 1.
        high: p_high, in [p_low, 1]. The window includes both ends.
        threshold: reward above which a response is correct.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        bool, `[...]`; False for a group with fewer than 2 valid responses.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, `valid` of a different shape, a window not
            inside [0, 1], or `threshold` NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> rewards = jnp.array([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
        >>> in_difficulty_window(rewards, low=0.3, high=0.7).tolist()
        [False, True]

    Source:
        Bae et al., arXiv:2504.03380 (balanced online difficulty filtering).
    """
    check_between(0.0, 1.0, low=low, high=high)
    check_between(low, 1.0, high=high)
    rate = pass_rate(rewards, threshold=threshold, valid=valid)
    comparable = group_members(rewards, valid).sum(-1) > 1
    return comparable & (rate >= low) & (rate <= high)


@in_float32
def rl_kl_from_pass_rate(pass_rate: Float[Array, "..."], *, beta: Number) -> Float[Array, "..."]:
    """KL divergence of the initial policy from the optimal policy of KL-regularized RL, for rewards of 0 and 1.

    The optimal policy is π*(y) = π_init(y) e^{r(y)/β} / Z. The formula is exact if p is the total probability of correct responses.
    The divergence is 0 at p = 0 and p = 1, where nothing can be learned, and ½ p(1-p)/β² to second order in 1/β. Its maximum is
    at p = β - 1/(e^{1/β} - 1), which is ½ only in the limit of large β; a smaller β favors harder prompts.

    ::

        KL(π_init ‖ π*) = log Z - p/β = log(1 - p + p e^{1/β}) - p/β

    Args:
        pass_rate: p, in [0, 1], any shape.
        beta: β, the weight of the KL term, positive, in the reward's unit per nat.

    Returns:
        The divergences, in the shape of `pass_rate`, nats, not negative.

    Raises:
        ValueError: integer or out-of-range pass rates, or `beta` not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(kl), 3) for kl in rl_kl_from_pass_rate(jnp.array([0.0, 0.5, 1.0]), beta=0.5)]
        [0.0, 0.434, 0.0]

    Source:
        Arithmetic, from the optimal policy above for a binary reward. Bae et al., arXiv:2504.03380, bound the divergence from below
        by the variance of the pass rate; they make no claim about where the divergence has its maximum.
    """
    check_floating(pass_rate=pass_rate)
    check_between(0.0, 1.0, pass_rate=pass_rate)
    check_positive(beta=beta)
    certain = (pass_rate <= 0) | (pass_rate >= 1)
    p = jnp.where(certain, 0.5, pass_rate)
    gain = jnp.asarray(1.0 / beta, p.dtype)
    often_right = p > 0.5
    rarer_rate = jnp.where(often_right, 1 - p, p)
    divergence = jnp.where(often_right, _kl_if_often_right(rarer_rate, gain), _kl_if_often_wrong(rarer_rate, gain))
    # The exact forms are differences of numbers near p/beta; for a large beta only rounding error would remain.
    limit = float(jnp.finfo(p.dtype).eps) ** (1 / 7)
    by_cumulants = _kl_by_cumulants(p, jnp.minimum(gain, limit))
    return jnp.where(certain, 0.0, jnp.where(gain < limit, by_cumulants, divergence))


def _kl_if_often_wrong(p: Float[Array, "..."], gain: Float[Array, ""]) -> Float[Array, "..."]:
    """log Z - p g, where log Z = log(1 - p + p e^g): `near` is accurate for small g, and `far` does not overflow for large g."""
    bounded = jnp.minimum(gain, 32.0)
    near = jnp.log1p(p * jnp.expm1(bounded))
    far = jnp.logaddexp(jnp.log1p(-p), jnp.log(p) + gain)
    return jnp.where(gain > bounded, far, near) - p * gain


def _kl_if_often_right(q: Float[Array, "..."], gain: Float[Array, ""]) -> Float[Array, "..."]:
    """The same in terms of q = 1 - p, the rate of wrong responses: (log Z - g) + q g, where log Z - g = log(1 - q + q e^-g)."""
    return jnp.log1p(q * jnp.expm1(-gain)) + q * gain


def _kl_by_cumulants(p: Float[Array, "..."], gain: Float[Array, ""]) -> Float[Array, "..."]:
    """The same divergence for small g, as the series Σ_n κ_n g^n / n! over the second to sixth cumulants κ_n of a 0/1 reward."""
    variance, skew = p * (1 - p), 1 - 2 * p
    third, fourth = skew / 3, (1 - 6 * variance) / 12
    fifth, sixth = skew * (1 - 12 * variance) / 60, (1 - 30 * variance + 120 * jnp.square(variance)) / 360
    return variance * jnp.square(gain) / 2 * (1 + gain * (third + gain * (fourth + gain * (fifth + gain * sixth))))
