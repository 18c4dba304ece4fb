"""Record the experts that the sampler used for each token, for `--replay-experts`; see `rljax.models.router_replay`.

Axes: N responses, L prompt slots, T response slots, S = L + T, Y layers, C experts per token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
from jaxtyping import Array, Int, Int16

from rljax.errors import InputError
from rljax.models import Params
from rljax.models.router_replay import UNKNOWN, RecordedState, recording_decoder
from rljax.parallel import fetch
from rljax.rollout.decode_sizes import FittingSlots
from rljax.rollout.engine import Decoding, DecodingEngine
from rljax.rollout.engine_protocols import Request, Response, Sampling


@dataclass(frozen=True)
class RecordingEngine(DecodingEngine):
    """The built-in engine with a recording decoder; its responses contain the experts of each token."""

    def decode_some(
        self,
        params: Params,
        decoding: Decoding,
        requests: Sequence[Request],
        min_ended: int,
        max_steps: int,
        sampling: Sampling,
    ) -> tuple[Decoding, dict[int, Response], int]:
        """Sample tokens as `DecodingEngine.decode_some` does, and add the recorded experts to the responses that have ended."""
        row_of = {int(index): row for row, index in enumerate(decoding.request_of_row)}
        decoding, responses, free = super().decode_some(params, decoding, requests, min_ended, max_steps, sampling)
        for index, response in responses.items():
            prompt, read = fetch(_row_records(decoding.rows.state, row_of[index]))
            last = np.full((1, *read.shape[1:]), UNKNOWN, read.dtype)  # the model does not read the last token
            experts = prompt[-len(requests[index].prompt_tokens) :], read[: len(response.tokens) - 1], last
            responses[index] = response._replace(experts=np.concatenate(experts))
        return decoding, responses, free


@jax.jit
def _row_records(state: RecordedState, row: Int[Array, ""] | int) -> tuple[Int16[Array, "L Y C"], Int16[Array, "T Y C"]]:
    return state.prompt_experts[row], state.response_experts[row]


def recording_engine(engine: object) -> RecordingEngine | None:
    """Return a copy of a built-in engine, made to record experts; None for another engine, or without the built-in transformer."""
    decoder = recording_decoder(engine.decoder) if type(engine) is DecodingEngine else None
    if type(engine) is not DecodingEngine or decoder is None:
        return None
    slots = replace(engine.slots, decoder=decoder) if isinstance(engine.slots, FittingSlots) else engine.slots
    return RecordingEngine(decoder, engine.mesh, engine.prompt_length, slots, engine.text)


def experts_in_slots(responses: Sequence[Response], prompt_length: int, length: int) -> Int16[np.ndarray, "N S Y C"]:
    """Arrange the recorded experts of each response in its prompt slots and response slots.

    Args:
        responses: responses whose `experts` were recorded.
        prompt_length: L, slots per prompt; prompts are left-padded.
        length: T, slots per response; responses are right-padded.

    Raises:
        InputError: a response has no record, a record does not have one row per token, or the responses differ in the number of
            layers or of experts per token.

    Example:
        >>> mask, record = np.ones(2, bool), np.array([[[5, 4]], [[3, 2]], [[1, 0]]], np.int16)
        >>> tokens, logp = np.zeros(2, np.int32), np.zeros(2, np.float32)
        >>> response = Response(0, 0, tokens, mask, logp, logp, "stop", experts=record)
        >>> experts_in_slots([response], 2, 3)[0, :, 0].tolist()
        [[-1, -1], [5, 4], [3, 2], [1, 0], [-1, -1]]
    """
    records = [response.experts for response in responses if response.experts is not None]
    if len(records) < len(responses) or len({record.shape[1:] for record in records}) != 1:
        shapes = {str(None if response.experts is None else list(response.experts.shape)) for response in responses}
        raise InputError(
            "engine.generate: either all responses must have experts, with equal numbers of layers and of experts per token, or "
            f"none must have them; got the shapes {', '.join(sorted(shapes))}."
        )
    slots = np.full((len(responses), prompt_length + length, *records[0].shape[1:]), UNKNOWN, np.int16)
    for row, response, record in zip(slots, responses, records, strict=True):
        before, count = len(record) - len(response.tokens), len(response.tokens)
        if not 1 <= before <= prompt_length:
            raise InputError(
                "engine.generate: a response's experts must have one row for each token of the prompt and of the response; "
                f"got {len(record)} rows for {count} tokens after a prompt of at most {prompt_length}."
            )
        row[prompt_length - before : prompt_length + count] = record
    return slots
