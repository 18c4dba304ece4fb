"""Multi-turn sampling with the built-in engine, which caches each episode's context in a row between the turns.

Axes: B rows decoded together, E rows read together, T tokens to read in each of the E rows.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PyTree

from rljax.caching import cached_partial
from rljax.errors import InputError
from rljax.lazy import renamed_attributes
from rljax.models import Decoder, Params, TurnDecoder
from rljax.models.axes import spec_of
from rljax.parallel import fetch, put_rows, row_shards
from rljax.records import required
from rljax.rollout.decode_sizes import FittingSlots, dialogue_peak_bytes, growth_sizes, padded_length, rows_read_together
from rljax.rollout.engine import Decoding, DecodingEngine
from rljax.rollout.engine_protocols import Request, Response
from rljax.rollout.sampling import Prompts, decode_weights, empty_rows

FEWEST_TOKENS = 8
"""Number of tokens per row in the smallest compiled program that reads new context."""


class RowState(NamedTuple):
    """Decoder state of rows that may have different lengths."""

    lengths: Int[Array, "B"]
    """Number of tokens that each row has read. A row whose turn has ended still advances with the others; `read_turns` discards the
    tokens that it reads after the end."""
    state: PyTree
    """State of the `TurnDecoder`."""


def row_decoder(turns: TurnDecoder) -> Decoder:
    """Build a `Decoder` from a `TurnDecoder`."""
    partition = None if turns.partition is None else cached_partial(_partition, turns)
    return Decoder(cached_partial(_begin, turns), cached_partial(_advance, turns), partition=partition)


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
    """Copy rows, keep the first tokens of each copy, and read new tokens after them.

    Args:
        turns: the functions with which the model reads turns.
        params: parameters from `decode_weights`.
        rows: state of the B rows.
        origin: index of the row to copy, for each of the E copies.
        tokens: the tokens to read, left-aligned.
        first: number of tokens of the copied row to keep.
        count: number of tokens to read in each copy.
    """
    copies = jax.tree.map(lambda leaf: leaf[origin], rows.state)
    logits, copies = turns.extend(params, tokens, first, count, copies)
    return Prompts(logits, RowState(first + count, copies))


class Reading(NamedTuple):
    """New tokens to read after the first tokens of a row."""

    origin: int
    """Index of the row to copy."""
    first: int
    """Number of the row's tokens to keep before the new tokens, at least 0."""
    tokens: tuple[int, ...]
    """The new tokens."""
    rows: list[int]
    """Indices of the rows whose turns begin after the new tokens."""


