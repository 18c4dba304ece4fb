"""Packed rows of tokens, which are the model's input, and how the model's per-token outputs become a batch.

Axes: R rows, S slots per row, K scored tokens per row; B responses, T tokens per response. Algorithms see `[B, T]`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from rljax.lazy import lazy_names

__getattr__ = lazy_names(__name__, renamed={"MEMBERS": "SEGMENTS_PER_PROMPT"})[0]
SEGMENTS_PER_PROMPT = 1 << 10
"""Number of sequence indices reserved per prompt of a row: 1 for the shared prefix, the others for the sequences that share it."""


class Packed(NamedTuple):
    """Sequences laid out in rows; several sequences may share a row."""

    tokens: Int[Array | np.ndarray, "*M R S"]
    """Token ids; meaningless where `segments` is 0."""
    positions: Int[Array | np.ndarray, "*M R S"]
    """Position of each token in its sequence, from 0."""
    segments: Int[Array | np.ndarray, "*M R S"]
    """Index of the sequence that each token belongs to, from 1 in each row; 0 is padding. A token sees its own sequence up to
    itself. If several sequences share a prefix, the shared tokens of the row's prompt p have the index
    n = p * SEGMENTS_PER_PROMPT. The tokens of the sequences m = 1, 2, ... then have the index n + m, and also see the shared
    tokens."""
    scored: Int[Array | np.ndarray, "*M R K"]
    """Slot indices of the scored tokens. They are at least 1, because the model predicts a token at the slot before the token."""
    place: Int[Array | np.ndarray, "*M B T"]
    """Index of each token of the batch among the scored tokens, flattened over the rows: row * K + column."""
    policy_logp: Float[Array | np.ndarray, "*M R S"] | None = None
    """Log-probability of each sampled token under the policy that sampled it, in nats; 0 elsewhere. Some critics read it."""
    kept: Int[Array | np.ndarray, "*M R K N"] | None = None
    """Ids of the tokens that top-k and top-p kept at each scored token (the sampling mask), padded with -1. A policy's `score`
    normalizes over these tokens, or over the full vocabulary if a token has no mask. None: no mask was recorded."""
    experts: Int[Array | np.ndarray, "*M R S Y C"] | None = None
    """The C experts that a token must use in each of Y layers, -1 if the layer's router chooses; see `rljax.models.router_replay`.
    None: the routers choose for all tokens."""


def soft_cap(x: Float[Array, "*S"], cap: float | Float[Array, ""] | None) -> Float[Array, "*S"]:
    """Bound values smoothly, as Gemma 2 bounds scores and logits: c tanh(x / c), or x if there is no cap c.

    Example:
        >>> [round(x, 3) for x in soft_cap(jnp.array([0.0, 1.0, 1e9]), 5.0).tolist()]
        [0.0, 0.987, 5.0]
    """
    return x if cap is None else cap * jnp.tanh(x / cap)


@jax.custom_vjp
def scale_vectors(vectors: Float[Array, "*S D"], factors: Float[Array, "*S"]) -> Float[Array, "*S D"]:
    """Multiply each vector by its factor.

    The gradient of the factors is computed as dot products, which CPUs compute faster than sums of products.

    Example:
        >>> scale_vectors(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([10.0, 0.5])).tolist()
        [[10.0, 20.0], [1.5, 2.0]]
    """
    return vectors * factors[..., None]


def _scale_forward(vectors: Array, factors: Array) -> tuple[Array, tuple[Array, Array]]:
    return vectors * factors[..., None], (vectors, factors)


def _scale_backward(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    vectors, factors = residuals
    return gradient * factors[..., None], jnp.einsum("...D,...D->...", gradient, vectors, precision="highest")


scale_vectors.defvjp(_scale_forward, _scale_backward)


class Scores(NamedTuple):
    """Log-probabilities and entropies of the tokens of a batch under a policy."""

    logp: Float[Array, "B T"]
    """Log-probability of the token, in nats."""
    entropy: Float[Array, "B T"]
    """Entropy of the distribution that the token was sampled from, in nats."""


class Features(NamedTuple):
    """The parts from which the scored tokens' logits are computed: `soft_cap(hidden @ head.T, cap)`, before any temperature."""

    hidden: Float[Array, "R K D"]
    """Last hidden state at the slot before each scored token."""
    head: Float[Array, "V D"]
    """Output matrix, which maps hidden states to logits."""
    copy: Float[Array, "V D"] | None = None
    """A copy of `head`, cast to the precision of the hidden states, if available; the gradient goes to `head`."""
    cap: float | Float[Array, ""] | None = None
    """Bound on the logits, a constant; None: no bound."""


