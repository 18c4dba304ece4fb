"""Credit for the best of k responses: transform a group's rewards so that REINFORCE maximizes pass@k or max@k.

Rewards are `[..., P, G]`: P prompts, each with G responses; `valid` is as in `rljax.ops.group`. All functions average
over the group's subsets of k responses in closed form, never one by one. A group with fewer than k valid responses has no subset
of k and gets 0 everywhere.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import Mask, Number, check_between, check_count, check_nonnegative, in_float32, ratio_or_zero
from rljax.ops.masked import group_members


def _check_k(rewards: Array, *, lowest: int, k: int, spare: int = 0) -> None:
    """Refuse a k below `lowest`, or above the group's size minus `spare`."""
    check_count(lowest, k=k)
    largest = rewards.shape[-1] - spare
    if k > largest:
        raise ValueError(f"k must be at most {largest} for groups of {rewards.shape[-1]} responses, got {k}")


def _falling_ratio(x: Array, base: Array, steps: int) -> Array:
    """Π_{m < steps} (x - m) / (base - m), where a factor with negative x - m is 0."""
    product = jnp.ones_like(x)
    for step in range(steps):
        product = ratio_or_zero(product * jnp.maximum(x - step, 0.0), base - step)
    return product


def _fraction_where_best(rank: Array, size: Array, k: int) -> Array:
    """C(rank, k-1) / C(size, k): the fraction of k-subsets in which the response with this rank is the best."""
    return ratio_or_zero(_falling_ratio(rank, size, k - 1) * k, size - k + 1)


def _fraction_where_pair_best(rank: Array, size: Array, k: int) -> Array:
    """C(rank, k-2) / C(size, k): the fraction of k-subsets that contain a fixed pair and nothing better.

    `rank` is the number of responses below the better one of the pair, not counting the other one.
    """
    if k < 2:
        return jnp.zeros_like(rank)
    return ratio_or_zero(_falling_ratio(rank, size - 1, k - 2) * k * (k - 1), size * (size - k + 1))


def _sort_rewards(rewards: Array, member: Bool[Array, "..."]) -> tuple[Array, Array, Array, Array]:
    """Rewards in ascending order, with non-members last and set to 0; ranks 0, 1, …; the number of members; and the inverse order.

    The weights that callers compute from ranks past the last member are meaningless but finite: they multiply a 0, or a value
    that is dropped at the end. A member's NaN is sorted last, so a sum over the entries above spreads it to every
    member of the group, but a cumulative sum from the lowest entry up keeps it at its own entry.
    """
    order = jnp.argsort(jnp.where(member, rewards, jnp.inf))
    lowest_first = jnp.take_along_axis(jnp.where(member, rewards, 0.0), order)
    rank = jnp.broadcast_to(jnp.arange(rewards.shape[-1], dtype=rewards.dtype), rewards.shape)
    size = jnp.broadcast_to(member.sum(-1, keepdims=True).astype(rewards.dtype), rewards.shape)
    return lowest_first, rank, size, jnp.argsort(order)


def _sum_above(x: Array) -> Array:
    """Sum of the entries after each entry."""
    return jax.lax.cumsum(x, x.ndim - 1, reverse=True) - x


def _sum_below(x: Array) -> Array:
    """Sum of the entries before each entry."""
    return jax.lax.cumsum(x, x.ndim - 1) - x


def _restore_order(credit: Array, inverse: Array, member: Array, size: Array, k: int) -> Array:
    """Restore the responses' original order; 0 for non-members, and in groups with fewer than k members."""
    return jnp.where(member & (size >= k), jnp.take_along_axis(credit, inverse), 0.0)


def _credit(rewards: Array, rank: Array, size: Array, k: int) -> Array:
    """n s_i as in `pass_at_k_credit`, in ascending order of the rewards."""
    others = _sum_above(_fraction_where_pair_best(rank - 1, size, k) * rewards)
    return size * (_fraction_where_best(rank, size, k) * rewards + others)


