"""Corrections for data sampled by another policy: importance weights per token or response, and masks.

The weights compare two log-probabilities of each token: the learner's, `policy_logp`, and the sampler's, `behaviour_logp`. Both are
data without a gradient, to be computed once per rollout. Weights are returned for every token, `[..., T]`, in float32 or wider,
and are 0 outside the mask. If the two policies agree and 1 is within the bounds, every weight in the mask is 1.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import (
    Mask,
    Number,
    check_between,
    check_floating,
    check_nonnegative,
    check_positive,
    check_same_shape,
    in_float32,
)
from rljax.ops.masked import zero_outside
from rljax.ops.ratio import response_log_ratio, sequence_log_ratio, token_log_ratio


def _check_pair(policy_logp: Float[Array, "*rows T"], behaviour_logp: Float[Array, "*rows T"], mask: Mask) -> None:
    check_floating(policy_logp=policy_logp, behaviour_logp=behaviour_logp)
    check_same_shape(policy_logp=policy_logp, behaviour_logp=behaviour_logp, mask=mask)


def _check_bounds(low: Number, high: Number) -> None:
    check_positive(high=high)
    check_between(0, high, low=low)


def _token_log_ratio(
    policy_logp: Float[Array, "*rows T"], behaviour_logp: Float[Array, "*rows T"], mask: Mask
) -> Float[Array, "*rows T"]:
    _check_pair(policy_logp, behaviour_logp, mask)
    return token_log_ratio(policy_logp, behaviour_logp, mask)


def _masked_ratio(log_ratio: Float[Array, "*rows T"], mask: Mask, *, low: Number, high: Number) -> Float[Array, "*rows T"]:
    """The ratio of each token in the mask if the ratio is within the bounds, 0 elsewhere."""
    outside = ratio_outside_bounds(log_ratio, mask, low=low, high=high)
    kept = mask.astype(bool) & ~outside
    return zero_outside(jnp.exp(zero_outside(log_ratio, kept)), kept)


@in_float32
def truncated_importance_weight(
    policy_logp: Float[Array, "*rows T"], behaviour_logp: Float[Array, "*rows T"], mask: Mask, *, cap: Number = 2.0
) -> Float[Array, "*rows T"]:
    """Capped importance weight of a token, for a sampler whose log-probabilities differ numerically from the learner's.

    Both log-probabilities use the parameters that sampled the tokens; the training code computes one, and the sampling engine
    the other. Multiply each token's surrogate by its weight.

    ::

        min(π_policy(o_t) / π_behaviour(o_t), C)

    Args:
        policy_logp: the old policy's log-probabilities, computed by the learner, `[..., T]`, nats; data, no gradient.
        behaviour_logp: the old policy's log-probabilities, computed by the sampling engine, `[..., T]`, nats; data, no gradient.
        mask: response tokens, bool or 0/1, `[..., T]`.
        cap: C, positive. A cap below 1 also lowers the weight of tokens on which the two agree.

    Returns:
        `[..., T]`, a weight (*not* its logarithm) in [0, C]; 0 outside the mask.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or `cap` is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> policy_logp, behaviour_logp = jnp.log(jnp.array([0.5, 0.9, 0.9])), jnp.log(jnp.array([0.5, 0.1, 0.1]))
        >>> truncated_importance_weight(policy_logp, behaviour_logp, jnp.array([1, 1, 0])).tolist()
        [1.0, 2.0, 0.0]

    Source:
        Convention: Ionides, "Truncated Importance Sampling" (2008); between engines, Yao et al., "Your Efficient RL Framework
        Secretly Brings You Off-Policy RL Training" (2025), C = 2.
    """
    check_positive(cap=cap)
    ratio = jnp.exp(_token_log_ratio(policy_logp, behaviour_logp, mask))
    return zero_outside(jnp.minimum(ratio, cap), mask)


def masked_importance_weight(
    policy_logp: Float[Array, "*rows T"],
    behaviour_logp: Float[Array, "*rows T"],
    mask: Mask,
    *,
    low: Number = 0.5,
    high: Number = 5.0,
) -> Float[Array, "*rows T"]:
    """IcePop: the importance weight of a token, or 0 if the weight is outside the bounds.

    A token with weight 0 has no gradient but still counts in the normalizer of the loss weights. In verl, by contrast, rejection
    removes the token from the response mask, and therefore from the normalizer.

    ::

        k_t = π_policy(o_t) / π_behaviour(o_t)        M(k) = k if C_min ≤ k ≤ C_max else 0

    Args:
        policy_logp: the old policy's log-probabilities, computed by the learner, `[..., T]`, nats; data, no gradient.
        behaviour_logp: the old policy's log-probabilities, computed by the sampling engine, `[..., T]`, nats; data, no gradient.
        mask: response tokens, bool or 0/1, `[..., T]`.
        low: C_min, not negative, at most C_max; the paper's α.
        high: C_max, positive; the paper's β. Bounds of (0, ∞) mask nothing.

    Returns:
        `[..., T]`, a weight, 0 or in [C_min, C_max]; 0 outside the mask.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or the bounds are not 0 ≤ low ≤ high.

    Example:
        >>> import jax.numpy as jnp
        >>> policy_logp, behaviour_logp = jnp.log(jnp.array([0.5, 0.9, 0.1])), jnp.log(jnp.array([0.5, 0.1, 0.9]))
        >>> masked_importance_weight(policy_logp, behaviour_logp, jnp.ones(3)).tolist()
        [1.0, 0.0, 0.0]

    Source:
        IcePop, arXiv:2510.18855 (masking and calibration of training and inference), α = 0.5 and β = 5.
    """
    _check_bounds(low, high)
    return _masked_ratio(_token_log_ratio(policy_logp, behaviour_logp, mask), mask, low=low, high=high)


@in_float32
def two_sided_importance_weight(
    policy_logp: Float[Array, "*rows T"],
    behaviour_logp: Float[Array, "*rows T"],
    mask: Mask,
    *,
    low: Number,
    high: Number = 2.0,
) -> Float[Array, "*rows T"]:
    """Importance weight of a token, clipped to an interval.

    The lower bound keeps some gradient on tokens that are far less likely under the learner than under the sampler.

    ::

        clip(π_policy(o_t) / π_behaviour(o_t), C_min, C_max)

    Args:
        policy_logp: the old policy's log-probabilities, computed by the learner, `[..., T]`, nats; data, no gradient.
        behaviour_logp: the old policy's log-probabilities, computed by the sampling engine, `[..., T]`, nats; data, no gradient.
        mask: response tokens, bool or 0/1, `[..., T]`.
        low: C_min, not negative, at most C_max. 0 gives `truncated_importance_weight`. There is no default, because no source
            was found for a nonzero value.
        high: C_max, positive.

    Returns:
        `[..., T]`, a weight in [C_min, C_max]; 0 outside the mask.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or the bounds are not 0 ≤ low ≤ high.

    Example:
        >>> import jax.numpy as jnp
        >>> policy_logp, behaviour_logp = jnp.log(jnp.array([0.5, 0.9, 0.1])), jnp.log(jnp.array([0.5, 0.1, 0.9]))
        >>> two_sided_importance_weight(policy_logp, behaviour_logp, jnp.ones(3), low=0.5).tolist()
        [1.0, 2.0, 0.5]

    Source:
        Convention: `tis_clip_low` and `tis_clip` in slime's training code (0 and 2 there); no paper was found for it.
    """
    _check_bounds(low, high)
    ratio = jnp.exp(_token_log_ratio(policy_logp, behaviour_logp, mask))
    return zero_outside(jnp.clip(ratio, low, high), mask)


@in_float32
def sequence_truncated_importance_weight(
    policy_logp: Float[Array, "*rows T"], behaviour_logp: Float[Array, "*rows T"], mask: Mask, *, cap: Number = 2.0
) -> Float[Array, "*rows T"]:
    """Capped importance weight of a full response, repeated at each of its tokens.

    The uncapped weight makes the policy gradient of an outcome reward unbiased, but with a variance exponential in the length.

    ::

        min(Π_t π_policy(o_it) / π_behaviour(o_it), C)

    Args:
        policy_logp: the old policy's log-probabilities, computed by the learner, `[..., T]`, nats; data, no gradient.
        behaviour_logp: the old policy's log-probabilities, computed by the sampling engine, `[..., T]`, nats; data, no gradient.
        mask: response tokens, bool or 0/1, `[..., T]`.
        cap: C, positive.

    Returns:
        `[..., T]`, a weight in [0, C], the same at every token of a row; 0 outside the mask.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or `cap` is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> policy_logp, behaviour_logp = jnp.log(jnp.array([0.5, 0.5, 0.9])), jnp.log(jnp.array([0.5, 0.4, 0.1]))
        >>> print(sequence_truncated_importance_weight(policy_logp, behaviour_logp, jnp.array([1, 1, 0])).round(4))
        [1.25 1.25 0.  ]

    Source:
        Convention: Liu, Li et al., "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch"
        (2025), sequence-level truncated importance sampling; C = 2 is verl's default.
    """
    check_positive(cap=cap)
    _check_pair(policy_logp, behaviour_logp, mask)
    ratio = jnp.exp(response_log_ratio(policy_logp, behaviour_logp, mask))
    return zero_outside(jnp.minimum(ratio, cap), mask)


def sequence_masked_importance_weight(
    policy_logp: Float[Array, "*rows T"],
    behaviour_logp: Float[Array, "*rows T"],
    mask: Mask,
    *,
    low: Number = 0.0,
    high: Number = 2.0,
) -> Float[Array, "*rows T"]:
    """Importance weight of a full response, repeated at each of its tokens, or 0 if the weight is outside the bounds.

    ::

        ρ_i = Π_t π_policy(o_it) / π_behaviour(o_it)        ρ_i if C_min ≤ ρ_i ≤ C_max else 0

    Args:
        policy_logp: the old policy's log-probabilities, computed by the learner, `[..., T]`, nats; data, no gradient.
        behaviour_logp: the old policy's log-probabilities, computed by the sampling engine, `[..., T]`, nats; data, no gradient.
        mask: response tokens, bool or 0/1, `[..., T]`.
        low: C_min, not negative, at most C_max.
        high: C_max, positive. Bounds of (0, ∞) mask nothing.

    Returns:
        `[..., T]`, a weight, 0 or in [C_min, C_max], the same at every token of a row; 0 outside the mask.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or the bounds are not 0 ≤ low ≤ high.

    Example:
        >>> import jax.numpy as jnp
        >>> policy_logp, behaviour_logp = jnp.log(jnp.array([[0.5, 0.9], [0.5, 0.5]])), jnp.log(jnp.array([[0.5, 0.1], [0.5, 0.4]]))
        >>> print(sequence_masked_importance_weight(policy_logp, behaviour_logp, jnp.ones((2, 2))).round(4))
        [[0.   0.  ]
         [1.25 1.25]]

    Source:
        Convention: Liu, Li et al., "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch"
        (2025), sequence-level masked importance sampling; (0, 2) are the defaults of verl's `seq_mis`.
    """
    _check_pair(policy_logp, behaviour_logp, mask)
    _check_bounds(low, high)
    return _masked_ratio(response_log_ratio(policy_logp, behaviour_logp, mask), mask, low=low, high=high)


def geometric_rejection(
    policy_logp: Float[Array, "*rows T"],
    behaviour_logp: Float[Array, "*rows T"],
    mask: Mask,
    *,
    low: Number = 0.999,
    high: Number = 1.001,
) -> Float[Array, "*rows T"]:
    """Accept (1) or reject (0) all tokens of a response by the geometric mean of its token ratios, without weighting them.

    The geometric mean is normalized by length, so that a long response is not rejected for its length alone. A rejected token still
    counts in the normalizer of the loss weights.

    ::

        s_i = (Π_t π_policy(o_it) / π_behaviour(o_it))^(1/|o_i|)        1 if C_min ≤ s_i ≤ C_max else 0

    Args:
        policy_logp: the old policy's log-probabilities, computed by the learner, `[..., T]`, nats; data, no gradient.
        behaviour_logp: the old policy's log-probabilities, computed by the sampling engine, `[..., T]`, nats; data, no gradient.
        mask: response tokens, bool or 0/1, `[..., T]`.
        low: C_min, not negative, at most C_max.
        high: C_max, positive. Bounds of (0, ∞) reject nothing.

    Returns:
        `[..., T]`, 0 or 1; 0 outside the mask.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or the bounds are not 0 ≤ low ≤ high.

    Example:
        >>> import jax.numpy as jnp
        >>> policy_logp, behaviour_logp = jnp.log(jnp.array([[0.5, 0.9], [0.5, 0.5]])), jnp.log(jnp.array([[0.5, 0.1], [0.5, 0.4]]))
        >>> geometric_rejection(policy_logp, behaviour_logp, jnp.ones((2, 2)), low=0.5, high=2.0).tolist()
        [[0.0, 0.0], [1.0, 1.0]]

    Source:
        Convention: rejection by the geometric mean, Liu, Li et al., "When Speed Kills Stability: Demystifying RL Collapse from the
        Training-Inference Mismatch" (2025); (0.999, 1.001) are the bounds of verl's `geo_rs`.
    """
    _check_pair(policy_logp, behaviour_logp, mask)
    _check_bounds(low, high)
    log_ratio = sequence_log_ratio(policy_logp, behaviour_logp, mask)
    outside = ratio_outside_bounds(log_ratio, mask, low=low, high=high)
    return zero_outside((~outside).astype(log_ratio.dtype), mask)


def ratio_outside_bounds(
    log_ratio: Float[Array, "*rows T"], mask: Mask, *, low: Number, high: Number
) -> Bool[Array, "*rows T"]:
    """Mask of the tokens that a correction caps or removes, because their ratio is outside the bounds.

    ::

        log ρ_t < log C_min  or  log ρ_t > log C_max

    Args:
        log_ratio: log ρ, of tokens or of full responses, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.
        low: C_min, not negative, at most C_max; 0 sets no lower bound.
        high: C_max, positive; ∞ sets no upper bound.

    Returns:
        bool, `[..., T]`; False outside the mask. A ratio equal to a bound is inside.

    Raises:
        ValueError: the shapes differ, `log_ratio` is not floating point, or the bounds are not 0 ≤ low ≤ high.

    Example:
        >>> import jax.numpy as jnp
        >>> ratio_outside_bounds(jnp.log(jnp.array([0.1, 1.0, 9.0])), jnp.array([1, 1, 1]), low=0.5, high=5.0).tolist()
        [True, False, True]

    Source:
        Convention: the clip fraction logged by training code such as slime's and verl's; 1 minus IcePop's indicator,
        arXiv:2510.18855.
    """
    check_floating(log_ratio=log_ratio)
    check_same_shape(log_ratio=log_ratio, mask=mask)
    _check_bounds(low, high)
    log_ratio = zero_outside(log_ratio, mask)
    log_low, log_high = (jnp.log(jnp.asarray(bound, log_ratio.dtype)) for bound in (low, high))
    return mask.astype(bool) & ((log_ratio < log_low) | (log_ratio > log_high))


@in_float32
def off_policy_sequence_mask(
    logp: Float[Array, "*rows T"],
    behaviour_logp: Float[Array, "*rows T"],
    advantage: Float[Array, "*rows T"],
    mask: Mask,
    *,
    delta: Number,
) -> Bool[Array, "*rows T"]:
    """DeepSeek-V3.2's mask: drop tokens with a negative advantage in a response that the policy has moved away from.

    Multiply the surrogate by the mask, but not the KL penalty. The mask depends on the policy being trained but passes no gradient.

    ::

        M_it = 0 if A_it < 0 and (1/|o_i|) Σ_τ log(π_behaviour(o_iτ) / π_θ(o_iτ)) > δ else 1

    Args:
        logp: log-probabilities under the policy being trained, π_θ, `[..., T]`, nats.
        behaviour_logp: log-probabilities under the sampling policy, π_behaviour, `[..., T]`, nats.
        advantage: the advantage of each token, `[..., T]`. If only the outcome is rewarded, its sign is constant within a response.
        mask: response tokens, bool or 0/1, `[..., T]`.
        delta: δ, nats per token, not negative. No default, because the paper gives no value; TRL suggests starting with 0.5.

    Returns:
        bool, `[..., T]`, True where the token is trained on; False outside the mask.

    Raises:
        ValueError: the shapes differ, an argument is not floating point, or `delta` is negative.

    Example:
        >>> import jax.numpy as jnp
        >>> logp, behaviour_logp = jnp.array([[-3.0, -3.0], [-3.0, -3.0]]), jnp.array([[-1.0, -2.5], [-1.0, -2.5]])
        >>> advantage = jnp.array([[1.0, 1.0], [-1.0, -1.0]])
        >>> off_policy_sequence_mask(logp, behaviour_logp, advantage, jnp.ones((2, 2)), delta=0.5).tolist()
        [[True, True], [False, False]]

    Source:
        DeepSeek-V3.2, arXiv:2512.02556, Section 3.1, "Off-Policy Sequence Masking". The formula is taken from
        TRL's documentation (paper index).
    """
    check_floating(logp=logp, behaviour_logp=behaviour_logp, advantage=advantage)
    check_same_shape(logp=logp, behaviour_logp=behaviour_logp, advantage=advantage, mask=mask)
    check_nonnegative(delta=delta)
    divergence = -sequence_log_ratio(logp, behaviour_logp, mask)
    dropped = (zero_outside(advantage, mask) < 0) & (divergence > delta)
    return mask.astype(bool) & ~dropped