@renamed_attributes(draw="sample_turns")
class TurnQueue:
    """A queue of turns that wait for rows, and this host's records of the rows.

    Args:
        engine: the engine that decodes the rows; its decoder must have `turns`.
        params: parameters of the policy.
        requests: the first turn of each episode, by episode index. The longest prompt and the largest budget of these requests and
            `later` determine the room in a row; every later turn with its context must fit into this room.
        later: first turns of episodes that begin later.

    Attributes:
        waiting: the queued turn of each episode that has one, by episode index.
        episodes: the episode that each row belongs to; None if the row belongs to no episode.
        row_tokens: for each row, the tokens in its decoder state.
        tokens_read: number of context tokens read so far; a prompt that several rows share counts once.

    Raises:
        InputError: `requests` and `later` are both empty.
    """

    def __init__(
        self, engine: DecodingEngine, params: Params, requests: Mapping[int, Request], later: Sequence[Request] = ()
    ):
        self.first_turns = [*requests.values(), *later]
        if not self.first_turns:
            raise InputError("dialogue: the first turns determine the lengths of the rows; got no requests.")
        self.turns = required(engine.decoder.turns, "decoder.turns")
        self.budget = max(request.sampling.max_tokens for request in self.first_turns)
        self.length = padded_length(self.first_turns, engine.prompt_length)
        self.sampling = self.first_turns[0].sampling._replace(max_tokens=self.budget, stop=())
        self.room = self.length + self.budget
        self.params, self.devices = decode_weights(engine.decoder, params), row_shards(engine.mesh)
        self.engine = engine
        self.waiting: dict[int, Request] = {}
        self.tokens_read = 0

    def start(self, decoding: Decoding) -> None:
        """Begin with the empty rows in `decoding`."""
        rows = len(decoding.request_of_row)
        self.decoding, self.requests = decoding, [self.first_turns[0]] * rows
        self.episodes: list[int | None] = [None] * rows
        self.row_tokens: list[tuple[int, ...]] = [()] * rows

    @property
    def running(self) -> Bool[np.ndarray, "B"]:
        """Mask of the rows that are sampling a turn."""
        return self.decoding.request_of_row >= 0

    def add(self, requests: Mapping[int, Request]) -> None:
        """Queue turns; each begins once a row is free.

        Raises:
            InputError: a turn has different sampling settings from the first turn, needs more room than a row has, has stop
                strings that the engine cannot find, or belongs to an episode whose last turn has not ended.
        """
        self.engine.check_stop(requests.values())
        for episode, request in requests.items():
            self._check(episode, request)
        self.waiting |= requests

    def end(self, episodes: Collection[int]) -> None:
        """Free the rows of episodes that have no further turn. Without this call, such rows are reused only if no other is free."""
        for row, owner in enumerate(self.episodes):
            if owner in episodes and not self.running[row]:
                self.episodes[row], self.row_tokens[row] = None, ()

    def _check(self, episode: int, request: Request) -> None:
        sampling, needed = request.sampling, len(request.prompt_tokens) + request.sampling.max_tokens
        if sampling._replace(max_tokens=self.sampling.max_tokens, stop=()) != self.sampling:
            raise InputError(f"dialogue: all turns must have the same sampling settings, {self.sampling}; got {sampling}.")
        if needed > self.room or sampling.max_tokens > self.sampling.max_tokens:
            raise InputError(
                f"dialogue: a turn can have at most {self.sampling.max_tokens} tokens, and {self.room} with its context; episode "
                f"{episode} needs {sampling.max_tokens} and {needed}."
            )
        is_running = any(self.episodes[row] == episode for row in np.flatnonzero(self.running))
        if is_running or episode in self.waiting:
            raise InputError(f"dialogue: the turn of episode {episode} has not ended, so its next turn cannot begin.")

    def _record_ended(self, ended: Mapping[int, Response]) -> dict[int, Response]:
        """Record the tokens that the ended turns have read, and return the responses by episode."""
        for row, response in ended.items():  # the last token was sampled, but not read
            self.row_tokens[row] = (*self.requests[row].prompt_tokens, *response.tokens[:-1].tolist())
        return {required(self.episodes[row], "episode"): response for row, response in ended.items()}

    def _split_readings(self, readings: Sequence[Reading]) -> Iterator[tuple[int, list[Reading]]]:
        """Divide readings into parts with similar numbers of tokens; yield each part, after the number of rows to pad it to."""
        left = sorted(readings, key=lambda reading: -len(reading.tokens))
        while left:
            rows = rows_read_together(len(self.requests), self._padded_length(left[0]), self.devices)
            yield rows, left[:rows]
            left = left[rows:]

    def _padded_length(self, reading: Reading) -> int:
        """Return the length to which the readings of a part are padded; `reading` is the longest of them."""
        return min(self.room, max(FEWEST_TOKENS, 1 << (len(reading.tokens) - 1).bit_length()))

    def _reading_arrays(self, part: tuple[int, list[Reading]]) -> tuple[Array, Array, Array, Array]:
        """Return the arguments `origin`, `tokens`, `first` and `count` of `read_turns` for a part."""
        rows, readings = part
        tokens = np.zeros((rows, self._padded_length(readings[0])), np.int32)
        origin, first, count = np.zeros(rows, np.int32), np.zeros(rows, np.int32), np.ones(rows, np.int32)
        for index, reading in enumerate(readings):
            tokens[index, : len(reading.tokens)] = reading.tokens
            origin[index], first[index], count[index] = reading.origin, reading.first, len(reading.tokens)
            self.tokens_read += len(reading.tokens)
        return put_rows(self.engine.mesh, (origin, tokens, first, count))

    def _begin_rows(self, prompts: Prompts, readings: Sequence[Reading]) -> None:
        """Begin the turns of the rows whose contexts have been read."""
        begun = [(row, index) for index, reading in enumerate(readings) for row in reading.rows]
        taken = np.array([row for row, _ in begun])
        self.decoding = self.engine.begin_rows(self.decoding, [prompts], self.requests, taken, begun, self.sampling)


