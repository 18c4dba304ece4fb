"""Statistics over a full batch: normalized advantages and rewards, and GPG's scale.

Unlike group statistics, these depend on every prompt in the batch, so compute them once, before the batch is split.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import (
    Mask,
    Number,
    check_floating,
    check_group,
    check_mask,
    check_nonnegative,
    check_one_of,
    check_rank,
    check_same_shape,
    in_float32,
    power_of_two,
    ratio_or_zero,
)
from rljax.ops.masked import group_members, masked_centered, masked_normalized
from rljax.ops.selection import has_mixed_outcomes


def batch_normalized(
    advantage: Float[Array, "*rows T"], mask: Mask, *, eps: Number = 1e-8, ddof: int = 0
) -> Float[Array, "*rows T"]:
    """Per-token advantage as a z-score over all tokens of the batch.

    ::

        A'_it = (A_it - μ) / (σ + ε)        μ, σ over all (i, t) with m_it = 1

    Args:
        advantage: any per-token advantage, `[..., T]`.
        mask: response tokens, bool or 0/1, `[..., T]`.
        eps: ε, added to the standard deviation; not negative. REINFORCE++ (version 9, Eqs. 5 and 7) prints ε without a value,
            and Open-Reasoner-Zero gives no value. The code of both instead bounds σ² from below by 1e-8; verl's code adds
            1e-8 to σ².
        ddof: delta degrees of freedom of the standard deviation, 0 (REINFORCE++, Open-Reasoner-Zero) or 1 (verl).

    Returns:
        `[..., T]`, dimensionless; 0 outside the mask. A batch of identical advantages, or of one token, gets exactly 0.

    Raises:
        ValueError: mismatched shapes, integer advantages, negative `eps`, `ddof` other than 0 or 1.

    Example:
        >>> import jax.numpy as jnp
        >>> batch_normalized(jnp.array([[3.0, 3.0], [1.0, 9.0]]), jnp.array([[1, 0], [1, 0]]), eps=0.0).tolist()
        [[1.0, 0.0], [-1.0, 0.0]]

    Source:
        REINFORCE++, arXiv:2501.03262 (advantage normalization); Open-Reasoner-Zero, arXiv:2503.24290; Eq. 56
        of the design document.
    """
    check_floating(advantage=advantage)
    check_mask(mask=mask)
    check_same_shape(advantage=advantage, mask=mask)
    flat = masked_normalized(advantage.reshape(-1), mask.reshape(-1), eps=eps, ddof=ddof)
    return flat.reshape(advantage.shape)


def batch_normalized_rewards(
    rewards: Float[Array, "..."], *, eps: Number = 1e-8, ddof: int = 0, valid: Mask | None = None
) -> Float[Array, "..."]:
    """A response's reward as a z-score over all responses in the batch.

    Every response counts once, whereas in `batch_normalized` it counts once per token. Applied to the result of `group_centered`,
    this is the baseline variant of REINFORCE++; applied to the rewards themselves, it works with one response per prompt.

    ::

        A_i = (r_i - μ) / (σ + ε)        μ, σ over all responses

    Args:
        rewards: one number per response, any shape with at least 2 entries.
        eps: ε, added to the standard deviation; not negative.
        ddof: delta degrees of freedom of the standard deviation, 0 or 1.
        valid: which responses have a reward, bool or 0/1, of the same shape; None: all of them.

    Returns:
        The z-scores, in the shape of `rewards`; 0 for responses without a reward, and everywhere if all rewards are identical.

    Raises:
        ValueError: integer rewards, fewer than 2 responses, `valid` of a different shape, negative `eps`, `ddof` not 0 or 1.

    Example:
        >>> import jax.numpy as jnp
        >>> batch_normalized_rewards(jnp.array([[1.0, 1.0], [3.0, 3.0]]), eps=0.0).tolist()
        [[-1.0, -1.0], [1.0, 1.0]]

    Source:
        REINFORCE++, arXiv:2501.03262; Eq. 56 of the design document.
    """
    check_floating(rewards=rewards)
    flat = rewards.reshape(-1)
    if valid is not None:
        check_mask(valid=valid)
        check_same_shape(rewards=rewards, valid=valid)
    member = group_members(flat, None if valid is None else valid.reshape(-1))
    return masked_normalized(flat, member, eps=eps, ddof=ddof).reshape(rewards.shape)


def _divide_by_std(
    x: Float[Array, "*P G"], values: Float[Array, "*P G"], member: Array, *, eps: Number, ddof: int
) -> Float[Array, "*P G"]:
    """`x / (σ + ε)`, where σ is the standard deviation of `values` over all members of the batch; 0 everywhere if σ is 0.

    Values are scaled to about 1 before squaring; their squares would otherwise overflow above 2e19 and underflow below 1e-19.
    """
    centered = masked_centered(values.reshape(-1), member.reshape(-1))
    degrees_of_freedom = jnp.maximum(member.sum() - ddof, 1).astype(x.dtype)
    scale = power_of_two(centered)
    variance = jnp.square(centered / scale).sum() / degrees_of_freedom
    varies = variance.astype(bool)
    std = scale.squeeze() * jnp.sqrt(jnp.where(varies, variance, jnp.ones_like(variance)))
    return jnp.where(varies, x / (std + eps), 0.0)


@in_float32
def centered_over_reward_std(
    rewards: Float[Array, "*P G"], *, eps: Number = 1e-6, ddof: int = 1, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Reward minus the mean of its group, divided by the standard deviation of all rewards in the batch.

    Unlike division by the group's standard deviation, this does not magnify tiny differences within a group.

    ::

        A_i = (r_i - mean of the group) / (σ + ε)        σ = standard deviation of all rewards in the batch

    Args:
        rewards: one number per response, `[..., G]`; all of them form the batch.
        eps: ε, added to the standard deviation; not negative. TRL uses 1e-4; the paper states no value.
        ddof: delta degrees of freedom of the standard deviation, 0 or 1; the paper states no value.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, dimensionless; 0 everywhere in a group of identical rewards.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, negative `eps`, `ddof` other than 0 or 1, or
            `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> centered_over_reward_std(jnp.array([[2.0, 0.0], [2.0, 0.0]]), eps=0.0, ddof=0).tolist()
        [[1.0, -1.0], [1.0, -1.0]]

    Source:
        Lite PPO, arXiv:2508.08221 (group-level mean, batch-level standard deviation).
    """
    check_nonnegative(eps=eps)
    check_one_of((0, 1), ddof=ddof)
    member = group_members(rewards, valid)
    return _divide_by_std(masked_centered(rewards, member), rewards, member, eps=eps, ddof=ddof)