@in_float32
def pass_at_k_credit(rewards: Float[Array, "*P G"], *, k: int, valid: Mask | None = None) -> Float[Array, "*P G"]:
    """k times the mean best reward of the k-subsets that contain the response, without a baseline.

    The paper's gradient estimator, Σ_i s_i ∇ log π(o_i), is unbiased for ∇ E[max of k rewards]. The losses here average over
    the n responses, hence the factor n. At k = 1 the credit is the reward, as in REINFORCE. For rewards of 0 and 1, a correct
    response gets k, and a wrong one gets k times the pass@(k-1) of the other responses.

    ::

        A_i = n s_i        s_i = (1/C(n, k)) Σ_{|I| = k, i ∈ I} max_{j ∈ I} r_j

    Args:
        rewards: one number per response, `[..., G]`.
        k: size of the subsets, from 1 to G.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them. n is their number.

    Returns:
        `[..., G]`, in the rewards' unit; 0 for a group with fewer than k valid responses.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, `k` outside [1, G], or `valid` of a different
            shape.

    Example:
        >>> import jax.numpy as jnp
        >>> print(pass_at_k_credit(jnp.array([1.0, 0.0, 0.0, 0.0]), k=2).round(4))
        [2.     0.6667 0.6667 0.6667]

    Source:
        PKPO, arXiv:2505.15201, Eqs. 19 and 27.
    """
    member = group_members(rewards, valid)
    _check_k(rewards, lowest=1, k=k)
    ordered, rank, size, inverse = _sort_rewards(rewards, member)
    return _restore_order(_credit(ordered, rank, size, k), inverse, member, size, k)


@in_float32
def pass_at_k_leave_one_out(rewards: Float[Array, "*P G"], *, k: int, valid: Mask | None = None) -> Float[Array, "*P G"]:
    """`pass_at_k_credit`, minus the mean credit that the other responses would have without this one.

    The baseline does not depend on o_i, so the gradient stays unbiased, but the result is not centered: n responses with the same
    reward r all get -k r / (n-1). At k = 1 the result is r_i - n/(n-1) · (mean of the others); RLOO has no factor n/(n-1).

    ::

        A_i = n (S(i, [n]) - (1/(n-1)) Σ_{j≠i} S(j, [n]∖i))        S(i, N) = (1/C(|N|, k)) Σ_{|I| = k, i ∈ I ⊆ N} max_{j ∈ I} r_j

    Args:
        rewards: one number per response, `[..., G]`.
        k: size of the subsets, from 1 to G - 1.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them. n is their number.

    Returns:
        `[..., G]`, in the rewards' unit; 0 for a group with at most k valid responses.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, `k` outside [1, G - 1], or `valid` of a
            different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> print(pass_at_k_leave_one_out(jnp.array([1.0, 0.0, 0.0, 0.0]), k=2).round(4))
        [ 2.     -1.1111 -1.1111 -1.1111]

    Source:
        PKPO, arXiv:2505.15201, Eqs. 28 and 29.
    """
    member = group_members(rewards, valid)
    _check_k(rewards, lowest=1, k=k, spare=1)
    ordered, rank, size, inverse = _sort_rewards(rewards, member)
    others = size - 1
    below = _sum_below(_fraction_where_best(rank, others, k) * ordered)
    above = _sum_above(_fraction_where_best(rank - 1, others, k) * ordered)
    baseline = ratio_or_zero(size * k, others) * (below + above)
    return _restore_order(_credit(ordered, rank, size, k) - baseline, inverse, member, size, k + 1)


