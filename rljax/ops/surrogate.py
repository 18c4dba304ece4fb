"""Surrogate objectives: per token, unreduced, to be **maximized**.

Each takes a log-ratio (see `rljax.ops.ratio`) and an advantage, both `[..., T]`, and returns `[..., T]`. The advantage is
data and must be finite. Token weights are in `rljax.ops.weights`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rljax.ops.arrays import (
    Mask,
    Number,
    check_floating,
    check_nonnegative,
    check_positive,
    check_same_shape,
    in_float32,
    is_concrete,
)
from rljax.ops.masked import masked_mean, zero_outside


def _check_clip(log_ratio: Array, advantage: Array, *, low: Number, high: Number) -> None:
    check_floating(log_ratio=log_ratio, advantage=advantage)
    check_same_shape(log_ratio=log_ratio, advantage=advantage)
    check_nonnegative(low=low, high=high)
    if is_concrete(low) and np.asarray(low) > 1:
        raise ValueError(f"low must lie in [0, 1], got {low}")


def _check_above_one(**numbers: Number) -> None:
    for name, value in numbers.items():
        if is_concrete(value) and not np.asarray(value) > 1:
            raise ValueError(f"{name} must be above 1, got {value}")


def _as_printed(log_ratio: Array, advantage: Array, *, low: Number, high: Number) -> Array:  # pyright: ignore[reportUnusedFunction]
    """PPO's clip as printed in the paper, for readers: a test shows that `clipped` equals it wherever `exp` does not overflow."""
    ratio = jnp.exp(log_ratio)
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - low, 1 + high) * advantage)


def _pessimistic_clip(
    log_ratio: Float[Array, "*rows T"], advantage: Float[Array, "*rows T"], *, low: Number, high: Number, cap: Number
) -> Float[Array, "*rows T"]:
    """The ratio times the advantage, with the ratio capped at `1 + high` if A >= 0 and kept in [1 - low, cap] if A < 0.

    The log-ratio is clamped *before* `exp`, so that a clipped ratio beyond the float range has gradient 0, not 0 × ∞. At the
    bound itself the gradient still flows, so the on-policy gradient is A even if `low` or `high` is 0. If A is 0, the log-ratio is
    clamped to 88 even if `high` is infinite, so that the ratio is finite and the product is 0.
    """
    negative = advantage < 0
    floor = jnp.where(negative, jnp.log1p(-low), -jnp.inf)
    log_high = jnp.log1p(high)
    ceiling = jnp.where(negative, jnp.log(cap), jnp.where(advantage == 0, jnp.minimum(log_high, 88.0), log_high))
    clamped = jnp.where(log_ratio > ceiling, ceiling, jnp.where(log_ratio < floor, floor, log_ratio))
    return jnp.exp(clamped) * advantage


@in_float32
def clipped(
    log_ratio: Float[Array, "*rows T"], advantage: Float[Array, "*rows T"], *, low: Number = 0.2, high: Number = 0.2
) -> Float[Array, "*rows T"]:
    """PPO's pessimistic clip, with separate bounds below and above.

    ::

        min(ρ A, clip(ρ, 1 - low, 1 + high) A)        ρ = exp(log_ratio)

    Args:
        log_ratio: log ρ, `[..., T]`, nats.
        advantage: A, `[..., T]`.
        low: how far below 1 the ratio still has a gradient if A < 0, in [0, 1].
        high: how far above 1 the ratio still has a gradient if A > 0, not negative.

    Returns:
        `[..., T]`, in the advantage's unit, to be maximized.

    Raises:
        ValueError: the shapes differ, an argument is not floating point, `low` is outside [0, 1], or `high` is negative.

    Example:
        >>> import jax.numpy as jnp
        >>> print(clipped(jnp.log(jnp.array([2.0, 0.5])), jnp.array([1.0, -1.0]), low=0.25, high=0.5))
        [ 1.5  -0.75]

    Source:
        PPO, arXiv:1707.06347, Eq. 7; separate bounds: DAPO, arXiv:2503.14476, Eq. 8; Eqs. 9 and 24 of the design
        document. The document's Eq. 26 has another form for A <= 0: combined with its Eq. 29, it never clips the low side.
    """
    _check_clip(log_ratio, advantage, low=low, high=high)
    return _pessimistic_clip(log_ratio, advantage, low=low, high=high, cap=jnp.inf)


