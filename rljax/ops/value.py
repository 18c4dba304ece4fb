"""Critics: what they are trained on, how they are judged, and how several are blended into one.

Losses come back per token, to be **minimised** as `sum(weights * loss)`. Values held as distributions: `rljax.ops.categorical`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.checks import (
    check_between,
    check_floating,
    check_nonnegative,
    check_positive,
    check_same_shape,
)
from rljax.ops.masked import Mask, zero_outside
from rljax.ops.schedule import Number, Step, exponential_decay


def value_loss(values: Float[Array, "*rows T"], returns: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows T"]:
    """Half the squared error of the critic.

    ::

        L_t = ½ (V_t - R_t)²

    Args:
        values: V_t, carries the gradient, `[..., T]`.
        returns: R_t, the target, `[..., T]`, in the same unit.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, in the squared unit, to be minimised; 0 outside the mask.

    Raises:
        ValueError: not floating point, shapes that differ, or a malformed mask.

    Example:
        >>> import jax.numpy as jnp
        >>> value_loss(jnp.array([1.0, 9.0]), jnp.array([3.0, 0.0]), jnp.array([1, 0])).tolist()
        [2.0, 0.0]

    Source:
        PPO, arXiv:1707.06347, Eq. 9 (L^VF, there without the half); the loss of MF Algorithm 1, line 5.
    """
    check_floating(values=values, returns=returns)
    check_same_shape(values=values, returns=returns, mask=mask)
    return 0.5 * jnp.square(zero_outside(values, mask) - zero_outside(returns, mask))


def clipped_value_loss(
    values: Float[Array, "*rows T"],
    old_values: Float[Array, "*rows T"],
    returns: Float[Array, "*rows T"],
    mask: Mask,
    *,
    clip: Number = 0.2,
) -> Float[Array, "*rows T"]:
    """Half the squared error, the larger of the critic's and of the critic's held near what it said at sampling.

    ::

        L_t = ½ max((V_t - R_t)², (clip(V_t, V_old - c, V_old + c) - R_t)²)

    A value that has already moved by c *towards* its target gets no further gradient; one that moved away does.

    Args:
        values: V_t, carries the gradient, `[..., T]`.
        old_values: V_old, the critic's values when the responses were sampled, `[..., T]`.
        returns: R_t, the target, `[..., T]`.
        mask: response tokens, bool or 0/1, `[..., T]`.
        clip: c in the value's unit, positive. No paper states it: 0.2 is OpenAI Baselines' and TRL's, 0.5 verl's.

    Returns:
        `[..., T]`, in the squared unit, to be minimised; 0 outside the mask; nowhere below `value_loss`.

    Raises:
        ValueError: not floating point, shapes that differ, a malformed mask, or `clip` not positive.

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
    held = jnp.clip(value, old - clip, old + clip)
    return 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(held - target))


def explained_variance(values: Float[Array, "*rows T"], returns: Float[Array, "*rows T"], mask: Mask) -> Float[Array, ""]:
    """Share of the returns' variance that the critic accounts for, over all response tokens of the batch.

    ::

        EV = 1 - Var[R - V] / Var[R]        and 0 where Var[R] = 0

    1 is perfect, 0 no better than a constant, below 0 worse. A constant error is not seen: Var drops it.
    Returns that are all the same leave nothing to explain, and EV is 0 rather than undefined, so that a rule of the kind
    "EV > 0.8" is not met by such a batch.

    Args:
        values: V_t, `[..., T]`.
        returns: R_t, `[..., T]`, in the same unit.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        One number, without unit, at most 1; 0 for a batch without tokens.

    Raises:
        ValueError: not floating point, shapes that differ, or a malformed mask.

    Example:
        >>> import jax.numpy as jnp
        >>> explained_variance(jnp.array([0.0, 1.0]), jnp.array([0.0, 2.0]), jnp.array([1, 1])).item()
        0.75

    Source:
        MF Algorithm 1, line 6; a convergence criterion of VC-PPO, arXiv:2503.01491.
    """
    check_floating(values=values, returns=returns)
    check_same_shape(values=values, returns=returns, mask=mask)
    target = zero_outside(returns, mask)
    total = _masked_variance(target, mask)
    residual = _masked_variance(target - zero_outside(values, mask), mask)
    constant = total == 0
    return jnp.where(constant, 0.0, 1 - residual / jnp.where(constant, 1.0, total))


