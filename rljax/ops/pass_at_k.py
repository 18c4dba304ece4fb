"""Credit of a response for the best of k: transform a group's rewards so that REINFORCE climbs pass@k or max@k.

Rewards are `[..., P, G]`, the G responses of a prompt on the last axis; `valid` is as in `rljax.ops.group`. All functions are
averages over the subsets of k responses, in closed form: sorting is the only cost. A group with fewer than k valid responses has no
such subset and gets 0 everywhere.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import Mask, Number, check_at_least, check_between, check_nonnegative, in_float32, ratio_or_zero
from rljax.ops.masked import group_members


def _check_k(rewards: Array, *, lowest: int, k: int, spare: int = 0) -> None:
    """Refuse a k below `lowest`, or above the group's size minus `spare`."""
    check_at_least(lowest, k=k)
    largest = rewards.shape[-1] - spare
    if k > largest:
        raise ValueError(f"k must be at most {largest} for groups of {rewards.shape[-1]} responses, got {k}")


def _falling(x: Array, base: Array, steps: int) -> Array:
    """Π_{m < steps} (x - m) / (base - m), with each factor 0 if x - m is negative."""
    product = jnp.ones_like(x)
    for step in range(steps):
        product = ratio_or_zero(product * jnp.maximum(x - step, 0.0), base - step)
    return product


def _share_with(rank: Array, size: Array, k: int) -> Array:
    """C(rank, k-1) / C(size, k): the share of subsets of k in which the response with this rank is the best."""
    return ratio_or_zero(_falling(rank, size, k - 1) * k, size - k + 1)


def _share_with_two(rank: Array, size: Array, k: int) -> Array:
    """C(rank, k-2) / C(size, k): the share of subsets of k that contain a given pair and nothing better than it.

    Besides the pair, `rank` responses are below its better one.
    """
    if k < 2:
        return jnp.zeros_like(rank)
    return ratio_or_zero(_falling(rank, size - 1, k - 2) * k * (k - 1), size * (size - k + 1))


