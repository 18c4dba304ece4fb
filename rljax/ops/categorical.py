"""Categorical values (distributions over returns): supports, target distributions, means, and cross-entropy.

A categorical value is a distribution over N support points (atoms) on an extra last axis, `[..., N]`. The loss is returned
per distribution, to be **minimized** as `sum(weights * loss)`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rljax.ops.arrays import (
    Mask,
    Number,
    check_between,
    check_count,
    check_floating,
    check_mask,
    check_positive,
    check_same_shape,
    in_float32,
    is_concrete,
)
from rljax.ops.masked import zero_outside


def _check_support(support: Array) -> None:
    check_floating(support=support)
    if support.ndim != 1 or support.size < 2:
        raise ValueError(f"support must be one axis of at least 2 points, got shape {list(support.shape)}")
    if is_concrete(support) and not (np.diff(np.asarray(support)) > 0).all():
        raise ValueError(f"support must increase strictly, got {np.asarray(support)}")


def _rounding_tolerance(support: Array) -> float:
    """Tolerance for rounding errors: a few units in the last place of the largest support point."""
    return 8 * float(jnp.finfo(support.dtype).eps) * float(np.abs(np.asarray(support)).max())


def _check_within_support(target: Array, support: Array) -> None:
    """Reject a target that is outside the support by more than rounding error, if neither is traced."""
    if is_concrete(target, support) and target.size:
        values, tolerance = np.asarray(target), _rounding_tolerance(support)
        low, high = np.asarray(support)[[0, -1]]
        if not ((values >= low - tolerance) & (values <= high + tolerance)).all():
            raise ValueError(
                f"target must lie within the support [{low:g}, {high:g}], got values from {values.min():g} to {values.max():g}"
            )


def _check_atoms(support: Array, **distributions: Array) -> None:
    _check_support(support)
    check_floating(**distributions)
    for name, value in distributions.items():
        if value.shape[-1:] != support.shape:
            raise ValueError(f"{name} must have {support.size} entries on its last axis, got shape {list(value.shape)}")


def _expand_to_rank(support: Float[Array, "N"], rank: int) -> Float[Array, "..."]:
    return support.reshape((1,) * (rank - 1) + (-1,))


def uniform_support(low: float | int, high: float | int, bins: int) -> Float[Array, "N"]:
    """Evenly spaced support points, both ends included.

    ::

        z_i = low + i (high - low) / (N - 1)        i = 0 .. N-1

    Args:
        low: z_0, in the unit of the returns (discounted sums of rewards).
        high: z_{N-1}, above `low`. Extend the support beyond the possible returns, because `hl_gauss` is biased near its ends.
        bins: N, at least 2.

    Returns:
        `[N]`, increasing.

    Raises:
        ValueError: `low` is not below `high`, either is not finite, or there are fewer than 2 bins.

    Example:
        >>> uniform_support(-1.0, 1.0, 5).tolist()
        [-1.0, -0.5, 0.0, 0.5, 1.0]

    Source:
        C51, arXiv:1707.06887, Section 4; Eq. 22 of the design document (unpublished).
    """
    check_count(2, bins=bins)
    if not (np.isfinite([low, high]).all() and low < high):
        raise ValueError(f"low and high must be finite, and low below high, got low {low} and high {high}")
    return jnp.linspace(low, high, bins)


def _two_hot_weights(target: Float[Array, "..."], support: Float[Array, "N"]) -> Float[Array, "... N"]:
    """Clip the targets to the support and return their two-hot weights."""
    clipped = jnp.clip(target, support[0], support[-1])
    left = jnp.minimum(jnp.searchsorted(support, clipped, side="right") - 1, support.size - 2)
    fraction = (clipped - support[left]) / (support[left + 1] - support[left])
    below, above = jax.nn.one_hot(jnp.stack([left, left + 1]), support.size, dtype=support.dtype)
    return below * (1 - fraction)[..., None] + above * fraction[..., None]


@in_float32
def two_hot(target: Float[Array, "*rows"], support: Float[Array, "N"]) -> Float[Array, "*rows N"]:
    """Distribution on the two support points around the target; its mean is exactly the target.

    ::

        p_i = (z_{i+1} - y) / (z_{i+1} - z_i)        p_{i+1} = (y - z_i) / (z_{i+1} - z_i)        z_i ≤ y ≤ z_{i+1}

    Args:
        target: y, `[...]`, in [z_0, z_{N-1}]. A traced target cannot be checked, so it is clipped to the support.
        support: z, `[N]`, strictly increasing, evenly spaced or not.

    Returns:
        `[..., N]`, sums to 1.

    Raises:
        ValueError: an argument that is not floating point, a support that does not increase, a target outside the support (or NaN).

    Example:
        >>> import jax.numpy as jnp
        >>> two_hot(jnp.array([0.25]), jnp.array([0.0, 1.0, 2.0])).tolist()
        [[0.75, 0.25, 0.0]]

    Source:
        arXiv:2403.03950, Section 3.1.
    """
    check_floating(target=target)
    _check_support(support)
    _check_within_support(target, support)
    return _two_hot_weights(target, support)


@in_float32
def hl_gauss(
    target: Float[Array, "*rows"], support: Float[Array, "N"], *, sigma_ratio: Number = 0.75
) -> Float[Array, "*rows N"]:
    """Histogram of a normal distribution around the target, to spread its mass over neighboring bins.

    ::

        p_i = (Φ((z_i + w/2 - y)/s) - Φ((z_i - w/2 - y)/s)) / Z        s = sigma_ratio · w,  w = bin width

        Z = Φ((z_{N-1} + w/2 - y)/s) - Φ((z_0 - w/2 - y)/s)            the total mass of the bins

    Its mean is the target except near an end of the support, where the normal is truncated: with 51 bins that tile [0, 1], y = 0
    gives a mean of 0.0135. Extend the support about 3 bins beyond the possible returns.

    Args:
        target: y, `[...]`, in [z_0 - w/2, z_{N-1} + w/2]. A traced target cannot be checked, so it is clipped to the bins.
        support: z, the bin centers, `[N]`, evenly spaced and increasing.
        sigma_ratio: s / w, positive.

    Returns:
        `[..., N]`, sums to 1.

    Raises:
        ValueError: an argument that is not floating point, an uneven support, a target outside the bins (or NaN),
            `sigma_ratio` not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> hl_gauss(jnp.array([0.0]), jnp.array([-1.0, 0.0, 1.0])).round(2).tolist()
        [[0.23999999463558197, 0.5199999809265137, 0.23999999463558197]]

    Source:
        arXiv:2403.03950, Section 3.1; renormalized over the bins as in its authors' code.
    """
    check_floating(target=target)
    check_positive(sigma_ratio=sigma_ratio)
    _check_support(support)
    _check_evenly_spaced(support)
    width = (support[-1] - support[0]) / (support.size - 1)
    edges = jnp.append(support - width / 2, support[-1] + width / 2)
    _check_within_support(target, edges)
    clipped = jnp.clip(target, edges[0], edges[-1])[..., None]
    below = jax.scipy.special.ndtr((_expand_to_rank(edges, clipped.ndim) - clipped) / (sigma_ratio * width))
    return jnp.diff(below, axis=-1) / (below[..., -1:] - below[..., :1])


def _check_evenly_spaced(support: Array) -> None:
    if is_concrete(support):
        widths = np.diff(np.asarray(support, np.float64))
        if widths.max() - widths.min() > _rounding_tolerance(support):
            raise ValueError(f"support must be evenly spaced, got spacings from {widths.min():g} to {widths.max():g}")


@in_float32
def c51_projection(
    rewards: Float[Array, "*rows"],
    probs: Float[Array, "*rows N"],
    support: Float[Array, "N"],
    discount: Number | Float[Array, "*rows"],
) -> Float[Array, "*rows N"]:
    """Bellman target of a categorical value, projected back onto its support.

    ::

        q_i = Σ_j p_j h_i(clip(r + γ z_j, z_0, z_{N-1}))        h = the two-hot weights of `two_hot`

    Args:
        rewards: r, `[...]`, in the unit of the support.
        probs: p, distribution of the next state's value, `[..., N]`.
        support: z, `[N]`, strictly increasing.
        discount: γ in [0, 1], a number or one per state `[...]`; pass 0 if no state follows.

    Returns:
        `[..., N]`, with the same sum as `probs`. Because the equation clips, mass outside the support moves to the nearest end.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, a support that does not increase,
            `discount` outside [0, 1].

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
            f"rewards and discount must have one value per distribution {list(probs.shape[:-1])}, "
            f"got {list(rewards.shape)} and {list(jnp.shape(discount))}"
        )
    discounts = jnp.broadcast_to(jnp.asarray(discount, support.dtype), rewards.shape)
    moved_support = rewards[..., None] + discounts[..., None] * _expand_to_rank(support, probs.ndim)
    return (probs[..., None] * _two_hot_weights(moved_support, support)).sum(-2)


