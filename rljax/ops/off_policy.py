"""Log-ratios, surrogates, and a trust region for responses sampled by another policy, beyond PPO's clipping of token ratios."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import Mask, Number, check_floating, check_nonnegative, check_positive, check_same_shape, in_float32
from rljax.ops.masked import zero_outside
from rljax.ops.ratio import token_log_ratio


def whole_response_token_log_ratio(
    logp: Float[Array, "*rows T"], old_logp: Float[Array, "*rows T"], mask: Mask
) -> Float[Array, "*rows T"]:
    """Log-ratio of a full response, *not* divided by its length, with the gradient of each token's own log-probability.

    ::

        log W_it = sg[Σ_τ log ρ_iτ] + log π_θ(o_it) - sg[log π_θ(o_it)]        W_i = π_θ(o_i | q) / π_old(o_i | q)

    Args:
        logp: log-probabilities under the policy being trained, `[..., T]`, nats.
        old_logp: log-probabilities under the sampling policy: the log of the ratio's denominator, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats; 0 outside the mask. Its derivative is 1 for the token's own `logp`, and 0 for others. Not clamped.

    Raises:
        ValueError: the shapes differ, or the log-probabilities are not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> whole_response_token_log_ratio(jnp.array([-1.0, -2.0]), jnp.array([-1.5, -3.0]), jnp.array([1, 1])).tolist()
        [1.5, 1.5]

    Source:
        VESPO, arXiv:2602.10693, and its authors' code.
    """
    log_ratio = token_log_ratio(logp, old_logp, mask)
    token = zero_outside(logp, mask)
    total = jax.lax.stop_gradient(log_ratio).sum(-1, keepdims=True)
    return jnp.where(mask.astype(bool), total + (token - jax.lax.stop_gradient(token)), 0.0)


@in_float32
def gamma_weighted(
    log_ratio: Float[Array, "*rows T"],
    advantage: Float[Array, "*rows T"],
    *,
    power_positive: float = 2.0,
    decay_positive: float = 3.0,
    power_negative: float = 3.0,
    decay_negative: float = 2.0,
) -> Float[Array, "*rows T"]:
    """REINFORCE, weighted by a gamma-shaped function of the full response's ratio: 1 on-policy, near 0 for extreme ratios.

    The paper writes log π where this function has log W. Only the gradient is meaningful: with `whole_response_token_log_ratio`,
    it is φ(W_i) A_it ∂ log π(o_it). The weight peaks at W = c₁ / c₂.

    ::

        sg[φ(W)] A log W        φ(W) = W^c₁ exp(c₂ (1 - W))        W = exp(log_ratio)

    Args:
        log_ratio: log W, `[..., T]`, nats.
        advantage: A, `[..., T]`.
        power_positive: c₁ for A >= 0, not negative.
        decay_positive: c₂ for A >= 0, positive.
        power_negative: c₁ for A < 0, not negative.
        decay_negative: c₂ for A < 0, positive. All four defaults are from the authors' code.

    Returns:
        `[..., T]`, to be maximized; only its gradient is meaningful.

    Raises:
        ValueError: the shapes differ, an argument is not floating point, a power is negative, or a decay is not positive.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> log_ratio, advantage = jnp.array([0.0, 0.0, 9.0]), jnp.array([1.0, -1.0, 1.0])
        >>> jax.grad(lambda x: gamma_weighted(x, advantage).sum())(log_ratio).tolist()
        [1.0, -1.0, 0.0]

    Source:
        VESPO, arXiv:2602.10693, and its authors' code.
    """
    check_floating(log_ratio=log_ratio, advantage=advantage)
    check_same_shape(log_ratio=log_ratio, advantage=advantage)
    check_nonnegative(power_positive=power_positive, power_negative=power_negative)
    check_positive(decay_positive=decay_positive, decay_negative=decay_negative)
    negative = advantage < 0
    power = jnp.where(negative, power_negative, power_positive)
    decay = jnp.where(negative, decay_negative, decay_positive)
    weight = jnp.exp(power * log_ratio - decay * jnp.expm1(log_ratio))
    return jax.lax.stop_gradient(weight) * advantage * log_ratio


@in_float32
def mirror_descent(
    log_ratio: Float[Array, "*rows T"], advantage: Float[Array, "*rows T"], *, tau: Number
) -> Float[Array, "*rows T"]:
    """Advantage times log-ratio, minus a quadratic penalty on the log-ratio.

    This objective needs no clipping and allows off-policy data. It equals (A² - (A - τ log ρ)²) / 2τ, so its maximum is at
    log ρ = A/τ, where the policy is optimal under a KL penalty to π_old with weight τ. There, the slope A - τ log ρ changes sign.

    ::

        A log ρ - (τ/2) log² ρ        ρ = exp(log_ratio)

    Args:
        log_ratio: log ρ of a *full* response (`ratio.response_log_ratio`), `[..., T]`, nats.
        advantage: A, `[..., T]`.
        tau: τ, weight of the penalty, reward per nat, not negative.

    Returns:
        `[..., T]`, in the advantage's unit, to be maximized.

    Raises:
        ValueError: the shapes differ, an argument is not floating point, or τ is negative.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> log_ratio, advantage = jnp.array([0.0, 2.0, 4.0]), jnp.array([0.5, 0.5, 0.5])
        >>> jax.grad(lambda x: mirror_descent(x, advantage, tau=0.25).sum())(log_ratio).tolist()
        [0.5, 0.0, -0.5]

    Source:
        Kimi k1.5, arXiv:2501.12599, Section 2.3.2, Eq. 3 and the surrogate loss above it.
    """
    check_floating(log_ratio=log_ratio, advantage=advantage)
    check_same_shape(log_ratio=log_ratio, advantage=advantage)
    check_nonnegative(tau=tau)
    return advantage * log_ratio - tau / 2 * jnp.square(log_ratio)


@in_float32
def binary_total_variation(logp: Float[Array, "*rows T"], old_logp: Float[Array, "*rows T"]) -> Float[Array, "*rows T"]:
    """Total variation between two policies if the only outcomes are "this token" and "any other".

    This is a lower bound on the total variation over the full vocabulary.

    ::

        D_t = |π_θ(o_t) - μ(o_t)|

    Args:
        logp: log-probabilities under the policy being trained, `[..., T]`, nats.
        old_logp: log μ, log-probabilities under the sampling policy, `[..., T]`, nats.

    Returns:
        `[..., T]`, in [0, 1].

    Raises:
        ValueError: the shapes differ, or an argument is not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> print(binary_total_variation(jnp.log(jnp.array([0.75])), jnp.log(jnp.array([0.5]))))
        [0.25]

    Source:
        DPPO, arXiv:2602.04879 (binary approximation).
    """
    check_floating(logp=logp, old_logp=old_logp)
    check_same_shape(logp=logp, old_logp=old_logp)
    return jnp.abs(jnp.exp(logp) - jnp.exp(old_logp))


def _log_complement(logp: Array) -> tuple[Array, Bool[Array, "..."]]:
    """Return log(1 - e^logp), and a mask of the entries where e^logp is 1, which contain a finite placeholder."""
    certain = logp >= 0
    return jnp.log(-jnp.expm1(jnp.where(certain, -jnp.ones_like(logp), logp))), certain


@in_float32
def binary_kl(logp: Float[Array, "*rows T"], old_logp: Float[Array, "*rows T"]) -> Float[Array, "*rows T"]:
    """KL(μ ‖ π_θ) between two policies if the only outcomes are "this token" and "any other".

    This is a lower bound on the KL over the full vocabulary. In the equation, μ and π are the probabilities of the sampled token.

    ::

        D_t = μ log(μ / π) + (1 - μ) log((1 - μ) / (1 - π))

    Args:
        logp: log π, log-probabilities under the policy being trained, `[..., T]`, nats.
        old_logp: log μ, log-probabilities under the sampling policy, `[..., T]`, nats.

    Returns:
        `[..., T]`, nats, not negative up to rounding; infinite where π is 0 or 1, unless μ equals π.

    Raises:
        ValueError: the shapes differ, or an argument is not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(binary_kl(jnp.log(jnp.array([0.25])), jnp.log(jnp.array([0.5])))[0]), 4)
        0.1438

    Source:
        DPPO, arXiv:2602.04879 (binary approximation).
    """
    check_floating(logp=logp, old_logp=old_logp)
    check_same_shape(logp=logp, old_logp=old_logp)
    rest, certain = _log_complement(logp)
    old_rest, was_certain = _log_complement(old_logp)
    gap = jnp.where(certain, jnp.inf, old_rest - rest)
    others = jnp.exp(old_rest) * zero_outside(gap, ~was_certain)
    possible = ~jnp.isneginf(old_logp)
    own = jnp.exp(old_logp) * (zero_outside(old_logp, possible) - zero_outside(logp, possible))
    return own + others


@in_float32
def in_trust_region(
    log_ratio: Float[Array, "*rows T"],
    advantage: Float[Array, "*rows T"],
    divergence: Float[Array, "*rows T"],
    *,
    threshold: Number,
) -> Bool[Array, "*rows T"]:
    """Mask of the tokens to train on: those near the sampling policy, and those whose update moves back towards it.

    ::

        keep = not ((A > 0 and ρ > 1 or A < 0 and ρ < 1) and D > δ)

    Args:
        log_ratio: log ρ, `[..., T]`, nats; only its sign matters.
        advantage: A, `[..., T]`.
        divergence: D, for example from `binary_total_variation` or `binary_kl`, `[..., T]`.
        threshold: δ, in the unit of D, not negative.

    Returns:
        bool, `[..., T]`; True where A is 0.

    Raises:
        ValueError: the shapes differ, an argument is not floating point, or `threshold` is negative.

    Example:
        >>> import jax.numpy as jnp
        >>> ratios, divergence = jnp.array([0.7, 0.7, -0.7]), jnp.array([0.5, 0.1, 0.5])
        >>> in_trust_region(ratios, jnp.ones(3), divergence, threshold=0.2).tolist()
        [False, True, True]

    Source:
        DPPO, arXiv:2602.04879 (the mask of its objective).
    """
    check_floating(log_ratio=log_ratio, advantage=advantage, divergence=divergence)
    check_same_shape(log_ratio=log_ratio, advantage=advantage, divergence=divergence)
    check_nonnegative(threshold=threshold)
    outward = jnp.where(advantage > 0, log_ratio > 0, (advantage < 0) & (log_ratio < 0))
    return ~(outward & (divergence > threshold))