class CachedDialogue(TurnQueue):
    """A dialogue whose turns continue from the key/value cache of their row.

    A row belongs to its episode until all rows are taken and another episode waits. Then the waiting episode takes the first row
    whose turn has ended and whose own episode has no turn waiting. If the episode that lost its row continues later, its full
    context is read again.

    If the decoder can `grow`, rows begin with little room, and all rows get more room as soon as one row needs it. At most
    `engine.slots` rows are decoded at once. `TurnQueue` describes the arguments.
    """

    def __init__(
        self, engine: DecodingEngine, params: Params, requests: Mapping[int, Request], later: Sequence[Request] = ()
    ):
        super().__init__(engine, params, requests, later)
        self.engine = turn_engine(engine, self.turns)
        rows = self.engine.batch_rows(self.params, self.first_turns, self.length, self.budget)
        room = self.budget if self.turns.grow is None else growth_sizes(rows, self.budget, self.length)[0]
        sizes = {"rows": rows, "length": self.length, "room": room}
        empty = empty_rows(self.engine.decoder, self.params, **sizes, sampling=self.sampling, mesh=engine.mesh)
        self.start(Decoding(empty, np.full(rows, -1), room))
        self.add(requests)

    def sample_turns(self) -> dict[int, Response]:
        """Begin waiting turns in free rows, and sample until about an eighth of the running turns have ended."""
        for part in self._split_readings(self._assign_rows()):
            self._begin(part)
        running = int(self.running.sum())
        if not running:
            return {}
        min_ended = len(self.requests) - running + max(1, running // 8)
        longest = int(fetch(self.decoding.rows.state.lengths)[self.running].max())
        self._grow(longest + 1)
        self.decoding = self.decoding._replace(written=longest - self.length)
        self.decoding, ended = self.engine.decode_until_ended(
            self.params, self.decoding, self.requests, min_ended, self.sampling
        )
        return self._record_ended(ended)

    def _grow(self, tokens: int) -> None:
        """Make room for this many tokens in each row."""
        while self.length + self.decoding.room < tokens:
            full = self.decoding._replace(written=self.decoding.room)
            self.decoding = self.engine.grow(full, self.sampling.max_tokens)

    def _assign_rows(self) -> list[Reading]:
        """Assign rows to waiting turns, and return what the rows must read; new rows with the same prompt share a reading."""
        row_of = {episode: row for row, episode in enumerate(self.episodes) if episode is not None}
        stays = {row_of[episode] for episode in self.waiting if episode in row_of}
        free = [row for row in np.flatnonzero(~self.running).tolist() if row not in stays]
        free.sort(key=lambda row: self.episodes[row] is not None)
        readings: dict[tuple, Reading] = {}
        for episode in list(self.waiting):
            row = row_of.get(episode)
            if row is None:
                if not free:
                    continue
                row = free.pop(0)
                self.episodes[row], self.row_tokens[row] = episode, ()
            request = self.requests[row] = self.waiting.pop(episode)
            first = common_prefix_length(self.row_tokens[row], request.prompt_tokens[:-1])
            reading = Reading(row, first, request.prompt_tokens[first:], [])
            readings.setdefault((row if first else None, request.prompt_tokens), reading).rows.append(row)
        return list(readings.values())

    def _begin(self, part: tuple[int, list[Reading]]) -> None:
        """Read one part, and begin the turns of its rows."""
        readings = part[1]
        self._grow(max(reading.first + len(reading.tokens) for reading in readings))
        self._begin_rows(
            read_turns(self.turns, self.params, self.decoding.rows.state, *self._reading_arrays(part)), readings
        )


def turn_engine(engine: DecodingEngine, turns: TurnDecoder) -> DecodingEngine:
    """Adapt an engine to dialogues, in which rows have different lengths and are copied when they read new context."""
    grow = None if turns.grow is None else cached_partial(_grow, turns)  # all rows and their copies have the same room
    decoder, slots = row_decoder(turns)._replace(grow=grow), engine.slots
    if isinstance(slots, FittingSlots):
        slots = replace(slots, decoder=decoder, peak=dialogue_peak_bytes)
    return replace(engine, decoder=decoder, slots=slots)


def common_prefix_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix of two token sequences.

    Example:
        >>> common_prefix_length((5, 6, 7, 8), (5, 6, 2)), common_prefix_length((5, 6), (5, 6, 7)), common_prefix_length((), (1,))
        (2, 2, 0)
    """
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(index for index in range(length) if one[index] != other[index])
