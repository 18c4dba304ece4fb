"""Advantages relative to minimum-variance baselines, to the reward of a greedy response, or to a soft value.

Rewards are `[..., P, G]`, with a prompt's G responses on the last axis. Per-token arrays are `[..., P, G, T]`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import (
    Lengths,
    Mask,
    Number,
    as_float,
    check_floating,
    check_group,
    check_lengths,
    check_mask,
    check_one_per_row,
    check_positive,
    check_same_shape,
    in_float32,
    log_mean_exp,
    ratio_or_zero,
)
from rljax.ops.masked import group_members, masked_centered, zero_outside


@in_float32
def length_weighted_centered(
    rewards: Float[Array, "*P G"], lengths: Lengths, *, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Reward minus the length-weighted mean of its group.

    The minimum-variance baseline is E[‖∇ log π‖² r] / E[‖∇ log π‖²]. If the tokens' gradients are orthogonal and of similar size,
    ‖∇ log π(o_i)‖² is proportional to |o_i|, as in A_i below. Then Σ_i |o_i| A_i = 0. A group of identical rewards gets exactly 0.

    ::

        A_i = r_i - Σ_j |o_j| r_j / Σ_j |o_j|

    Args:
        rewards: one number per response, `[..., G]`.
        lengths: |o_j| in tokens, `[..., G]`.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, in the rewards' unit; 0 for a group without tokens.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, negative lengths, or `lengths` or `valid` of a
            different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> length_weighted_centered(jnp.array([1.0, 0.0]), jnp.array([30, 10])).tolist()
        [0.25, -0.75]

    Source:
        OPO, arXiv:2505.23585 (optimal reward baseline).
    """
    member = group_members(rewards, valid)
    check_lengths(lengths=lengths)
    check_same_shape(rewards=rewards, lengths=lengths)
    weights = jnp.where(member, as_float(lengths).astype(rewards.dtype), 0.0)
    centered = masked_centered(rewards, member)
    total = weights.sum(-1, keepdims=True)
    weighted_mean = ratio_or_zero((weights * centered).sum(-1, keepdims=True), total)
    return jnp.where(member & weights.any(-1, keepdims=True), centered - weighted_mean, 0.0)


def length_weighted_returns(token_rewards: Float[Array, "*P G T"], mask: Mask) -> Float[Array, "*P G T"]:
    """Total reward of each response, centered by `length_weighted_centered` and repeated at each of the response's tokens.

    ::

        A_it = R_i - Σ_j |o_j| R_j / Σ_j |o_j|        R_i = Σ_t r_it

    Args:
        token_rewards: reward of each token, usually 0 except at the last one, `[..., G, T]`.
        mask: response tokens, bool or 0/1, `[..., G, T]`. A response without tokens is excluded.

    Returns:
        `[..., G, T]`, in the rewards' unit; 0 outside the mask.

    Raises:
        ValueError: mismatched shapes, integer rewards, or groups of fewer than 2 responses on the second-to-last axis.

    Example:
        >>> import jax.numpy as jnp
        >>> rewards, mask = jnp.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]), jnp.array([[1, 1, 1], [1, 0, 0]])
        >>> length_weighted_returns(rewards, mask).tolist()
        [[0.25, 0.25, 0.25], [-0.75, 0.0, 0.0]]

    Source:
        OPO, arXiv:2505.23585 (optimal reward baseline).
    """
    check_floating(token_rewards=token_rewards)
    check_mask(mask=mask)
    check_same_shape(token_rewards=token_rewards, mask=mask)
    in_mask = mask.astype(bool)
    check_group(token_rewards=in_mask.any(-1))
    advantage = length_weighted_centered(zero_outside(token_rewards, mask).sum(-1), in_mask.sum(-1), valid=in_mask.any(-1))
    return jnp.where(in_mask, advantage[..., None], 0.0)


@in_float32
def greedy_centered(rewards: Float[Array, "*P G"], greedy_reward: Float[Array, "*P"]) -> Float[Array, "*P G"]:
    """Reward minus the reward of the prompt's greedy response.

    The greedy response is generated in addition to the sampled ones and is not trained on. One sampled response per
    prompt is enough.

    ::

        A_i = r_i - r(greedy)        greedy_t = argmax π(· | q, greedy_<t)

    Args:
        rewards: one number per sampled response, `[..., G]`.
        greedy_reward: reward of the greedy response of each prompt, `[...]`, in the rewards' unit.

    Returns:
        `[..., G]`, in the rewards' unit.

    Raises:
        ValueError: integer or boolean rewards, or not exactly one greedy reward per prompt.

    Example:
        >>> import jax.numpy as jnp
        >>> greedy_centered(jnp.array([[1.0, 0.0]]), jnp.array([0.5])).tolist()
        [[0.5, -0.5]]

    Source:
        ReMax, arXiv:2310.10505.
    """
    check_floating(rewards=rewards, greedy_reward=greedy_reward)
    check_one_per_row(rewards=rewards, greedy_reward=greedy_reward)
    return rewards - greedy_reward[..., None]


