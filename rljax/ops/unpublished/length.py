"""Functions of lengths in tokens: penalties, loss weights, group sizes, and the length bins of a dataset."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rljax.ops.arrays import (
    Lengths,
    Mask,
    Number,
    as_float,
    check_ascending,
    check_between,
    check_count,
    check_floating,
    check_lengths,
    check_nonnegative,
    check_positive,
    check_rank,
    check_same_shape,
    in_float32,
)
from rljax.ops.masked import count_tokens


@in_float32
def adaptive_length_penalty(
    lengths: Lengths, rewards: Float[Array, "..."], *, target: Number, threshold: Number, alpha: Number, beta: Number
) -> Float[Array, "..."]:
    """Length penalty: logarithmic for a reward above the threshold, quadratic below it.

    The document's function also takes a complexity, but never uses it; this function has no such argument.

    ::

                      ⎧ α log(1 + ℓ / L_target)    r > r_threshold
        penalty(ℓ) =  ⎨
                      ⎩ β (ℓ / L_target)²          otherwise

    Args:
        lengths: ℓ in tokens, integer or floating point, any shape.
        rewards: r, the base reward, of the same shape.
        target: L_target in tokens, positive.
        threshold: r_threshold, in the rewards' unit; a reward equal to the threshold counts as below.
        alpha: α, scale of the logarithmic penalty, not negative, in the rewards' unit. The document gives no value for α or β.
        beta: β, scale of the quadratic penalty, not negative, in the rewards' unit.

    Returns:
        The penalties, not negative, in the shape of `rewards`; subtract them from the rewards.

    Raises:
        ValueError: mismatched shapes, integer rewards, boolean or negative lengths, `target` not positive, `alpha` or
            `beta` negative, `threshold` NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> lengths, rewards = jnp.array([200, 200]), jnp.array([1.0, -1.0])
        >>> adaptive_length_penalty(lengths, rewards, target=100.0, threshold=0.0, alpha=1.0, beta=1.0).tolist()
        [1.0986123085021973, 4.0]

    Source:
        unpublished: a design document (not a paper), Eq. 32, wrongly attributed to DAPO.
        Published alternative: DAPO's `rljax.ops.shaping.soft_overlong_penalty`.
    """
    check_floating(rewards=rewards)
    check_same_shape(lengths=lengths, rewards=rewards)
    check_positive(target=target)
    check_nonnegative(alpha=alpha, beta=beta)
    check_between(-jnp.inf, jnp.inf, threshold=threshold)
    check_lengths(lengths=lengths)
    relative = as_float(lengths) / target
    return jnp.where(rewards > threshold, alpha * jnp.log1p(relative), beta * jnp.square(relative))


@in_float32
def quality_aware_length_weight(
    rewards: Float[Array, "..."], *, threshold: Number, base: Number = 0.05, gamma: Number = 2.0
) -> Float[Array, "..."]:
    """Weight of the length penalty: it decreases as the reward rises above the threshold.

    ::

        λ(r) = λ_base exp(-γ max(0, r - r_threshold))

    Args:
        rewards: r, the base reward, any shape.
        threshold: r_threshold, in the rewards' unit.
        base: λ_base, the largest weight, not negative; [0.01, 0.1] in the document.
        gamma: γ, decay rate, not negative, in the inverse of the rewards' unit; [1, 5] in the document.

    Returns:
        The weights, in [0, λ_base], in the shape of `rewards`.

    Raises:
        ValueError: integer rewards, negative `base` or `gamma`, `threshold` NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> quality_aware_length_weight(jnp.array([-1.0, 0.0, 1.0]), threshold=0.0, base=1.0, gamma=0.5).tolist()
        [1.0, 1.0, 0.6065306663513184]

    Source:
        unpublished: a design document (not a paper), Eq. 33, with the values of Table 3, wrongly
        attributed to DAPO. No published estimator has such a weight.
    """
    check_floating(rewards=rewards)
    check_nonnegative(base=base, gamma=gamma)
    check_between(-jnp.inf, jnp.inf, threshold=threshold)
    return base * jnp.exp(-gamma * jnp.maximum(rewards - threshold, 0.0))


@in_float32
def length_shaped_reward(
    rewards: Float[Array, "..."],
    lengths: Lengths,
    *,
    target: Number,
    threshold: Number,
    alpha: Number,
    beta: Number,
    base: Number = 0.05,
    gamma: Number = 2.0,
) -> Float[Array, "..."]:
    """Reward minus the adaptive length penalty, weighted by quality.

    ::

        R_shaped = R - λ(R) penalty(ℓ, R)

    Args:
        rewards: R, the base reward, any shape.
        lengths: ℓ in tokens, integer or floating point, of the same shape.
        target: L_target in tokens, positive.
        threshold: r_threshold of the weight and of the penalty, in the rewards' unit.
        alpha: α of the penalty above the threshold, not negative.
        beta: β of the penalty at or below the threshold, not negative.
        base: λ_base, the largest weight of the penalty, not negative.
        gamma: γ, decay rate of the weight above the threshold, not negative.

    Returns:
        The shaped rewards, never above `rewards`, in the same shape.

    Raises:
        ValueError: under the same conditions as `adaptive_length_penalty` and `quality_aware_length_weight`.

    Example:
        >>> import jax.numpy as jnp
        >>> rewards, lengths = jnp.array([-1.0, -1.0]), jnp.array([0, 200])
        >>> length_shaped_reward(rewards, lengths, target=100.0, threshold=0.0, alpha=1.0, beta=1.0, base=0.25).tolist()
        [-1.0, -2.0]

    Source:
        unpublished: a design document (not a paper), Eq. 31 with Eqs. 32 and 33, wrongly attributed to DAPO.
        Published alternative: DAPO's `rljax.ops.shaping.soft_overlong_penalty`.
    """
    penalty = adaptive_length_penalty(lengths, rewards, target=target, threshold=threshold, alpha=alpha, beta=beta)
    return rewards - quality_aware_length_weight(rewards, threshold=threshold, base=base, gamma=gamma) * penalty


def median_length(mask: Mask) -> Float[Array, ""]:
    """Median length of a batch's responses, ignoring those without tokens.

    ::

        L_median = median{ |o_i| : |o_i| > 0 }

    Args:
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        A number, in tokens: the mean of the two middle lengths if the number of lengths is even; 0 for a batch without tokens.

    Raises:
        ValueError: the mask has no token axis or contains anything other than 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> median_length(jnp.array([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]])).item()
        2.5

    Source:
        unpublished: a design document (not a paper), Eq. 30, L_median. Published alternative: the constant in
        Dr.GRPO, `rljax.ops.weights.constant_length`.
    """
    lengths = as_float(count_tokens(mask).reshape(-1))
    counted = lengths.astype(bool)
    ordered = jnp.sort(jnp.where(counted, lengths, jnp.inf))
    count = counted.sum()
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return jnp.where(counted.any(), middle, 0.0)


@in_float32
def length_reweighted(
    weights: Float[Array, "*rows T"], mask: Mask, *, alpha: Number, reference: Number
) -> Float[Array, "*rows T"]:
    """Loss weights with the weights of long responses scaled down.

    ::

        w'_it = w_it (|o_i| / L_ref)^{-α}

    The document does not rescale the weights to their old sum, and neither does this function: with unequal lengths, the loss is
    rescaled by the weighted mean of the factor. If the scale matters, divide by the new sum.

    Args:
        weights: any loss weights from `rljax.ops.weights`, `[..., T]`.
        mask: response tokens, bool or 0/1, `[..., T]`.
        alpha: α, not negative; [0, 0.5] in the document. At 1, `token_mean` becomes proportional to `sequence_mean`.
        reference: L_ref in tokens, positive: a number, or `median_length` of the full optimizer batch, as in the document
            (a median of each micro-batch would make the loss depend on the split).

    Returns:
        `[..., T]`; 0 outside the mask.

    Raises:
        ValueError: mismatched shapes, integer weights, negative `alpha`, or a `reference` that is not positive
            although the mask has tokens.

    Example:
        >>> import jax.numpy as jnp
        >>> from rljax.ops.weights import token_mean
        >>> mask = jnp.array([[1, 1, 1, 1], [1, 0, 0, 0]])
        >>> length_reweighted(token_mean(mask), mask, alpha=0.5, reference=1.0)[:, 0].tolist()
        [0.10000000149011612, 0.20000000298023224]

    Source:
        unpublished: a design document (not a paper), Eq. 30, wrongly attributed to DAPO. Published alternative:
        `rljax.ops.weights.sequence_mean` and `rljax.ops.weights.constant_length`.
    """
    check_nonnegative(alpha=alpha)
    check_floating(weights=weights)
    check_same_shape(weights=weights, mask=mask)
    lengths = count_tokens(mask)[..., None].astype(weights.dtype)
    reference = jnp.where(lengths.any(), reference, 1.0).astype(weights.dtype)  # without tokens `median_length` is 0
    check_positive(reference=reference)
    factor = (jnp.maximum(lengths, 1) / reference) ** -alpha
    return jnp.where(mask.astype(bool), weights * factor, 0.0)


@in_float32
def adaptive_group_size(lengths: Lengths, *, base: int = 8, reference: int = 512, floor: int = 2) -> Int[Array, "..."]:
    """Number of responses per prompt: fewer if they are longer, so that all groups have about the same number of tokens.

    The document sets the floor to 1. Then every prompt whose responses are longer than `base · reference / 2` tokens gets a
    group of one response, whose group-relative advantage is always 0.

    ::

        G(ℓ) = max(floor, ⌊G_base L_ref / ℓ⌋)

    Args:
        lengths: ℓ, the expected length of a response, in tokens, integer or floating point, any shape.
        base: G_base, number of responses at the reference length, at least 1.
        reference: L_ref in tokens, at least 1.
        floor: the smallest group, at least 2.

    Returns:
        The number of responses, int32, in the shape of `lengths`.

    Raises:
        ValueError: boolean lengths or lengths that are not positive, `base` or `reference` below 1, `floor` below 2.

    Example:
        >>> import jax.numpy as jnp
        >>> adaptive_group_size(jnp.array([256, 512, 600, 4096])).tolist()
        [16, 8, 6, 2]

    Source:
        unpublished: a design document (not a paper), Eq. 27 with a floor of 2; DAPO has no such rule.
        Published alternative: DAPO's dynamic sampling, `rljax.ops.selection.has_mixed_outcomes`.
    """
    check_lengths(lengths=lengths)
    check_positive(lengths=lengths)
    check_count(1, base=base, reference=reference)
    check_count(2, floor=floor)
    return jnp.maximum(floor, base * reference // lengths).astype(jnp.int32)


@in_float32
def length_percentiles(
    lengths: Lengths, *, percentiles: tuple[float | int, ...] = (25.0, 50.0, 75.0, 95.0)
) -> Float[Array, "K"]:
    """Percentiles of the lengths of a dataset or batch, interpolated linearly.

    ::

        L_q = sorted(ℓ)[(n - 1) q / 100]

    Args:
        lengths: ℓ in tokens, integer or floating point, any shape; all entries count.
        percentiles: q in percent, in [0, 100].

    Returns:
        `[K]`, tokens, one for each q.

    Raises:
        ValueError: no length, boolean or negative lengths, or a percentile outside [0, 100].

    Example:
        >>> import jax.numpy as jnp
        >>> length_percentiles(jnp.array([10, 20, 30, 40, 50])).tolist()
        [20.0, 30.0, 40.0, 48.0]

    Source:
        unpublished: a design document (not a paper), Algorithm 3, step 2; DAPO has no such step. No published
        estimator in rljax computes this.
    """
    check_lengths(lengths=lengths)
    check_between(0.0, 100.0, percentiles=percentiles)
    if lengths.size == 0:
        raise ValueError(f"lengths must contain at least one length, got shape {list(lengths.shape)}")
    tokens = as_float(lengths)
    return jnp.percentile(tokens.reshape(-1), jnp.asarray(percentiles, tokens.dtype))


@in_float32
def length_bins(lengths: Lengths, edges: Float[Array, "K"]) -> Int[Array, "..."]:
    """Bin of each length, counted from 0; a length equal to an edge is in the bin below the edge.

    ::

        bin(ℓ) = |{k : edge_k < ℓ}|

    Args:
        lengths: ℓ in tokens, integer or floating point, any shape.
        edges: bin edges in tokens, ascending, `[K]`; `length_percentiles` computes them.

    Returns:
        The bins, int32, in [0, K], in the shape of `lengths`.

    Raises:
        ValueError: boolean or negative lengths, integer edges, or edges that are not ascending on one axis.

    Example:
        >>> import jax.numpy as jnp
        >>> length_bins(jnp.array([5, 20, 21, 99]), jnp.array([20.0, 30.0])).tolist()
        [0, 0, 1, 2]

    Source:
        unpublished: a design document (not a paper), Algorithm 3, steps 4 and 6, which do not say to which bin
        an edge belongs. DAPO has no such bins. No published estimator in rljax computes this.
    """
    check_lengths(lengths=lengths)
    check_floating(edges=edges)
    if edges.ndim != 1:
        raise ValueError(f"edges must have one axis, got shape {list(edges.shape)}")
    check_rank(1, edges=edges)
    check_ascending(edges=edges)
    return jnp.searchsorted(edges, lengths.astype(edges.dtype), side="left").astype(jnp.int32)
