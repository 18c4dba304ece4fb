"""Weighted mixtures of advantages, value estimates and distributions."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import (
    Mask,
    Number,
    Step,
    check_between,
    check_floating,
    check_mask,
    check_nonnegative,
    check_same_shape,
    common_dtype,
    in_float32,
)
from rljax.ops.masked import masked_centered
from rljax.ops.unpublished.schedule import exponential_decay


@in_float32
def mix_advantages(first: Float[Array, "..."], second: Float[Array, "..."], *, weight: Number) -> Float[Array, "..."]:
    """Mix two estimates of an advantage.

    ::

        A = α A_first + (1 - α) A_second

    Args:
        first: A_first, for example a critic's advantage; the caller must broadcast it to the shape of `second`.
        second: A_second, for example a group-relative advantage.
        weight: α, in [0, 1]; may be traced, so it can come from a schedule.

    Returns:
        The mixed advantage, in the shape of `first`.

    Raises:
        ValueError: mismatched shapes, integer advantages, or `weight` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> mix_advantages(jnp.array([1.0, 0.0]), jnp.array([0.0, 4.0]), weight=0.75).tolist()
        [0.75, 1.0]

    Source:
        unpublished: a design document (not a paper), Eq. 58, where `first` is VAPO's advantage and `second` is GRPO's; Eq. 59 is
        the schedule of α. Published alternative: either estimate alone, `rljax.ops.gae.gae` or
        `rljax.ops.group.group_normalized`.
    """
    check_floating(first=first, second=second)
    check_same_shape(first=first, second=second)
    check_between(0.0, 1.0, weight=weight)
    return weight * first + (1 - weight) * second


@in_float32
def with_exploration_bonus(
    advantage: Float[Array, "..."], bonus: Float[Array, "..."], *, beta: Number
) -> Float[Array, "..."]:
    """Advantage plus an exploration bonus.

    ::

        A = A_GRPO + β · bonus

    Args:
        advantage: A_GRPO, or any other advantage.
        bonus: an array of the same shape, for example from `entropy_bonus`.
        beta: β, not negative, in the advantage's unit per unit of bonus.

    Returns:
        The sum, in the shape of `advantage`.

    Raises:
        ValueError: mismatched shapes, integer arrays, or a negative `beta`.

    Example:
        >>> import jax.numpy as jnp
        >>> with_exploration_bonus(jnp.array([1.0, -1.0]), jnp.array([2.0, 4.0]), beta=0.25).tolist()
        [1.5, 0.0]

    Source:
        unpublished: a design document (not a paper), Algorithm 9, line 6 (DAPO-GRPO hybrid). Published
        alternative: the entropy term of T1 (arXiv:2501.11651), `rljax.algorithms.terms.entropy_bonus`.
    """
    check_floating(advantage=advantage, bonus=bonus)
    check_same_shape(advantage=advantage, bonus=bonus)
    check_nonnegative(beta=beta)
    return advantage + beta * bonus


def entropy_bonus(entropy: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows T"]:
    """The policy's entropy at each token, minus its mean over the batch.

    The source adds an exploration bonus without defining it; this is our definition. The bonus is centered, because
    a bonus that is positive everywhere would make all sampled tokens more likely and leave exploration unchanged.

    ::

        bonus_it = H_it - mean{ H_jτ : m_jτ = 1 }        H_it = -Σ_v π(v | s_it) log π(v | s_it)

    Args:
        entropy: H, of the sampling policy, `[..., T]`, nats. Apply `stop_gradient` to it first; this function does not.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats; sums to 0 over the batch, 0 outside the mask.

    Raises:
        ValueError: mismatched shapes, or integer entropies.

    Example:
        >>> import jax.numpy as jnp
        >>> entropy_bonus(jnp.array([[1.0, 2.0], [3.0, jnp.nan]]), jnp.array([[1, 1], [1, 0]])).tolist()
        [[-1.0, 0.0], [1.0, 0.0]]

    Source:
        unpublished: a design document (not a paper), Algorithm 9, which leaves `exploration_bonus` undefined; this
        definition is ours. Published alternative: T1's entropy, `rljax.ops.divergence.entropy`.
    """
    check_floating(entropy=entropy)
    check_mask(mask=mask)
    check_same_shape(entropy=entropy, mask=mask)
    return masked_centered(entropy.reshape(-1), mask.reshape(-1)).reshape(entropy.shape)


@in_float32
def mix_values(
    pretrained: Float[Array, "*rows T"], critic: Float[Array, "*rows T"], weight: Number
) -> Float[Array, "*rows T"]:
    """Mix the values of a frozen, pretrained model with those of the critic in training.

    ::

        V_aug = w V_pretrained + (1 - w) V_critic

    Args:
        pretrained: values of the pretrained model, `[..., T]`.
        critic: values of the critic in training, `[..., T]`, in the same unit.
        weight: w in [0, 1], see `pretrained_value_weight`.

    Returns:
        `[..., T]`, in the values' unit.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or `weight` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> mix_values(jnp.array([1.0]), jnp.array([3.0]), 0.25).tolist()
        [2.5]

    Source:
        unpublished: a design document (not a paper), Eq. 17, wrongly attributed to VAPO. Published alternative: the
        pretrained critic alone (VC-PPO, arXiv:2503.01491).
    """
    check_floating(pretrained=pretrained, critic=critic)
    check_same_shape(pretrained=pretrained, critic=critic)
    check_between(0, 1, weight=weight)
    return weight * pretrained + (1 - weight) * critic


@in_float32
def pretrained_value_weight(
    step: Step,
    *,
    total_steps: Number,
    initial: Number = 0.8,
    decay: Number = 2.0,
    reliability: Number,
    eta: Number,
) -> Float[Array, "..."]:
    """Weight of the pretrained value model, which decreases with the training step and with the critic's reliability.

    ::

        w(t) = w_0 exp(-κ t / T_total) / (1 + η reliability)

    Args:
        step: t, training step, not negative, a number or an array of any shape.
        total_steps: T_total, at least 1.
        initial: w_0, the weight at step 0 and reliability 0, in [0, 1].
        decay: κ, decay rate over the training run, not negative.
        reliability: how well the critic predicts, not negative (clip an explained variance at 0 first, or the weight
            could leave [0, 1]).
        eta: η, weight of the reliability, not negative; the document gives no value.

    Returns:
        w in [0, w_0], in the shape of `step`.

    Raises:
        ValueError: an argument outside its range.

    Example:
        >>> pretrained_value_weight(0, total_steps=100, reliability=0.5, eta=2.0).round(6).item()
        0.4000000059604645

    Source:
        unpublished: a design document (not a paper), Eq. 18, wrongly attributed to VAPO. No published
        estimator has such a weight.
    """
    check_between(0, 1, initial=initial)
    check_nonnegative(reliability=reliability, eta=eta)
    return exponential_decay(step, initial=initial, decay=decay, total_steps=total_steps) / (1 + eta * reliability)


@in_float32
def multi_head_value(values: Float[Array, "*rows H"], weight_logits: Float[Array, "*rows H"]) -> Float[Array, "*rows"]:
    """Value as a mixture of heads, with separate weights for each state.

    ::

        V(s) = Σ_h w_h(s) V_h(s)        w(s) = softmax(weight_logits(s))

    The softmax is our choice (the document does not specify w): it keeps V between the lowest and the highest head's value.
    To use other weights, pass their logarithms.

    Args:
        values: V_h, the value of each head, `[..., H]`.
        weight_logits: unnormalized log-weight of each head, `[..., H]`, nats; -inf switches a head off.

    Returns:
        `[...]`, in the values' unit.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or no head.

    Example:
        >>> import jax.numpy as jnp
        >>> multi_head_value(jnp.array([1.0, 3.0]), jnp.zeros(2)).item()
        2.0

    Source:
        unpublished: a design document (not a paper), Eq. 21, wrongly attributed to VAPO. Published alternative: a
        categorical head, `rljax.ops.categorical.hl_gauss`.
    """
    check_floating(values=values, weight_logits=weight_logits)
    check_same_shape(values=values, weight_logits=weight_logits)
    if values.shape[-1:] in ((), (0,)):
        raise ValueError(f"values must have at least one head on its last axis, got shape {list(values.shape)}")
    return (jax.nn.softmax(weight_logits, -1) * values).sum(-1)


@in_float32
def neural_symbolic_mixture(
    logp: Float[Array, "*shape"], symbolic_logp: Float[Array, "*shape"], *, alpha: Number
) -> Float[Array, "*shape"]:
    """Log-probability under a mixture of a network and a set of rules.

    ::

        log π = log(α π_neural + (1 - α) π_symbolic)

    Args:
        logp: log π_neural, of tokens or of a full vocabulary, nats; may be -inf.
        symbolic_logp: log π_symbolic, of the same shape, nats; -inf where the rules forbid a token.
        alpha: α in [0, 1]; may carry a gradient. At 1 the result is exactly `logp`, and at 0 exactly `symbolic_logp`.

    Returns:
        log π, nats, of the same shape; -inf (with gradient 0) where the mixture has probability 0.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or `alpha` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> mixed = neural_symbolic_mixture(jnp.log(jnp.array([0.5, 0.5])), jnp.array([0.0, -jnp.inf]), alpha=0.5)
        >>> jnp.exp(mixed).tolist()
        [0.75, 0.25]

    Source:
        unpublished: a design document (not a paper), Eq. 64. No published estimator in rljax computes this.
    """
    check_floating(logp=logp, symbolic_logp=symbolic_logp)
    check_same_shape(logp=logp, symbolic_logp=symbolic_logp)
    check_between(0, 1, alpha=alpha)
    dtype = common_dtype(logp, symbolic_logp)
    logp, symbolic_logp, weight = logp.astype(dtype), symbolic_logp.astype(dtype), jnp.asarray(alpha, dtype)
    # The shift cancels out of the result, so its gradient, which is infinite at alpha 0 and 1, is stopped.
    shift = jax.lax.stop_gradient(jnp.maximum(jnp.log(weight) + logp, jnp.log1p(-weight) + symbolic_logp))
    impossible = jnp.isneginf(shift)
    shift = jnp.where(impossible, 0.0, shift)
    # A term of weight 0 may be far above the shift; the bound keeps it from becoming 0 · inf. Other terms are below the bound.
    bound = jnp.log(jnp.finfo(weight.dtype).max) - 1
    neural, symbolic = (jnp.exp(jnp.minimum(x - shift, bound)) for x in (logp, symbolic_logp))
    total = weight * neural + (1 - weight) * symbolic
    return jnp.where(impossible, -jnp.inf, shift + jnp.log(jnp.where(impossible, 1.0, total)))
