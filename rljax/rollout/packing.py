"""From groups to sequences, and from sequences to rows for the model with one sequence each."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32

from rljax.data.prompts import Demonstrations
from rljax.models import Packed
from rljax.records import documented, required
from rljax.rollout.groups import Groups


@documented
class Sequences(NamedTuple):
    """Prompts and responses, one row per response; any axes may come before the rows."""

    prompt_tokens: Int32[np.ndarray, "*M B L"]
    """Token ids of the prompts, left-padded."""
    prompt_attention: Bool[np.ndarray, "*M B L"]
    """Which prompt slots hold a token."""
    tokens: Int32[np.ndarray, "*M B T"]
    """Token ids of the responses, right-padded."""
    attention: Bool[np.ndarray, "*M B T"]
    """Which response slots hold a token."""
    policy_logp: Float32[np.ndarray, "*M B T"] | None = None
    """Log-probability of each response token under the policy that sampled it, nats; for critics that read it."""


def sequences_of(groups: Groups) -> Sequences:
    """Rows of groups; the responses of a group are adjacent."""
    size, length = groups.tokens.shape[1:]
    return Sequences(
        groups.prompt_tokens.repeat(size, axis=0),
        groups.prompt_attention.repeat(size, axis=0),
        groups.tokens.reshape(-1, length),
        groups.attention.reshape(-1, length),
        required(groups.rollout.policy_logp, "rollout.policy_logp").reshape(-1, length),
    )


def demonstrated(demonstrations: Demonstrations) -> Sequences:
    """Rows of demonstrations."""
    return Sequences(
        demonstrations.prompt_tokens,
        demonstrations.prompt_attention,
        demonstrations.response_tokens,
        demonstrations.response_attention,
    )


def pack(sequences: Sequences) -> Packed:
    """Put each prompt and its response in a row of their own.

    Args:
        sequences: rows `[..., B, L]` and `[..., B, T]`; the axes before B are micro-batches, each packed separately.

    Returns:
        Rows of L + T slots, all T response slots scored.
    """
    attention = np.concatenate([sequences.prompt_attention, sequences.attention], axis=-1)
    *leading, rows, length = sequences.tokens.shape
    start = sequences.prompt_tokens.shape[-1]
    logp = None
    if sequences.policy_logp is not None:
        response_logp = np.where(sequences.attention, sequences.policy_logp, np.float32(0))
        logp = np.concatenate([np.zeros(sequences.prompt_tokens.shape, np.float32), response_logp], axis=-1)
    return Packed(
        tokens=np.concatenate([sequences.prompt_tokens, sequences.tokens], axis=-1),
        positions=np.maximum(np.cumsum(attention, axis=-1, dtype=np.int32) - 1, 0),
        segments=attention.astype(np.int32),
        scored=np.broadcast_to(np.arange(start, start + length, dtype=np.int32), (*leading, rows, length)),
        place=np.broadcast_to(np.arange(rows * length, dtype=np.int32).reshape(rows, length), (*leading, rows, length)),
        policy_logp=logp,
    )
