"""Shaped rewards: what is added to, or taken from, the verdict on a response before it is compared with others.

Lengths are counted in tokens, never in characters. Nothing here carries a gradient to the policy.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.checks import (
    check_between,
    check_boolean,
    check_floating,
    check_lengths,
    check_nonnegative,
    check_one_a_row,
    check_positive,
    check_rank,
    check_same_shape,
)
from rljax.ops.masked import Lengths, Number


def _as_tokens(lengths: Lengths) -> Float[Array, "..."]:
    check_lengths(lengths=lengths)
    return lengths.astype(jnp.result_type(lengths, float))


def _check_weights(weights, **columns) -> None:
    """Refuse weights that are not one floating-point number for each entry of the last axis of `columns`."""
    check_floating(weights=weights, **columns)
    check_rank(1, **columns)
    for name, value in columns.items():
        if weights.shape != value.shape[-1:]:
            raise ValueError(f"weights must have shape {list(value.shape[-1:])} to match {name}, got {list(weights.shape)}")


def rule_reward(correct: Bool[Array, "..."]) -> Float[Array, "..."]:
    """Verdict of a rule as a reward.

    ::

        R(y) = 1 if y is correct else -1

    Args:
        correct: whether the final answer is equivalent to the truth, bool, any shape.

    Returns:
        the shape of `correct`, 1 or -1.

    Raises:
        ValueError: `correct` is not boolean; a graded score has no place here.

    Example:
        >>> import jax.numpy as jnp
        >>> rule_reward(jnp.array([True, False])).tolist()
        [1.0, -1.0]

    Source:
        DAPO, arXiv:2503.14476, Eq. 7.
    """
    check_boolean(correct=correct)
    return jnp.where(correct, jnp.ones(correct.shape), -1.0)


def soft_overlong_penalty(lengths: Lengths, *, max_length: Number, cache: Number) -> Float[Array, "..."]:
    """Soft overlong punishment: no penalty, then a ramp over the last `cache` tokens, then -1.

    ::

                ⎧ 0                                  |y| ≤ L_max - L_cache
        R(y) =  ⎨ (L_max - L_cache - |y|) / L_cache
                ⎩ -1                                 |y| > L_max

    Args:
        lengths: response lengths |y| in tokens, EOS included, integer or floating point, any shape.
        max_length: L_max in tokens, positive; 20480 in the paper.
        cache: L_cache in tokens, in (0, L_max]; 4096 in the paper.

    Returns:
        the shape of `lengths`, in [-1, 0], to be added to the reward.

    Raises:
        ValueError: negative or boolean lengths, `max_length` or `cache` not positive, `cache` above `max_length`.

    Example:
        >>> import jax.numpy as jnp
        >>> soft_overlong_penalty(jnp.array([10, 12, 15, 16, 99]), max_length=16, cache=4).tolist()
        [0.0, 0.0, -0.75, -1.0, -1.0]

    Source:
        DAPO, arXiv:2503.14476, Eq. 13.
    """
    check_positive(max_length=max_length, cache=cache)
    check_between(0, max_length, cache=cache)
    return jnp.clip((max_length - cache - _as_tokens(lengths)) / cache, -1.0, 0.0)


def adaptive_length_penalty(
    lengths: Lengths, rewards: Float[Array, "..."], *, target: Number, threshold: Number, alpha: Number, beta: Number
) -> Float[Array, "..."]:
    """Penalty for length that is gentle with a response above the threshold and harsh with one below it.

    The document passes a complexity to this function and then does not use it; there is no such argument here.

    ::

                      ⎧ α log(1 + ℓ / L_target)    r > r_threshold
        penalty(ℓ) =  ⎨
                      ⎩ β (ℓ / L_target)²          otherwise

    Args:
        lengths: ℓ in tokens, integer or floating point, any shape.
        rewards: r, the base reward, of the same shape.
        target: L_target in tokens, positive.
        threshold: r_threshold, in the rewards' unit; a reward that equals it counts as below.
        alpha: α, not negative, in the rewards' unit. The document gives no value, nor for β.
        beta: β, not negative, in the rewards' unit.

    Returns:
        the shape of `rewards`, not negative, to be subtracted.

    Raises:
        ValueError: shapes that differ, integer rewards, boolean or negative lengths, `target` not positive, `alpha` or
            `beta` negative, `threshold` NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> lengths, rewards = jnp.array([200, 200]), jnp.array([1.0, -1.0])
        >>> adaptive_length_penalty(lengths, rewards, target=100.0, threshold=0.0, alpha=1.0, beta=1.0).tolist()
        [1.0986123085021973, 4.0]

    Source:
        MF Eq. 32; it is not in the DAPO paper.
    """
    check_floating(rewards=rewards)
    check_same_shape(lengths=lengths, rewards=rewards)
    check_positive(target=target)
    check_nonnegative(alpha=alpha, beta=beta)
    check_between(-jnp.inf, jnp.inf, threshold=threshold)
    relative = _as_tokens(lengths) / target
    return jnp.where(rewards > threshold, alpha * jnp.log1p(relative), beta * jnp.square(relative))


def quality_aware_length_weight(
    rewards: Float[Array, "..."], *, threshold: Number, base: Number = 0.05, gamma: Number = 2.0
) -> Float[Array, "..."]:
    """How much the penalty for length weighs: less, the further a reward lies above the threshold.

    ::

        λ(r) = λ_base exp(-γ max(0, r - r_threshold))

    Args:
        rewards: r, the base reward, any shape.
        threshold: r_threshold, in the rewards' unit.
        base: λ_base, not negative; [0.01, 0.1] in the document.
        gamma: γ, not negative, in the inverse of the rewards' unit; [1, 5] in the document.

    Returns:
        the shape of `rewards`, in [0, λ_base].

    Raises:
        ValueError: integer rewards, negative `base` or `gamma`, `threshold` NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> quality_aware_length_weight(jnp.array([-1.0, 0.0, 1.0]), threshold=0.0, base=1.0, gamma=0.5).tolist()
        [1.0, 1.0, 0.6065306663513184]

    Source:
        MF Eq. 33, with the values of its Table 3; it is not in the DAPO paper.
    """
    check_floating(rewards=rewards)
    check_nonnegative(base=base, gamma=gamma)
    check_between(-jnp.inf, jnp.inf, threshold=threshold)
    return base * jnp.exp(-gamma * jnp.maximum(rewards - threshold, 0.0))


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
    """Reward less the adaptive penalty for length, weighted by quality.

    ::

        R_shaped = R - λ(R) penalty(ℓ, R)

    Args:
        rewards: R, the base reward, any shape.
        lengths: ℓ in tokens, integer or floating point, of the same shape.
        target: L_target in tokens, positive.
        threshold: r_threshold of both factors, in the rewards' unit.
        alpha: α of the penalty above the threshold, not negative.
        beta: β of the penalty below it, not negative.
        base: λ_base, not negative.
        gamma: γ, not negative.

    Returns:
        the shape of `rewards`, at most `rewards`.

    Raises:
        ValueError: what `adaptive_length_penalty` and `quality_aware_length_weight` refuse.

    Example:
        >>> import jax.numpy as jnp
        >>> rewards, lengths = jnp.array([-1.0, -1.0]), jnp.array([0, 200])
        >>> length_shaped_reward(rewards, lengths, target=100.0, threshold=0.0, alpha=1.0, beta=1.0, base=0.25).tolist()
        [-1.0, -2.0]

    Source:
        MF Eq. 31 with Eqs. 32 and 33; it is not in the DAPO paper.
    """
    penalty = adaptive_length_penalty(lengths, rewards, target=target, threshold=threshold, alpha=alpha, beta=beta)
    return rewards - quality_aware_length_weight(rewards, threshold=threshold, base=base, gamma=gamma) * penalty


def weighted_composite(parts: Mapping[str, Float[Array, "..."]], weights: Mapping[str, Number]) -> Float[Array, "..."]:
    """Weighted sum of named rewards.

    ::

        R = Σ_k w_k R_k

    Args:
        parts: rewards R_k by name, all of one shape.
        weights: w_k by the same names, of either sign.

    Returns:
        the shape of one part.

    Raises:
        ValueError: no part, names that are in one and not in the other, integer rewards, or shapes that differ.

    Example:
        >>> import jax.numpy as jnp
        >>> parts = {"answer": jnp.array([1.0, 0.0]), "format": jnp.array([1.0, 1.0])}
        >>> weighted_composite(parts, {"answer": 1.0, "format": 0.25}).tolist()
        [1.25, 0.25]

    Source:
        Rule-based reward of DeepSeek-R1, arXiv:2501.12948, Section 2.2.2 (answer plus format); MF Eq. 63 by name.
    """
    if not parts or set(parts) != set(weights):
        raise ValueError(f"weights must name the parts {sorted(parts)}, and at least one, got {sorted(weights)}")
    check_floating(**parts)
    check_same_shape(**parts)
    return sum(weights[name] * part for name, part in parts.items())


def constitutional_sum(
    base: Float[Array, "*rows"], scores: Float[Array, "*rows N"], weights: Float[Array, "N"]
) -> Float[Array, "*rows"]:
    """Reward plus weighted scores of how well a response keeps each of N principles.

    ::

        R_constitutional = R_base + Σ_i w_i s_i(y)

    Args:
        base: R_base, `[...]`.
        scores: s_i, `[..., N]`.
        weights: w_i, `[N]`.

    Returns:
        `[...]`.

    Raises:
        ValueError: integer arrays, or shapes that do not fit each other.

    Example:
        >>> import jax.numpy as jnp
        >>> constitutional_sum(jnp.array([1.0]), jnp.array([[0.5, -1.0]]), jnp.array([1.0, 0.25])).tolist()
        [1.25]

    Source:
        MF Eq. 62; no primary paper.
    """
    check_floating(base=base)
    _check_weights(weights, scores=scores)
    check_one_a_row(scores=scores, base=base)
    return base + multi_objective(scores, weights)


def multi_objective(objectives: Float[Array, "*rows M"], weights: Float[Array, "M"]) -> Float[Array, "*rows"]:
    """Several objectives as one, by a weighted sum.

    A sum of objectives is the objective of the summed rewards, so this serves rewards and losses alike.

    ::

        J = Σ_i λ_i J_i

    Args:
        objectives: J_i, `[..., M]`.
        weights: λ_i, `[M]`.

    Returns:
        `[...]`.

    Raises:
        ValueError: integer arrays, or weights that are not one an objective.

    Example:
        >>> import jax.numpy as jnp
        >>> multi_objective(jnp.array([[1.0, 4.0], [0.0, 2.0]]), jnp.array([1.0, 0.5])).tolist()
        [3.0, 1.0]

    Source:
        MF Eq. 63; no primary paper.
    """
    _check_weights(weights, objectives=objectives)
    return (objectives * weights.reshape((1,) * (objectives.ndim - 1) + weights.shape)).sum(-1)