@in_float32
def dual_clipped(
    log_ratio: Float[Array, "*rows T"],
    advantage: Float[Array, "*rows T"],
    *,
    low: Number = 0.2,
    high: Number = 0.2,
    cap: float = 3.0,
) -> Float[Array, "*rows T"]:
    """PPO's clip, plus a bound on the objective of tokens with a negative advantage.

    Without this bound, the objective of a token with A < 0 falls without limit as its ratio grows. Clipping the ratio from above
    by δ before PPO's `min` (a "two-sided" clip) gives the same result for δ = c >= 1 + high.

    ::

        C = min(ρ A, clip(ρ, 1 - low, 1 + high) A)
        max(C, c A)  if A < 0,  else C        ρ = exp(log_ratio)

    Args:
        log_ratio: log ρ, `[..., T]`, nats.
        advantage: A, `[..., T]`.
        low: how far below 1 the ratio still has a gradient if A < 0, in [0, 1].
        high: how far above 1 the ratio still has a gradient if A > 0, not negative.
        cap: c, the largest ratio that still has a gradient if A < 0, above 1. Infinity gives `clipped`.

    Returns:
        `[..., T]`, in the advantage's unit, to be maximized.

    Raises:
        ValueError: the shapes differ, an argument is not floating point, `low` is outside [0, 1], `high` is negative,
            `cap` is not above 1.

    Example:
        >>> import jax.numpy as jnp
        >>> print(dual_clipped(jnp.log(jnp.array([9.0, 2.0])), jnp.array([-1.0, -1.0]), cap=4.0))
        [-4. -2.]

    Source:
        Ye et al., arXiv:1912.09729, Eq. 5.
    """
    _check_clip(log_ratio, advantage, low=low, high=high)
    _check_above_one(cap=cap)
    return _pessimistic_clip(log_ratio, advantage, low=low, high=high, cap=cap)


@in_float32
def reinforce(logp: Float[Array, "*rows T"], advantage: Float[Array, "*rows T"]) -> Float[Array, "*rows T"]:
    """The score function times the advantage: no ratio, no clip.

    Only the gradient is meaningful. Passing a token log-ratio as `logp` shifts the value by the constant A log π_old.

    ::

        A log π_θ

    Args:
        logp: log-probabilities under the policy being trained (or a token log-ratio), `[..., T]`, nats.
        advantage: A, `[..., T]`.

    Returns:
        `[..., T]`, to be maximized.

    Raises:
        ValueError: the shapes differ, or an argument is not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> reinforce(jnp.array([-1.0, -2.0]), jnp.array([0.5, -1.0])).tolist()
        [-0.5, 2.0]

    Source:
        Williams (1992); GPG, arXiv:2504.02546, without its factor for uniform groups; Eq. 5 of the design document.
    """
    check_floating(logp=logp, advantage=advantage)
    check_same_shape(logp=logp, advantage=advantage)
    return advantage * logp


@in_float32
def cispo(
    log_ratio: Float[Array, "*rows T"], advantage: Float[Array, "*rows T"], *, low: float, high: float
) -> Float[Array, "*rows T"]:
    """REINFORCE with a clipped importance weight: no token ever loses its gradient.

    The paper has log π instead of log ρ. Since log π_old is data, this shifts the value by a constant and keeps the gradient.

    ::

        sg[clip(ρ, 1 - low, 1 + high)] A log ρ        ρ = exp(log_ratio)

    Args:
        log_ratio: log ρ, `[..., T]`, nats.
        advantage: A, `[..., T]`.
        low: how far below 1 the weight may fall, in [0, 1]. The paper sets no lower bound, which is the same as low = 1.
        high: how far above 1 the weight may rise, not negative. The paper tunes this bound and gives no value.

    Returns:
        `[..., T]`, to be maximized; only its gradient is meaningful.

    Raises:
        ValueError: the shapes differ, an argument is not floating point, `low` is outside [0, 1], or `high` is negative.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> log_ratio, advantage = jnp.log(jnp.array([9.0, 1.0])), jnp.array([1.0, -1.0])
        >>> jax.grad(lambda x: cispo(x, advantage, low=1.0, high=0.5).sum())(log_ratio).tolist()
        [1.5, -1.0]

    Source:
        MiniMax-M1, arXiv:2506.13585, Section 3.1, Eqs. 4-5.
    """
    _check_clip(log_ratio, advantage, low=low, high=high)
    weight = jax.lax.stop_gradient(jnp.clip(jnp.exp(log_ratio), 1 - low, 1 + high))
    return weight * advantage * log_ratio


