"""Rows of tokens for a model alone, and how the numbers of their tokens become those of a batch.

Axes: R rows, S slots of a row, K scored tokens of a row; B responses, T tokens of a response. Nothing above `score` sees rows:
algorithms see `[B, T]`.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rljax.records import documented


@documented
class Packed(NamedTuple):
    """Sequences laid out in rows; several sequences may share a row."""

    tokens: Int[Array | np.ndarray, "*M R S"]
    """Token ids; without meaning where `segments` is 0."""
    positions: Int[Array | np.ndarray, "*M R S"]
    """Position of each token in its sequence, from 0."""
    segments: Int[Array | np.ndarray, "*M R S"]
    """Which sequence of its row a token belongs to, from 1; 0 is padding. A token sees the earlier ones of its sequence."""
    scored: Int[Array | np.ndarray, "*M R K"]
    """Slots of the tokens that are scored, at least 1: the model's numbers about a token stand one slot before it."""
    place: Int[Array | np.ndarray, "*M B T"]
    """Where each token of the batch lies among the scored ones, counted through the rows: row x K + column."""
    policy_logp: Float[Array | np.ndarray, "*M R S"] | None = None
    """Log-probability of each token under the policy that sampled it, nats, 0 elsewhere; for critics that read it."""


@documented
class Scores(NamedTuple):
    """What a policy assigns to the tokens of a batch."""

    logp: Float[Array, "B T"]
    """Log-probability of the token, nats."""
    entropy: Float[Array, "B T"]
    """Entropy of the distribution that the token was drawn from, nats."""


def visible_slots(segments: Int[Array, "R S"]) -> Bool[Array, "R S S"]:
    """Which slots each token sees: those of its own sequence up to itself. Padding sees itself, so that its softmax is defined."""
    slots = jnp.arange(segments.shape[-1])
    earlier = slots[None, :, None] >= slots[None, None, :]
    itself = slots[None, :, None] == slots[None, None, :]
    own = (segments[:, :, None] == segments[:, None, :]) & (segments[:, None, :] > 0)
    return (earlier & own) | itself


def before_scored(states: Float[Array, "R S *D"], packed: Packed) -> Float[Array, "R K *D"]:
    """Pick what stands one slot before each scored token: all that a model may know when it predicts the token."""
    index = packed.scored - 1
    return jnp.take_along_axis(states, index.reshape(*index.shape, *[1] * (states.ndim - 2)), axis=1)


def scored_tokens(packed: Packed) -> Int[Array, "R K"]:
    """Ids of the scored tokens."""
    return jnp.take_along_axis(packed.tokens, packed.scored, axis=1)


def batched(numbers: Float[Array, "R K *N"], packed: Packed) -> Float[Array, "B T *N"]:
    """Put numbers about the scored tokens where the batch has these tokens."""
    return numbers.reshape(-1, *numbers.shape[2:])[packed.place]
