"""Stream the tokens of one response while it is sampled, for example to a terminal."""

from collections.abc import Iterator

import numpy as np

from rljax.data.prompts import left_pad
from rljax.models import Params
from rljax.parallel import fetch, put_rows, row_shards
from rljax.rollout.decode_sizes import compiled_rows, growth_sizes, padded_length
from rljax.rollout.engine import Decoding, DecodingEngine
from rljax.rollout.engine_protocols import Request
from rljax.rollout.sampling import decode, decode_weights, empty_rows, read_prompts


def stream_tokens(engine: DecodingEngine, params: Params, request: Request, *, every: int = 4) -> Iterator[list[int]]:
    """Sample the same response as `engine.generate`, and yield its new tokens after every few decoding steps.

    The programs are compiled for one row; a second response with the same prompt length and settings reuses them.

    Args:
        engine: the engine that samples the response.
        params: parameters of the policy.
        request: prompt, sampling settings and seed. Its stop strings are ignored; end tokens end the response.
        every: number of decoding steps per yielded list. The first list also contains the token sampled when the prompt is read.

    Yields:
        Lists of token ids; the very last id may be an end token.
    """
    params, mesh = decode_weights(engine.decoder, params), engine.mesh
    budget, can_grow = request.sampling.max_tokens, engine.decoder.grow is not None
    sampling, length = request.sampling._replace(stop=()), padded_length([request], engine.prompt_length)
    rows = compiled_rows(1, row_shards(mesh))
    room = growth_sizes(rows, budget, length)[0] if can_grow else budget
    empty = empty_rows(engine.decoder, params, rows=rows, length=length, room=room, sampling=sampling, mesh=mesh)
    padded = put_rows(mesh, left_pad([request.prompt_tokens] * rows, length, pad_id=0))
    prompts = [read_prompts(engine.decoder, params, *padded, budget=0 if can_grow else budget)]
    decoding = Decoding(empty, np.full(rows, -1), room)
    decoding = engine.begin_rows(decoding, prompts, [request], np.array([0]), [(0, 0)], sampling)
    shown, ended = 0, False
    while not ended:
        decoding = engine.grow(decoding, budget)
        steps = every if decoding.room == budget else min(every, decoding.room - decoding.written)
        advanced, done = decode(engine.decoder, params, decoding.rows, np.int32(rows), np.int32(steps), sampling=sampling)
        decoding = decoding._replace(rows=advanced, written=decoding.written + int(fetch(done)))
        del advanced  # a second reference would keep the old cache in memory
        has_ended, samples = fetch((decoding.rows.ended, decoding.rows.samples))
        ended, count = bool(has_ended[0]), int(samples.count[0])
        yield samples.tokens[0, shown:count].tolist()
        shown = count