def _ascending(rewards: Array, member: Bool[Array, "..."]) -> tuple[Array, Array, Array, Array]:
    """Rewards in ascending order, with non-members after them as 0; their ranks 0, 1, …; the number of members; the inverse order.

    Coefficients for ranks at or beyond the size are meaningless but finite: they multiply the zeros there, or what is dropped
    at the end. A NaN among the members is sorted last: a sum over the entries above carries it to every member of its group, a sum
    from the lowest entry up only to itself.
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


def _in_place(credit: Array, back: Array, member: Array, size: Array, k: int) -> Array:
    """Restore the order of the responses; 0 for non-members, and in groups of fewer than k."""
    return jnp.where(member & (size >= k), jnp.take_along_axis(credit, back), 0.0)


def _credit(rewards: Array, rank: Array, size: Array, k: int) -> Array:
    """n s_i, in ascending order of the rewards."""
    others = _sum_above(_share_with_two(rank - 1, size, k) * rewards)
    return size * (_share_with(rank, size, k) * rewards + others)


@in_float32
def pass_at_k_credit(rewards: Float[Array, "*P G"], *, k: int, valid: Mask | None = None) -> Float[Array, "*P G"]:
    """A response's share in the best-of-k of its group, without a baseline.

    The paper's gradient estimator is Σ_i s_i ∇ log π(o_i), unbiased for ∇ E[max of k rewards]; the losses here average over the
    n responses, hence the factor n. At k = 1 it is the reward, as in REINFORCE. For rewards of 0 and 1 it is k for a correct
    response, and k times the pass@(k-1) of the others for a wrong one.

    ::

        A_i = n s_i        s_i = (1/C(n, k)) Σ_{|I| = k, i ∈ I} max_{j ∈ I} r_j

    Args:
        rewards: one number per response, `[..., G]`.
        k: size of the subsets, from 1 to G.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them. n counts them.

    Returns:
        `[..., G]`, in the rewards' unit; 0 for a group with fewer than k valid responses.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, `k` below 1 or above G, or `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> print(pass_at_k_credit(jnp.array([1.0, 0.0, 0.0, 0.0]), k=2).round(4))
        [2.     0.6667 0.6667 0.6667]

    Source:
        PKPO, arXiv:2505.15201, Eqs. 19 and 27.
    """
    member = group_members(rewards, valid)
    _check_k(rewards, lowest=1, k=k)
    ordered, rank, size, back = _ascending(rewards, member)
    return _in_place(_credit(ordered, rank, size, k), back, member, size, k)


@in_float32
def pass_at_k_leave_one_out(rewards: Float[Array, "*P G"], *, k: int, valid: Mask | None = None) -> Float[Array, "*P G"]:
    """A response's share in the best-of-k, minus the mean share of the others among themselves.

    The baseline does not depend on o_i, so the gradient stays unbiased, but it is not centered: n responses of reward r all get
    -k r / (n-1). At k = 1 it is r_i - n/(n-1) · (mean of the others); RLOO has no factor n/(n-1).

    ::

        A_i = n (S(i, [n]) - (1/(n-1)) Σ_{j≠i} S(j, [n]∖i))        S(i, N) = (1/C(|N|, k)) Σ_{|I| = k, i ∈ I ⊆ N} max_{j ∈ I} r_j

    Args:
        rewards: one number per response, `[..., G]`.
        k: size of the subsets, from 1 to G - 1.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them. n counts them.

    Returns:
        `[..., G]`, in the rewards' unit; 0 for a group with at most k valid responses.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, `k` below 1 or above G - 1, or `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> print(pass_at_k_leave_one_out(jnp.array([1.0, 0.0, 0.0, 0.0]), k=2).round(4))
        [ 2.     -1.1111 -1.1111 -1.1111]

    Source:
        PKPO, arXiv:2505.15201, Eqs. 28 and 29.
    """
    member = group_members(rewards, valid)
    _check_k(rewards, lowest=1, k=k, spare=1)
    ordered, rank, size, back = _ascending(rewards, member)
    fewer = size - 1
    below = _sum_below(_share_with(rank, fewer, k) * ordered)
    above = _sum_above(_share_with(rank - 1, fewer, k) * ordered)
    baseline = ratio_or_zero(size * k, fewer) * (below + above)
    return _in_place(_credit(ordered, rank, size, k) - baseline, back, member, size, k + 1)


@in_float32
def pass_at_k_marginal(rewards: Float[Array, "*P G"], *, k: int, valid: Mask | None = None) -> Float[Array, "*P G"]:
    """A response's contribution to the best reward of the subsets of k that contain it.

    Of the paper's three estimators, this one has the least variance. It is never negative: a response is worth something only if
    it beats the k - 1 others. Identical rewards get exactly 0.

    ::

        A_i = (n/C(n, k)) Σ_{|I| = k, i ∈ I} (max_{j ∈ I} r_j - max_{j ∈ I∖i} r_j)
            = (n/C(n, k)) Σ_{1 < m ≤ i} C(m-1, k-1) (r_m - r_{m-1})        with r_1 ≤ r_2 ≤ … ≤ r_n

    Args:
        rewards: one number per response, `[..., G]`.
        k: size of the subsets, from 2 to G; for k = 1, which leaves nothing to compare with, see `rljax.ops.group.leave_one_out`.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them. n counts them.

    Returns:
        `[..., G]`, in the rewards' unit, not negative; 0 for a group with fewer than k valid responses.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, `k` below 2 or above G, or `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> print(pass_at_k_marginal(jnp.array([1.0, 1.0, 0.0, 0.0]), k=2).round(4))
        [1.3333 1.3333 0.     0.    ]

    Source:
        PKPO, arXiv:2505.15201, Eq. 33; the second form is its sum over the gaps between sorted rewards,
        all of one sign.
    """
    member = group_members(rewards, valid)
    _check_k(rewards, lowest=2, k=k)
    ordered, rank, size, back = _ascending(rewards, member)
    before = jnp.concatenate([ordered[..., :1], ordered[..., :-1]], -1)
    steps = _share_with(rank, size, k) * (ordered - before)
    return _in_place(size * jax.lax.cumsum(steps, steps.ndim - 1), back, member, size, k)


@in_float32
def pass_at_k_normalized(
    rewards: Float[Array, "*P G"], *, k: int, threshold: Number = 0.0, eps: Number = 1e-6, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Mean z-score of the subsets of k that contain a response; a subset is right if any of its responses is.

    At k = 1 it is the z-score of a two-valued reward with ddof 0, as in GRPO.

    ::

        R̄ = 1 - C(n_wrong, k) / C(n, k)        σ = √(R̄ (1 - R̄))
        A_right = (1 - R̄) / (σ + ε)        A_wrong = (1 - R̄ - C(n_wrong - 1, k-1) / C(n-1, k-1)) / (σ + ε)

    Args:
        rewards: one number per response, `[..., G]`.
        k: size of the subsets, from 1 to G.
        threshold: reward above which a response is right; 0 suits both 1 / -1 and 1 / 0.
        eps: ε, added to the standard deviation, not negative; the paper has none, its authors' code uses 1e-6.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them. n counts them.

    Returns:
        `[..., G]`, dimensionless; 0 if all subsets are right or all are wrong, and for a group with fewer than k valid
        responses.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, `k` below 1 or above G, `threshold` NaN, negative `eps`, or
            `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> print(pass_at_k_normalized(jnp.array([1.0, 0.0, 0.0, 0.0]), k=2, eps=0.0).round(4))
        [ 1.     -0.3333 -0.3333 -0.3333]

    Source:
        Chen et al., arXiv:2508.10751, analytical derivation; its authors' code.
    """
    member = group_members(rewards, valid)
    _check_k(rewards, lowest=1, k=k)
    check_between(-jnp.inf, jnp.inf, threshold=threshold)
    check_nonnegative(eps=eps)
    right = member & (rewards > threshold)
    size = member.sum(-1, keepdims=True).astype(rewards.dtype)
    wrong = size - right.sum(-1, keepdims=True).astype(rewards.dtype)
    all_wrong = _falling(wrong, size, k)
    deviation = jnp.sqrt(all_wrong * (1 - all_wrong))
    signal = deviation.astype(bool) & (size >= k)
    others_all_wrong = _falling(wrong - 1, size - 1, k - 1)
    value = jnp.where(right, all_wrong, all_wrong - others_all_wrong)
    return jnp.where(member & signal, value / (jnp.where(signal, deviation, jnp.ones_like(deviation)) + eps), 0.0)
