"""Weighted preference optimization: a pair has more weight if the policy itself is likely to generate it."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import Number, check_floating, check_positive, check_same_shape, in_float32
from rljax.ops.direct_preference import dpo_loss


@in_float32
def wpo_weight(mean_logp: Float[Array, "*rows"], mean_log_expected: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
    """How likely a response is under the policy, relative to the policy's own samples, which have a weight of about 1.

    ::

        w(x, y) = exp((1/|y|) Σ_t log(π(y_t) / Σ_v π(v)²))

    Σ_v π(v)² is the expected probability of a token sampled from the policy. Without this divisor, a response's weight would
    depend on how certain the policy is of its own responses to the prompt.

    Args:
        mean_logp: log π(y_t | x, y_<t), averaged over the response's tokens, nats per token, `[...]`.
        mean_log_expected: log Σ_v π(v | x, y_<t)² at the same tokens, averaged, nats per token, of the same shape.

    Returns:
        `[...]`, dimensionless, positive; above 1 if the response's tokens are likelier than sampled ones.

    Raises:
        ValueError: an argument that is not floating point, or mismatched shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> expected = jnp.log(jnp.array([0.9**2 + 0.1**2]))
        >>> [round(float(wpo_weight(jnp.log(jnp.array([p])), expected)[0]), 4) for p in (0.9, 0.1)]
        [1.0976, 0.122]

    Source:
        WPO, arXiv:2406.11827, Eq. 2 ("sampled alignment").
    """
    check_floating(mean_logp=mean_logp, mean_log_expected=mean_log_expected)
    check_same_shape(mean_logp=mean_logp, mean_log_expected=mean_log_expected)
    return jnp.exp(mean_logp - mean_log_expected)


@in_float32
def wpo_loss(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    ref_chosen: Float[Array, "*pairs"],
    ref_rejected: Float[Array, "*pairs"],
    chosen_weight: Float[Array, "*pairs"],
    rejected_weight: Float[Array, "*pairs"],
    *,
    beta: Number = 0.01,
    cap: Number = math.inf,
) -> Float[Array, "*pairs"]:
    """DPO's loss, weighted by how likely the policy is to generate both responses of the pair.

    ::

        L = -sg[min(w(x, y_w) w(x, y_l), C)] log σ(β h)        h as in `rljax.ops.direct_preference.dpo_loss`

    Args:
        chosen: log π(y_w|x) of the preferred response, summed over its tokens, nats, carries the gradient, `[...]`.
        rejected: log π(y_l|x) of the other response, summed over its tokens, carries the gradient, of the same shape.
        ref_chosen: log π_ref(y_w|x), summed, of the same shape.
        ref_rejected: log π_ref(y_l|x), summed, of the same shape.
        chosen_weight: w(x, y_w) under the current policy, see `wpo_weight`, of the same shape; treated as a constant.
        rejected_weight: w(x, y_l), likewise.
        beta: β, strength of the pull towards the reference, positive.
        cap: C, largest weight of a pair, positive; infinite in the paper, 1 in its authors' code.

    Returns:
        `[...]`, nats, to be minimized as a mean over the pairs.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or β or C not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> zero, weights = jnp.zeros(1), (jnp.array([0.5]), jnp.array([0.5]))
        >>> round(float(wpo_loss(zero, zero, zero, zero, *weights)[0]), 4)
        0.1733

    Source:
        WPO, arXiv:2406.11827, Eq. 1. β = 0.01 in its Section 4.1.
    """
    check_floating(chosen_weight=chosen_weight, rejected_weight=rejected_weight)
    check_same_shape(chosen=chosen, chosen_weight=chosen_weight, rejected_weight=rejected_weight)
    check_positive(cap=cap)
    weight = jax.lax.stop_gradient(jnp.minimum(chosen_weight * rejected_weight, cap))
    return weight * dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta=beta)
