"""The built-in engine, which reads each prompt once and decodes a limited number of rows; new requests reuse ended rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Int, PRNGKeyArray, UInt32, UInt64

from rljax.data.prompts import left_pad
from rljax.errors import InputError
from rljax.models import Decoder, Params
from rljax.parallel import fetch, is_on_cpus, put_rows, row_shards
from rljax.records import required
from rljax.rollout.decode_sizes import block_parts, compiled_rows, fewer_rows, growth_sizes, padded_length
from rljax.rollout.engine_protocols import Request, Response, Sampling
from rljax.rollout.sampling import (
    Prompts,
    RowInputs,
    Rows,
    Samples,
    decode,
    decode_weights,
    empty_rows,
    fill_rows,
    grow_rows,
    move_rows,
    read_prompts,
    token_uniforms,
)
from rljax.rollout.stop_strings import TOKENS_BETWEEN_CHECKS, Decode, may_have_stopped, stop_end

Slots = Callable[[Params, int, int, int, int], int]
"""(prepared params, number of requests, number of distinct prompts, padded prompt length, maximum number of tokens per response)
-> maximum number of rows to decode."""


class Decoding(NamedTuple):
    """Rows that are being decoded, and this host's records of them."""

    rows: Rows
    """The rows on the devices."""
    request_of_row: Int[np.ndarray, "B"]
    """Index of the request that each row answers; -1 for a free row."""
    room: int
    """Number of tokens after each prompt that the decoder's state has room for."""
    written: int = 0
    """How much of this room is used: the number of tokens written so far."""


