"""Advantages that look past one group: across problem types, across the batch, and mixtures of two estimates.

Unlike a group's, these statistics belong to a whole optimiser batch: compute them once, before it is split.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rljax.ops.checks import (
    check_between,
    check_floating,
    check_integer,
    check_mask,
    check_nonnegative,
    check_one_a_row,
    check_same_shape,
)
from rljax.ops.masked import Mask, Number, group_members, masked_centered, masked_normalized
from rljax.ops.selection import has_mixed_outcomes


def _centered_by_type(
    rewards: Float[Array, "P G"], types: Int[Array, "P"], member: Bool[Array, "P G"]
) -> Float[Array, "P G"]:
    """Reward less the mean of its type, taken from the lowest of the type as `masked_centered` does, so that 0 is exact."""
    same = types[:, None] == types[None, :]
    lowest = jnp.where(member, rewards, jnp.inf).min(-1)
    lowest = jnp.where(same, lowest[None, :], jnp.inf).min(-1, keepdims=True)
    offset = jnp.where(member, rewards - lowest, 0.0)
    size = jnp.where(same, member.sum(-1)[None, :], 0).sum(-1, keepdims=True)
    mean = jnp.where(same, offset.sum(-1)[None, :], 0.0).sum(-1, keepdims=True) / jnp.maximum(size, 1)
    return jnp.where(member & (size > 1), offset - mean, 0.0)


def hierarchical(
    rewards: Float[Array, "*P G"],
    types: Int[Array, "*P"],
    *,
    local_weight: Number = 0.7,
    valid: Mask | None = None,
) -> Float[Array, "*P G"]:
    """Reward against its problem type, mixed with the reward against the whole batch.

    A problem type spans prompts; with a type of its own for every prompt the local part is `group_centered`.

    ::

        A_i = α A_i^local + (1 - α) A_i^global
        A_i^local  = r_i - mean{ r_j : type(j) = type(i) }        A_i^global = r_i - mean{ r_j : all j }

    Args:
        rewards: one number a response, `[..., G]`; the batch is all of them.
        types: problem type of a prompt, `[...]`, any integers.
        local_weight: α, in [0, 1]; 0.7 in the document, whose range is [0.5, 0.9].
        valid: responses that have a reward, bool or 0/1, `[..., G]`; all of them when absent.

    Returns:
        `[..., G]`, in the rewards' unit; sums to 0 over the batch. Each part is exactly 0 where its rewards are identical
        or fewer than 2.

    Raises:
        ValueError: integer rewards, groups of fewer than 2, types that are not integers or not one a prompt, or
            `local_weight` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> rewards = jnp.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
        >>> hierarchical(rewards, jnp.array([7, 7, 3]), local_weight=1.0).tolist()
        [[0.25, 0.25], [0.25, -0.75], [0.0, 0.0]]

    Source:
        MF Eq. 51, with the α of its Table 5; no primary paper. "Similar" is read as "of the same type".
    """
    member = group_members(rewards, valid)
    check_integer(types=types)
    check_one_a_row(rewards=rewards, types=types)
    check_between(0.0, 1.0, local_weight=local_weight)
    flat, counts = rewards.reshape(-1, rewards.shape[-1]), member.reshape(-1, rewards.shape[-1])
    local = _centered_by_type(flat, types.reshape(-1), counts)
    overall = masked_centered(flat.reshape(-1), counts.reshape(-1)).reshape(flat.shape)
    return (local_weight * local + (1 - local_weight) * overall).reshape(rewards.shape)


def batch_normalized(
    advantage: Float[Array, "*rows T"], mask: Mask, *, eps: Number = 1e-8, ddof: int = 0
) -> Float[Array, "*rows T"]:
    """Per-token advantage as a z-score over all tokens of the batch.

    ::

        A'_it = (A_it - μ) / (σ + ε)        μ, σ over all (i, t) with m_it = 1

    Args:
        advantage: any per-token advantage, `[..., T]`.
        mask: response tokens, bool or 0/1, `[..., T]`.
        eps: ε, added to the standard deviation; not negative. REINFORCE++ and Open-Reasoner-Zero state none; their code
            bounds σ² from below by 1e-8 instead, verl adds 1e-8 to it.
        ddof: delta degrees of freedom of the standard deviation, 0 (REINFORCE++, Open-Reasoner-Zero) or 1 (verl).

    Returns:
        `[..., T]`, without unit; 0 outside the mask. A batch of identical advantages, or of one token, gets exactly 0.

    Raises:
        ValueError: shapes that differ, integer advantages, negative `eps`, `ddof` other than 0 or 1.

    Example:
        >>> import jax.numpy as jnp
        >>> batch_normalized(jnp.array([[3.0, 3.0], [1.0, 9.0]]), jnp.array([[1, 0], [1, 0]]), eps=0.0).tolist()
        [[1.0, 0.0], [-1.0, 0.0]]

    Source:
        REINFORCE++, arXiv:2501.03262 (advantage normalisation); Open-Reasoner-Zero, arXiv:2503.24290; MF Eq. 56.
    """
    check_floating(advantage=advantage)
    check_mask(mask=mask)
    check_same_shape(advantage=advantage, mask=mask)
    flat = masked_normalized(advantage.reshape(-1), mask.reshape(-1), eps=eps, ddof=ddof)
    return flat.reshape(advantage.shape)


def batch_normalized_rewards(
    rewards: Float[Array, "..."], *, eps: Number = 1e-8, ddof: int = 0, valid: Mask | None = None
) -> Float[Array, "..."]:
    """Reward of a response as a z-score over all responses of the batch.

    Every response counts once here, where `batch_normalized` counts it once a token. After `group_centered` it is the
    baseline variant of REINFORCE++; alone it also serves one response a prompt.

    ::

        A_i = (r_i - μ) / (σ + ε)        μ, σ over all responses

    Args:
        rewards: one number a response, any shape with at least 2 entries.
        eps: ε, added to the standard deviation; not negative.
        ddof: delta degrees of freedom of the standard deviation, 0 or 1.
        valid: responses that have a reward, bool or 0/1, of the same shape; all of them when absent.

    Returns:
        the shape of `rewards`, without unit; 0 for responses without a reward, and throughout identical rewards.

    Raises:
        ValueError: integer rewards, a batch of fewer than 2, `valid` of another shape, negative `eps`, `ddof` not 0 or 1.

    Example:
        >>> import jax.numpy as jnp
        >>> batch_normalized_rewards(jnp.array([[1.0, 1.0], [3.0, 3.0]]), eps=0.0).tolist()
        [[-1.0, -1.0], [1.0, 1.0]]

    Source:
        REINFORCE++, arXiv:2501.03262; MF Eq. 56.
    """
    check_floating(rewards=rewards)
    flat = rewards.reshape(-1)
    if valid is not None:
        check_mask(valid=valid)
        check_same_shape(rewards=rewards, valid=valid)
    member = group_members(flat, None if valid is None else valid.reshape(-1))
    return masked_normalized(flat, member, eps=eps, ddof=ddof).reshape(rewards.shape)


def gpg_scale(rewards: Float[Array, "*P G"], *, valid: Mask | None = None) -> Float[Array, ""]:
    """Factor that gives a batch back the gradient that its groups without a signal take from the mean.

    ::

        α = B / (B - M)        B groups, of which M are right throughout or wrong throughout

    Args:
        rewards: one number a response, `[..., G]`; the batch is all of them.
        valid: responses that have a reward, bool or 0/1, `[..., G]`; all of them when absent.

    Returns:
        a number, at least 1; 0 when no group has a signal, because every advantage is 0 then and the step is void.

    Raises:
        ValueError: integer rewards, groups of fewer than 2, or `valid` of another shape.

    Example:
        >>> import jax.numpy as jnp
        >>> gpg_scale(jnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])).item()
        2.0

    Source:
        GPG, arXiv:2504.02546 (accurate gradient estimation). As in `has_mixed_outcomes`, "right or wrong throughout" is
        "identical". bsz / count_nonzero(scores), which some code calls by this name, is another quantity.
    """
    mixed = has_mixed_outcomes(rewards, valid=valid)
    kept = mixed.sum().astype(rewards.dtype)
    return jnp.where(kept > 0, mixed.size / jnp.maximum(kept, 1), 0.0)


def mix_advantages(first: Float[Array, "..."], second: Float[Array, "..."], *, weight: Number) -> Float[Array, "..."]:
    """Two estimates of an advantage as one.

    ::

        A = α A_first + (1 - α) A_second

    Args:
        first: for example a critic's, broadcast to one shape with `second` by the caller.
        second: for example a group's.
        weight: α, in [0, 1]; may be traced, such as a schedule's value.

    Returns:
        the shape of `first`.

    Raises:
        ValueError: shapes that differ, integer advantages, or `weight` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> mix_advantages(jnp.array([1.0, 0.0]), jnp.array([0.0, 4.0]), weight=0.75).tolist()
        [0.75, 1.0]

    Source:
        MF Eq. 58 (VAPO first, GRPO second; its Eq. 59 is the schedule of α); no primary paper.
    """
    check_floating(first=first, second=second)
    check_same_shape(first=first, second=second)
    check_between(0.0, 1.0, weight=weight)
    return weight * first + (1 - weight) * second


def with_exploration_bonus(
    advantage: Float[Array, "..."], bonus: Float[Array, "..."], *, beta: Number
) -> Float[Array, "..."]:
    """Advantage plus a bonus for exploring.

    ::

        A = A_GRPO + β · bonus

    Args:
        advantage: any advantage.
        bonus: of the same shape, for example `entropy_bonus`.
        beta: β, not negative, in the advantage's unit a unit of bonus.

    Returns:
        the shape of `advantage`.

    Raises:
        ValueError: shapes that differ, integer arrays, or a negative `beta`.

    Example:
        >>> import jax.numpy as jnp
        >>> with_exploration_bonus(jnp.array([1.0, -1.0]), jnp.array([2.0, 4.0]), beta=0.25).tolist()
        [1.5, 0.0]

    Source:
        MF Algorithm 9, line 6 (DAPO-GRPO hybrid); no primary paper.
    """
    check_floating(advantage=advantage, bonus=bonus)
    check_same_shape(advantage=advantage, bonus=bonus)
    check_nonnegative(beta=beta)
    return advantage + beta * bonus


def entropy_bonus(entropy: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows T"]:
    """How much more uncertain the policy was at a token than at the average token of the batch.

    The document adds an exploration bonus and does not say which; this is our reading. It is centred, because a bonus that
    is positive everywhere makes every sampled token more likely and leaves exploration where it was.

    ::

        bonus_it = H_it - mean{ H_jτ : m_jτ = 1 }        H_it = -Σ_v π(v | s_it) log π(v | s_it)

    Args:
        entropy: H, of the policy that sampled, `[..., T]`, nats. It is data: no gradient is stopped here.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats; sums to 0 over the batch, 0 outside the mask.

    Raises:
        ValueError: shapes that differ, or integer entropies.

    Example:
        >>> import jax.numpy as jnp
        >>> entropy_bonus(jnp.array([[1.0, 2.0], [3.0, jnp.nan]]), jnp.array([[1, 1], [1, 0]])).tolist()
        [[-1.0, 0.0], [1.0, 0.0]]

    Source:
        MF Algorithm 9 leaves `exploration_bonus` undefined; this definition is the project's.
    """
    check_floating(entropy=entropy)
    check_mask(mask=mask)
    check_same_shape(entropy=entropy, mask=mask)
    return masked_centered(entropy.reshape(-1), mask.reshape(-1)).reshape(entropy.shape)
