"""Log-probability and entropy of tokens under a softmax over a large vocabulary, without ever holding all logits.

The logits exist for a chunk of tokens at a time, in the forward and in the backward pass alike. Both are a `lax.scan`, so the
memory does not grow with the number of chunks.

Axes: N parts that devices hold, A rows of a part, K scored tokens of a row, C tokens of a chunk, D width, V vocabulary.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

LOGITS_AT_ONCE = 40_000_000
"""Logits that a device holds at once where nothing else is set: 160 MB."""


def default_chunk(vocab_size: int) -> int:
    """Tokens whose logits a device holds at once.

    Example:
        >>> default_chunk(151_936), default_chunk(32_000)
        (263, 1250)
    """
    return max(1, LOGITS_AT_ONCE // vocab_size)


def token_scores(
    hidden: Float[Array, "R K D"],
    head: Float[Array, "V D"],
    tokens: Int[Array, "R K"],
    *,
    temperature: float = 1.0,
    chunk: int,
    parts: int = 1,
) -> tuple[Float[Array, "R K"], Float[Array, "R K"]]:
    """Log-probability of each token, and entropy of the distribution that it was drawn from.

    ::

        logp = log softmax(W h / τ)[token]        H = -Σ_v π_v log π_v        π = softmax(W h / τ)

    Matrix products take the dtype of `hidden` and add up in float32; so does the gradient of `head`.

    Args:
        hidden: last hidden states, `[R, K, D]`.
        head: W, `[V, D]`.
        tokens: ids in [0, V), `[R, K]`.
        temperature: τ, positive.
        chunk: tokens of a part whose logits exist at once.
        parts: devices that share the rows, a divisor of R. Each adds up its own gradient of `head`; the sum over devices is taken
            once.

    Returns:
        Log-probabilities and entropies, `[R, K]`, nats, float32; differentiable in `hidden` and `head`.

    Raises:
        ValueError: `parts` does not divide R.
    """
    rows, length = tokens.shape
    if rows % parts:
        raise ValueError(f"parts must divide the {rows} rows, got {parts}")
    columns = min(length, max(1, chunk * parts // rows))
    chunks = -(-length // columns)
    spare = chunks * columns - length

    def chunked(array: Array) -> Array:
        padded = jnp.pad(array, ((0, 0), (0, spare), *[(0, 0)] * (array.ndim - 2)))
        return jnp.moveaxis(padded.reshape(parts, rows // parts, chunks, columns, *array.shape[2:]), 2, 0)

    def joined(array: Float[Array, "chunks N A C"]) -> Float[Array, "R K"]:
        return jnp.moveaxis(array, 0, 2).reshape(rows, chunks * columns)[:, :length]

    logp, entropy = _scores(chunked(hidden), head, chunked(tokens), temperature)
    return joined(logp), joined(entropy)


def _log_softmax(hidden: Array, head: Array, temperature: float) -> Float[Array, "N A C V"]:
    logits = jnp.einsum("NACD,VD->NACV", hidden, head, preferred_element_type=jnp.float32)
    return jax.nn.log_softmax(logits / temperature, axis=-1)


def _plain_scores(hidden: Array, head: Array, tokens: Array, temperature: float) -> tuple[Array, Array]:
    """Scan over the leading axis of `hidden [chunks, N, A, C, D]` and `tokens [chunks, N, A, C]`."""
    weight = head.astype(hidden.dtype)

    def score(_: None, chunk: tuple[Array, Array]) -> tuple[None, tuple[Array, Array]]:
        hidden, tokens = chunk
        logp = _log_softmax(hidden, weight, temperature)
        chosen = jnp.take_along_axis(logp, tokens[..., None], axis=-1)[..., 0]
        return None, (chosen, -(jnp.exp(logp) * logp).sum(-1))

    return jax.lax.scan(score, None, (hidden, tokens))[1]


def _forward(hidden: Array, head: Array, tokens: Array, temperature: float) -> tuple[tuple[Array, Array], tuple]:
    scores = _plain_scores(hidden, head, tokens, temperature)
    return scores, (hidden, head, tokens, scores[1])


def _backward(temperature: float, residuals: tuple, gradient: tuple[Array, Array]) -> tuple[Array, Array, None]:
    """Compute the logits of each chunk anew.

    ::

        dz_v = (g ([v = token] - π_v) - g_H π_v (log π_v + H)) / τ        g, g_H: gradients of logp and of H
    """
    hidden, head, tokens, entropy = residuals
    weight = head.astype(hidden.dtype)

    def accumulate(total: Array, chunk: tuple[Array, ...]) -> tuple[Array, Array]:
        hidden, tokens, entropy, by_logp, by_entropy = chunk
        logp = _log_softmax(hidden, weight, temperature)
        is_token = jax.lax.broadcasted_iota(tokens.dtype, logp.shape, logp.ndim - 1) == tokens[..., None]
        pull = jnp.exp(logp) * (by_logp[..., None] + by_entropy[..., None] * (logp + entropy[..., None]))
        by_logits = ((jnp.where(is_token, by_logp[..., None], 0.0) - pull) / temperature).astype(weight.dtype)
        by_head = jnp.einsum("NACV,NACD->NVD", by_logits, hidden, preferred_element_type=jnp.float32)
        return total + by_head, jnp.einsum("NACV,VD->NACD", by_logits, weight)

    nothing = jnp.zeros((hidden.shape[1], *head.shape), jnp.float32)
    by_head, by_hidden = jax.lax.scan(accumulate, nothing, (hidden, tokens, entropy, *gradient))
    return by_hidden, by_head.sum(0).astype(head.dtype), None


def _with_derivative() -> Callable[[Array, Array, Array, float], tuple[Array, Array]]:
    scores = jax.custom_vjp(_plain_scores, nondiff_argnums=(3,))
    scores.defvjp(_forward, _backward)
    return scores


_scores = _with_derivative()