@in_float32
def categorical_mean(probs: Float[Array, "*rows N"], support: Float[Array, "N"]) -> Float[Array, "*rows"]:
    """Mean of a categorical value, from its probabilities.

    ::

        V = Σ_i p_i z_i

    Args:
        probs: p, `[..., N]`.
        support: z, `[N]`, strictly increasing.

    Returns:
        `[...]`, in the support's unit.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, a support that does not increase.

    Example:
        >>> import jax.numpy as jnp
        >>> categorical_mean(jnp.array([[0.5, 0.0, 0.5]]), jnp.array([0.0, 1.0, 3.0])).tolist()
        [1.5]

    Source:
        C51, arXiv:1707.06887, Section 4; Eq. 22 of the design document (unpublished).
    """
    _check_atoms(support, probs=probs)
    return (probs * _expand_to_rank(support, probs.ndim)).sum(-1)


@in_float32
def categorical_mean_of_logits(logits: Float[Array, "*rows N"], support: Float[Array, "N"]) -> Float[Array, "*rows"]:
    """Mean of a categorical value, from its logits.

    ::

        V = Σ_i softmax(logits)_i z_i

    Args:
        logits: `[..., N]`, nats.
        support: z, `[N]`, strictly increasing.

    Returns:
        `[...]`, in the support's unit.

    Raises:
        ValueError: under the same conditions as `categorical_mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> categorical_mean_of_logits(jnp.zeros((1, 2)), jnp.array([0.0, 1.0])).tolist()
        [0.5]

    Source:
        arXiv:2403.03950, Section 3; Eq. 22 of the design document (unpublished).
    """
    _check_atoms(support, logits=logits)
    return categorical_mean(jax.nn.softmax(logits, -1), support)


