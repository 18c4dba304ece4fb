"""Sums, means and z-scores under a mask: over the tokens of a response, or over the responses of a group.

A slot outside the mask may contain anything, even NaN or infinity: `where` replaces it *before* any arithmetic, so it affects
neither the value nor the gradient.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rljax.ops.arrays import (
    Mask,
    Number,
    check_floating,
    check_group,
    check_mask,
    check_nonnegative,
    check_one_of,
    check_same_shape,
    in_float32,
    power_of_two,
)


@in_float32
def zero_outside(x: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows T"]:
    """Replace entries by 0 wherever the mask is 0.

    ::

        y_t = x_t if m_t else 0

    Args:
        x: any per-token quantity, `[..., T]`.
        mask: bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`; the gradient in a masked slot is exactly 0, whatever `x` contains there.

    Raises:
        ValueError: `x` is not floating point, or the shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> zero_outside(jnp.array([1.0, jnp.nan]), jnp.array([True, False])).tolist()
        [1.0, 0.0]

    Source:
        Convention: select by the mask instead of multiplying by it, since ∞ × 0 is NaN.
    """
    check_floating(x=x)
    check_mask(mask=mask)
    check_same_shape(x=x, mask=mask)
    return jnp.where(mask.astype(bool), x, jnp.zeros_like(x))


def masked_sum(x: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows"]:
    """Sum over the tokens in the mask.

    ::

        Σ_t m_t x_t

    Args:
        x: any per-token quantity, `[..., T]`.
        mask: bool or 0/1, `[..., T]`.

    Returns:
        `[...]`; 0 for a row without tokens.

    Raises:
        ValueError: `x` is not floating point, or the shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> masked_sum(jnp.array([1.0, 2.0, 4.0]), jnp.array([1, 0, 1])).item()
        5.0

    Source:
        Convention: the sums of every token-level objective, DAPO arXiv:2503.14476 Eq. 8.
    """
    return zero_outside(x, mask).sum(-1)


@in_float32
def masked_mean(x: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows"]:
    """Mean over the tokens in the mask.

    ::

        (1/|o|) Σ_t m_t x_t        |o| = Σ_t m_t

    Args:
        x: any per-token quantity, `[..., T]`.
        mask: bool or 0/1, `[..., T]`.

    Returns:
        `[...]`; 0 for a row without tokens.

    Raises:
        ValueError: `x` is not floating point, or the shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> masked_mean(jnp.array([1.0, 2.0, 4.0]), jnp.array([1, 0, 1])).item()
        2.5

    Source:
        Convention: the per-response mean of GRPO, arXiv:2402.03300 Eq. 3.
    """
    total = masked_sum(x, mask)
    return total / jnp.maximum(mask.astype(bool).sum(-1), 1).astype(x.dtype)


def count_tokens(mask: Mask) -> Int[Array, "*rows"]:
    """Number of tokens in the mask: the length of a response.

    ::

        |o| = Σ_t m_t

    Args:
        mask: bool or 0/1, `[..., T]`.

    Returns:
        `[...]`, tokens.

    Raises:
        ValueError: the mask has no token axis or contains anything other than 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> count_tokens(jnp.array([[1, 1, 0], [0, 0, 0]])).tolist()
        [2, 0]

    Source:
        Convention: |o_i| of GRPO, arXiv:2402.03300, Eq. 3.
    """
    check_mask(mask=mask)
    return mask.astype(bool).sum(-1, dtype=jnp.int32)


def masked_centered(x: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows T"]:
    """Entries in the mask minus their mean.

    A row of identical entries gets exactly 0, because the mean is computed on the differences from the lowest entry: in floating
    point the mean of eight entries of 0.1 is not 0.1, but the mean of eight zeros is 0.

    ::

        y_t = x_t - (1/|o|) Σ_τ m_τ x_τ

    Args:
        x: any quantity, `[..., T]`.
        mask: bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`; 0 outside the mask, and in a row with fewer than 2 entries in the mask.

    Raises:
        ValueError: `x` is not floating point, or the shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> masked_centered(jnp.array([1.0, 3.0, jnp.nan]), jnp.array([1, 1, 0])).tolist()
        [-1.0, 1.0, 0.0]

    Source:
        Convention: the numerator of every normalized advantage, such as GRPO's, arXiv:2402.03300, Section 4.1.2.
    """
    clean = zero_outside(x, mask)
    in_mask = mask.astype(bool)
    comparable = in_mask & (in_mask.sum(-1, keepdims=True) >= 2)
    # `initial` is finite, so that `jax_debug_infs` finds no infinity in a row without entries.
    offset = clean - clean.min(-1, keepdims=True, where=comparable, initial=jnp.finfo(clean.dtype).max)
    return jnp.where(comparable, offset - masked_mean(offset, comparable)[..., None], 0.0)


@in_float32
def masked_normalized(x: Float[Array, "*rows T"], mask: Mask, *, eps: Number, ddof: int) -> Float[Array, "*rows T"]:
    """Entries in the mask as z-scores.

    ::

        y_t = (x_t - μ) / (σ + ε)        σ² = Σ_τ m_τ (x_τ - μ)² / (|o| - ddof)

    Args:
        x: any quantity, `[..., T]`.
        mask: bool or 0/1, `[..., T]`.
        eps: ε, added to the standard deviation; not negative.
        ddof: delta degrees of freedom of the standard deviation, 0 or 1.

    Returns:
        `[..., T]`, dimensionless; 0 outside the mask, in a row of identical entries whatever ε, and in a row with fewer
        than 2 entries in the mask.

    Raises:
        ValueError: `x` is not floating point, the shapes differ, negative `eps`, `ddof` other than 0 or 1.

    Example:
        >>> import jax.numpy as jnp
        >>> masked_normalized(jnp.array([1.0, 5.0, 9.0]), jnp.array([1, 1, 0]), eps=0.0, ddof=0).tolist()
        [-1.0, 1.0, 0.0]

    Source:
        Convention: the normalized advantage of GRPO, arXiv:2402.03300, Section 4.1.2, with ε and `ddof` as arguments.
    """
    check_nonnegative(eps=eps)
    check_one_of((0, 1), ddof=ddof)
    centered = masked_centered(x, mask)
    degrees_of_freedom = mask.astype(bool).sum(-1, keepdims=True) - ddof
    scale = power_of_two(centered)
    variance = jnp.square(centered / scale).sum(-1, keepdims=True) / jnp.maximum(degrees_of_freedom, 1).astype(x.dtype)
    varies = variance.astype(bool)
    std = scale * jnp.sqrt(jnp.where(varies, variance, jnp.ones_like(variance)))
    return jnp.where(varies, centered / (std + eps), 0.0)


def group_members(rewards: Float[Array, "*P G"], valid: Mask | None) -> Bool[Array, "*P G"]:
    """Mask of the responses that are compared with the others in their group.

    ::

        m_i = v_i, or 1 for every response if v is None

    Args:
        rewards: one number per response, `[..., G]`.
        valid: which responses have a reward, bool or 0/1, `[..., G]`, or None.

    Returns:
        bool, `[..., G]`.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2 responses, or `valid` of a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> group_members(jnp.array([0.5, 1.0]), None).tolist()
        [True, True]

    Source:
        Convention: ragged groups, in which a reward function may abstain on some responses.
    """
    check_floating(rewards=rewards)
    check_group(rewards=rewards)
    if valid is None:
        return jnp.ones(rewards.shape, bool)
    check_mask(valid=valid)
    check_same_shape(rewards=rewards, valid=valid)
    return valid.astype(bool)