def optimal_token_baseline(
    returns: Float[Array, "*P G T"],
    logp: Float[Array, "*P G T"],
    square_sum: Float[Array, "*P G T"],
    mask: Mask,
    *,
    importance: Float[Array, "*P G T"] | None = None,
) -> Float[Array, "*P G T"]:
    """The return minus a per-position baseline: the group's mean return, weighted by the gradient energy up to that position.

    The energy (squared norm) of a token's gradient is approximated by ‖∂ log π(o_t) / ∂ logits‖² = 1 - 2 π(o_t) + Σ_v π(v)², so
    responses with uncertain tokens have more weight. If only one response reaches a position, its advantage there is 0. If `logp`
    and `square_sum` come from different distributions, this formula can be negative; 0 is then used instead, so that the
    baseline stays between the smallest and the largest return.

    ::

        A_it = G_it - Σ_j W_jt G_jt / Σ_j W_jt        W_it = Σ_{τ ≤ t} ρ_iτ² (1 - 2 π(o_iτ) + Σ_v π(v | o_i,<τ)²)

    Args:
        returns: G_it, the sum of the rewards from t on, `[..., G, T]`.
        logp: log π(o_it), `[..., G, T]`, nats.
        square_sum: Σ_v π(v)² of the distribution that the token was sampled from, `[..., G, T]`, in (0, 1].
        mask: response tokens, bool or 0/1, `[..., G, T]`. A position is an index among these tokens.
        importance: ρ, the importance weight that multiplies each token's gradient, `[..., G, T]`; None: 1 everywhere. Multiplying a
            gradient by ρ multiplies its energy by ρ².

    Returns:
        `[..., G, T]`, in the rewards' unit; 0 outside the mask. If every token up to a position was certain, all energies
        are 0 and so is the baseline.

    Raises:
        ValueError: mismatched shapes, integer arrays, or groups of fewer than 2 responses on the second-to-last axis.

    Example:
        >>> import jax.numpy as jnp
        >>> half = jnp.full((2, 1), 0.5)
        >>> optimal_token_baseline(jnp.array([[1.0], [0.0]]), jnp.log(half), half, jnp.ones((2, 1))).tolist()
        [[0.5], [-0.5]]

    Source:
        Li et al., arXiv:2602.07078 (optimal token baseline, logit-gradient proxy), as in verl, which uses its
        rollout-correction weights as ρ.
    """
    check_floating(returns=returns, logp=logp, square_sum=square_sum)
    check_mask(mask=mask)
    check_same_shape(returns=returns, logp=logp, square_sum=square_sum, mask=mask)
    in_mask = mask.astype(bool)
    check_group(returns=in_mask.any(-1))
    if importance is not None:
        check_floating(importance=importance)
        check_same_shape(returns=returns, importance=importance)
    norm = 1 - 2 * jnp.exp(zero_outside(logp, mask)) + zero_outside(square_sum, mask)
    # The norm is -1 outside the mask, and can be negative if `logp` and `square_sum` are from different passes.
    energy = jnp.maximum(norm, 0.0)
    if importance is not None:
        energy = energy * jnp.square(zero_outside(importance, mask))
    weight = jnp.where(in_mask, jax.lax.cumsum(energy, energy.ndim - 1), 0.0)
    clean = zero_outside(returns, mask)
    order = jnp.argsort(~in_mask)  # tokens first, so that slot t contains token t of every response
    weight, by_position = (jnp.take_along_axis(x, order) for x in (weight, clean))
    baseline = ratio_or_zero((weight * by_position).sum(-2, keepdims=True), weight.sum(-2, keepdims=True))
    baseline_by_slot = jnp.take_along_axis(jnp.broadcast_to(baseline, clean.shape), jnp.argsort(order))
    return jnp.where(in_mask, clean - baseline_by_slot, 0.0)


@in_float32
def soft_centered(rewards: Float[Array, "*P G"], *, beta: Number, valid: Mask | None = None) -> Float[Array, "*P G"]:
    """Reward minus the soft value of its group: the maximum, over policies, of the expected reward minus β times the KL.

    ::

        A_i = r_i - β log((1/G) Σ_j exp(r_j / β))

    For large β the value approaches the group's mean; for small β, the largest reward, so that few advantages are positive.

    Args:
        rewards: one number per response, `[..., G]`.
        beta: β, weight of the KL penalty to the policy that sampled the group, reward per nat, positive.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, in the rewards' unit; its mean over a group is not positive. A group of identical rewards gets exactly 0.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, `valid` of a different shape, or β not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(number, 3) for number in soft_centered(jnp.array([1.0, 0.0]), beta=0.5).tolist()]
        [0.283, -0.717]

    Source:
        Kimi k1.5, arXiv:2501.12599, Section 2.3.2, the estimate of τ log Z; the optimal value of A*-PO, arXiv:2505.20686, which
        estimates it from 8 responses of the reference policy with β = 0.5.
    """
    check_positive(beta=beta)
    member = group_members(rewards, valid)
    centered = masked_centered(rewards, member)
    count = jnp.maximum(member.sum(-1, keepdims=True), 1).astype(rewards.dtype)
    value_above_mean = beta * log_mean_exp(centered / beta, jnp.where(member, -jnp.log(count), -jnp.inf))
    return jnp.where(member, centered - value_above_mean[..., None], 0.0)
