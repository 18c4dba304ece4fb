"""Loss weights: how much each token counts.

Every weighting is computed once for a whole optimiser batch, and every loss is `-sum(weights * surrogate)`. That is linear
in the rows, so any split into micro-batches or devices adds up to the same number.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.checks import (
    check_at_least,
    check_boolean,
    check_floating,
    check_mask,
    check_nonnegative,
    check_one_a_row,
    check_positive,
    check_rank,
    check_same_shape,
)
from rljax.ops.masked import Mask, Number, count_tokens


def _ratio(numerator: Float[Array, "..."], denominator: Float[Array, "..."]) -> Float[Array, "..."]:
    """`numerator / denominator`, and 0 where the denominator is 0."""
    empty = denominator == 0
    return jnp.where(empty, 0.0, numerator / jnp.where(empty, 1.0, denominator))


def _as_float(mask: Mask) -> Float[Array, "..."]:
    check_mask(mask=mask)
    return mask.astype(bool).astype(jnp.result_type(float))


def token_mean(mask: Mask) -> Float[Array, "*rows T"]:
    """Every token of the batch counts the same.

    ::

        w_it = m_it / Σ_jτ m_jτ

    Args:
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, sums to 1 over the batch; all 0 when the batch has no token.

    Raises:
        ValueError: the mask has no token axis or holds something else than 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> token_mean(jnp.array([[1, 1, 0], [1, 1, 0]])).tolist()
        [[0.25, 0.25, 0.0], [0.25, 0.25, 0.0]]

    Source:
        DAPO, arXiv:2503.14476, Eq. 8, over the batch as its authors' code does; MF Eq. 28.
    """
    tokens = _as_float(mask)
    return _ratio(tokens, tokens.sum())


def sequence_mean(mask: Mask) -> Float[Array, "*rows T"]:
    """Every response counts the same, and within one every token does.

    ::

        w_it = m_it / (N |o_i|)        N = number of responses with at least one token

    Args:
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, sums to 1 over the batch; a row without tokens gets 0.

    Raises:
        ValueError: the mask has no token axis or holds something else than 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> sequence_mean(jnp.array([[1, 1], [1, 0]])).tolist()
        [[0.25, 0.25], [0.5, 0.0]]

    Source:
        GRPO, arXiv:2402.03300, Eq. 3: (1/G) Σ_i (1/|o_i|) Σ_t.
    """
    tokens = _as_float(mask)
    lengths = tokens.sum(-1, keepdims=True)
    return _ratio(tokens, lengths * (lengths > 0).sum())


def constant_length(mask: Mask, *, max_length: Number) -> Float[Array, "*rows T"]:
    """Token sum over a constant, then mean over responses: no bias by length.

    ::

        w_it = m_it / (N L)        N = number of responses with at least one token

    Args:
        mask: response tokens, bool or 0/1, `[..., T]`.
        max_length: the constant L in tokens, at least 1 (the generation budget in the paper).

    Returns:
        `[..., T]`; does not sum to 1, by intent.

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
    tokens = _as_float(mask)
    responses = (tokens.sum(-1) > 0).sum()
    return _ratio(tokens, responses * jnp.asarray(max_length, tokens.dtype))


def sequence_sum(mask: Mask) -> Float[Array, "*rows T"]:
    """Sum over the tokens of a response, then mean over responses: a response counts for as much as it is long.

    ::

        w_it = m_it / N        N = number of responses with at least one token

    Args:
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`; sums to the mean response length, not to 1, so that the gradient grows with the lengths.

    Raises:
        ValueError: the mask has no token axis or holds something else than 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> sequence_sum(jnp.array([[1, 1], [1, 0]])).tolist()
        [[0.5, 0.5], [0.5, 0.0]]

    Source:
        MF Eq. 37, which leaves out the 1/|o_i| of GRPO, arXiv:2402.03300, Eq. 3. `constant_length` with a length of 1.
    """
    tokens = _as_float(mask)
    return _ratio(tokens, (tokens.sum(-1) > 0).sum().astype(tokens.dtype))


