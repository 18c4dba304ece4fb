"""Critic losses, and the explained variance.

Losses are per token, to be **minimized** as `sum(weights * loss)`. For distributional critics, see `rljax.ops.categorical`.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import (
    Mask,
    Number,
    check_floating,
    check_positive,
    check_same_shape,
    common_dtype,
    in_float32,
    power_of_two,
)
from rljax.ops.masked import masked_centered, masked_mean, zero_outside


def value_loss(values: Float[Array, "*rows T"], returns: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows T"]:
    """Half the squared error of the critic.

    ::

        L_t = ½ (V_t - R_t)²

    Args:
        values: V_t, carries the gradient, `[..., T]`.
        returns: R_t, the target, `[..., T]`, in the same unit.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, in the values' unit squared, to be minimized; 0 outside the mask.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or a malformed mask.

    Example:
        >>> import jax.numpy as jnp
        >>> value_loss(jnp.array([1.0, 9.0]), jnp.array([3.0, 0.0]), jnp.array([1, 0])).tolist()
        [2.0, 0.0]

    Source:
        PPO, arXiv:1707.06347, Eq. 9 (L^VF, there without the factor ½); line 5 of Algorithm 1 of
        the design document.
    """
    check_floating(values=values, returns=returns)
    check_same_shape(values=values, returns=returns, mask=mask)
    return 0.5 * jnp.square(zero_outside(values, mask) - zero_outside(returns, mask))


@in_float32
def clipped_value_loss(
    values: Float[Array, "*rows T"],
    old_values: Float[Array, "*rows T"],
    returns: Float[Array, "*rows T"],
    mask: Mask,
    *,
    clip: Number = 0.2,
) -> Float[Array, "*rows T"]:
    """PPO's clipped critic loss: half the squared error of the value, or of the clipped value, whichever is larger.

    ::

        L_t = ½ max((V_t - R_t)², (clip(V_t, V_old - c, V_old + c) - R_t)²)

    A value that has already moved by c *towards* its target gets no further gradient; a value that moved away still does.

    Args:
        values: V_t, carries the gradient, `[..., T]`.
        old_values: V_old, the critic's values when the responses were sampled, `[..., T]`.
        returns: R_t, the target, `[..., T]`.
        mask: response tokens, bool or 0/1, `[..., T]`.
        clip: c, in the values' unit, positive. No paper states a value: OpenAI Baselines and TRL use 0.2, verl 0.5.

    Returns:
        `[..., T]`, in the values' unit squared, to be minimized; 0 outside the mask; never below `value_loss`.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, a malformed mask, or `clip` not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> v, old, target = jnp.array([1.0, -1.0]), jnp.zeros(2), jnp.array([2.0, 2.0])
        >>> clipped_value_loss(v, old, target, jnp.ones(2), clip=0.5).tolist()
        [1.125, 4.5]

    Source:
        PPO as implemented in OpenAI Baselines; arXiv:1707.06347 has no value clip.
    """
    check_floating(values=values, old_values=old_values, returns=returns)
    check_same_shape(values=values, old_values=old_values, returns=returns, mask=mask)
    check_positive(clip=clip)
    value, old, target = (zero_outside(x, mask) for x in (values, old_values, returns))
    clipped = jnp.clip(value, old - clip, old + clip)
    return 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(clipped - target))


def explained_variance(values: Float[Array, "*rows T"], returns: Float[Array, "*rows T"], mask: Mask) -> Float[Array, ""]:
    """Fraction of the returns' variance that the critic explains, over all response tokens of the batch.

    ::

        EV = 1 - Var[R - V] / Var[R]        and 0 where Var[R] = 0

    1 is perfect, 0 is no better than a constant, below 0 is worse. A constant error goes unnoticed, because the
    variance ignores it. If all returns are the same, there is nothing to explain; EV is then 0 rather than undefined, so that
    such a batch does not satisfy a rule like "EV > 0.8".

    Args:
        values: V_t, `[..., T]`.
        returns: R_t, `[..., T]`, in the same unit.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        One number, dimensionless, at most 1; 0 for a batch without tokens.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or a malformed mask.

    Example:
        >>> import jax.numpy as jnp
        >>> explained_variance(jnp.array([0.0, 1.0]), jnp.array([0.0, 2.0]), jnp.array([1, 1])).item()
        0.75

    Source:
        A convergence criterion of VC-PPO, arXiv:2503.01491; line 6 of Algorithm 1 of the design document.
    """
    check_floating(values=values, returns=returns)
    check_same_shape(values=values, returns=returns, mask=mask)
    target, value = zero_outside(returns, mask), zero_outside(values, mask)
    dtype = common_dtype(target, value)
    scale = power_of_two(jnp.stack([target.astype(dtype), value.astype(dtype)]).reshape(-1)).reshape(())
    total = _masked_variance(target / scale, mask)
    residual = _masked_variance(target / scale - value / scale, mask)
    varies = total.astype(bool)
    return jnp.where(varies, 1 - residual / jnp.where(varies, total, jnp.ones_like(total)), 0.0)


def _masked_variance(x: Float[Array, "*rows T"], mask: Mask) -> Float[Array, ""]:
    """Variance over all tokens in the batch's mask; exactly 0 if all their values are the same."""
    flat = mask.reshape(-1)
    return masked_mean(jnp.square(masked_centered(x.reshape(-1), flat)), flat)
