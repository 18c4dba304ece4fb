"""The built-in engine: reads each prompt once, and decodes a bounded number of rows, which other prompts take when they end."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Int, PRNGKeyArray, UInt32, UInt64

from rljax.data.prompts import left_pad
from rljax.errors import InputError
from rljax.models import Decoder, Params
from rljax.parallel import fetch, put_rows, row_shards
from rljax.records import documented, required
from rljax.rollout.request import Dialogue, Request, Response, Sampling
from rljax.rollout.sampling import (
    Draws,
    Prompts,
    Rows,
    Samples,
    decode,
    decode_weights,
    empty_rows,
    fill_rows,
    grow_rows,
    move_rows,
    read_prompts,
)
from rljax.rollout.stopping import CHECK_TOKENS, Decode, may_have_stopped, stop_end

PROMPT_TOKENS_AT_ONCE = 8_192
"""Slots of prompts that a device reads at once, unless a single prompt has more."""
FEWEST_ROWS = 8
"""Rows of the smallest batch that the last responses of a decode are moved to."""
LONG_BUDGET = 128
"""Tokens of a response from which on programs for fewer rows and for less room are worth compiling."""
Slots = Callable[[Params, int, int, int, int], int]
"""(params ready for reading, requests, different prompts, slots of a prompt, most tokens of a response) -> most rows at once."""


@documented
class Decoding(NamedTuple):
    """Rows in the middle of a decode, and what this host knows of them."""

    rows: Rows
    """The rows."""
    holder: Int[np.ndarray, "B"]
    """The request that each row answers; -1: it waits for one."""
    room: int
    """Tokens after a prompt that the decoder's state has room for."""
    written: int = 0
    """How many of these places have been written."""