@in_float32
def categorical_cross_entropy(
    logits: Float[Array, "*rows N"], target_probs: Float[Array, "*rows N"], mask: Mask | None = None
) -> Float[Array, "*rows"]:
    """Cross-entropy between a categorical value and its target distribution.

    ::

        L = -Σ_i p_i log softmax(logits)_i

    A support point with target probability 0 contributes 0, even if its logit is -inf.

    Args:
        logits: logits of the trained value, carry the gradient, `[..., N]`, nats.
        target_probs: p, the target distribution from `two_hot`, `hl_gauss` or `c51_projection`, `[..., N]`.
        mask: response tokens, bool or 0/1, one per distribution, `[...]`; None: 1 for every distribution.

    Returns:
        `[...]`, nats, to be minimized; 0 outside the mask.

    Raises:
        ValueError: an argument that is not floating point, or mismatched shapes.

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
            raise ValueError(
                f"mask must have one value per distribution {list(logits.shape[:-1])}, got shape {list(mask.shape)}"
            )
        keep = jnp.broadcast_to(mask.astype(bool)[..., None], logits.shape)
        logits, target_probs = zero_outside(logits, keep), zero_outside(target_probs, keep)
    logp = jax.nn.log_softmax(logits, -1)
    excluded = (target_probs == 0) & jnp.isneginf(logp)
    return -(target_probs * zero_outside(logp, ~excluded)).sum(-1)
