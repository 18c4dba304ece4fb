"""Group baselines other than the plain mean: a quality-weighted mean, ranks, and means per problem type.

Rewards are `[..., P, G]`, the G responses of a prompt on the last axis; `valid` is as in `rljax.ops.group`.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rljax.ops.arrays import (
    Lengths,
    Mask,
    Number,
    as_float,
    check_between,
    check_floating,
    check_integer,
    check_lengths,
    check_mask,
    check_nonnegative,
    check_one_per_row,
    check_positive,
    check_rank,
    check_same_shape,
    in_float32,
    ratio_or_zero,
)
from rljax.ops.masked import group_members, masked_centered, masked_mean


@in_float32
def weighted_centered(
    rewards: Float[Array, "*P G"], weights: Float[Array, "*P G"], *, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Reward minus a weighted mean of its group.

    ::

        A_i = r_i - Σ_j w_j r_j / Σ_j w_j

    A group of identical rewards gets exactly 0. Within a group Σ_i w_i A_i = 0, but in general Σ_i A_i is not 0.

    Args:
        rewards: one number per response, `[..., G]`.
        weights: w, not negative, `[..., G]`; only their proportions within a group matter. `length_quality`,
            `confidence_quality` and `reliability_quality` compute such weights.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, in the rewards' unit; 0 in a group whose valid weights sum to 0, because such a group has no baseline.

    Raises:
        ValueError: integer or boolean rewards or weights, groups of fewer than 2 responses, a negative weight of a valid response,
            or `weights` or `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> weighted_centered(jnp.array([3.0, 0.0, 0.0]), jnp.array([2.0, 1.0, 1.0])).tolist()
        [1.5, -1.5, -1.5]

    Source:
        unpublished: a design document (not a paper), Eqs. 39 and 52, which are the same equation. Published
        alternative: `leave_one_out` of `rljax.ops.group`, and `rljax.ops.baseline.length_weighted_centered`, whose
        weights are lengths.
    """
    member = group_members(rewards, valid)
    check_floating(weights=weights)
    check_same_shape(rewards=rewards, weights=weights)
    used = jnp.where(member, weights, 0.0)
    check_nonnegative(weights=used)
    centered = masked_centered(rewards, member)
    shift = ratio_or_zero((used * centered).sum(-1, keepdims=True), used.sum(-1, keepdims=True))
    return jnp.where(member & used.any(-1, keepdims=True), centered - shift, 0.0)


@in_float32
def length_quality(lengths: Lengths) -> Float[Array, "..."]:
    """Quality weight that decreases with a response's length.

    ::

        q_j = 1 / √|y_j|

    Args:
        lengths: |y_j| in tokens, integer or floating point, any shape.

    Returns:
        The weights, in the shape of `lengths`, in tokens^(-1/2); 0 for a response without tokens.

    Raises:
        ValueError: boolean or negative lengths.

    Example:
        >>> import jax.numpy as jnp
        >>> length_quality(jnp.array([4, 100, 0])).tolist()
        [0.5, 0.10000000149011612, 0.0]

    Source:
        unpublished: a design document (not a paper), Eq. 52, length normalization. Published alternative:
        `rljax.ops.baseline.length_weighted_centered`, whose weight is the length itself, not its inverse root.
    """
    check_lengths(lengths=lengths)
    tokens = as_float(lengths)
    counted = tokens.astype(bool)
    return jnp.where(counted, 1.0 / jnp.sqrt(jnp.where(counted, tokens, jnp.ones_like(tokens))), 0.0)


