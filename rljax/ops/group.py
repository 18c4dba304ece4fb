"""Group-relative advantages: a response is judged against the others of its prompt.

Rewards are `[..., P, G]`, the G responses of a prompt on the last axis. `valid` leaves responses without a verdict out of a
ragged group: they get advantage 0 and weigh on no other; a group with fewer than 2 valid responses gets 0 throughout.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.checks import (
    check_floating,
    check_lengths,
    check_mask,
    check_nonnegative,
    check_positive,
    check_rank,
    check_same_shape,
)
from rljax.ops.masked import Lengths, Mask, Number, group_members, masked_centered, masked_mean, masked_normalized


def group_centered(rewards: Float[Array, "*P G"], *, valid: Mask | None = None) -> Float[Array, "*P G"]:
    """Reward less the mean of its group.

    ::

        A_i = r_i - (1/G) Σ_j r_j

    A group of identical rewards gets exactly 0: what is averaged is the distance to the lowest reward, not the reward.

    Args:
        rewards: one number a response, `[..., G]`.
        valid: responses that have a reward, bool or 0/1, `[..., G]`; all of them when absent.

    Returns:
        `[..., G]`, in the rewards' unit; each group sums to 0.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, or `valid` of another shape.

    Example:
        >>> import jax.numpy as jnp
        >>> group_centered(jnp.array([[1.0, 0.0, 0.0, 0.0]])).tolist()
        [[0.75, -0.25, -0.25, -0.25]]

    Source:
        Dr.GRPO, arXiv:2503.20783, Section 3; MF Eqs. 34-35 and 38.
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
        rewards: one number a response, `[..., G]`.
        eps: ε, added to the standard deviation; not negative. 1e-6 is verl's, 1e-4 TRL's; the paper states none.
        ddof: delta degrees of freedom of the standard deviation, 0 or 1. The paper states none, its followers use 1.
        valid: responses that have a reward, bool or 0/1, `[..., G]`; all of them when absent.

    Returns:
        `[..., G]`, without unit.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, negative `eps`, `ddof` other than 0 or 1, or
            `valid` of another shape.

    Example:
        >>> import jax.numpy as jnp
        >>> group_normalized(jnp.array([[1.0, 0.0, 1.0, 0.0]]), ddof=0, eps=0.0).tolist()
        [[1.0, -1.0, 1.0, -1.0]]

    Source:
        GRPO, arXiv:2402.03300, Section 4.1.2; DAPO, arXiv:2503.14476, Eq. 9.
    """
    return masked_normalized(rewards, group_members(rewards, valid), eps=eps, ddof=ddof)


def leave_one_out(rewards: Float[Array, "*P G"], *, valid: Mask | None = None) -> Float[Array, "*P G"]:
    """Reward less the mean of the others.

    ::

        A_i = r_i - (1/(G-1)) Σ_{j≠i} r_j  =  G/(G-1) (r_i - mean(r))

    Args:
        rewards: one number a response, `[..., G]`.
        valid: responses that have a reward, bool or 0/1, `[..., G]`; all of them when absent.

    Returns:
        `[..., G]`, in the rewards' unit; each group sums to 0.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, or `valid` of another shape.

    Example:
        >>> import jax.numpy as jnp
        >>> leave_one_out(jnp.array([[3.0, 0.0, 0.0]])).tolist()
        [[3.0, -1.5, -1.5]]

    Source:
        RLOO, arXiv:2402.14740, Section 3.2.
    """
    member = group_members(rewards, valid)
    size = member.sum(-1, keepdims=True).astype(rewards.dtype)
    return masked_centered(rewards, member) * (size / jnp.maximum(size - 1, 1))


def weighted_centered(
    rewards: Float[Array, "*P G"], weights: Float[Array, "*P G"], *, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Reward less a weighted mean of its group; with a quality for weight, the quality-weighted baseline.

    ::

        A_i = r_i - Σ_j w_j r_j / Σ_j w_j

    A group of identical rewards gets exactly 0. Here Σ_i w_i A_i = 0, while Σ_i A_i is not 0 in general.

    Args:
        rewards: one number a response, `[..., G]`.
        weights: w, not negative, `[..., G]`; only their proportions within a group matter. `length_quality`,
            `confidence_quality` and `reliability_quality` make such weights.
        valid: responses that have a reward, bool or 0/1, `[..., G]`; all of them when absent.

    Returns:
        `[..., G]`, in the rewards' unit; 0 for a group whose valid weights sum to 0, which has no baseline.

    Raises:
        ValueError: integer or boolean rewards or weights, groups of fewer than 2, a negative weight of a valid response,
            or `weights` or `valid` of another shape.

    Example:
        >>> import jax.numpy as jnp
        >>> weighted_centered(jnp.array([3.0, 0.0, 0.0]), jnp.array([2.0, 1.0, 1.0])).tolist()
        [1.5, -1.5, -1.5]

    Source:
        MF Eqs. 39 and 52, which are one equation; no primary paper.
    """
    member = group_members(rewards, valid)
    check_floating(weights=weights)
    check_same_shape(rewards=rewards, weights=weights)
    used = jnp.where(member, weights, 0.0)
    check_nonnegative(weights=used)
    centered = masked_centered(rewards, member)
    total = used.sum(-1, keepdims=True)
    has_baseline = total > 0
    drift = (used * centered).sum(-1, keepdims=True) / jnp.where(has_baseline, total, 1.0)
    return jnp.where(member & has_baseline, centered - drift, 0.0)