def _masked_variance(x: Float[Array, "*rows T"], mask: Mask) -> Float[Array, ""]:
    """Variance over the tokens that count; exactly 0 when they are all the same, since distances to one of them are averaged."""
    keep = mask.astype(bool)
    count = jnp.maximum(keep.sum(), 1).astype(x.dtype)
    lowest = jnp.where(keep.any(), jnp.min(jnp.where(keep, x, jnp.inf)), 0.0)
    distance = jnp.where(keep, x - lowest, 0.0)
    return jnp.where(keep, jnp.square(distance - distance.sum() / count), 0.0).sum() / count


def mix_values(
    pretrained: Float[Array, "*rows T"], critic: Float[Array, "*rows T"], weight: Number
) -> Float[Array, "*rows T"]:
    """Blend of a frozen, pretrained value model and the critic in training.

    ::

        V_aug = w V_pretrained + (1 - w) V_critic

    Args:
        pretrained: values of the pretrained model, `[..., T]`.
        critic: values of the critic in training, `[..., T]`, in the same unit.
        weight: w in [0, 1], see `pretrained_value_weight`.

    Returns:
        `[..., T]`, in the values' unit.

    Raises:
        ValueError: not floating point, shapes that differ, `weight` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> mix_values(jnp.array([1.0]), jnp.array([3.0]), 0.25).tolist()
        [2.5]

    Source:
        MF Eq. 17; not in VAPO.
    """
    check_floating(pretrained=pretrained, critic=critic)
    check_same_shape(pretrained=pretrained, critic=critic)
    check_between(0, 1, weight=weight)
    return weight * pretrained + (1 - weight) * critic


def pretrained_value_weight(
    step: Step,
    *,
    total_steps: Number,
    initial: Number = 0.8,
    decay: Number = 2.0,
    reliability: Number,
    eta: Number,
) -> Float[Array, "..."]:
    """Weight of the pretrained value model: it falls as training goes on and as the critic proves itself.

    ::

        w(t) = w_0 exp(-κ t / T_total) / (1 + η reliability)

    Args:
        step: t, training step, not negative, a number or an array of any shape.
        total_steps: T_total, at least 1.
        initial: w_0 in [0, 1].
        decay: κ, not negative.
        reliability: how well the critic predicts, not negative (an explained variance is to be cut at 0 first, or the weight
            could leave [0, 1]).
        eta: η, not negative; the source gives no value.

    Returns:
        w in [0, w_0], in the shape of `step`.

    Raises:
        ValueError: a number outside its range.

    Example:
        >>> pretrained_value_weight(0, total_steps=100, reliability=0.5, eta=2.0).round(6).item()
        0.4000000059604645

    Source:
        MF Eq. 18; not in VAPO.
    """
    check_between(0, 1, initial=initial)
    check_nonnegative(reliability=reliability, eta=eta)
    return exponential_decay(step, initial=initial, decay=decay, total_steps=total_steps) / (1 + eta * reliability)


def multi_head_value(values: Float[Array, "*rows H"], weight_logits: Float[Array, "*rows H"]) -> Float[Array, "*rows"]:
    """Value as a mixture of heads, weighed anew in each state.

    ::

        V(s) = Σ_h w_h(s) V_h(s)        w(s) = softmax(weight_logits(s))

    The softmax is ours (the source leaves w free): it keeps V between the lowest and the highest head. For weights of
    one's own, pass their logarithms.

    Args:
        values: V_h, `[..., H]`.
        weight_logits: `[..., H]`, nats; -inf switches a head off.

    Returns:
        `[...]`, in the values' unit.

    Raises:
        ValueError: not floating point, shapes that differ, or no head.

    Example:
        >>> import jax.numpy as jnp
        >>> multi_head_value(jnp.array([1.0, 3.0]), jnp.zeros(2)).item()
        2.0

    Source:
        MF Eq. 21; not in VAPO.
    """
    check_floating(values=values, weight_logits=weight_logits)
    check_same_shape(values=values, weight_logits=weight_logits)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise ValueError(f"values must have at least one head on its last axis, got shape {list(values.shape)}")
    return (jax.nn.softmax(weight_logits, -1) * values).sum(-1)
