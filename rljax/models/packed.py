"""Packed rows of tokens, which only the model sees, and the mapping of their per-token numbers to the batch.

Axes: R rows, S slots of a row, K scored tokens of a row; B responses, T tokens of a response. Nothing above `score` sees rows:
algorithms see `[B, T]`.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from rljax.records import documented


@documented
class Packed(NamedTuple):
    """Sequences laid out in rows; several sequences may share a row."""

    tokens: Int[Array | np.ndarray, "*M R S"]
    """Token ids; meaningless where `segments` is 0."""
    positions: Int[Array | np.ndarray, "*M R S"]
    """Position of each token in its sequence, from 0."""
    segments: Int[Array | np.ndarray, "*M R S"]
    """Sequence that each token belongs to, counted from 1 in its row; 0 is padding. A token sees its own sequence up to itself."""
    scored: Int[Array | np.ndarray, "*M R K"]
    """Slots of the scored tokens, at least 1: the model predicts a token at the slot before it."""
    place: Int[Array | np.ndarray, "*M B T"]
    """Index of each token of the batch among the scored tokens, flattened over the rows: row x K + column."""
    policy_logp: Float[Array | np.ndarray, "*M R S"] | None = None
    """Log-probability of each token under the policy that sampled it, nats, 0 elsewhere; for critics that read it."""


@documented
class Scores(NamedTuple):
    """Log-probabilities and entropies of the tokens of a batch under a policy."""

    logp: Float[Array, "B T"]
    """Log-probability of the token, nats."""
    entropy: Float[Array, "B T"]
    """Entropy of the distribution that the token was drawn from, nats."""


@documented
class Features(NamedTuple):
    """Factors of the logits of the scored tokens: `hidden @ head.T`, before any temperature."""

    hidden: Float[Array, "R K D"]
    """Last hidden state at the slot before each scored token."""
    head: Float[Array, "V D"]
    """Matrix that makes logits of hidden states."""
    copy: Float[Array, "V D"] | None = None
    """The matrix in the precision of the hidden states, where it was cast before; the derivative is taken in `head`."""


def visible_slots(
    segments: Int[Array, "R S"],
    *,
    first: Int[Array, ""] | int = 0,
    count: int | None = None,
    window: int | None = None,
) -> Bool[Array, "R T S"]:
    """The slots that each token sees: those of its own sequence up to itself. Padding sees itself, so that its softmax is defined.

    Args:
        segments: sequence of each slot, `[R, S]`; 0 is padding.
        first: first slot of the T tokens.
        count: T; None takes all slots.
        window: most tokens that a token sees: itself and the nearest before it; None: all of them.
    """
    slots = jnp.arange(segments.shape[-1])
    tokens = first + jnp.arange(segments.shape[-1] if count is None else count)
    own = jnp.take(segments, tokens, axis=1, mode="clip")[..., None]
    distance = (tokens[:, None] - slots[None])[None]
    is_near = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return (is_near & (own == segments[:, None]) & (own > 0)) | (distance == 0)


def before_scored(states: Shaped[Array, "R S *D"], packed: Packed) -> Shaped[Array, "R K *D"]:
    """Pick the states one slot before the scored tokens, where the model predicts these tokens."""
    index = packed.scored - 1
    return jnp.take_along_axis(states, index.reshape(*index.shape, *[1] * (states.ndim - 2)), axis=1)


def scored_tokens(packed: Packed) -> Int[Array, "R K"]:
    """Ids of the scored tokens."""
    return jnp.take_along_axis(packed.tokens, packed.scored, axis=1)


def batched(numbers: Float[Array, "R K *N"], packed: Packed) -> Float[Array, "B T *N"]:
    """Move the numbers of the scored tokens to the places that these tokens have in the batch."""
    return numbers.reshape(-1, *numbers.shape[2:])[packed.place]