def length_quality(lengths: Lengths) -> Float[Array, "..."]:
    """Quality weight that falls with the length of a response.

    ::

        q_j = 1 / √|y_j|

    Args:
        lengths: |y_j| in tokens, integer or floating point, any shape.

    Returns:
        the shape of `lengths`, in tokens^(-1/2); 0 for a response without tokens.

    Raises:
        ValueError: boolean or negative lengths.

    Example:
        >>> import jax.numpy as jnp
        >>> length_quality(jnp.array([4, 100, 0])).tolist()
        [0.5, 0.10000000149011612, 0.0]

    Source:
        MF Eq. 52, length normalisation.
    """
    check_lengths(lengths=lengths)
    tokens = lengths.astype(jnp.result_type(lengths, float))
    empty = tokens == 0
    return jnp.where(empty, 0.0, 1.0 / jnp.sqrt(jnp.where(empty, 1.0, tokens)))


def confidence_quality(logp: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows"]:
    """Quality weight that is the policy's own confidence in a response, a token.

    The document writes π(y_j|x). A product over a thousand tokens underflows to 0 in every precision, which leaves a
    group without a baseline, and even in exact arithmetic the shortest response would take all the weight. The geometric
    mean over tokens keeps the order by confidence and is free of the length.

    ::

        q_j = π(y_j | x)^{1/|y_j|} = exp( (1/|y_j|) Σ_t log π(y_jt | x, y_j,<t) )

    Args:
        logp: log-probabilities of the policy that sampled, `[..., T]`, nats. They are data: no gradient is stopped here.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[...]`, in (0, 1]; 0 for a response without tokens.

    Raises:
        ValueError: `logp` is not floating point, or the shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> confidence_quality(jnp.log(jnp.array([[0.25, 1.0], [0.5, 0.9]])), jnp.array([[1, 1], [1, 0]])).tolist()
        [0.5, 0.5]

    Source:
        MF Eq. 52, confidence scores, length-normalised as GEPO's authors do (arXiv:2508.17850).
    """
    check_floating(logp=logp)
    check_mask(mask=mask)
    check_same_shape(logp=logp, mask=mask)
    mean = masked_mean(logp, mask)
    return jnp.where(mask.astype(bool).any(-1), jnp.exp(mean), 0.0)


def reliability_quality(scores: Float[Array, "*P G K"], *, floor: Number) -> Float[Array, "*P G"]:
    """Quality weight that trusts a reward as far as repeated scorings of it agree.

    The document asks for confidence(R) and does not define it; this is our reading. Averages of quantities with unequal
    noise have the least variance when each is weighted by its inverse variance.

    ::

        q_j = 1 / (s² + Var_k(R_k(x, y_j)))        Var over K raters, with K - 1 in the denominator

    Args:
        scores: K rewards of the same response, by several raters or several draws of one, `[..., G, K]`, K ≥ 2.
        floor: s², the variance that is left when all K agree, in the rewards' unit squared; positive. A large one makes
            all weights equal, a small one lets a response on which raters agree by chance take the baseline.

    Returns:
        `[..., G]`, in the inverse of the rewards' unit squared, in (0, 1/s²].

    Raises:
        ValueError: integer scores, fewer than 2 a response, or a `floor` that is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> reliability_quality(jnp.array([[1.0, 1.0], [0.0, 2.0]]), floor=0.5).tolist()
        [2.0, 0.4000000059604645]

    Source:
        MF Eq. 52, reward reliability, left undefined there; the weights are those of an inverse-variance mean.
    """
    check_floating(scores=scores)
    check_rank(2, scores=scores)
    if scores.shape[-1] < 2:
        raise ValueError(f"scores must hold at least 2 scorings of a response on its last axis, got {list(scores.shape)}")
    check_positive(floor=floor)
    centered = masked_centered(scores, jnp.ones_like(scores, bool))
    return 1.0 / (floor + jnp.square(centered).sum(-1) / (scores.shape[-1] - 1))


def rank_based(rewards: Float[Array, "*P G"], *, valid: Mask | None = None) -> Float[Array, "*P G"]:
    """Place of a response in the order of its group, ties sharing the mean of their places.

    Unmoved by any increasing transformation of the rewards, and by how far an outlier lies out.

    ::

        A_i = (rank(r_i) - (G + 1)/2) / (G/2)  =  (1/G) Σ_j sign(r_i - r_j)

    Args:
        rewards: one number a response, `[..., G]`.
        valid: responses that have a reward, bool or 0/1, `[..., G]`; all of them when absent.

    Returns:
        `[..., G]`, without unit, in [-(1 - 1/G), 1 - 1/G]; each group sums to 0, identical rewards get exactly 0.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, or `valid` of another shape.

    Example:
        >>> import jax.numpy as jnp
        >>> rank_based(jnp.array([[5.0, 1.0, 1.0, -9.0]])).tolist()
        [[0.75, 0.0, 0.0, -0.75]]

    Source:
        MF Eq. 40, which does not say how ties rank; averaging them is what makes the sum 0.
    """
    member = group_members(rewards, valid)
    pair = member[..., :, None] & member[..., None, :]
    mine, other = rewards[..., :, None], rewards[..., None, :]
    below = (pair & (other < mine)).sum(-1)
    above = (pair & (other > mine)).sum(-1)
    size = jnp.maximum(member.sum(-1, keepdims=True), 1)
    return (below - above).astype(rewards.dtype) / size.astype(rewards.dtype)


def process_normalized(
    step_rewards: Float[Array, "*P G T"], step_end: Mask, *, eps: Number = 1e-6, ddof: int = 1
) -> Float[Array, "*P G T"]:
    """Advantage of a token as the sum of the normalised rewards of the steps that are not over before it.

    ::

        r̃_j = (r_j - mean(R)) / (std(R) + ε)        R = all step rewards of all G responses
        A_it = Σ_{steps j of i : end(j) ≥ t} r̃_ij

    Args:
        step_rewards: reward of a step, at the token where it ends, `[..., G, T]`; anything elsewhere.
        step_end: where steps end, bool or 0/1, `[..., G, T]`. A response may have any number of steps, also none.
        eps: ε, added to the standard deviation; not negative.
        ddof: delta degrees of freedom of the standard deviation, 0 or 1; the paper states none.

    Returns:
        `[..., G, T]`, without unit; 0 after the last step of a response, and throughout a group whose step rewards are
        identical or fewer than 2.

    Raises:
        ValueError: integer rewards, groups of fewer than 2, shapes that differ, negative `eps`, `ddof` not 0 or 1.

    Example:
        >>> import jax.numpy as jnp
        >>> rewards, ends = jnp.array([[0.0, 1.0, 0.0], [0.0, 0.0, 3.0]]), jnp.array([[0, 1, 0], [0, 0, 1]])
        >>> process_normalized(rewards, ends, eps=0.0, ddof=0).tolist()
        [[-1.0, -1.0, 0.0], [1.0, 1.0, 1.0]]

    Source:
        GRPO, arXiv:2402.03300, Section 4.1.3.
    """
    check_floating(step_rewards=step_rewards)
    check_rank(2, step_rewards=step_rewards)
    if step_rewards.shape[-2] < 2:
        shape = list(step_rewards.shape)
        raise ValueError(f"step_rewards must hold groups of at least 2 responses on its second last axis, got {shape}")
    check_mask(step_end=step_end)
    check_same_shape(step_rewards=step_rewards, step_end=step_end)
    rows = (*step_rewards.shape[:-2], -1)
    normalized = masked_normalized(step_rewards.reshape(rows), step_end.reshape(rows), eps=eps, ddof=ddof)
    return jax.lax.cumsum(normalized.reshape(step_rewards.shape), step_rewards.ndim - 1, reverse=True)