@dataclass(frozen=True)
class DecodingEngine:
    """Decodes with the model itself.

    Requests with the same prompt share its prefill. At most `slots` rows are decoded at once; when an eighth of them has ended, the
    next requests take their places, so that short responses do not wait for long ones.

    Args:
        decoder: how the model reads prompts and tokens.
        mesh: devices that share the rows.
        prompt_length: slots that every prompt is padded to, in tokens; a call with a longer one is padded to a power of two.
        slots: most rows that are decoded at once; a number, or what gives it for each call, as `rljax.rollout.slots.FittingSlots`
            does. The key/value cache holds as many rows of prompt and response.
        text: turns token ids into text; only needed for stop strings. The text of more ids begins with that of fewer,
            see `rljax.rollout.stopping.Decode`.
    """

    decoder: Decoder
    mesh: Mesh
    prompt_length: int
    slots: int | Slots = 256
    text: Decode | None = None

    def generate(self, params: Params, requests: Sequence[Request]) -> list[Response]:
        """Draw a response to each request; requests that differ in their budgets and stop strings alone are decoded together.

        Raises:
            InputError: a request has stop strings, and the engine has no `text`.
        """
        responses: dict[int, Response] = {}
        for ended in self._kinds(params, requests, last=1):
            responses |= ended
        return [responses[place] for place in range(len(requests))]

    def stream(self, params: Params, requests: Sequence[Request]) -> Iterator[dict[int, Response]]:
        """Draw the responses of `generate`, and yield them as they end: request's place -> response, an eighth of the rows or so
        at a time."""
        yield from self._kinds(params, requests, last=8)

    def dialogue(self, params: Params, requests: Mapping[int, Request]) -> Dialogue:
        """Begin episodes of several turns, whose rows go on after a turn with what the model has read of them, if the decoder has
        `turns` and there are first turns, for whose length rows are made."""
        from rljax.rollout.dialogue import CachedDialogue, Rereading  # noqa: PLC0415  they need this module

        rereads = self.decoder.turns is None or not requests
        return (Rereading if rereads else CachedDialogue)(self, params, requests)

    def check_stop(self, requests: Iterable[Request]) -> None:
        """Refuse stop strings if there is no `text`.

        Raises:
            InputError: a request has stop strings, and the engine has no `text`.
        """
        if self.text is None and any(request.sampling.stop for request in requests):
            raise InputError(
                "text: stop strings are looked for in text, and this engine cannot decode token ids; got None."
            )

    def batch_rows(self, params: Params, requests: Sequence[Request], length: int, budget: int) -> int:
        """Rows of the batch in which requests are drawn.

        Args:
            params: ready for reading.
            requests: all of them.
            length: slots of a prompt, in tokens.
            budget: most tokens of a response.
        """
        count, prompts = len(requests), len({request.prompt_tokens for request in requests})
        most = self.slots if isinstance(self.slots, int) else self.slots(params, count, prompts, length, budget)
        return compiled_rows(min(count, most), row_shards(self.mesh))

    def _kinds(self, params: Params, requests: Sequence[Request], *, last: int) -> Iterator[dict[int, Response]]:
        """Responses to requests of any kind, one kind after the other; see `_draw`."""
        params = decode_weights(self.decoder, params)
        self.check_stop(requests)
        kinds = [request.sampling._replace(max_tokens=0, stop=()) for request in requests]
        for kind in dict.fromkeys(kinds):
            places = [place for place, other in enumerate(kinds) if other == kind]
            for ended in self._draw(params, [requests[place] for place in places], last=last):
                yield {places[place]: response for place, response in ended.items()}

    def _draw(self, params: Params, requests: Sequence[Request], *, last: int) -> Iterator[dict[int, Response]]:
        """Responses to requests that are drawn in the same manner; when no request waits, the rows left end in `last` pieces."""
        budget = max(request.sampling.max_tokens for request in requests)
        sampling = requests[0].sampling._replace(max_tokens=budget, stop=())
        length = padded_length(requests, self.prompt_length)
        slots = self.batch_rows(params, requests, length, budget)
        can_grow = self.decoder.grow is not None
        room = rooms(budget, length)[0] if can_grow else budget
        empty = partial(empty_rows, self.decoder, params, length=length, budget=budget, mesh=self.mesh)
        decoding = Decoding(empty(rows=slots, room=room), np.full(slots, -1), room)
        for block in blocks_of(requests, slots, length, row_shards(self.mesh)):
            prompts = self._read(params, requests, block, length, 0 if can_grow else budget)
            waiting = block.waiting
            while waiting:
                if (decoding.holder >= 0).all():
                    decoding = self.grow(decoding, budget)
                    decoding, ended = self.draw_rows(params, decoding, requests, max(1, slots // 8), sampling)
                    yield ended
                free = np.flatnonzero(decoding.holder < 0)[: len(waiting)]
                begun, waiting = waiting[: len(free)], waiting[len(free) :]
                decoding = self.begin_rows(decoding, prompts, requests, free, begun, sampling)
            del prompts  # before the next block is read
        while (live := int((decoding.holder >= 0).sum())) > 0:
            slots = len(decoding.holder)
            fewer = fewer_rows(slots, budget, row_shards(self.mesh))
            if sizes := [size for size in fewer if live <= size]:
                decoding = self._move(decoding, empty(rows=sizes[-1], room=decoding.room))
                continue
            left = max(0, live - -(-slots // last), *fewer[:1])
            decoding = self.grow(decoding, budget)
            decoding, ended = self.draw_rows(params, decoding, requests, slots - left, sampling)
            yield ended

    def _move(self, decoding: Decoding, empty: Rows) -> Decoding:
        """The rows that answer a request, in fewer rows."""
        live = np.flatnonzero(decoding.holder >= 0)
        source = np.full(empty.ended.shape[0], -1, np.int32)
        source[: len(live)] = live
        moved = move_rows(self.decoder, empty, decoding.rows, put_rows(self.mesh, source))
        return decoding._replace(rows=moved, holder=np.where(source >= 0, decoding.holder[source], -1))

    def grow(self, decoding: Decoding, budget: int) -> Decoding:
        """The same with room for another token of every row; with room for a whole response, places are written again."""
        if decoding.room == budget or decoding.written < decoding.room:
            return decoding
        room = min(budget, 2 * decoding.room)
        return decoding._replace(rows=grow_rows(self.decoder, decoding.rows, more=room - decoding.room), room=room)

    def draw_rows(
        self, params: Params, decoding: Decoding, requests: Sequence[Request], enough: int, sampling: Sampling
    ) -> tuple[Decoding, dict[int, Response]]:
        """Draw until `enough` rows have ended; their responses, whose rows get free."""
        responses: dict[int, Response] = {}
        budget, holder = sampling.max_tokens, decoding.holder.copy()
        check = CHECK_TOKENS if any(request.sampling.stop for request in requests) else budget
        while True:
            most = check if decoding.room == budget else min(check, decoding.room - decoding.written)
            rows, drawn = decode(self.decoder, params, decoding.rows, np.int32(enough), np.int32(most), sampling=sampling)
            decoding = decoding._replace(rows=rows, holder=holder, written=decoding.written + int(fetch(drawn)))
            del rows  # a second name would keep a cache that has been copied
            ended, samples = fetch((decoding.rows.ended, decoding.rows.samples))
            cut = self._cut(samples, ended, holder, requests)
            finished = [row for row in np.flatnonzero(holder >= 0).tolist() if ended[row] or row in cut]
            for row in finished:
                responses[int(holder[row])] = _response(requests[holder[row]], samples, row, cut.get(row))
            holder[finished] = -1
            over = ended.copy()
            over[list(cut)] = True
            if cut:
                decoding = decoding._replace(rows=decoding.rows._replace(ended=put_rows(self.mesh, over)))
            if over.sum() >= enough:
                return decoding, responses
            decoding = self.grow(decoding, budget)

    def _cut(
        self, samples: Samples, ended: Bool[np.ndarray, "B"], holder: Int[np.ndarray, "B"], requests: Sequence[Request]
    ) -> dict[int, int]:
        """Rows whose text has a stop string of their request -> tokens of the response."""
        found: dict[int, int] = {}
        for row in np.flatnonzero(holder >= 0).tolist():
            stop, tokens = requests[holder[row]].sampling.stop, np.asarray(samples.tokens[row, : samples.count[row]])
            if stop and (ended[row] or may_have_stopped(tokens, stop, required(self.text, "text"), new=CHECK_TOKENS + 1)):
                end = stop_end(tokens, stop, required(self.text, "text"))
                found |= {} if end is None else {row: end}
        return found

    def _read(self, params: Params, requests: Sequence[Request], block: "Block", length: int, room: int) -> list[Prompts]:
        """Read the prompts of a block part by part; rows and parts are filled up, so that few programs occur."""
        tokens = [requests[place].prompt_tokens for place in block.prompts]
        parts: list[Prompts] = []
        for start in range(0, len(tokens), block.rows):
            part = tokens[start : start + block.rows]
            filled = part + part[:1] * (block.rows - len(part))
            placed = put_rows(self.mesh, left_pad(filled, length, pad_id=0))
            parts.append(read_prompts(self.decoder, params, *placed, budget=room))
        return parts + parts[:1] * (block.parts - len(parts))

    def begin_rows(
        self,
        decoding: Decoding,
        prompts: Sequence[Prompts],
        requests: Sequence[Request],
        free: Int[np.ndarray, "N"],
        begun: "Sequence[tuple[int, int]]",
        sampling: Sampling,
    ) -> Decoding:
        """Begin responses in free rows."""
        slots, holder = len(decoding.holder), decoding.holder.copy()
        holder[free] = [place for place, _ in begun]
        source, limit, seeds = np.full(slots, -1, np.int32), np.zeros(slots, np.int32), np.zeros((slots, 2), np.uint32)
        source[free] = [prompt for _, prompt in begun]
        limit[free] = [requests[place].sampling.max_tokens for place, _ in begun]
        seeds[free] = seed_words([requests[place].seed for place, _ in begun])
        source, draws = put_rows(self.mesh, (source, Draws(seeds, limit)))
        return decoding._replace(
            rows=fill_rows(self.decoder, decoding.rows, prompts, source, draws, sampling=sampling), holder=holder
        )


@documented
class Block(NamedTuple):
    """Prompts that are put into rows together."""

    prompts: list[int]
    """For each of them, a request that has it."""
    rows: int
    """Prompts that are read at once."""
    parts: int
    """Times that so many are read; the last ones may be filled up."""
    waiting: list[tuple[int, int]]
    """(request, the prompt of the block that it has) of all requests with these prompts."""


def blocks_of(requests: Sequence[Request], slots: int, length: int, devices: int) -> Iterator[Block]:
    """Cut requests into blocks of prompts, each with about as many requests as there are slots, or fewer if prompts are long.

    A block of long prompts is read in parts. It has at most an eighth as many prompts as there are slots, or one part if that has
    more, so that what is read and waits is small beside the rows.

    Args:
        requests: what is asked for.
        slots: rows that are decoded at once.
        length: slots of a prompt, in tokens.
        devices: number of devices that share the rows.
    """
    places: dict[tuple[int, ...], list[int]] = {}
    for place, request in enumerate(requests):
        places.setdefault(request.prompt_tokens, []).append(place)
    groups = list(places.values())
    rows, parts = block_parts(slots, len(requests), len(groups), length, devices)
    for start in range(0, len(groups), rows * parts):
        block = groups[start : start + rows * parts]
        waiting = [(place, prompt) for prompt, group in enumerate(block) for place in group]
        yield Block([group[0] for group in block], rows, parts, waiting)


def block_parts(slots: int, requests: int, prompts: int, length: int, devices: int) -> tuple[int, int]:
    """Prompts of a block that are read at once, and how many times: the device holds all of them until the last one has its rows.

    Example:
        >>> block_parts(64, 64, 64, 100, 1), block_parts(64, 256, 16, 100, 1), block_parts(256, 1_024, 1_024, 1_024, 1)
        ((64, 1), (4, 1), (8, 4))
    """
    count = min(prompts, max(1, slots * prompts // requests))
    rows = compiled_rows(min(count, devices * max(1, PROMPT_TOKENS_AT_ONCE // max(1, length))), devices)
    return rows, max(1, min(count, slots // 8) // rows)


def padded_length(requests: Sequence[Request], usual: int) -> int:
    """Slots of a prompt: the usual number, or a power of two where one is longer."""
    longest = max(len(request.prompt_tokens) for request in requests)
    return usual if longest <= usual else 1 << (longest - 1).bit_length()


def compiled_rows(rows: int, devices: int) -> int:
    """Round a number of rows up to a batch size that the devices can share: eight sizes for each doubling.

    Example:
        >>> [compiled_rows(rows, 1) for rows in (7, 64, 100, 384)], compiled_rows(6, 4)
        ([7, 64, 104, 384], 8)
    """
    unit = max(1, (1 << (rows.bit_length() - 1)) // 8)
    rows = -(-rows // unit) * unit
    return -(-rows // devices) * devices


def rooms(budget: int, length: int) -> tuple[int, ...]:
    """Tokens that the state of a decoder that can grow has room for, one after the other, up to the budget.

    Prompts longer than the budget leave little to save, and growing copies them too.

    Args:
        budget: most tokens of a response.
        length: slots of a prompt, in tokens.

    Example:
        >>> rooms(8_192, 1_024), rooms(130, 20), rooms(512, 8_192), rooms(64, 8)
        ((2048, 4096, 8192), (33, 66, 130), (512,), (64,))
    """
    if budget < max(LONG_BUDGET, length):
        return (budget,)
    quarter = -(-budget // 4)
    return quarter, 2 * quarter, budget


def fewer_rows(rows: int, budget: int, devices: int) -> tuple[int, ...]:
    """Sizes of the batches in which the last responses of a decode go on, descending; none if they stay where they are.

    Powers of two and three quarters of them: each size is another program, so there are two for each doubling.

    Args:
        rows: of the decode.
        budget: most tokens of a response.
        devices: number of devices that share the rows.

    Example:
        >>> fewer_rows(64, 1_024, 1), fewer_rows(64, 192, 8), fewer_rows(64, 32, 1), fewer_rows(12, 1_024, 1)
        ((48, 32, 24, 16, 12, 8), (48, 32, 24, 16, 8), (), ())
    """
    if budget < LONG_BUDGET or rows < 2 * FEWEST_ROWS:
        return ()
    sizes = {compiled_rows(size << power, devices) for power in range(rows.bit_length()) for size in (2, 3)}
    return tuple(sorted((size for size in sizes if FEWEST_ROWS <= size <= 7 * rows // 8), reverse=True))


def seed_words(seeds: Sequence[int]) -> UInt32[np.ndarray, "B 2"]:
    """Split 64-bit seeds into their high and low words.

    Example:
        >>> seed_words([3 + (5 << 32)]).tolist()
        [[5, 3]]
    """
    whole = np.asarray(seeds, np.uint64)
    return np.stack([whole >> np.uint64(32), whole & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)


def draw_seeds(key: PRNGKeyArray, count: int) -> UInt64[np.ndarray, "count"]:
    """Draw `count` 64-bit seeds from a key."""
    words = np.asarray(jax.random.bits(key, (count, 2), np.uint32)).astype(np.uint64)
    return (words[:, 0] << np.uint64(32)) | words[:, 1]


def _response(request: Request, samples: Samples, row: int, cut: int | None) -> Response:
    """One row without its padding, and without what was drawn after a stop string."""
    length = int(samples.count[row]) if cut is None else cut
    return Response(
        prompt_id=request.prompt_id,
        group=request.group,
        tokens=np.array(samples.tokens[row, :length]),
        mask=np.ones(length, bool),
        behaviour_logp=np.array(samples.behaviour_logp[row, :length]),
        policy_logp=np.array(samples.policy_logp[row, :length]),
        finish="length" if samples.truncated[row] and cut is None else "stop",
    )