@in_float32
def centered_over_advantage_std(
    rewards: Float[Array, "*P G"], *, eps: Number = 1e-6, ddof: int = 1, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Reward minus the mean of its group, divided by the standard deviation of these differences over the batch.

    `centered_over_reward_std` divides by the standard deviation of the rewards, which includes differences between prompts.

    ::

        A_i = Â_i / (σ + ε)        Â_i = r_i - mean of the group        σ = standard deviation of all Â in the batch

    Args:
        rewards: one number per response, `[..., G]`; all of them form the batch.
        eps: ε, added to the standard deviation; not negative; the paper states no value.
        ddof: delta degrees of freedom of the standard deviation, 0 or 1; the paper states no value.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, dimensionless; 0 everywhere in a group of identical rewards.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, negative `eps`, `ddof` other than 0 or 1, or
            `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> centered_over_advantage_std(jnp.array([[9.0, 7.0], [2.0, 0.0]]), eps=0.0, ddof=0).tolist()
        [[1.0, -1.0], [1.0, -1.0]]

    Source:
        ScaleRL, arXiv:2510.13786, Section 4 (batch-level advantage normalization).
    """
    check_nonnegative(eps=eps)
    check_one_of((0, 1), ddof=ddof)
    member = group_members(rewards, valid)
    centered = masked_centered(rewards, member)
    return _divide_by_std(centered, centered, member, eps=eps, ddof=ddof)


@in_float32
def decoupled_normalized(
    scores: Float[Array, "*P G N"],
    weights: Float[Array, "N"],
    *,
    eps: Number = 1e-6,
    ddof: int = 1,
    valid: Mask | None = None,
) -> Float[Array, "*P G"]:
    """Normalize each of several rewards within its group, then normalize their weighted sum over the batch.

    A z-score of the sum would give responses with the same total the same advantage, whichever rewards make up the total.

    If the terms of S, computed with ε = 0, cancel up to rounding for all responses of a group, S is exactly 0 in that group. This
    happens if one of two rewards decreases linearly with the other. Division by σ would magnify what ε and rounding leave of S.

    ::

        A_i = (S_i - μ) / (σ + ε)        S_i = Σ_n w_n (r_in - mean_n) / (std_n + ε)
        mean_n, std_n of reward n within the group; μ, σ of S over the batch's responses that have any reward

    Args:
        scores: r, N rewards per response, `[..., G, N]`.
        weights: w, one per reward, `[N]`.
        eps: ε, added to each standard deviation; not negative. verl uses 1e-6, TRL 1e-4.
        ddof: delta degrees of freedom of the standard deviations, 0 or 1.
        valid: which rewards a response has, bool or 0/1, `[..., G, N]`; None: all of them. Each reward is normalized over the
            responses that have it; a missing reward adds 0 to a response's sum.

    Returns:
        `[..., G]`, dimensionless; 0 for responses without any reward.

    Raises:
        ValueError: integer arrays, groups of fewer than 2 responses, not exactly N weights, negative `eps`, `ddof` other
            than 0 or 1, or `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> scores = jnp.array([[[1.0, 0.0], [0.0, 5.0]], [[1.0, 5.0], [0.0, 0.0]]])
        >>> print(decoupled_normalized(scores, jnp.ones(2), eps=0.0, ddof=0).round(1))
        [[ 0.   0. ]
         [ 1.4 -1.4]]

    Source:
        GDPO, arXiv:2601.05242.
    """
    check_floating(scores=scores, weights=weights)
    check_rank(2, scores=scores)
    if weights.shape != scores.shape[-1:]:
        raise ValueError(
            f"weights must have one entry for each of the {scores.shape[-1]} scores, got {list(weights.shape)}"
        )
    check_group(scores=scores.any(-1))
    if valid is not None:
        check_mask(valid=valid)
        check_same_shape(scores=scores, valid=valid)
    by_reward = jnp.moveaxis(scores, -1, 0)
    member = group_members(by_reward, None if valid is None else jnp.moveaxis(valid, -1, 0))
    factors = jnp.expand_dims(weights, range(1, by_reward.ndim))
    terms, at_zero = (factors * masked_normalized(by_reward, member, eps=e, ddof=ddof) for e in (eps, 0.0))
    rounding = 8 * float(jnp.finfo(at_zero.dtype).eps) * jnp.abs(at_zero).sum(0).max(-1, keepdims=True)
    cancels = jnp.abs(at_zero.sum(0)).max(-1, keepdims=True) <= rounding
    total = jnp.where(cancels, 0.0, terms.sum(0))
    return batch_normalized_rewards(total, eps=eps, ddof=ddof, valid=member.any(0))


@in_float32
def gpg_scale(rewards: Float[Array, "*P G"], *, valid: Mask | None = None) -> Float[Array, ""]:
    """Factor that rescales a gradient averaged over all groups, to make up for the groups without a learning signal.

    ::

        α = B / (B - M)        B groups have a valid response; M of them are all right or all wrong

    Args:
        rewards: one number per response, `[..., G]`; all of them form the batch.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them. B excludes groups without a
            valid response, since they add no token to the mean that α rescales.

    Returns:
        A number, at least 1; 0 if no group has a signal, because every advantage and thus the gradient is then 0.

    Raises:
        ValueError: integer rewards, groups of fewer than 2 responses, or `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> gpg_scale(jnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])).item()
        2.0

    Source:
        GPG, arXiv:2504.02546 (accurate gradient estimation). As in `has_mixed_outcomes`, "all right or all wrong" means that the
        rewards are identical. Some code gives the name α to bsz / count_nonzero(scores), which is a different quantity.
    """
    mixed = has_mixed_outcomes(rewards, valid=valid)
    mixed_groups = mixed.sum().astype(rewards.dtype)
    all_groups = group_members(rewards, valid).any(-1).sum().astype(rewards.dtype)
    return ratio_or_zero(all_groups, mixed_groups)