def confidence_quality(logp: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows"]:
    """Quality weight: the policy's probability of a response, as a geometric mean over its tokens.

    The document writes π(y_j|x). A product over a thousand tokens underflows to 0 in every precision, which leaves a
    group without a baseline; even in exact arithmetic, the shortest response would take almost all the weight. The geometric
    mean over tokens still measures confidence, and it does not depend on length.

    ::

        q_j = π(y_j | x)^{1/|y_j|} = exp( (1/|y_j|) Σ_t log π(y_jt | x, y_j,<t) )

    Args:
        logp: log-probabilities of the sampling policy, `[..., T]`, nats. Apply `stop_gradient` to them first; this
            function does not.
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
        unpublished: a design document (not a paper), Eq. 52, "confidence scores", with the length normalization
        of GEPO (arXiv:2508.17850). Published alternative: the weights of
        `rljax.ops.ratio.group_expectation_log_denominator`.
    """
    check_floating(logp=logp)
    check_mask(mask=mask)
    check_same_shape(logp=logp, mask=mask)
    mean = masked_mean(logp, mask)
    return jnp.where(mask.astype(bool).any(-1), jnp.exp(mean), 0.0)


@in_float32
def reliability_quality(
    scores: Float[Array, "*P G K"], *, floor: Number, valid: Mask | None = None
) -> Float[Array, "*P G"]:
    """Quality weight: the inverse variance of repeated scores of a response.

    The document uses confidence(R) without defining it; this is our interpretation. An average of quantities
    with unequal noise has the least variance if each quantity is weighted by its inverse variance.

    ::

        q_j = 1 / (s² + Var_k(R_k(x, y_j)))        Var over K raters, with K - 1 in the denominator

    Args:
        scores: K rewards of the same response, from several raters or from several samples of one rater, `[..., G, K]`, K ≥ 2.
        floor: s², the variance that remains if all K scores agree, in the rewards' unit squared; positive. A large floor makes
            all weights equal; with a small floor, a response on which raters agree by chance dominates the baseline.
        valid: which scores exist, bool or 0/1, `[..., G, K]`; None: all of them.

    Returns:
        `[..., G]`, in (0, 1/s²], in units of 1 / reward²; 0 for a response with fewer than 2 valid scores.

    Raises:
        ValueError: integer scores, fewer than 2 per response, `valid` of a different shape, or a `floor` that is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> reliability_quality(jnp.array([[1.0, 1.0], [0.0, 2.0]]), floor=0.5).tolist()
        [2.0, 0.4000000059604645]

    Source:
        unpublished: a design document (not a paper), Eq. 52, "reward reliability", which it does not define; the
        weights are those of an inverse-variance mean. No published estimator in rljax computes this.
    """
    check_floating(scores=scores)
    check_rank(2, scores=scores)
    if scores.shape[-1] < 2:
        raise ValueError(f"scores must contain at least 2 scores per response on its last axis, got {list(scores.shape)}")
    check_positive(floor=floor)
    if valid is None:
        valid = jnp.ones_like(scores, bool)
    check_mask(valid=valid)
    check_same_shape(scores=scores, valid=valid)
    count = valid.astype(bool).sum(-1)
    variance = jnp.square(masked_centered(scores, valid)).sum(-1) / jnp.maximum(count - 1, 1).astype(scores.dtype)
    return jnp.where(count >= 2, 1.0 / (floor + variance), 0.0)


@in_float32
def rank_based(rewards: Float[Array, "*P G"], *, valid: Mask | None = None) -> Float[Array, "*P G"]:
    """Centered and scaled rank of a response in its group; ties get the mean of their ranks.

    An increasing transformation of the rewards does not change the result; nor does the size of an outlier.

    ::

        A_i = (rank(r_i) - (G + 1)/2) / (G/2)  =  (1/G) Σ_j sign(r_i - r_j)

    Args:
        rewards: one number per response, `[..., G]`.
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, dimensionless, in [-(1 - 1/G), 1 - 1/G]; each group sums to 0, and identical rewards get exactly 0.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, or `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> rank_based(jnp.array([[5.0, 1.0, 1.0, -9.0]])).tolist()
        [[0.75, 0.0, 0.0, -0.75]]

    Source:
        unpublished: a design document (not a paper), Eq. 40, which does not say how to rank ties; averaging their
        ranks makes the sum 0. Published alternative: `rljax.ops.group.group_normalized`.
    """
    member = group_members(rewards, valid)
    pair = member[..., :, None] & member[..., None, :]
    mine, other = rewards[..., :, None], rewards[..., None, :]
    below = (pair & (other < mine)).sum(-1)
    above = (pair & (other > mine)).sum(-1)
    size = member.sum(-1, keepdims=True)
    return ratio_or_zero((below - above).astype(rewards.dtype), size.astype(rewards.dtype))


def _centered_by_type(
    rewards: Float[Array, "P G"], types: Int[Array, "P"], member: Bool[Array, "P G"]
) -> Float[Array, "P G"]:
    """Reward minus the mean of its type; both are taken relative to the type's lowest reward, so equal rewards give exactly 0."""
    same = types[:, None] == types[None, :]
    lowest = jnp.where(member, rewards, jnp.inf).min(1)
    lowest = jnp.where(same, lowest[None, :], jnp.inf).min(1, keepdims=True)
    offset = jnp.where(member, rewards - lowest, 0.0)
    size = jnp.where(same, member.sum(1)[None, :], 0).sum(1, keepdims=True)
    total = jnp.where(same, offset.sum(1)[None, :], 0.0).sum(1, keepdims=True)
    mean = ratio_or_zero(total, size.astype(rewards.dtype))
    return jnp.where(member & (size >= 2), offset - mean, 0.0)


@in_float32
def hierarchical(
    rewards: Float[Array, "*P G"],
    types: Int[Array, "*P"],
    *,
    local_weight: Number = 0.7,
    valid: Mask | None = None,
) -> Float[Array, "*P G"]:
    """Reward minus the mean over its problem type, mixed with reward minus the mean over the full batch.

    A problem type can span several prompts; if every prompt has its own type, the local term is `group_centered`.

    ::

        A_i = α A_i^local + (1 - α) A_i^global
        A_i^local  = r_i - mean{ r_j : type(j) = type(i) }        A_i^global = r_i - mean{ r_j : all j }

    Args:
        rewards: one number per response, `[..., G]`; all of them together form the batch.
        types: problem type of each prompt, `[...]`, any integers.
        local_weight: α, in [0, 1]; the document uses 0.7 and allows [0.5, 0.9].
        valid: which responses have a reward, bool or 0/1, `[..., G]`; None: all of them.

    Returns:
        `[..., G]`, in the rewards' unit; sums to 0 over the batch. Each of the two terms is exactly 0 if all
        rewards that it averages are identical, or if there are fewer than 2.

    Raises:
        ValueError: integer rewards, groups of fewer than 2 responses, types that are not integers, not one type per prompt, or
            `local_weight` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> rewards = jnp.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
        >>> hierarchical(rewards, jnp.array([7, 7, 3]), local_weight=1.0).tolist()
        [[0.25, 0.25], [0.25, -0.75], [0.0, 0.0]]

    Source:
        unpublished: a design document (not a paper), Eq. 51, with the α of Table 5. Its "similar" problems are
        read as problems of the same type. Published alternative: `rljax.ops.batch.batch_normalized_rewards`.
    """
    member = group_members(rewards, valid)
    check_integer(types=types)
    check_one_per_row(rewards=rewards, types=types)
    check_between(0.0, 1.0, local_weight=local_weight)
    flat, flat_member = rewards.reshape(-1, rewards.shape[-1]), member.reshape(-1, rewards.shape[-1])
    local = _centered_by_type(flat, types.reshape(-1), flat_member)
    overall = masked_centered(flat.reshape(-1), flat_member.reshape(-1)).reshape(flat.shape)
    return (local_weight * local + (1 - local_weight) * overall).reshape(rewards.shape)