@dataclass(frozen=True)
class DecodingEngine:
    """Samples responses with the model in this process.

    Requests with the same prompt share its prefill. At most `slots` rows are decoded at once; whenever an eighth of them has ended,
    the next requests take over these rows, so that short responses do not wait for long ones.

    Args:
        decoder: functions that run the model on prompts, and then on one new token at a time.
        mesh: devices over which the rows are split.
        prompt_length: length in tokens to which prompts are padded; if a call has a longer prompt, a power of two instead.
        slots: maximum number of rows that are decoded at once: an integer, or a function that computes it for each call, such as
            `rljax.rollout.decode_sizes.FittingSlots`. Each row of the key/value cache has room for a prompt and a response.
        text: function that turns token ids into text, needed only for stop strings; see `rljax.rollout.stop_strings.Decode`.
    """

    decoder: Decoder
    mesh: Mesh
    prompt_length: int
    slots: int | Slots = 256
    text: Decode | None = None

    @property
    def has_pages(self) -> bool:
        """Whether keys and values are stored in pages."""
        return False

    def generate(self, params: Params, requests: Sequence[Request]) -> list[Response]:
        """Sample a response to each request; requests that differ only in budget and stop strings are decoded together.

        Raises:
            InputError: a request has stop strings, and the engine has no `text`.
        """
        responses: dict[int, Response] = {}
        for ended in self._sample_kinds(params, requests, final_pieces=1):
            responses |= ended
        return [responses[index] for index in range(len(requests))]

    def stream(self, params: Params, requests: Sequence[Request]) -> Iterator[dict[int, Response]]:
        """Sample the same responses as `generate`, and yield them as they end, about an eighth of the rows at a time.

        Yields:
            Some responses, by the index of their request.
        """
        yield from self._sample_kinds(params, requests, final_pieces=8)

    def check_stop(self, requests: Iterable[Request]) -> None:
        """Reject stop strings if the engine has no `text`.

        Raises:
            InputError: a request has stop strings, and the engine has no `text`.
        """
        if self.text is None and any(request.sampling.stop for request in requests):
            raise InputError(
                "text: stop strings are searched for in decoded text, so the engine needs a function to decode token ids; got None."
            )

    def batch_rows(self, params: Params, requests: Sequence[Request], length: int, budget: int) -> int:
        """Return the number of rows in the batch that decodes the requests.

        Args:
            params: parameters from `decode_weights`.
            requests: all requests of the call.
            length: padded length of a prompt, in tokens.
            budget: maximum number of tokens per response.
        """
        count, prompts = len(requests), len({request.prompt_tokens for request in requests})
        most = self.slots if isinstance(self.slots, int) else self.slots(params, count, prompts, length, budget)
        return compiled_rows(min(count, most), row_shards(self.mesh))

    def _sample_kinds(
        self, params: Params, requests: Sequence[Request], *, final_pieces: int
    ) -> Iterator[dict[int, Response]]:
        """Sample responses to all requests; requests that differ only in budget and stop strings are decoded together."""
        params = decode_weights(self.decoder, params)
        self.check_stop(requests)
        kinds = [request.sampling._replace(max_tokens=0, stop=()) for request in requests]
        for kind in dict.fromkeys(kinds):
            indices = [index for index, other in enumerate(kinds) if other == kind]
            for ended in self.sample_kind(params, [requests[index] for index in indices], final_pieces=final_pieces):
                yield {indices[index]: response for index, response in ended.items()}

    def sample_kind(
        self, params: Params, requests: Sequence[Request], *, final_pieces: int
    ) -> Iterator[dict[int, Response]]:
        """Sample responses to requests that differ only in budget and stop strings, and yield them as they end.

        Once all responses have begun, the remaining responses are yielded in about `final_pieces` pieces.
        """
        budget = max(request.sampling.max_tokens for request in requests)
        sampling = requests[0].sampling._replace(max_tokens=budget, stop=())
        length = padded_length(requests, self.prompt_length)
        slots = self.batch_rows(params, requests, length, budget)
        can_grow = self.decoder.grow is not None
        room = growth_sizes(slots, budget, length)[0] if can_grow else budget
        batch = {"length": length, "sampling": sampling, "mesh": self.mesh}
        rows = empty_rows(self.decoder, params, rows=slots, room=room, **batch)
        decoding = Decoding(rows, np.full(slots, -1), room)
        del rows  # a second reference would keep the first cache in memory
        for block in blocks_of(requests, slots, length, row_shards(self.mesh)):
            prompts = self.read_block(params, requests, block, length, 0 if can_grow else budget)
            waiting = block.waiting
            while waiting:
                if (decoding.request_of_row >= 0).all():
                    decoding = self.grow(decoding, budget)
                    decoding, ended = self.decode_until_ended(params, decoding, requests, max(1, slots // 8), sampling)
                    yield ended
                free = np.flatnonzero(decoding.request_of_row < 0)[: len(waiting)]
                begun, waiting = waiting[: len(free)], waiting[len(free) :]
                decoding = self.begin_rows(decoding, prompts, requests, free, begun, sampling)
            del prompts  # before the next block is read
        while (live := int((decoding.request_of_row >= 0).sum())) > 0:
            slots = len(decoding.request_of_row)
            fewer = fewer_rows(slots, budget, row_shards(self.mesh), on_cpus=is_on_cpus(self.mesh))
            if sizes := [size for size in fewer if live <= size]:
                decoding = self._move(params, decoding, sizes[-1], budget, batch)
                continue
            left = max(0, live - -(-slots // final_pieces), *fewer[:1])
            decoding = self.grow(decoding, budget)
            decoding, ended = self.decode_until_ended(params, decoding, requests, slots - left, sampling)
            yield ended

    def _move(self, params: Params, decoding: Decoding, size: int, budget: int, batch: Mapping[str, Any]) -> Decoding:
        """Move the rows that answer a request into a batch of `size` rows.

        If at most half of the rows are left, and more than half of their room is used, the room doubles at once: the cache does not
        get larger, and no program is compiled for the last tokens of the old room.
        """
        grows = 2 * size <= len(decoding.request_of_row) and 2 * decoding.written > decoding.room
        room = min(budget, 2 * decoding.room) if grows else decoding.room
        live = np.flatnonzero(decoding.request_of_row >= 0)
        source = np.full(size, -1, np.int32)
        source[: len(live)] = live
        placed = put_rows(self.mesh, source)
        moved = move_rows(self.decoder, params, decoding.rows, placed, room=room, **batch)
        request_of_row = np.where(source >= 0, decoding.request_of_row[source], -1)
        return decoding._replace(rows=moved, request_of_row=request_of_row, room=room)

    def grow(self, decoding: Decoding, budget: int) -> Decoding:
        """Make room for at least one more token per row, up to `budget`."""
        if decoding.room == budget or decoding.written < decoding.room:
            return decoding
        room = min(budget, 2 * decoding.room)
        return decoding._replace(rows=grow_rows(self.decoder, decoding.rows, more=room - decoding.room), room=room)

    def decode_until_ended(
        self, params: Params, decoding: Decoding, requests: Sequence[Request], min_ended: int, sampling: Sampling
    ) -> tuple[Decoding, dict[int, Response]]:
        """Sample until `min_ended` rows have ended or are free; return the responses that have ended, and free their rows."""
        responses: dict[int, Response] = {}
        while True:
            left = sampling.max_tokens if decoding.room == sampling.max_tokens else decoding.room - decoding.written
            decoding, ended, free = self.decode_some(params, decoding, requests, min_ended, left, sampling)
            responses |= ended
            if free >= min_ended:
                return decoding, responses
            decoding = self.grow(decoding, sampling.max_tokens)

    def decode_some(
        self,
        params: Params,
        decoding: Decoding,
        requests: Sequence[Request],
        min_ended: int,
        max_steps: int,
        sampling: Sampling,
    ) -> tuple[Decoding, dict[int, Response], int]:
        """Sample until `min_ended` rows have ended or are free, or for `max_steps` tokens (fewer with stop strings).

        Returns:
            The rows, in which ended rows are free; the responses that have ended; and the number of free rows.
        """
        responses: dict[int, Response] = {}
        request_of_row = decoding.request_of_row.copy()
        if any(request.sampling.stop for request in requests):
            max_steps = min(max_steps, TOKENS_BETWEEN_CHECKS)
        rows, steps = decode(
            self.decoder, params, decoding.rows, np.int32(min_ended), np.int32(max_steps), sampling=sampling
        )
        decoding = decoding._replace(rows=rows, request_of_row=request_of_row, written=decoding.written + int(fetch(steps)))
        del rows  # a second reference would keep the old cache alive after it has been copied
        ended, samples = fetch((decoding.rows.ended, decoding.rows.samples))
        cut = self._find_stops(samples, ended, request_of_row, requests)
        finished = [row for row in np.flatnonzero(request_of_row >= 0).tolist() if ended[row] or row in cut]
        for row in finished:
            responses[int(request_of_row[row])] = _extract_response(
                requests[request_of_row[row]], samples, row, cut.get(row)
            )
        request_of_row[finished] = -1
        is_free = ended.copy()
        is_free[list(cut)] = True
        if cut:
            decoding = decoding._replace(rows=decoding.rows._replace(ended=put_rows(self.mesh, is_free)))
        return decoding, responses, int(is_free.sum())

    def _find_stops(
        self,
        samples: Samples,
        ended: Bool[np.ndarray, "B"],
        request_of_row: Int[np.ndarray, "B"],
        requests: Sequence[Request],
    ) -> dict[int, int]:
        """Map each row whose text contains a stop string to its number of tokens up to the end of that string."""
        found: dict[int, int] = {}
        for row in np.flatnonzero(request_of_row >= 0).tolist():
            stop, tokens = (
                requests[request_of_row[row]].sampling.stop,
                np.asarray(samples.tokens[row, : samples.count[row]]),
            )
            if stop and (
                ended[row] or may_have_stopped(tokens, stop, required(self.text, "text"), new=TOKENS_BETWEEN_CHECKS + 1)
            ):
                end = stop_end(tokens, stop, required(self.text, "text"))
                found |= {} if end is None else {row: end}
        return found

    def read_block(
        self, params: Params, requests: Sequence[Request], block: "Block", length: int, room: int
    ) -> list[Prompts]:
        """Read the prompts of a block in parts; each part, and the list of parts, is padded, so that few programs are compiled."""
        tokens = [requests[index].prompt_tokens for index in block.prompts]
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
        begun: Sequence[tuple[int, int]],
        sampling: Sampling,
    ) -> Decoding:
        """Begin responses in free rows; `begun` has the (request, prompt) pair of each of these rows."""
        slots, request_of_row = len(decoding.request_of_row), decoding.request_of_row.copy()
        request_of_row[free] = [index for index, _ in begun]
        source, limit, seeds = np.full(slots, -1, np.int32), np.zeros(slots, np.int32), np.zeros((slots, 2), np.uint32)
        source[free] = [prompt for _, prompt in begun]
        limit[free] = [requests[index].sampling.max_tokens for index, _ in begun]
        seeds[free] = seed_words([requests[index].seed for index, _ in begun])
        source, limit, seeds = put_rows(self.mesh, (source, limit, seeds))
        inputs = RowInputs(token_uniforms(seeds, sampling=sampling), limit)
        return decoding._replace(
            rows=fill_rows(self.decoder, decoding.rows, prompts, source, inputs, sampling=sampling),
            request_of_row=request_of_row,
        )


class Block(NamedTuple):
    """Prompts that are read before the first response to any of them begins, and the requests that have these prompts."""

    prompts: list[int]
    """For each prompt, the index of one request that has it."""
    rows: int
    """Number of prompts that are read together, in one part."""
    parts: int
    """Number of parts, including padding."""
    waiting: list[tuple[int, int]]
    """All requests with these prompts, as pairs (request, index of its prompt in the block)."""


def blocks_of(requests: Sequence[Request], slots: int, length: int, devices: int) -> Iterator[Block]:
    """Split requests into blocks of prompts, each with about as many requests as there are slots, or fewer if prompts are long.

    A block of long prompts is read in parts. It has at most one prompt per eight slots, or a single part if a part has more prompts
    than that, so that prompts that wait for a row need little memory compared to the rows.

    Args:
        requests: all requests of the call.
        slots: number of rows that are decoded at once.
        length: padded length of a prompt, in tokens.
        devices: number of devices over which the rows are split.
    """
    indices: dict[tuple[int, ...], list[int]] = {}
    for index, request in enumerate(requests):
        indices.setdefault(request.prompt_tokens, []).append(index)
    groups = list(indices.values())
    rows, parts = block_parts(slots, len(requests), len(groups), length, devices)
    for start in range(0, len(groups), rows * parts):
        block = groups[start : start + rows * parts]
        waiting = [(index, prompt) for prompt, group in enumerate(block) for index in group]
        yield Block([group[0] for group in block], rows, parts, waiting)


def seed_words(seeds: Sequence[int]) -> UInt32[np.ndarray, "B 2"]:
    """Split 64-bit seeds into their high and low words.

    Example:
        >>> seed_words([3 + (5 << 32)]).tolist()
        [[5, 3]]
    """
    wide = np.asarray(seeds, np.uint64)
    return np.stack([wide >> np.uint64(32), wide & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)


_random_bits = jax.jit(jax.random.bits, static_argnums=(1, 2))  # one program compiles faster than several


def generate_seeds(key: PRNGKeyArray, count: int) -> UInt64[np.ndarray, "count"]:
    """Generate `count` 64-bit seeds from a key."""
    words = np.asarray(_random_bits(key, (count, 2), np.uint32)).astype(np.uint64)
    return (words[:, 0] << np.uint64(32)) | words[:, 1]


def _extract_response(request: Request, samples: Samples, row: int, cut: int | None) -> Response:
    """Return the response in one row, without padding and without tokens after a stop string."""
    length = int(samples.count[row]) if cut is None else cut
    return request.respond(
        np.array(samples.tokens[row, :length]),
        np.array(samples.behaviour_logp[row, :length]),
        "length" if samples.truncated[row] and cut is None else "stop",
        policy_logp=np.array(samples.policy_logp[row, :length]),
        kept=None if samples.kept is None else np.array(samples.kept[row, :length]),
    )
