"""Critics: what they are trained on, how they are judged, and values held as distributions.

Losses come back per token, to be **minimised** as `sum(weights * loss)`. A categorical value is a distribution over N support
points (atoms) on a last axis of its own, `[..., N]`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rljax.ops.checks import (
    check_at_least,
    check_between,
    check_floating,
    check_mask,
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


def _concrete(*values) -> bool:
    return not any(isinstance(value, jax.core.Tracer) for value in values)


def _check_support(support: Array) -> None:
    check_floating(support=support)
    if support.ndim != 1 or support.shape[0] < 2:
        raise ValueError(f"support must be one axis of at least 2 points, got shape {list(support.shape)}")
    if _concrete(support) and not (np.diff(np.asarray(support)) > 0).all():
        raise ValueError(f"support must increase strictly, got {np.asarray(support)}")


def _rounding(support: Array) -> float:
    """A few units in the last place of the largest support point."""
    return 8 * float(jnp.finfo(support.dtype).eps) * float(np.abs(np.asarray(support)).max())


def _check_covered(target: Array, support: Array) -> None:
    """Refuse a target beyond the ends of the support by more than rounding, where its value can be seen."""
    if _concrete(target, support) and target.size:
        values, slack = np.asarray(target), _rounding(support)
        low, high = float(support[0]), float(support[-1])
        if not ((values >= low - slack) & (values <= high + slack)).all():
            raise ValueError(
                f"target must lie within the support [{low:g}, {high:g}], got values from {values.min():g} to {values.max():g}"
            )


def _check_atoms(support: Array, **distributions: Array) -> None:
    _check_support(support)
    check_floating(**distributions)
    for name, value in distributions.items():
        if value.ndim == 0 or value.shape[-1] != support.shape[0]:
            raise ValueError(
                f"{name} must have the support's {support.shape[0]} points last, got shape {list(value.shape)}"
            )


def _last(support: Float[Array, "N"], rank: int) -> Float[Array, "..."]:
    return support.reshape((1,) * (rank - 1) + (-1,))


def uniform_support(low: float | int, high: float | int, bins: int) -> Float[Array, "N"]:
    """Evenly spaced support points, both ends included.

    ::

        z_i = low + i (high - low) / (N - 1)        i = 0 .. N-1

    Args:
        low: z_0, in the return's unit.
        high: z_{N-1}, above `low`. Leave room past the possible returns: near the end of the support `hl_gauss` is biased.
        bins: N, at least 2.

    Returns:
        `[N]`, increasing.

    Raises:
        ValueError: `low` not below `high` or either not finite, or fewer than 2 bins.

    Example:
        >>> uniform_support(-1.0, 1.0, 5).tolist()
        [-1.0, -0.5, 0.0, 0.5, 1.0]

    Source:
        C51, arXiv:1707.06887, Section 4; MF Eq. 22.
    """
    check_at_least(2, bins=bins)
    if not -np.inf < low < high < np.inf:
        raise ValueError(f"low must be below high, both finite, got low {low} and high {high}")
    return jnp.linspace(low, high, bins)


def _between_neighbours(target: Float[Array, "..."], support: Float[Array, "N"]) -> Float[Array, "... N"]:
    """Two-hot weights of each target, held to the support first."""
    held = jnp.clip(target, support[0], support[-1])
    left = jnp.clip(jnp.searchsorted(support, held, side="right") - 1, 0, support.shape[0] - 2)
    share = (held - support[left]) / (support[left + 1] - support[left])
    hot = jax.nn.one_hot(jnp.stack([left, left + 1]), support.shape[0], dtype=support.dtype)
    return hot[0] * (1 - share)[..., None] + hot[1] * share[..., None]


def two_hot(target: Float[Array, "*rows"], support: Float[Array, "N"]) -> Float[Array, "*rows N"]:
    """Distribution on the two support points around the target, whose mean is exactly the target.

    ::

        p_i = (z_{i+1} - y) / (z_{i+1} - z_i)        p_{i+1} = (y - z_i) / (z_{i+1} - z_i)        z_i ≤ y ≤ z_{i+1}

    Args:
        target: y, `[...]`, in [z_0, z_{N-1}]. Inside a trace values cannot be seen, and one beyond the support is put on its
            nearest end.
        support: z, `[N]`, strictly increasing, evenly spaced or not.

    Returns:
        `[..., N]`, sums to 1.

    Raises:
        ValueError: not floating point, a support that does not increase, a target beyond the support (or NaN).

    Example:
        >>> import jax.numpy as jnp
        >>> two_hot(jnp.array([0.25]), jnp.array([0.0, 1.0, 2.0])).tolist()
        [[0.75, 0.25, 0.0]]

    Source:
        arXiv:2403.03950, Section 3.1.
    """
    check_floating(target=target)
    _check_support(support)
    _check_covered(target, support)
    return _between_neighbours(target, support)


def hl_gauss(
    target: Float[Array, "*rows"], support: Float[Array, "N"], *, sigma_ratio: Number = 0.75
) -> Float[Array, "*rows N"]:
    """Histogram of a normal distribution around the target: neighbouring bins share the mass.

    ::

        p_i = (Φ((z_i + w/2 - y)/s) - Φ((z_i - w/2 - y)/s)) / Z        s = sigma_ratio · w,  w = bin width

        Z = Φ((z_{N-1} + w/2 - y)/s) - Φ((z_0 - w/2 - y)/s)            the mass that the bins hold

    Its mean is the target but near an end of the support, where the normal is cut: with 51 bins that tile [0, 1], y = 0
    decodes to 0.0135. Let the support reach some 3 bins past the possible returns.

    Args:
        target: y, `[...]`, in [z_0 - w/2, z_{N-1} + w/2]. Inside a trace values cannot be seen, and one beyond is put on the
            nearest end.
        support: z, the bins' centres, `[N]`, evenly spaced and increasing.
        sigma_ratio: s / w, positive.

    Returns:
        `[..., N]`, sums to 1.

    Raises:
        ValueError: not floating point, an uneven support, a target beyond the bins (or NaN), `sigma_ratio` not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> hl_gauss(jnp.array([0.0]), jnp.array([-1.0, 0.0, 1.0])).round(2).tolist()
        [[0.23999999463558197, 0.5199999809265137, 0.23999999463558197]]

    Source:
        arXiv:2403.03950, Section 3.1; renormalised over the bins as in its authors' code.
    """
    check_floating(target=target)
    check_positive(sigma_ratio=sigma_ratio)
    _check_support(support)
    _check_even(support)
    width = (support[-1] - support[0]) / (support.shape[0] - 1)
    edges = jnp.append(support - width / 2, support[-1] + width / 2)
    _check_covered(target, edges)
    held = jnp.clip(target, edges[0], edges[-1])[..., None]
    below = jax.scipy.special.ndtr((_last(edges, held.ndim) - held) / (sigma_ratio * width))
    return jnp.diff(below, axis=-1) / (below[..., -1:] - below[..., :1])


def _check_even(support: Array) -> None:
    if _concrete(support):
        widths = np.diff(np.asarray(support, np.float64))
        if widths.max() - widths.min() > _rounding(support):
            raise ValueError(f"support must be evenly spaced, got distances from {widths.min():g} to {widths.max():g}")


def c51_projection(
    rewards: Float[Array, "*rows"],
    probs: Float[Array, "*rows N"],
    support: Float[Array, "N"],
    discount: Number | Float[Array, "*rows"],
) -> Float[Array, "*rows N"]:
    """Bellman target of a categorical value, brought back onto its support.

    ::

        q_i = Σ_j p_j h_i(clip(r + γ z_j, z_0, z_{N-1}))        h = the two-hot weights of `two_hot`

    Args:
        rewards: r, `[...]`, in the return's unit.
        probs: p, distribution of the successor's value, `[..., N]`.
        support: z, `[N]`, strictly increasing.
        discount: γ in [0, 1], a number or one a state `[...]`; 0 after the last token.

    Returns:
        `[..., N]`, sums to what `probs` sums to. Mass beyond the support is put on its end: the operator's own clip.

    Raises:
        ValueError: not floating point, shapes that do not fit, a support that does not increase, `discount` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> c51_projection(jnp.array(0.5), jnp.array([0.0, 1.0, 0.0]), jnp.array([0.0, 1.0, 2.0]), 1.0).tolist()
        [0.0, 0.5, 0.5]

    Source:
        C51, arXiv:1707.06887, Eq. 7.
    """
    _check_atoms(support, probs=probs)
    check_floating(rewards=rewards)
    check_between(0, 1, discount=discount)
    if rewards.shape != probs.shape[:-1] or jnp.shape(discount) not in ((), rewards.shape):
        raise ValueError(
            f"rewards and discount must be one a distribution {list(probs.shape[:-1])}, "
            f"got {list(rewards.shape)} and {list(jnp.shape(discount))}"
        )
    discounts = jnp.broadcast_to(jnp.asarray(discount, support.dtype), rewards.shape)
    moved = rewards[..., None] + discounts[..., None] * _last(support, probs.ndim)
    return (probs[..., None] * _between_neighbours(moved, support)).sum(-2)


def categorical_mean(probs: Float[Array, "*rows N"], support: Float[Array, "N"]) -> Float[Array, "*rows"]:
    """Value of a distribution over support points.

    ::

        V = Σ_i p_i z_i

    Args:
        probs: p, `[..., N]`.
        support: z, `[N]`, strictly increasing.

    Returns:
        `[...]`, in the support's unit.

    Raises:
        ValueError: not floating point, shapes that do not fit, a support that does not increase.

    Example:
        >>> import jax.numpy as jnp
        >>> categorical_mean(jnp.array([[0.5, 0.0, 0.5]]), jnp.array([0.0, 1.0, 3.0])).tolist()
        [1.5]

    Source:
        C51, arXiv:1707.06887, Section 4; MF Eq. 22.
    """
    _check_atoms(support, probs=probs)
    return (probs * _last(support, probs.ndim)).sum(-1)


def categorical_mean_of_logits(logits: Float[Array, "*rows N"], support: Float[Array, "N"]) -> Float[Array, "*rows"]:
    """Value of a distribution given by its logits.

    ::

        V = Σ_i softmax(logits)_i z_i

    Args:
        logits: `[..., N]`, nats.
        support: z, `[N]`, strictly increasing.

    Returns:
        `[...]`, in the support's unit.

    Raises:
        ValueError: as `categorical_mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> categorical_mean_of_logits(jnp.zeros((1, 2)), jnp.array([0.0, 1.0])).tolist()
        [0.5]

    Source:
        arXiv:2403.03950, Section 3; MF Eq. 22.
    """
    _check_atoms(support, logits=logits)
    return categorical_mean(jax.nn.softmax(logits, -1), support)


def categorical_cross_entropy(
    logits: Float[Array, "*rows N"], target_probs: Float[Array, "*rows N"], mask: Mask | None = None
) -> Float[Array, "*rows"]:
    """Cross-entropy of a categorical value with its target distribution.

    ::

        L = -Σ_i p_i log softmax(logits)_i

    A support point that the target gives nothing counts nothing, at a logit of -inf too.

    Args:
        logits: carry the gradient, `[..., N]`, nats.
        target_probs: p, of `two_hot`, `hl_gauss` or `c51_projection`, `[..., N]`.
        mask: response tokens, bool or 0/1, `[...]`, a row being `[..., T]`; None: every distribution counts.

    Returns:
        `[...]`, nats, to be minimised; 0 outside the mask.

    Raises:
        ValueError: not floating point, or shapes that do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> categorical_cross_entropy(jnp.zeros((1, 2)), jnp.array([[0.5, 0.5]])).round(4).tolist()
        [0.6930999755859375]

    Source:
        arXiv:2403.03950, Section 3.
    """
    check_floating(logits=logits, target_probs=target_probs)
    check_same_shape(logits=logits, target_probs=target_probs)
    if mask is not None:
        check_mask(mask=mask)
        if mask.shape != logits.shape[:-1]:
            raise ValueError(f"mask must be one a distribution {list(logits.shape[:-1])}, got shape {list(mask.shape)}")
        keep = mask.astype(bool)[..., None]
        logits, target_probs = jnp.where(keep, logits, 0.0), jnp.where(keep, target_probs, 0.0)
    logp = jax.nn.log_softmax(logits, -1)
    unseen = (target_probs == 0) & (logp == -jnp.inf)
    return -(target_probs * jnp.where(unseen, 0.0, logp)).sum(-1)
