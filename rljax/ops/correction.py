"""Corrections for data sampled by another policy: weights for tokens and responses, and masks.

The weights compare two log-probabilities of each token: the learner's, `policy_logp`, and the sampler's, `behaviour_logp`. Both are
data, without a gradient: compute them once per rollout. Weights are returned for every token, `[..., T]`, in float32 at least,
and are 0 outside the mask. If the two policies agree and 1 is within the bounds, every weight is 1.
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


def _kept_weight(log_ratio: Float[Array, "*rows T"], mask: Mask, *, low: Number, high: Number) -> Float[Array, "*rows T"]:
    """The ratio where it is within the bounds, 0 elsewhere."""
    outside = ratio_outside_bounds(log_ratio, mask, low=low, high=high)
    kept = mask.astype(bool) & ~outside
    return zero_outside(jnp.exp(zero_outside(log_ratio, kept)), kept)


@in_float32
def truncated_importance_weight(
    policy_logp: Float[Array, "*rows T"], behaviour_logp: Float[Array, "*rows T"], mask: Mask, *, cap: Number = 2.0
) -> Float[Array, "*rows T"]:
    """Capped weight that corrects for a sampler whose log-probabilities differ numerically from the learner's.

    Both log-probabilities come from the parameters that sampled the tokens: one as the training code computes it, the other as
    the sampling engine did. The surrogate of each token is multiplied by the weight.

    ::

        min(π_policy(o_t) / π_behaviour(o_t), C)

    Args:
        policy_logp: the old policy's log-probabilities, computed by the learner, `[..., T]`, nats; data, without gradient.
        behaviour_logp: the same, computed by the sampling engine, `[..., T]`, nats; data, without gradient.
        mask: response tokens, bool or 0/1, `[..., T]`.
        cap: C, positive. A cap below 1 also lowers the weight of tokens on which both agree.

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
        Convention: Ionides, "Truncated Importance Sampling" (2008); between engines: Yao et al., "Your Efficient RL Framework
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
    """IcePop: the importance weight of a token, or 0 if learner and sampler disagree by more than the bounds allow.

    A token of weight 0 passes no gradient. It still counts in the normalizer of the loss weights; verl's rejection removes it from
    the response mask, and therefore from the normalizer.

    ::

        k_t = π_policy(o_t) / π_behaviour(o_t)        M(k) = k if C_min ≤ k ≤ C_max else 0

    Args:
        policy_logp: the old policy's log-probabilities, computed by the learner, `[..., T]`, nats; data, without gradient.
        behaviour_logp: the same, computed by the sampling engine, `[..., T]`, nats; data, without gradient.
        mask: response tokens, bool or 0/1, `[..., T]`.
        low: C_min, not negative, at most C_max; the paper's α.
        high: C_max, positive; the paper's β. With (0, ∞) nothing is masked.

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
    return _kept_weight(_token_log_ratio(policy_logp, behaviour_logp, mask), mask, low=low, high=high)


@in_float32
def two_sided_importance_weight(
    policy_logp: Float[Array, "*rows T"],
    behaviour_logp: Float[Array, "*rows T"],
    mask: Mask,
    *,
    low: Number,
    high: Number = 2.0,
) -> Float[Array, "*rows T"]:
    """Importance weight of a token, clipped from both sides.

    The lower bound keeps a little gradient on tokens that the sampler found far likelier than the learner does.

    ::

        clip(π_policy(o_t) / π_behaviour(o_t), C_min, C_max)

    Args:
        policy_logp: the old policy's log-probabilities, computed by the learner, `[..., T]`, nats; data, without gradient.
        behaviour_logp: the same, computed by the sampling engine, `[..., T]`, nats; data, without gradient.
        mask: response tokens, bool or 0/1, `[..., T]`.
        low: C_min, not negative, at most C_max. With 0 it is `truncated_importance_weight`. No source was found for another value,
            so there is no default.
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
        Convention: `tis_clip_low` and `tis_clip` in slime's training code (0 and 2 there); no paper has it.
    """
    _check_bounds(low, high)
    ratio = jnp.exp(_token_log_ratio(policy_logp, behaviour_logp, mask))
    return zero_outside(jnp.clip(ratio, low, high), mask)


@in_float32
def sequence_truncated_importance_weight(
    policy_logp: Float[Array, "*rows T"], behaviour_logp: Float[Array, "*rows T"], mask: Mask, *, cap: Number = 2.0
) -> Float[Array, "*rows T"]:
    """Importance weight of a full response, capped, on each of its tokens.

    Uncapped, it makes the gradient of an outcome reward unbiased, but its variance grows exponentially with length.

    ::

        min(Π_t π_policy(o_it) / π_behaviour(o_it), C)

    Args:
        policy_logp: the old policy's log-probabilities, computed by the learner, `[..., T]`, nats; data, without gradient.
        behaviour_logp: the same, computed by the sampling engine, `[..., T]`, nats; data, without gradient.
        mask: response tokens, bool or 0/1, `[..., T]`.
        cap: C, positive.

    Returns:
        `[..., T]`, a weight in [0, C]: one number per row; 0 outside the mask.

    Raises:
        ValueError: the shapes differ, the log-probabilities are not floating point, or `cap` is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> policy_logp, behaviour_logp = jnp.log(jnp.array([0.5, 0.5, 0.9])), jnp.log(jnp.array([0.5, 0.4, 0.1]))
        >>> print(sequence_truncated_importance_weight(policy_logp, behaviour_logp, jnp.array([1, 1, 0])).round(4))
        [1.25 1.25 0.  ]

    Source:
        Convention: Liu, Li et al., "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch"
        (2025), sequence-level truncated importance sampling; C = 2 is the default of the training code verl.
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
    """Importance weight of a full response on each of its tokens, or 0 if it is outside the bounds.

    ::

        ρ_i = Π_t π_policy(o_it) / π_behaviour(o_it)        ρ_i if C_min ≤ ρ_i ≤ C_max else 0

    Args:
        policy_logp: the old policy's log-probabilities, computed by the learner, `[..., T]`, nats; data, without gradient.
        behaviour_logp: the same, computed by the sampling engine, `[..., T]`, nats; data, without gradient.
        mask: response tokens, bool or 0/1, `[..., T]`.
        low: C_min, not negative, at most C_max.
        high: C_max, positive. With (0, ∞) nothing is masked.

    Returns:
        `[..., T]`, a weight, 0 or in [C_min, C_max]: one number per row; 0 outside the mask.

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
        (2025), sequence-level masked importance sampling; (0, 2) are the defaults of `seq_mis` in the training code verl.
    """
    _check_pair(policy_logp, behaviour_logp, mask)
    _check_bounds(low, high)
    return _kept_weight(response_log_ratio(policy_logp, behaviour_logp, mask), mask, low=low, high=high)


