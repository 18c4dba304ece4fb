"""Group-relative advantages: a response is compared with the other responses to its prompt.

Rewards are `[..., P, G]`, with a prompt's G responses on the last axis. `valid` excludes responses without a reward from a
ragged group: they get advantage 0 and do not affect the others. In a group with fewer than 2 valid responses, all get 0.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import (
    Mask,
    Number,
    check_between,
    check_nonnegative,
    check_steps,
    in_float32,
)
from rljax.ops.discounted_sums import discounted_sums
from rljax.ops.masked import group_members, masked_centered, masked_mean, masked_normalized


def group_centered(rewards: Float[Array, "*P G"], *, valid: Mask | None = None) -> Float[Array, "*P G"]:
    """Reward minus the mean of its group.

    ::

        A_i = r_i - (1/G) Σ_j r_j

    A group of identical rewards gets exactly 0, because the mean is computed on the differences from the lowest reward.

    Args:
        rewards: one number per response, `[..., G]`.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, in the rewards' unit; each group sums to 0.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, or `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> group_centered(jnp.array([[1.0, 0.0, 0.0, 0.0]])).tolist()
        [[0.75, -0.25, -0.25, -0.25]]

    Source:
        Dr.GRPO, arXiv:2503.20783, Section 3; Eqs. 34-35 and 38 of the design document.
    """
    return masked_centered(rewards, group_members(rewards, valid))


def group_normalized(
    rewards: Float[Array, "*P G"], *, eps: Number = 1e-6, ddof: int = 1, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Reward as a z-score within its group.

    ::

        A_i = (r_i - mean(r)) / (std(r) + ε)        std² = Σ_j (r_j - mean(r))² / (G - ddof)

    A group of identical rewards gets exactly 0, whatever ε.

    Args:
        rewards: one number per response, `[..., G]`.
        eps: ε, added to the standard deviation; not negative. verl uses 1e-6, TRL 1e-4; the paper states no value.
        ddof: delta degrees of freedom of the standard deviation, 0 or 1. The paper states no value; implementations use 1.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, dimensionless.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, negative `eps`, `ddof` other than 0 or 1, or
            `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> group_normalized(jnp.array([[1.0, 0.0, 1.0, 0.0]]), ddof=0, eps=0.0).tolist()
        [[1.0, -1.0, 1.0, -1.0]]

    Source:
        GRPO, arXiv:2402.03300, Section 4.1.2; DAPO, arXiv:2503.14476, Eq. 9.
    """
    return masked_normalized(rewards, group_members(rewards, valid), eps=eps, ddof=ddof)


@in_float32
def leave_one_out(rewards: Float[Array, "*P G"], *, valid: Mask | None = None) -> Float[Array, "*P G"]:
    """Reward minus the mean reward of the other responses in its group.

    ::

        A_i = r_i - (1/(G-1)) Σ_{j≠i} r_j  =  G/(G-1) (r_i - mean(r))

    Args:
        rewards: one number per response, `[..., G]`.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, in the rewards' unit; each group sums to 0.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, or `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> leave_one_out(jnp.array([[3.0, 0.0, 0.0]])).tolist()
        [[3.0, -1.5, -1.5]]

    Source:
        RLOO, arXiv:2402.14740, Section 2.3.
    """
    member = group_members(rewards, valid)
    size = member.sum(-1, keepdims=True).astype(rewards.dtype)
    return masked_centered(rewards, member) * (size / jnp.maximum(size - 1, 1))


@in_float32
def mean_normalized(rewards: Float[Array, "*P G"], *, eps: Number = 0.0, valid: Mask | None = None) -> Float[Array, "*P G"]:
    """Reward minus the mean of its group, divided by that mean; a prompt's weight is inversely proportional to its pass rate.

    For rewards of 0 and 1, REINFORCE with this advantage approximately maximizes log p(correct) instead of p(correct): its
    expectation is the gradient of Σ_{k<G} pass@k / k, the first terms of the infinite series for log p, up to a constant. (Without
    the baseline, the sum would include k = G. The baseline loses that term, because a group without a correct response gets
    advantage 0 instead of -1.)

    ::

        A_i = (r_i - mean(r)) / (mean(r) + ε)

    A group of identical rewards gets exactly 0.

    Args:
        rewards: one number per response, not negative, `[..., G]`.
        eps: ε, not negative; 0 in the paper, 1e-6 in its authors' code.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, dimensionless; each group sums to 0. 0 for a group whose mean is not positive.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, negative `eps`, or `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> mean_normalized(jnp.array([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])).tolist()
        [[3.0, -1.0, -1.0, -1.0], [1.0, 1.0, -1.0, -1.0]]

    Source:
        MaxRL, arXiv:2602.02710, and its authors' code.
    """
    check_nonnegative(eps=eps)
    member = group_members(rewards, valid)
    mean = masked_mean(rewards, member)[..., None]
    positive = mean > 0
    return jnp.where(
        positive, masked_centered(rewards, member) / (jnp.where(positive, mean, jnp.ones_like(mean)) + eps), 0.0
    )


