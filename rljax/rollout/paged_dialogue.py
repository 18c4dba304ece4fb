"""Dialogues with a paged key/value cache: a row keeps its pages between turns, and continues from them.

A turn waits until its device has pages for the part of its context that has not been read, and for the expected growth. Earlier
episodes come first: if there are too few pages, later episodes that are between two turns lose theirs, the latest episode first,
and read their context again once there is room. If pages run out during sampling and no row is between two turns, the latest turn
starts over later, with the same seed.

Axes: B rows decoded together, E rows read together, T tokens to read in each of the E rows, D devices over which rows are split.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from rljax.models import Params, TurnDecoder
from rljax.models.attention import map_slots_of
from rljax.models.paged_cache import (
    PAGE,
    PagedPrompts,
    PagedState,
    copy_out_of_pages,
    count_free,
    count_own_pages,
    join_devices,
    pages_needed,
    split_by_device,
    split_into_blocks,
    truncate_pages,
)
from rljax.parallel import fetch, put_rows
from rljax.records import required
from rljax.rollout.cached_dialogue import Reading, TurnQueue, common_prefix_length
from rljax.rollout.decode_sizes import FittingSlots, dialogue_peak_bytes
from rljax.rollout.engine import Decoding
from rljax.rollout.engine_protocols import Request, Response
from rljax.rollout.paged_sampling import (
    FEWEST_ENDED,
    FEWEST_STEPS,
    PagedEngine,
    empty_paged_rows,
    pool_sizes,
    steps_for,
    with_paged_decoder,
)
from rljax.rollout.sampling import Prompts, Rows


class FreePages(NamedTuple):
    """Numbers of pages: those that a turn can take on each device, and those that each row would give back."""

    shared: Int[np.ndarray, "D"]
    """Free shared pages."""
    own: Int[np.ndarray, "D"]
    """Free pages that only one row can use."""
    of_row: Int[np.ndarray, "B"]
    """Pages of each row that it does not share with other rows."""


@partial(jax.jit, static_argnames="devices")
def count_pages(state: PagedState, devices: int) -> tuple[tuple[Int[Array, "D"], Int[Array, "D"]], Int[Array, "B"]]:
    """Count the free pages of each device, and the pages of each row."""
    pages = split_by_device(state.pages, devices)
    return jax.vmap(count_free)(pages), join_devices(jax.vmap(count_own_pages)(pages))


@partial(jax.jit, static_argnames="devices", donate_argnames="rows")
def pause_rows(rows: Rows, tokens: Int[Array, "B"], is_running: Bool[Array, "B"], devices: int) -> Rows:
    """Free the pages of each row after its first `tokens` tokens; rows that are not running take no further pages."""
    state: PagedState = rows.state
    pages = join_devices(jax.vmap(truncate_pages)(*split_by_device((state.pages, tokens), devices)))
    pages = pages._replace(page=jnp.where(is_running, pages.page, 0))
    return rows._replace(state=state._replace(pages=pages), ended=rows.ended | ~is_running)


@partial(jax.jit, static_argnames=("turns", "blocks", "devices"))
def read_paged_turns(
    turns: TurnDecoder,
    params: Params,
    state: PagedState,
    origin: Int[Array, "E"],
    tokens: Int[Array, "E T"],
    first: Int[Array, "E"],
    count: Int[Array, "E"],
    *,
    blocks: int,
    devices: int,
) -> Prompts:
    """Copy rows out of their pages, keep the first tokens of each copy, and read new tokens after them.

    Args:
        turns: the functions with which the model reads turns.
        params: parameters from `decode_weights`.
        state: state of the B rows.
        origin: index of the row to copy, for each of the E copies; negative for an empty copy.
        tokens: the tokens to read, left-aligned.
        first: number of tokens of the copied row to keep.
        count: number of tokens to read in each copy.
        blocks: number of pages of each copy, enough for all tokens.
        devices: D.
    """
    per_device = len(state.pages.lengths) // devices
    local = origin[None] - per_device * jnp.arange(devices)[:, None]
    local = jnp.where((local >= 0) & (local < per_device) & (origin >= 0)[None], local, -1)
    copies = jax.vmap(partial(copy_out_of_pages, blocks=blocks))(split_by_device(state, devices), local)
    copies = jax.tree.map(lambda leaf: leaf.sum(0, dtype=leaf.dtype), copies)  # each row is nonzero on one device only
    logits, cache = turns.extend(params, tokens, first, count, copies)
    read = tuple(map_slots_of(split_into_blocks, layer) for layer in cache)
    return Prompts(logits, PagedPrompts(read, first + count, first // PAGE))


class PagedDialogue(TurnQueue):
    """A dialogue whose turns continue from the pages of their row. `TurnQueue` describes the arguments.

    Attributes:
        expected: expected number of tokens by which a row grows from turn to turn: at first from the engine's `share`, then the
            mean so far.
        arrival: for each episode, its position in the order in which episodes were added.
        restarted: number of turns that gave their pages back while being sampled.
    """

    def __init__(self, engine: PagedEngine, params: Params, requests: Mapping[int, Request], later: Sequence[Request] = ()):
        super().__init__(engine, params, requests, later)
        slots = engine.slots
        slots = replace(slots, peak=dialogue_peak_bytes) if isinstance(slots, FittingSlots) else slots
        self.engine = with_paged_decoder(replace(engine, slots=slots))
        rows = self.engine.batch_rows(self.params, self.first_turns, self.length, self.budget)
        requests_per_prompt = -(-len(self.first_turns) // len({request.prompt_tokens for request in self.first_turns}))
        self.expected, self.ended = engine.share * self.budget, [0, 0]  # ended turns, and the growth of their rows
        self.sizes = pool_sizes(rows // self.devices, self.length, self.budget, self.expected, requests_per_prompt)
        options = {"sizes": self.sizes, "sampling": self.sampling, "mesh": engine.mesh}
        empty = empty_paged_rows(self.engine.decoder, rows=rows, **options)
        self.start(Decoding(empty, np.full(rows, -1), self.budget))
        self.arrival: dict[int, int] = {}
        self.restarted = 0
        self.add(requests)

    def add(self, requests: Mapping[int, Request]) -> None:
        """Queue turns; see `TurnQueue.add`."""
        super().add(requests)
        for episode in requests:
            self.arrival.setdefault(episode, len(self.arrival))

    def end(self, episodes: Collection[int]) -> None:
        """Free the rows and pages of episodes that have no further turn."""
        super().end(episodes)
        self._pause()

    def sample_turns(self) -> dict[int, Response]:
        """Begin waiting turns for which there are pages, and sample until about an eighth of the turns, or fewer, have ended."""
        ended: dict[int, Response] = {}
        while not ended:
            for part in self._split_readings(self._assign_rows()):
                self._begin(part)
            if not self.running.any():
                return {}
            steps, count = self._plan_steps(), int(self.running.sum())
            min_ended = len(self.running) - count + max(1, count // 8)
            self.decoding, ended, _ = self.engine.decode_some(
                self.params, self.decoding, self.requests, min_ended, steps, self.sampling
            )
        found = self._record_ended(ended)
        self._pause()
        self.ended = [self.ended[0] + len(ended), self.ended[1] + sum(len(each.tokens) for each in ended.values())]
        if self.ended[0] >= FEWEST_ENDED:
            self.expected = self.ended[1] / self.ended[0]
        return found

    def _assign_rows(self) -> list[Reading]:
        """Assign rows and pages to waiting turns, and return what the rows must read.

        If a device has too few pages for a turn, later turns must wait there, too, or that turn might wait forever. A device
        without a running turn always begins one.
        """
        if not self.waiting:
            return []
        pages, is_full = self._free_pages(), np.zeros(self.devices, bool)
        readings: dict[tuple, Reading] = {}
        begun: set[int] = set()
        for episode in sorted(self.waiting, key=self.arrival.__getitem__):
            row = self._row_for(episode, begun, is_full)
            if row is None:
                continue
            prompt = self.waiting[episode].prompt_tokens
            first = common_prefix_length(self.row_tokens[row], prompt[:-1]) if self.episodes[row] == episode else 0
            key = (row if first else None, prompt)
            reading = readings.get(key, Reading(row, first, prompt[first:], []))
            if not self._take_pages(episode, row, reading, pages, begun):
                is_full[self._device_of(row)] = True
                continue
            self.episodes[row], self.requests[row] = episode, self.waiting.pop(episode)
            begun.add(row)
            readings.setdefault(key, reading).rows.append(row)
        self._pause()
        return list(readings.values())

    def _take_pages(self, episode: int, row: int, reading: Reading, pages: FreePages, begun: Collection[int]) -> bool:
        """Take the pages that a turn is expected to need from the free pages and, if necessary, from later episodes.

        If no turn is running on the device, pages are taken from earlier episodes, too.

        Args:
            episode: episode of the turn.
            row: row of the turn.
            reading: what the row reads, and the other rows that begin after the same context.
            pages: the free pages; updated.
            begun: rows whose turns are about to begin.

        Returns:
            Whether the pages were taken; if they do not suffice, none are taken.
        """
        device = self._device_of(row)
        running = {*np.flatnonzero(self.running).tolist(), *begun}
        is_idle = all(self._device_of(other) != device for other in running)
        between = [other for other in self._rows_between_turns(device) if other not in {row, *begun}]
        later = [other for other in between if is_idle or self._arrival_of_row(other) > self.arrival[episode]]
        shared, own = self._pages_needed(row, reading, self.waiting[episode].sampling.max_tokens)
        earlier = [] if reading.first else [other for other in between if other not in later]
        spare = sum(self._growth(len(self.row_tokens[other])) for other in earlier)  # for their next turns
        most = pages.own[device] + pages.of_row[later].sum()
        if not is_idle and (own + spare > most or shared > pages.shared[device]):
            return False
        if not reading.first:
            self._clear(row, pages)
        for other in later:
            if own + spare > pages.own[device]:
                self._clear(other, pages)
        pages.own[device] -= own
        pages.shared[device] -= shared
        return True

    def _row_for(self, episode: int, begun: Collection[int], is_full: Bool[np.ndarray, "D"]) -> int | None:
        """Choose a row for a turn: its episode's row, or else a row without an episode; None if there is none.

        If no turn could begin otherwise, the row of the latest episode is chosen.
        """
        if episode in self.episodes:
            row = self.episodes.index(episode)
            return None if is_full[self._device_of(row)] else row
        free = [row for row, owner in enumerate(self.episodes) if owner is None and not is_full[self._device_of(row)]]
        taken = [row for row, owner in enumerate(self.episodes) if owner is not None]
        if not free and not begun and not self.running.any() and not self.waiting.keys() & {*self.episodes}:
            return max(taken, key=self._arrival_of_row)
        load = np.bincount([self._device_of(row) for row in taken], minlength=self.devices)
        return min(free, key=lambda row: load[self._device_of(row)], default=None)

    def _device_of(self, row: int) -> int:
        return row * self.devices // len(self.row_tokens)

    def _pages_needed(self, row: int, reading: Reading, limit: int) -> tuple[int, int]:
        """Return how many shared and other pages a row takes for its context and for a turn of at most `limit` tokens."""
        length = reading.first + len(reading.tokens)
        growth = self._growth(length, limit)
        if reading.first:
            return 0, -(-length // PAGE) + len(self.row_tokens[row]) // -PAGE + growth
        count = sum(self._device_of(other) == self._device_of(row) for other in reading.rows)
        after, before = (pages_needed(length, rows, self.sizes.sharers) if rows else (0, 0) for rows in (count + 1, count))
        return after[0] - before[0], after[1] - before[1] + growth

    def _growth(self, length: int, limit: int | None = None) -> int:
        """Return how many pages a row of this length is expected to take until its next turn, or for at most `limit` tokens."""
        more = int(self.expected) if limit is None else min(int(self.expected), limit)
        return -(-min(length + more, self.room) // PAGE) + length // -PAGE

    def _arrival_of_row(self, row: int) -> int:
        return self.arrival[required(self.episodes[row], "episode")]

    def _rows_between_turns(self, device: int) -> list[int]:
        """Return the rows of a device that have pages and are not running, the latest episode first."""
        rows = [
            row for row in np.flatnonzero(~self.running).tolist() if self._device_of(row) == device and self.row_tokens[row]
        ]
        return sorted(rows, key=self._arrival_of_row, reverse=True)

    def _free_pages(self) -> FreePages:
        """Count the pages of each device that are neither taken nor reserved for the growth of running turns."""
        (shared, own), of_row = fetch(count_pages(self.decoding.rows.state, self.devices))
        written, growth = np.asarray(fetch(self.decoding.rows.samples.count)), np.zeros(len(self.row_tokens), int)
        for row in np.flatnonzero(self.running).tolist():
            request, count = self.requests[row], int(written[row])
            left = max(0, min(int(self.expected), request.sampling.max_tokens) - count)
            growth[row] = self._growth(len(request.prompt_tokens) + count, left)
        return FreePages(np.array(shared), own - growth.reshape(self.devices, -1).sum(-1), np.array(of_row))

    def _clear(self, row: int, pages: FreePages) -> None:
        """Take a row and its pages away from its episode; if its turn is running, the turn returns to the front of the queue."""
        if self.running[row]:
            episode = required(self.episodes[row], "episode")
            self.waiting = {episode: self.requests[row], **self.waiting}
            request_of_row = self.decoding.request_of_row.copy()
            request_of_row[row] = -1
            self.decoding = self.decoding._replace(request_of_row=request_of_row)
            self.restarted += 1
        pages.own[self._device_of(row)] += pages.of_row[row]
        pages.of_row[row] = 0
        self.episodes[row], self.row_tokens[row] = None, ()

    def _pause(self) -> None:
        """Free the pages of rows that are not running, except the pages that contain tokens which their episode has read."""
        tokens = np.where(self.running, np.iinfo(np.int32).max, [len(read) for read in self.row_tokens])
        placed = put_rows(self.engine.mesh, (tokens.astype(np.int32), self.running))
        self.decoding = self.decoding._replace(rows=pause_rows(self.decoding.rows, *placed, self.devices))

    def _begin(self, part: tuple[int, list[Reading]]) -> None:
        """Read one part, and begin the turns of its rows."""
        readings, most = part[1], -(-self.room // PAGE)
        blocks = max(-(-(reading.first + len(reading.tokens)) // PAGE) for reading in readings)
        blocks = min(most, 1 << (blocks - 1).bit_length())
        state, arrays = self.decoding.rows.state, self._reading_arrays(part)
        prompts = read_paged_turns(self.turns, self.params, state, *arrays, blocks=blocks, devices=self.devices)
        self._begin_rows(prompts, readings)
        self.ended[1] += sum(len(reading.tokens) for reading in readings if reading.first)

    def _plan_steps(self) -> int:
        """Return for how many more tokens per row the pages suffice on all devices; rows give pages back if necessary."""
        lengths = np.asarray(fetch(self.decoding.rows.state.pages.lengths))
        while True:
            (_, own), of_row = fetch(count_pages(self.decoding.rows.state, self.devices))
            rows = np.flatnonzero(self.running)
            running = [rows[rows * self.devices // len(self.row_tokens) == device] for device in range(self.devices)]
            steps = [steps_for(lengths[rows], int(free), self.budget) for rows, free in zip(running, own, strict=True)]
            chosen = [
                row
                for device, rows in enumerate(running)
                if steps[device] < FEWEST_STEPS and (row := self._least_needed(device, rows)) is not None
            ]
            if not chosen:
                return max(1, min(steps))
            pages = FreePages(np.zeros(self.devices, int), np.array(own), np.array(of_row))
            for row in chosen:
                self._clear(row, pages)
            self._pause()

    def _least_needed(self, device: int, running: Int[np.ndarray, "R"]) -> int | None:
        """Choose the row that returns its pages: the latest row between two turns, or else the latest of several running rows."""
        between = self._rows_between_turns(device)
        if between:
            return between[0]
        return max(running.tolist(), key=self._arrival_of_row) if len(running) > 1 else None
