"""Dialogues: the turns of many episodes, of which each begins as soon as there is a row for it.

Axes: B rows that are decoded together, E rows that are read together, T tokens of each of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PyTree

from rljax.errors import InputError
from rljax.models import Decoder, Params, TurnDecoder
from rljax.models.axes import spec_of
from rljax.models.policy import Bound
from rljax.parallel import fetch, put_rows, row_shards
from rljax.records import documented, required
from rljax.rollout.engine import Decoding, DecodingEngine, padded_length, rooms
from rljax.rollout.request import Engine, Request, Response, check_responses
from rljax.rollout.sampling import Prompts, decode_weights, empty_rows
from rljax.rollout.slots import FittingSlots, turn_bytes, turn_rows

FEWEST_TOKENS = 8
"""Tokens of a row in the smallest program that reads a turn."""


@documented
class RowState(NamedTuple):
    """State of rows that each have a length of their own."""

    lengths: Int[Array, "B"]
    """Tokens that were read of each row. A row whose turn has ended goes on reading; what it reads is forgotten."""
    state: PyTree
    """State of the `TurnDecoder`."""


def row_decoder(turns: TurnDecoder) -> Decoder:
    """Make a decoder of the functions that read turns."""
    partition = None if turns.partition is None else Bound(_partition, turns)
    return Decoder(Bound(_begin, turns), Bound(_advance, turns), partition=partition)


def _grow(turns: TurnDecoder, state: RowState, more: int) -> RowState:
    return state._replace(state=required(turns.grow, "turns.grow")(state.state, more))


def _partition(turns: TurnDecoder, path: tuple[str, ...], shape: tuple[int, ...]) -> PartitionSpec:
    if path == ("lengths",):
        return spec_of(("rows",))
    return required(turns.partition, "turns.partition")(path[1:], shape)


def _begin(
    turns: TurnDecoder, params: Params, tokens: Int[Array, "B L"], attention: Bool[Array, "B L"], budget: int
) -> tuple[Float[Array, "B V"], RowState]:
    tokens = jnp.take_along_axis(tokens, jnp.argsort(~attention, axis=-1, stable=True), axis=-1)
    rows, length = tokens.shape
    count = attention.sum(-1)
    logits, state = turns.extend(params, tokens, jnp.zeros_like(count), count, turns.empty(rows, length + budget))
    return logits, RowState(count, state)


def _advance(
    turns: TurnDecoder, params: Params, token: Int[Array, "B"], state: RowState
) -> tuple[Float[Array, "B V"], RowState]:
    one = jnp.ones_like(state.lengths)
    logits, rows = turns.extend(params, token[:, None], state.lengths, one, state.state)
    return logits, RowState(state.lengths + one, rows)


@partial(jax.jit, static_argnames=("turns",))
def read_turns(
    turns: TurnDecoder,
    params: Params,
    rows: RowState,
    origin: Int[Array, "E"],
    tokens: Int[Array, "E T"],
    first: Int[Array, "E"],
    count: Int[Array, "E"],
) -> Prompts:
    """Read tokens behind the first ones of copies of some rows.

    Args:
        turns: how the model reads.
        params: ready for reading.
        rows: B rows.
        origin: the row that is copied.
        tokens: from the left end of each row on.
        first: tokens of the row before them.
        count: tokens of each row.
    """
    copies = jax.tree.map(lambda leaf: leaf[origin], rows.state)
    logits, copies = turns.extend(params, tokens, first, count, copies)
    return Prompts(logits, RowState(first + count, copies))


@documented
class Reading(NamedTuple):
    """Tokens that are read behind the first ones of a row, or of a new one."""

    origin: int
    """The row."""
    first: int
    """Its tokens before them."""
    tokens: tuple[int, ...]
    """The tokens."""
    rows: list[int]
    """Rows that go on after them."""


class CachedDialogue:
    """Turns that go on with what their rows have read.

    A row stays with its episode until all others are taken and another episode waits; then the first one whose turn has ended and
    that does not go on is given away. If its episode goes on later, its whole context is read again.

    If the turns can `grow`, rows begin with the room of a long decode, and all get more as soon as one needs it.

    Args:
        engine: decodes the rows, `slots` at most. Its decoder has `turns`.
        params: parameters of the policy.
        requests: episode -> its first turn. No other context or turn may need more room than the longest prompt and the largest
            budget of these.

    Attributes:
        tokens_read: tokens of contexts that were read so far; a prompt of several rows counts once.

    Raises:
        InputError: there is no first turn.
    """

    def __init__(self, engine: DecodingEngine, params: Params, requests: Mapping[int, Request]):
        if not requests:
            raise InputError("dialogue: rows are made for the lengths of the first turns; got no requests.")
        self.turns, begun = required(engine.decoder.turns, "decoder.turns"), list(requests.values())
        budget = max(request.sampling.max_tokens for request in begun)
        self.length = padded_length(begun, engine.prompt_length)
        self.sampling, self.room = begun[0].sampling._replace(max_tokens=budget, stop=()), self.length + budget
        self.params, self.devices = decode_weights(engine.decoder, params), row_shards(engine.mesh)
        self.engine = turn_engine(engine, self.turns)
        rows = self.engine.batch_rows(self.params, begun, self.length, budget)
        room = budget if self.turns.grow is None else rooms(budget, self.length)[0]
        sizes = {"rows": rows, "length": self.length, "budget": budget, "room": room}
        empty = empty_rows(self.engine.decoder, self.params, **sizes, mesh=engine.mesh)
        self.decoding = Decoding(empty, np.full(rows, -1), room)
        self.requests = [begun[0]] * rows
        self.episodes: list[int | None] = [None] * rows
        self.read: list[tuple[int, ...]] = [()] * rows
        self.waiting: dict[int, Request] = {}
        self.tokens_read = 0
        self.add(requests)

    def add(self, requests: Mapping[int, Request]) -> None:
        """Let turns wait for a row.

        Raises:
            InputError: a turn is drawn in another manner than the first ones, needs more room, or has stop strings that the engine
                cannot look for; or its episode has a turn already.
        """
        self.engine.check_stop(requests.values())
        for episode, request in requests.items():
            self._check(episode, request)
        self.waiting |= requests

    def _check(self, episode: int, request: Request) -> None:
        sampling, needed = request.sampling, len(request.prompt_tokens) + request.sampling.max_tokens
        if sampling._replace(max_tokens=self.sampling.max_tokens, stop=()) != self.sampling:
            raise InputError(f"dialogue: all turns are drawn alike; got {sampling} beside {self.sampling}.")
        if needed > self.room or sampling.max_tokens > self.sampling.max_tokens:
            raise InputError(
                f"dialogue: a turn may have {self.sampling.max_tokens} tokens, and with its context {self.room}; episode {episode} "
                f"needs {sampling.max_tokens} and {needed}."
            )
        is_drawn = any(self.episodes[row] == episode for row in np.flatnonzero(self.decoding.holder >= 0))
        if is_drawn or episode in self.waiting:
            raise InputError(f"dialogue: the turn of episode {episode} has not ended, so another one cannot begin.")

    def draw(self) -> dict[int, Response]:
        """Begin the turns that wait, as far as there are rows, and draw until an eighth of the rows or so have ended."""
        for part in self._parts(self._readings()):
            self._begin(part)
        drawn = int((self.decoding.holder >= 0).sum())
        if not drawn:
            return {}
        enough = len(self.requests) - drawn + max(1, drawn // 8)
        longest = int(fetch(self.decoding.rows.state.lengths)[self.decoding.holder >= 0].max())
        self._grow(longest + 1)
        self.decoding = self.decoding._replace(written=longest - self.length)
        self.decoding, ended = self.engine.draw_rows(self.params, self.decoding, self.requests, enough, self.sampling)
        for row, response in ended.items():  # its last token was drawn and not read
            self.read[row] = (*self.requests[row].prompt_tokens, *response.tokens[:-1].tolist())
        return {required(self.episodes[row], "episode"): response for row, response in ended.items()}

    def _grow(self, tokens: int) -> None:
        """Make room for so many tokens of a row."""
        while self.length + self.decoding.room < tokens:
            full = self.decoding._replace(written=self.decoding.room)
            self.decoding = self.engine.grow(full, self.sampling.max_tokens)

    def _readings(self) -> list[Reading]:
        """Give rows to turns that wait; what has to be read for them, once for new rows with the same prompt."""
        row_of = {episode: row for row, episode in enumerate(self.episodes) if episode is not None}
        stays = {row_of[episode] for episode in self.waiting if episode in row_of}
        free = [row for row in np.flatnonzero(self.decoding.holder < 0).tolist() if row not in stays]
        free.sort(key=lambda row: self.episodes[row] is not None)
        readings: dict[tuple, Reading] = {}
        for episode in list(self.waiting):
            row = row_of.get(episode)
            if row is None:
                if not free:
                    continue
                row = free.pop(0)
                self.episodes[row], self.read[row] = episode, ()
            request = self.requests[row] = self.waiting.pop(episode)
            first = shared_tokens(self.read[row], request.prompt_tokens[:-1])
            reading = Reading(row, first, request.prompt_tokens[first:], [])
            readings.setdefault((row if first else None, request.prompt_tokens), reading).rows.append(row)
        return list(readings.values())

    def _parts(self, readings: Sequence[Reading]) -> Iterator[tuple[int, list[Reading]]]:
        """Cut readings into parts of similar lengths: how many rows are read together, and what."""
        left = sorted(readings, key=lambda reading: -len(reading.tokens))
        while left:
            rows = turn_rows(len(self.requests), self._length(left[0]), self.devices)
            yield rows, left[:rows]
            left = left[rows:]

    def _length(self, reading: Reading) -> int:
        """Tokens that the longest row of a part is filled up to."""
        return min(self.room, max(FEWEST_TOKENS, 1 << (len(reading.tokens) - 1).bit_length()))

    def _begin(self, part: tuple[int, list[Reading]]) -> None:
        """Read a part, and begin the turns of its rows."""
        rows, readings = part
        self._grow(max(reading.first + len(reading.tokens) for reading in readings))
        tokens = np.zeros((rows, self._length(readings[0])), np.int32)
        origin, first, count = np.zeros(rows, np.int32), np.zeros(rows, np.int32), np.ones(rows, np.int32)
        for place, reading in enumerate(readings):
            tokens[place, : len(reading.tokens)] = reading.tokens
            origin[place], first[place], count[place] = reading.origin, reading.first, len(reading.tokens)
            self.tokens_read += len(reading.tokens)
        placed = put_rows(self.engine.mesh, (origin, tokens, first, count))
        prompts = read_turns(self.turns, self.params, self.decoding.rows.state, *placed)
        begun = [(row, place) for place, reading in enumerate(readings) for row in reading.rows]
        taken = np.array([row for row, _ in begun])
        self.decoding = self.engine.begin_rows(self.decoding, [prompts], self.requests, taken, begun, self.sampling)


def turn_engine(engine: DecodingEngine, turns: TurnDecoder) -> DecodingEngine:
    """The engine of a dialogue: its rows have lengths of their own, and those that read a turn are copied."""
    grow = None if turns.grow is None else Bound(_grow, turns)  # all rows and their copies have the same room
    decoder, slots = row_decoder(turns)._replace(grow=grow), engine.slots
    if isinstance(slots, FittingSlots):
        slots = replace(slots, decoder=decoder, peak=turn_bytes)
    return replace(engine, decoder=decoder, slots=slots)


class Rereading:
    """Turns of any engine, which reads the whole context for each of them. All turns that wait are drawn together.

    Args:
        engine: draws the turns.
        params: parameters of the policy.
        requests: episode -> its first turn.
    """

    def __init__(self, engine: Engine, params: Params, requests: Mapping[int, Request]):
        self.engine, self.params = engine, params
        self.waiting: dict[int, Request] = {}
        self.budget = 0
        self.add(requests)

    def add(self, requests: Mapping[int, Request]) -> None:
        """Let turns wait."""
        self.waiting |= requests
        self.budget = max([self.budget, *(request.sampling.max_tokens for request in requests.values())])

    def draw(self) -> dict[int, Response]:
        """Draw all turns that wait. All have the same budget, rounded up to a power of two, so that few programs are compiled.

        Raises:
            InputError: the engine's responses do not answer the requests.
        """
        if not self.waiting:
            return {}
        limits = {episode: request.sampling.max_tokens for episode, request in self.waiting.items()}
        budget = min(1 << (max(limits.values()) - 1).bit_length(), self.budget)
        requests = [
            request._replace(sampling=request.sampling._replace(max_tokens=budget)) for request in self.waiting.values()
        ]
        self.waiting = {}
        responses = self.engine.generate(self.params, requests)
        check_responses(requests, responses)
        return {episode: cut(response, limit) for (episode, limit), response in zip(limits.items(), responses, strict=True)}


def cut(response: Response, most: int) -> Response:
    """Leave out the tokens of a response that are past its limit."""
    if len(response.tokens) <= most:
        return response
    names = ("tokens", "mask", "behaviour_logp", "policy_logp")
    return response._replace(finish="length", **{name: getattr(response, name)[:most] for name in names})


def shared_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of tokens with which both begin.

    Example:
        >>> shared_tokens((5, 6, 7, 8), (5, 6, 2)), shared_tokens((5, 6), (5, 6, 7)), shared_tokens((), (1,))
        (2, 2, 0)
    """
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(place for place in range(length) if one[place] != other[place])