def geometric_rejection(
    policy_logp: Float[Array, "*rows T"],
    behaviour_logp: Float[Array, "*rows T"],
    mask: Mask,
    *,
    low: Number = 0.999,
    high: Number = 1.001,
) -> Float[Array, "*rows T"]:
    """1 on the tokens of responses whose geometric mean ratio is within the bounds, 0 on all other tokens.

    The ratio is normalized by length, so that a long response is not rejected for its length alone. It only accepts or rejects; it
    does not weight. A rejected token still counts in the normalizer of the loss weights.

    ::

        s_i = (Π_t π_policy(o_it) / π_behaviour(o_it))^(1/|o_i|)        1 if C_min ≤ s_i ≤ C_max else 0

    Args:
        policy_logp: the old policy's log-probabilities, computed by the learner, `[..., T]`, nats; data, without gradient.
        behaviour_logp: the same, computed by the sampling engine, `[..., T]`, nats; data, without gradient.
        mask: response tokens, bool or 0/1, `[..., T]`.
        low: C_min, not negative, at most C_max.
        high: C_max, positive. With (0, ∞) nothing is rejected.

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
        Training-Inference Mismatch" (2025); (0.999, 1.001) are the bounds of `geo_rs` in the training code verl.
    """
    _check_pair(policy_logp, behaviour_logp, mask)
    _check_bounds(low, high)
    log_ratio = sequence_log_ratio(policy_logp, behaviour_logp, mask)
    outside = ratio_outside_bounds(log_ratio, mask, low=low, high=high)
    return zero_outside((~outside).astype(log_ratio.dtype), mask)


def ratio_outside_bounds(
    log_ratio: Float[Array, "*rows T"], mask: Mask, *, low: Number, high: Number
) -> Bool[Array, "*rows T"]:
    """Tokens whose ratio is outside the bounds, which a correction caps or removes.

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

    It multiplies the surrogate, not the KL penalty, and depends on the policy being trained. It passes no gradient.

    ::

        M_it = 0 if A_it < 0 and (1/|o_i|) Σ_τ log(π_behaviour(o_iτ) / π_θ(o_iτ)) > δ else 1

    Args:
        logp: log-probabilities under the policy being trained, π_θ, `[..., T]`, nats.
        behaviour_logp: under the sampling policy, π_behaviour, `[..., T]`, nats.
        advantage: of each token, `[..., T]`. If only the outcome is rewarded, it has the same sign throughout a response.
        mask: response tokens, bool or 0/1, `[..., T]`.
        delta: δ, nats per token, not negative. The paper gives no value, so there is no default; TRL suggests starting with 0.5.

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
        DeepSeek-V3.2, arXiv:2512.02556, Section 3.1, "Off-Policy Sequence Masking". The formula is as transcribed in
        TRL's documentation (paper index).
    """
    check_floating(logp=logp, behaviour_logp=behaviour_logp, advantage=advantage)
    check_same_shape(logp=logp, behaviour_logp=behaviour_logp, advantage=advantage, mask=mask)
    check_nonnegative(delta=delta)
    drift = -sequence_log_ratio(logp, behaviour_logp, mask)
    unwanted = (zero_outside(advantage, mask) < 0) & (drift > delta)
    return mask.astype(bool) & ~unwanted