@in_float32
def pass_at_k_marginal(rewards: Float[Array, "*P G"], *, k: int, valid: Mask | None = None) -> Float[Array, "*P G"]:
    """How much a response raises the best reward of the k-subsets that contain it.

    Of the paper's three estimators, this one has the least variance. The credit is never negative, and it is positive only if the
    response beats all others in some subset. If all rewards of a group are identical, every response gets exactly 0.

    ::

        A_i = (n/C(n, k)) Σ_{|I| = k, i ∈ I} (max_{j ∈ I} r_j - max_{j ∈ I∖i} r_j)
            = (n/C(n, k)) Σ_{1 < m ≤ i} C(m-1, k-1) (r_m - r_{m-1})        with r_1 ≤ r_2 ≤ … ≤ r_n

    Args:
        rewards: one number per response, `[..., G]`.
        k: size of the subsets, from 2 to G; a subset of 1 compares nothing, so for k = 1 use `rljax.ops.group.leave_one_out`.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them. n is their number.

    Returns:
        `[..., G]`, nonnegative, in the rewards' unit; 0 for a group with fewer than k valid responses.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, `k` outside [2, G], or `valid` of a different
            shape.

    Example:
        >>> import jax.numpy as jnp
        >>> print(pass_at_k_marginal(jnp.array([1.0, 1.0, 0.0, 0.0]), k=2).round(4))
        [1.3333 1.3333 0.     0.    ]

    Source:
        PKPO, arXiv:2505.15201, Eq. 33; the second form rewrites it as a sum over the gaps between sorted rewards,
        none of which is negative.
    """
    member = group_members(rewards, valid)
    _check_k(rewards, lowest=2, k=k)
    ordered, rank, size, inverse = _sort_rewards(rewards, member)
    before = jnp.concatenate([ordered[..., :1], ordered[..., :-1]], -1)
    steps = _fraction_where_best(rank, size, k) * (ordered - before)
    return _restore_order(size * jax.lax.cumsum(steps, steps.ndim - 1), inverse, member, size, k)


@in_float32
def pass_at_k_normalized(
    rewards: Float[Array, "*P G"], *, k: int, threshold: Number = 0.0, eps: Number = 1e-6, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Mean z-score of the k-subsets that contain the response, where a subset is right if any of its responses is.

    At k = 1 this is the z-score of a binary reward with ddof 0, as in GRPO.

    ::

        R̄ = 1 - C(n_wrong, k) / C(n, k)        σ = √(R̄ (1 - R̄))
        A_right = (1 - R̄) / (σ + ε)        A_wrong = (1 - R̄ - C(n_wrong - 1, k-1) / C(n-1, k-1)) / (σ + ε)

    Args:
        rewards: one number per response, `[..., G]`.
        k: size of the subsets, from 1 to G.
        threshold: reward above which a response is right; 0 suits both 1 / -1 and 1 / 0.
        eps: ε, added to the standard deviation, not negative; 0 in the paper, 1e-6 in its authors' code.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them. n is their number.

    Returns:
        `[..., G]`, dimensionless; 0 if all subsets are right or all are wrong, and for a group with fewer than k valid
        responses.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, `k` outside [1, G], `threshold` NaN, negative
            `eps`, or `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> print(pass_at_k_normalized(jnp.array([1.0, 0.0, 0.0, 0.0]), k=2, eps=0.0).round(4))
        [ 1.     -0.3333 -0.3333 -0.3333]

    Source:
        Chen et al., arXiv:2508.10751, analytical derivation, and its authors' code.
    """
    member = group_members(rewards, valid)
    _check_k(rewards, lowest=1, k=k)
    check_between(-jnp.inf, jnp.inf, threshold=threshold)
    check_nonnegative(eps=eps)
    right = member & (rewards > threshold)
    size = member.sum(-1, keepdims=True).astype(rewards.dtype)
    wrong = size - right.sum(-1, keepdims=True).astype(rewards.dtype)
    all_wrong = _falling_ratio(wrong, size, k)
    deviation = jnp.sqrt(all_wrong * (1 - all_wrong))
    signal = deviation.astype(bool) & (size >= k)
    others_all_wrong = _falling_ratio(wrong - 1, size - 1, k - 1)
    value = jnp.where(right, all_wrong, all_wrong - others_all_wrong)
    return jnp.where(member & signal, value / (jnp.where(signal, deviation, jnp.ones_like(deviation)) + eps), 0.0)