def process_normalized(
    step_rewards: Float[Array, "*P G T"], step_end: Mask, *, eps: Number = 1e-6, ddof: int = 1
) -> Float[Array, "*P G T"]:
    """Advantage of a token: the sum of the normalized rewards of all steps that end at this token or later.

    ::

        r̃_j = (r_j - mean(R)) / (std(R) + ε)        R = all step rewards of all G responses
        A_it = Σ_{steps j of i : end(j) ≥ t} r̃_ij

    Args:
        step_rewards: reward of each step, at the token where the step ends, `[..., G, T]`; other slots may contain anything.
        step_end: tokens at which steps end, bool or 0/1, `[..., G, T]`. A response may have any number of steps, even none.
        eps: ε, added to the standard deviation; not negative.
        ddof: delta degrees of freedom of the standard deviation, 0 or 1; the paper states no value.

    Returns:
        `[..., G, T]`, dimensionless; 0 after the last step of a response, and everywhere in a group whose step rewards are
        identical or fewer than 2.

    Raises:
        ValueError: integer rewards, groups of fewer than 2 responses, mismatched shapes, negative `eps`, `ddof` not 0 or 1.

    Example:
        >>> import jax.numpy as jnp
        >>> rewards, ends = jnp.array([[0.0, 1.0, 0.0], [0.0, 0.0, 3.0]]), jnp.array([[0, 1, 0], [0, 0, 1]])
        >>> process_normalized(rewards, ends, eps=0.0, ddof=0).tolist()
        [[-1.0, -1.0, 0.0], [1.0, 1.0, 1.0]]

    Source:
        GRPO, arXiv:2402.03300, Section 4.1.3.
    """
    check_steps(step_rewards, step_end)
    rows = (*step_rewards.shape[:-2], -1)
    normalized = masked_normalized(step_rewards.reshape(rows), step_end.reshape(rows), eps=eps, ddof=ddof)
    return jax.lax.cumsum(normalized.reshape(step_rewards.shape), step_rewards.ndim - 1, reverse=True)


@in_float32
def turn_normalized(
    step_rewards: Float[Array, "*P G T"],
    step_end: Mask,
    *,
    discount: Number = 1.0,
    eps: Number = 1e-6,
    ddof: int = 1,
) -> Float[Array, "*P G T"]:
    """Advantage of a turn: the discounted sum of rewards from this turn on, each normalized over the turns with its index.

    ::

        r̃_ij = (r_ij - mean_i r_ij) / (std_i r_ij + ε)        over the responses i that have a turn j
        A_it = Σ_{j ≥ k} λ^{j-k} r̃_ij                          k = turn of token t

    With two turns these are A_1 = r̃_1 + λ r̃_2 and A_2 = r̃_2, where r̃_2 is the normalized reward of the outcome.

    Args:
        step_rewards: reward of each turn, at the token where the turn ends, `[..., G, T]`; other slots may contain anything.
        step_end: tokens at which turns end, bool or 0/1, `[..., G, T]`. A response may have any number of turns, even none.
        discount: λ in [0, 1], weight of the next turn's advantage.
        eps: ε, added to the standard deviation; not negative.
        ddof: delta degrees of freedom of the standard deviation, 0 or 1; the paper states no value.

    Returns:
        `[..., G, T]`, dimensionless; 0 after the last turn of a response. A turn j that only one response has, or whose rewards
        are identical, contributes 0.

    Raises:
        ValueError: integer rewards, groups of fewer than 2 responses, mismatched shapes, `discount` outside [0, 1], negative `eps`,
            `ddof` not 0 or 1.

    Example:
        >>> import jax.numpy as jnp
        >>> rewards, ends = jnp.array([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0]]), jnp.array([[1, 1, 0], [1, 0, 1]])
        >>> turn_normalized(rewards, ends, discount=0.5, eps=0.0, ddof=0).tolist()
        [[-0.5, 1.0, 0.0], [0.5, -1.0, -1.0]]

    Source:
        MT-GRPO, arXiv:2505.11821, Section 4, for two turns.
    """
    check_steps(step_rewards, step_end)
    check_between(0, 1, discount=discount)
    end, length = step_end.astype(bool), step_rewards.shape[-1]
    turns_ended = jnp.cumsum(end, axis=-1)
    slot = jnp.where(end, turns_ended - 1, length)
    turns = jnp.put_along_axis(jnp.zeros_like(step_rewards), slot, step_rewards, -1, inplace=False, mode="drop")
    has_turn = jax.lax.broadcasted_iota(int, end.shape, end.ndim - 1) < turns_ended[..., -1:]
    normalized = masked_normalized(turns.swapaxes(-1, -2), has_turn.swapaxes(-1, -2), eps=eps, ddof=ddof)
    sums: Array = jax.jit(discounted_sums)(normalized.swapaxes(-1, -2), jnp.asarray(discount, step_rewards.dtype))  # pyright: ignore[reportUnknownVariableType]
    turn = turns_ended - end.astype(turns_ended.dtype)
    advantage = jnp.take_along_axis(sums, jnp.minimum(turn, length - 1), -1)
    return jnp.where(turn < turns_ended[..., -1:], advantage, 0.0)
