"""Loss weights of tokens.

Compute the weights once for the full optimizer batch; the loss is `-sum(weights * surrogate)`. This sum is linear in the rows,
so if the batch is split into micro-batches or across devices, their losses add up to the loss of the batch.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import (
    Mask,
    Number,
    as_float,
    check_at_least,
    check_boolean,
    check_mask,
    check_one_per_row,
    check_rank,
    ratio_or_zero,
)


def _tokens(mask: Mask) -> Float[Array, "..."]:
    """1 for each token of the mask, 0 elsewhere."""
    check_mask(mask=mask)
    return as_float(mask.astype(bool))


def _count_positive(lengths: Float[Array, "..."]) -> Float[Array, ""]:
    """Number of lengths above 0."""
    return lengths.astype(bool).sum().astype(lengths.dtype)


def token_mean(mask: Mask) -> Float[Array, "*rows T"]:
    """Give every token of the batch the same weight.

    ::

        w_it = m_it / Σ_jτ m_jτ

    Args:
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, sums to 1 over the batch; all 0 if the batch has no token.

    Raises:
        ValueError: the mask has no token axis or contains anything other than 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> token_mean(jnp.array([[1, 1, 0], [1, 1, 0]])).tolist()
        [[0.25, 0.25, 0.0], [0.25, 0.25, 0.0]]

    Source:
        DAPO, arXiv:2503.14476, Eq. 8, over the batch, as in its authors' code; Eq. 28 of the design document.
    """
    tokens = _tokens(mask)
    return ratio_or_zero(tokens, tokens.sum())


def sequence_mean(mask: Mask) -> Float[Array, "*rows T"]:
    """Give every response the same weight, and every token within a response the same weight.

    ::

        w_it = m_it / (N |o_i|)        N = number of responses with at least one token

    Args:
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, sums to 1 over the batch; a row without tokens gets 0.

    Raises:
        ValueError: the mask has no token axis or contains anything other than 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> sequence_mean(jnp.array([[1, 1], [1, 0]])).tolist()
        [[0.25, 0.25], [0.5, 0.0]]

    Source:
        GRPO, arXiv:2402.03300, Eq. 3: (1/G) Σ_i (1/|o_i|) Σ_t.
    """
    tokens = _tokens(mask)
    lengths = tokens.sum(-1, keepdims=True)
    return ratio_or_zero(tokens, lengths * _count_positive(lengths))


def constant_length(mask: Mask, *, max_length: Number) -> Float[Array, "*rows T"]:
    """Token sum divided by a constant, then the mean over responses: no length bias.

    ::

        w_it = m_it / (N L)        N = number of responses with at least one token

    Args:
        mask: response tokens, bool or 0/1, `[..., T]`.
        max_length: the constant L in tokens, at least 1 (the generation budget in the paper).

    Returns:
        `[..., T]`; does not sum to 1, by design.

    Raises:
        ValueError: a malformed mask, or `max_length` below 1.

    Example:
        >>> import jax.numpy as jnp
        >>> constant_length(jnp.array([[1, 1], [1, 0]]), max_length=4).tolist()
        [[0.125, 0.125], [0.125, 0.0]]

    Source:
        Dr.GRPO, arXiv:2503.20783, Section 3 and its authors' code (masked sum over a constant, then mean).
    """
    check_at_least(1, max_length=max_length)
    tokens = _tokens(mask)
    return ratio_or_zero(tokens, _count_positive(tokens.sum(-1)) * jnp.asarray(max_length, tokens.dtype))


def sequence_sum(mask: Mask) -> Float[Array, "*rows T"]:
    """Sum over the tokens of a response, then mean over responses: a response counts in proportion to its length.

    ::

        w_it = m_it / N        N = number of responses with at least one token

    Args:
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`; sums to the mean response length, not to 1, so the gradient grows with the lengths.

    Raises:
        ValueError: the mask has no token axis or contains anything other than 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> sequence_sum(jnp.array([[1, 1], [1, 0]])).tolist()
        [[0.5, 0.5], [0.5, 0.0]]

    Source:
        RLOO, arXiv:2402.14740, Section 2.3, where a response is one action: log π(o_i) is the sum over its tokens. The weights
        equal those of `constant_length` with a length of 1.
    """
    tokens = _tokens(mask)
    return ratio_or_zero(tokens, _count_positive(tokens.sum(-1)))


def token_mean_per_group(mask: Mask) -> Float[Array, "*P G T"]:
    """Give every token of a group the same weight, and every group the same weight.

    With `token_mean` over the batch, a prompt with long responses outweighs one with short responses; here it does not.

    ::

        w_pit = m_pit / (N Σ_jτ m_pjτ)        N = number of groups with at least one token

    Args:
        mask: response tokens, bool or 0/1, `[..., P, G, T]`.

    Returns:
        `[..., P, G, T]`, sums to 1 over the batch; a group without tokens gets 0.

    Raises:
        ValueError: a mask with fewer than two axes, with an empty one among the last two, or with values other than 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> token_mean_per_group(jnp.array([[[1, 1], [1, 1]], [[1, 0], [0, 0]]])).tolist()
        [[[0.125, 0.125], [0.125, 0.125]], [[0.5, 0.0], [0.0, 0.0]]]

    Source:
        DAPO, arXiv:2503.14476, Eq. 8 as printed: 1/Σ_i |o_i| is inside the expectation over prompts.
    """
    check_rank(2, mask=mask)
    tokens = _tokens(mask)
    sizes = tokens.sum((-2, -1), keepdims=True)
    return ratio_or_zero(tokens, sizes * _count_positive(sizes))


def overlong_filter(mask: Mask, truncated: Bool[Array, "*rows"]) -> Mask:
    """Leave truncated responses out of the loss, because an unfinished response is not necessarily wrong.

    ::

        m'_it = m_it if o_i ended by itself else 0

    Args:
        mask: response tokens, bool or 0/1, `[..., T]`.
        truncated: whether a response was cut off at the length limit, bool, `[...]`.

    Returns:
        `[..., T]`, of the mask's dtype; apply it before computing weights, so that the weights of the remaining responses sum to 1.

    Raises:
        ValueError: a malformed mask, `truncated` not boolean or not one per response.

    Example:
        >>> import jax.numpy as jnp
        >>> overlong_filter(jnp.array([[1, 1], [1, 0]]), jnp.array([True, False])).tolist()
        [[0, 0], [1, 0]]

    Source:
        DAPO, arXiv:2503.14476, Section 3.4 (overlong filtering).
    """
    check_mask(mask=mask)
    check_boolean(truncated=truncated)
    check_one_per_row(mask=mask, truncated=truncated)
    return jnp.where(truncated[..., None], jnp.zeros_like(mask), mask)