def token_mean_per_group(mask: Mask) -> Float[Array, "*P G T"]:
    """Every token of a group counts the same, and every group does.

    `token_mean` over the batch lets a prompt with long responses outweigh one with short ones; this does not.

    ::

        w_pit = m_pit / (N Σ_jτ m_pjτ)        N = number of groups with at least one token

    Args:
        mask: response tokens, bool or 0/1, `[..., P, G, T]`.

    Returns:
        `[..., P, G, T]`, sums to 1 over the batch; a group without tokens gets 0.

    Raises:
        ValueError: fewer than two axes, an empty one among the last two, or something else than 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> token_mean_per_group(jnp.array([[[1, 1], [1, 1]], [[1, 0], [0, 0]]])).tolist()
        [[[0.125, 0.125], [0.125, 0.125]], [[0.5, 0.0], [0.0, 0.0]]]

    Source:
        DAPO, arXiv:2503.14476, Eq. 8 as printed: 1/Σ_i |o_i| stands inside the expectation over prompts.
    """
    check_rank(2, mask=mask)
    tokens = _as_float(mask)
    sizes = tokens.sum((-2, -1), keepdims=True)
    return _ratio(tokens, sizes * (sizes > 0).sum())


def median_length(mask: Mask) -> Float[Array, ""]:
    """Median length of the responses of a batch, leaving out those without tokens.

    ::

        L_median = median{ |o_i| : |o_i| > 0 }

    Args:
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        a number, tokens, the mean of the two middle lengths when their number is even; 0 for a batch without tokens.

    Raises:
        ValueError: the mask has no token axis or holds something else than 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> median_length(jnp.array([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]])).item()
        2.5

    Source:
        MF Eq. 30, L_median.
    """
    lengths = count_tokens(mask).reshape(-1).astype(jnp.result_type(float))
    ordered = jnp.sort(jnp.where(lengths > 0, lengths, jnp.inf))
    count = (lengths > 0).sum()
    middle = (ordered[jnp.maximum(count - 1, 0) // 2] + ordered[count // 2]) / 2
    return jnp.where(count > 0, middle, 0.0)


def length_reweighted(
    weights: Float[Array, "*rows T"], mask: Mask, *, alpha: Number, reference: Number
) -> Float[Array, "*rows T"]:
    """Another weighting, tilted against long responses.

    ::

        w'_it = w_it (|o_i| / L_ref)^{-α}

    The document does not say that the sum is restored, so it is not: with unequal lengths the scale of the loss moves by
    the weighted mean of the factor. Divide by the new sum where the old one matters.

    Args:
        weights: any weighting of this module, `[..., T]`.
        mask: response tokens, bool or 0/1, `[..., T]`.
        alpha: α, not negative; [0, 0.5] in the document. At 1 a token mean becomes proportional to a sequence mean.
        reference: L_ref in tokens, positive: a number, or `median_length` of the whole optimiser batch as in the document
            (a median of each micro-batch would make the loss depend on the split).

    Returns:
        `[..., T]`; 0 outside the mask.

    Raises:
        ValueError: shapes that differ, integer weights, negative `alpha`, or a `reference` that is not positive while
            there are tokens.

    Example:
        >>> import jax.numpy as jnp
        >>> mask = jnp.array([[1, 1, 1, 1], [1, 0, 0, 0]])
        >>> length_reweighted(token_mean(mask), mask, alpha=0.5, reference=1.0)[:, 0].tolist()
        [0.10000000149011612, 0.20000000298023224]

    Source:
        MF Eq. 30; it is not in the DAPO paper.
    """
    check_nonnegative(alpha=alpha)
    check_floating(weights=weights)
    check_same_shape(weights=weights, mask=mask)
    lengths = count_tokens(mask)[..., None].astype(weights.dtype)
    reference = jnp.where(lengths.any(), reference, 1.0).astype(weights.dtype)  # the median of nothing is 0
    check_positive(reference=reference)
    factor = (jnp.maximum(lengths, 1) / reference) ** -alpha
    return jnp.where(mask.astype(bool), weights * factor, 0.0)


def overlong_filter(mask: Mask, truncated: Bool[Array, "*rows"]) -> Mask:
    """Leave truncated responses out of the loss: their verdict says nothing about what was being written.

    ::

        m'_it = m_it if o_i ended by itself else 0

    Args:
        mask: response tokens, bool or 0/1, `[..., T]`.
        truncated: whether a response was cut off at the length limit, bool, `[...]`.

    Returns:
        `[..., T]`, of the mask's dtype; to be taken before any weighting, so that the others fill the gap.

    Raises:
        ValueError: a malformed mask, `truncated` not boolean or not one a response.

    Example:
        >>> import jax.numpy as jnp
        >>> overlong_filter(jnp.array([[1, 1], [1, 0]]), jnp.array([True, False])).tolist()
        [[0, 0], [1, 0]]

    Source:
        DAPO, arXiv:2503.14476, Section 3.4 (overlong filtering).
    """
    check_mask(mask=mask)
    check_boolean(truncated=truncated)
    check_one_a_row(mask=mask, truncated=truncated)
    return jnp.where(truncated[..., None], jnp.zeros_like(mask), mask)