def visible_slots(
    segments: Int[Array, "R S"],
    *,
    first: Int[Array, ""] | int = 0,
    count: int | None = None,
    window: int | None = None,
) -> Bool[Array, "R Q S"]:
    """Return the mask of the slots that each token sees: its own sequence up to itself, and the shared prefix of its prompt.

    Padding sees itself, so that its softmax is defined.

    Args:
        segments: sequence index of each slot, `[R, S]`, see `Packed.segments`; 0 is padding.
        first: first slot of the Q query tokens.
        count: Q, the number of query tokens; None means all slots.
        window: maximum number of tokens that a token sees: itself and the nearest earlier tokens; None: no limit. It must be None
            if sequences share a prefix, because distances between slots then differ from distances between positions.
    """
    slots = jnp.arange(segments.shape[-1])
    tokens = first + jnp.arange(segments.shape[-1] if count is None else count)
    query_segments = jnp.take(segments, tokens, axis=1, mode="clip")[..., None]
    distance = (tokens[:, None] - slots[None])[None]
    is_near = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    key_segments = segments[:, None]
    belongs = (query_segments == key_segments) | (query_segments - query_segments % SEGMENTS_PER_PROMPT == key_segments)
    return (is_near & belongs & (key_segments > 0)) | (distance == 0)


def take_before_scored(states: Shaped[Array, "R S *D"], packed: Packed) -> Shaped[Array, "R K *D"]:
    """Pick the states one slot before the scored tokens, where the model predicts these tokens."""
    index = packed.scored - 1
    return jnp.take_along_axis(states, index.reshape(*index.shape, *[1] * (states.ndim - 2)), axis=1)


MASKED_LOGIT = -1e30
"""Logit of a token outside a sampling mask; finite, so that its products with a probability of 0 are 0."""


def sampling_mask(kept: Int[Array, "*rows N"], tokens: Int[Array, "*rows"], vocab_size: int) -> Bool[Array, "*rows V"]:
    """Return the mask of the token ids that each distribution is normalized over: the kept ids and the token itself.

    Args:
        kept: ids that top-k and top-p kept at each token, padded with -1; a token without such ids uses the full vocabulary.
        tokens: ids of the tokens.
        vocab_size: V.

    Example:
        >>> sampling_mask(jnp.array([[2, -1], [-1, -1]]), jnp.array([0, 1]), 3).tolist()
        [[True, False, True], [True, True, True]]
    """
    count, rows = kept.shape[-1], jnp.arange(tokens.size)[:, None]
    ids = jnp.concatenate([kept, tokens[..., None]], axis=-1).reshape(-1, count + 1)
    mask = jnp.zeros((tokens.size, vocab_size), bool).at[rows, jnp.where(ids < 0, vocab_size, ids)].set(True, mode="drop")
    return mask.reshape(*tokens.shape, vocab_size) | (kept < 0).all(-1)[..., None]


def scored_tokens(packed: Packed) -> Int[Array, "R K"]:
    """Return the ids of the scored tokens."""
    return jnp.take_along_axis(packed.tokens, packed.scored, axis=1)


def to_batch(numbers: Float[Array, "R K *N"], packed: Packed) -> Float[Array, "B T *N"]:
    """Rearrange values of the scored tokens into the layout of the batch."""
    return numbers.reshape(-1, *numbers.shape[2:])[packed.place]