@in_float32
def sapo(
    log_ratio: Float[Array, "*rows T"],
    advantage: Float[Array, "*rows T"],
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> Float[Array, "*rows T"]:
    """A soft gate instead of a clip: the gradient fades on both sides of ρ = 1 and never stops abruptly.

    On-policy, the gradient with respect to log ρ is A for every τ.

    ::

        (4/τ) σ(τ (ρ - 1)) A        τ = tau_positive if A > 0, else tau_negative;  ρ = exp(log_ratio)

    Args:
        log_ratio: log ρ, `[..., T]`, nats.
        advantage: A, `[..., T]`.
        tau_positive: how fast the gate closes for A > 0, positive.
        tau_negative: how fast the gate closes for A <= 0, positive; in the paper it is the larger of the two.

    Returns:
        `[..., T]`, in the advantage's unit, to be maximized. The value at ρ = 1 is 2A/τ, not A.

    Raises:
        ValueError: the shapes differ, an argument is not floating point, or a temperature is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> sapo(jnp.array([0.0, 0.0]), jnp.array([1.0, -1.0]), tau_negative=2.0).tolist()
        [2.0, -1.0]

    Source:
        Soft Adaptive Policy Optimization, arXiv:2511.20347.
    """
    check_floating(log_ratio=log_ratio, advantage=advantage)
    check_same_shape(log_ratio=log_ratio, advantage=advantage)
    check_positive(tau_positive=tau_positive, tau_negative=tau_negative)
    # The gate closes long before the float range ends, so this cap only prevents an infinite ratio, with its gradient 0 × ∞.
    ratio = jnp.exp(jnp.minimum(log_ratio, jnp.log(jnp.finfo(log_ratio.dtype).max) - 1))
    tau = jnp.where(advantage > 0, tau_positive, tau_negative)
    return jax.nn.sigmoid(tau * (ratio - 1)) * 4 / tau * advantage


def gmpo(
    log_ratio: Float[Array, "*rows T"], advantage: Float[Array, "*rows T"], mask: Mask, *, clip: float = 0.4
) -> Float[Array, "*rows T"]:
    """The geometric mean of a response's ratios, each clipped on its optimistic side in log space.

    The paper has one A per response. With such an A and `weights.sequence_mean`, the result is the paper's mean over responses.
    An A that varies within a response is averaged over its tokens, and each token's own sign decides how the token is clipped.

    ::

        A_i exp((1/|o_i|) Σ_t s min(s log ρ_it, clip(s log ρ_it, -c, c)))        s = sign(A_i)

    Args:
        log_ratio: *token* log-ratios log ρ, `[..., T]`, nats.
        advantage: A, `[..., T]`, constant over the tokens of a response.
        mask: response tokens, bool or 0/1, `[..., T]`.
        clip: c, nats, not negative.

    Returns:
        `[..., T]`, in the advantage's unit, to be maximized: the response's value on each of its tokens, 0 outside the mask.

    Raises:
        ValueError: the shapes differ, an argument is not floating point, or `clip` is negative.

    Example:
        >>> import jax.numpy as jnp
        >>> print(gmpo(jnp.array([9.0, -0.4, 0.0]), jnp.array([2.0, 2.0, 0.0]), jnp.array([1, 1, 0])))
        [2. 2. 0.]

    Source:
        Geometric-Mean Policy Optimization, arXiv:2507.20673.
    """
    check_floating(log_ratio=log_ratio, advantage=advantage)
    check_same_shape(log_ratio=log_ratio, advantage=advantage, mask=mask)
    check_nonnegative(clip=clip)
    advantage = zero_outside(advantage, mask)
    sign = jnp.sign(advantage)
    signed = sign * zero_outside(log_ratio, mask)
    clamped = sign * jnp.where(signed > clip, clip, signed)
    return advantage * jnp.exp(masked_mean(clamped, mask))[..., None]
