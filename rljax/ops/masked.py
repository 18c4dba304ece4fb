"""Sums and means over the tokens that count.

A masked slot may hold anything, NaN and infinity included: it is replaced by `where` *before* any arithmetic, so neither
the value nor the gradient sees it.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from rljax.ops.checks import check_floating, check_mask, check_same_shape

Mask = Bool[Array, "..."] | Num[Array, "..."]


def zero_outside(x: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows T"]:
    """Replace what the mask leaves out by 0.

    ::

        y_t = x_t if m_t else 0

    Args:
        x: any per-token quantity, `[..., T]`.
        mask: bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`; the gradient in a masked slot is exactly 0, whatever `x` holds there.

    Raises:
        ValueError: `x` is not floating point, or the shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> zero_outside(jnp.array([1.0, jnp.nan]), jnp.array([True, False])).tolist()
        [1.0, 0.0]

    Source:
        Convention: masks select, they never multiply (inf x 0 is NaN).
    """
    check_floating(x=x)
    check_mask(mask=mask)
    check_same_shape(x=x, mask=mask)
    return jnp.where(mask.astype(bool), x, jnp.zeros_like(x))


def masked_sum(x: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows"]:
    """Sum over the tokens that count.

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


def masked_mean(x: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows"]:
    """Mean over the tokens that count.

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
    count = mask.astype(bool).sum(-1)
    return masked_sum(x, mask) / jnp.maximum(count, 1).astype(x.dtype)
