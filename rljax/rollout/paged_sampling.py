"""Sampling with a paged key/value cache: memory is planned for the rows' expected length, and rows take pages as they grow.

A row starts only if its device has enough free pages for the row's prompt, and for all of the device's rows to reach the expected
length. Each decoding call runs only for as many tokens as the free pages certainly suffice for. If the pages of a device run out,
its latest rows return their pages and start over later, from their prompts and seeds, so they get the same tokens. The oldest
row keeps its pages, so every response ends.

Axes: B rows, D devices over which the rows are split.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int

from rljax.caching import cached_partial
from rljax.errors import InputError
from rljax.models import Decoder, Params
from rljax.models.paged_cache import (
    MAX_SHARERS,
    PAGE,
    PagedPrompts,
    PagedState,
    count_free,
    insert_prompts_in_pages,
    join_devices,
    move_pages,
    pages_needed,
    release_pages,
    split_by_device,
)
from rljax.models.policy import insert_rows
from rljax.parallel import fetch, is_on_cpus, put_rows, row_shards
from rljax.records import required
from rljax.rollout.decode_sizes import (
    FittingSlots,
    Weights,
    block_parts,
    compiled_rows,
    dialogue_peak_bytes,
    fewer_rows,
    padded_length,
    row_bytes,
    rows_read_together,
)
from rljax.rollout.engine import Decoding, DecodingEngine, blocks_of
from rljax.rollout.engine_protocols import Request, Response, Sampling
from rljax.rollout.sampling import Prompts, Rows, rows_shardings, waiting_rows

FEWEST_STEPS = 16
"""If the free pages suffice for fewer tokens per row than this, the latest row returns its pages."""
FEWEST_ENDED = 8
"""Once this many responses have ended, the expected length is estimated from them, and no longer taken from the settings."""
LIVE_GROUPS = 3
"""Shared pages are planned for this many times the number of prompts whose responses fill all rows. The rows of a prompt end one
after another, and the last of them still needs the shared pages."""


class PoolSizes(NamedTuple):
    """Number of pages on each device."""

    shared: int
    """Pages that several rows may share."""
    own: int
    """Pages that only one row uses."""
    sharers: int
    """Largest number of rows that share a page; 1 if no pages are shared."""


def pool_sizes(rows: int, length: int, budget: int, expected: float, requests_per_prompt: int) -> PoolSizes:
    """Return the numbers of pages for the rows of a device, at least enough for one row of full length.

    Args:
        rows: number of rows on a device.
        length: padded length of a prompt, in tokens.
        budget: maximum number of tokens per response.
        expected: expected number of tokens per response.
        requests_per_prompt: number of requests per distinct prompt.

    Example:
        >>> pool_sizes(32, 1_024, 8_192, 0.15 * 8_192, 8), pool_sizes(32, 1_024, 8_192, 0.15 * 8_192, 1)
        (PoolSizes(shared=192, own=672, sharers=8), PoolSizes(shared=1, own=1152, sharers=1))
    """
    sharers, blocks, growth = min(requests_per_prompt, MAX_SHARERS), -(-length // PAGE), -(-int(expected) // PAGE) + 1
    full_row = -(-(length + budget) // PAGE)
    if sharers == 1 or length <= PAGE:
        return PoolSizes(1, max(full_row, rows * (blocks + growth - (blocks > 0))), 1)
    prompts = -(-rows * min(LIVE_GROUPS, sharers) // sharers)
    return PoolSizes(prompts * blocks, max(full_row, rows * growth), sharers)


@dataclass(frozen=True)
class PagedSlots(FittingSlots):
    """Computes how many rows are decoded at once if their keys and values are stored in pages.

    Args:
        share: expected length of a response, as a fraction of the largest. `FittingSlots` documents the other arguments.
    """

    share: float = 1.0

    def cache_bytes_by_rows(
        self, params: Weights, requests: int, prompts: int, length: int, budget: int
    ) -> Callable[[int], int]:
        """Return a function from the number of rows to the peak bytes of caches on a device.

        The caches are the pools, plus the waiting prompts or the smaller pools for the last rows. In a dialogue, they are the pools
        plus two copies of the rows that read a turn, because these are copied out of their pages and back.
        """
        devices = row_shards(self.mesh)
        full_row = row_bytes(self.decoder, params, self.mesh, length + budget, 0)
        page, prompt = (row_bytes(self.decoder, params, self.mesh, slots, 0) for slots in (PAGE, length))

        def pools(rows: int) -> int:
            sizes = pool_sizes(rows // devices, length, budget, self.share * budget, -(-requests // prompts))
            return (sizes.shared + sizes.own) * page

        def count(rows: int) -> int:
            rows = compiled_rows(rows, devices)
            if self.peak is dialogue_peak_bytes:
                return pools(rows) + 2 * full_row * rows_read_together(rows, 1, devices) // devices
            read = math.prod(block_parts(rows, requests, prompts, length, devices)) // devices
            fewer = fewer_rows(rows, budget, devices, on_cpus=is_on_cpus(self.mesh))
            return pools(rows) + max(read * prompt, pools(fewer[0]) if fewer else 0)

        return count


def paged_decoder(decoder: Decoder, mesh: Mesh) -> Decoder:
    """Return a decoder whose rows store keys and values in pages."""
    insert = cached_partial(_insert, row_shards(mesh))
    begin, advance, _ = required(decoder.paged, "decoder.paged")
    return Decoder(begin, advance, insert, decoder.weights, partition=decoder.partition, paged=decoder.paged)


def with_paged_decoder(engine: DecodingEngine) -> DecodingEngine:
    """Return an engine whose methods begin and decode rows with pages."""
    decoder, slots = paged_decoder(engine.decoder, engine.mesh), engine.slots
    return DecodingEngine(decoder, engine.mesh, engine.prompt_length, slots, engine.text)


def _insert(devices: int, state: PagedState, fresh: PagedPrompts, source: Int[Array, "B"]) -> PagedState:
    """Put prompts into the pages of each device."""
    insert = jax.vmap(insert_prompts_in_pages, in_axes=(0, None, 0))
    return join_devices(insert(split_by_device(state, devices), fresh, split_by_device(source, devices)))


@partial(jax.jit, static_argnames=("decoder", "rows", "sizes", "sampling", "mesh"))
def empty_paged_rows(decoder: Decoder, *, rows: int, sizes: PoolSizes, sampling: Sampling, mesh: Mesh) -> Rows:
    """Return rows that all wait for a prompt, and pools of free pages; see `rljax.rollout.sampling.empty_rows`."""
    devices = row_shards(mesh)
    empty = required(decoder.paged, "decoder.paged").empty
    state = empty(rows, devices * sizes.shared, devices * sizes.own, sizes.sharers)
    return waiting_rows(decoder, state, rows=rows, sampling=sampling, mesh=mesh)


@partial(jax.jit, static_argnames="devices", donate_argnames="rows")
def free_rows(rows: Rows, live: Bool[Array, "B"], devices: int) -> Rows:
    """Free the pages of the rows that are not live."""
    pages = join_devices(jax.vmap(release_pages)(*split_by_device((rows.state.pages, live), devices)))
    return rows._replace(state=rows.state._replace(pages=pages), ended=rows.ended | ~live)


@partial(jax.jit, static_argnames="devices")
def count_free_pages(rows: Rows, devices: int) -> tuple[Int[Array, "D"], Int[Array, "D"]]:
    """Return the numbers of free shared pages and of other free pages, for each device."""
    return jax.vmap(count_free)(split_by_device(rows.state.pages, devices))


@partial(jax.jit, static_argnames=("decoder", "sizes", "sampling", "mesh"))
def move_paged_rows(
    decoder: Decoder, rows: Rows, source: Int[Array, "R"], *, sizes: PoolSizes, sampling: Sampling, mesh: Mesh
) -> Rows:
    """Copy rows and their pages into fewer rows with smaller pools; `source` has indices of rows within their device."""
    devices = row_shards(mesh)
    move = jax.vmap(partial(move_pages, shared=sizes.shared, own=sizes.own))
    state = join_devices(move(split_by_device(rows.state, devices), split_by_device(source, devices)))
    per_device = len(rows.ended) // devices
    first = per_device * jnp.repeat(jnp.arange(devices), len(source) // devices)
    origin = jnp.where(source >= 0, source + first, -1)
    empty = waiting_rows(decoder, state, rows=len(source), sampling=sampling)
    moved = insert_rows(empty._replace(state=()), rows._replace(state=()), origin)._replace(state=state)
    return jax.lax.with_sharding_constraint(moved, rows_shardings(decoder, moved, mesh))


def steps_for(lengths: Int[np.ndarray, "B"], free: int, most: int) -> int:
    """Return for how many more tokens per row the free pages certainly suffice.

    Args:
        lengths: number of tokens in each row that takes pages.
        free: number of free pages.
        most: upper bound of the result.

    Example:
        >>> steps_for(np.array([60, 64]), 1, 500), steps_for(np.array([60, 64]), 2, 500), steps_for(np.array([60]), 9, 500)
        (4, 64, 500)
    """

    def more_pages(steps: int) -> int:
        return int((-(-(lengths + steps) // PAGE) + lengths // -PAGE).sum())

    return bisect_right(range(1, most + 1), free, key=more_pages)


@dataclass(frozen=True)
class PagedEngine(DecodingEngine):
    """The built-in engine with keys and values in pages, which rows take as they grow.

    Args:
        share: expected length of a response, as a fraction of the largest. `DecodingEngine` documents the other arguments.
    """

    share: float = 1.0

    def __post_init__(self):
        """Reject a decoder that cannot use pages."""
        if self.decoder.paged is None:
            raise InputError(
                f"paged_cache={self.share} needs a decoder with `paged`, which this policy does not have; leave out paged_cache."
            )

    @property
    def has_pages(self) -> bool:
        """Whether keys and values are stored in pages."""
        return True

    def sample_kind(
        self, params: Params, requests: Sequence[Request], *, final_pieces: int
    ) -> Iterator[dict[int, Response]]:
        """Sample responses with pages; see `DecodingEngine.sample_kind`."""
        sampler = PagedSampler(self, params, requests)
        pending = list(range(len(requests)))
        while pending or sampler.live.any():
            chosen = [requests[index] for index in pending]
            for block in blocks_of(chosen, sampler.slots, sampler.length, sampler.devices) if pending else ():
                prompts = sampler.engine.read_block(params, chosen, block, sampler.length, 0)
                waiting = [(pending[index], prompt) for index, prompt in block.waiting]
                while waiting:
                    begun = sampler.admit(waiting)
                    if not begun:
                        yield sampler.decode(max(1, int(sampler.live.sum()) // 8))
                        continue
                    sampler.begin(prompts, begun)
                    taken = set(begun.values())
                    waiting = [pair for pair in waiting if pair not in taken]
                del prompts  # before the next block is read
            if not sampler.returned and (live := int(sampler.live.sum())):
                fewer = sampler.fewer_rows()
                if not sampler.shrink(fewer):
                    left = max(0, live - -(-sampler.slots // final_pieces), *fewer[:1])
                    yield sampler.decode(live - left)
            pending, sampler.returned = sampler.returned, []


class PagedSampler:
    """Rows that are being decoded in pages, and this host's records of them.

    Args:
        engine: the paged engine.
        params: parameters from `decode_weights`.
        requests: requests with the same settings.

    Attributes:
        returned: indices of the requests whose rows gave their pages back.
        expected: expected number of tokens per response: at first from the engine's `share`, later the number of tokens so far
            divided by the number of ended responses.
    """

    def __init__(self, engine: PagedEngine, params: Params, requests: Sequence[Request]):
        self.params, self.requests, self.mesh = params, requests, engine.mesh
        self.budget = max(request.sampling.max_tokens for request in requests)
        self.sampling = requests[0].sampling._replace(max_tokens=self.budget, stop=())
        self.length, self.devices = padded_length(requests, engine.prompt_length), row_shards(engine.mesh)
        self.slots = engine.batch_rows(params, requests, self.length, self.budget)
        self.engine = with_paged_decoder(engine)
        prompts = len({request.prompt_tokens for request in requests})
        self.requests_per_prompt, self.planned = -(-len(requests) // prompts), engine.share * self.budget
        self.expected, self.ended = self.planned, [0, 0]  # numbers of ended responses and of their tokens
        self.sizes = self.sizes_for(self.slots)
        options = {"sizes": self.sizes, "sampling": self.sampling, "mesh": self.mesh}
        empty = empty_paged_rows(self.engine.decoder, rows=self.slots, **options)
        self.decoding = Decoding(empty, np.full(self.slots, -1), self.budget)
        self.order, self.count = np.zeros(self.slots, np.int64), 0
        self.returned: list[int] = []

    def sizes_for(self, rows: int) -> PoolSizes:
        """Return the sizes of the page pools for a number of rows."""
        return pool_sizes(rows // self.devices, self.length, self.budget, self.planned, self.requests_per_prompt)

    @property
    def live(self) -> Bool[np.ndarray, "B"]:
        """Mask of the rows that answer a request."""
        return self.decoding.request_of_row >= 0

    def admit(self, waiting: Sequence[tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """Choose free rows for the first waiting requests, as pairs (request, prompt), while pages are expected to suffice.

        Requests with the same prompt begin together, on one device. A device without live rows takes at least one request.
        """
        shared, own = (np.array(part) for part in fetch(count_free_pages(self.decoding.rows, self.devices)))
        live, growth = self.live.reshape(self.devices, -1), -(-int(self.expected) // PAGE)
        written = np.where(self.live, self._token_counts(), 0).reshape(self.devices, -1)
        own -= np.where(live, np.maximum(0, growth - written // PAGE), 0).sum(-1)
        free = [np.flatnonzero(~rows).tolist() for rows in live]
        is_idle, begun = [not rows.any() for rows in live], {}
        for unit in self._split_units(waiting):
            device = max(range(self.devices), key=lambda device: (len(free[device]) > 0, own[device]))
            size, most = len(self.requests[unit[0][0]].prompt_tokens), min(len(unit), len(free[device]))
            counts = range(most, 0, -1) if is_idle[device] or most == min(len(unit), live.shape[1]) else ()
            counts = counts if is_idle[device] else counts[:1]
            needs = [(count, *pages_needed(size, count, self.sizes.sharers)) for count in counts]
            fitting = [
                need for need in needs if need[1] <= shared[device] and need[2] + need[0] * growth <= own[device]
            ] or (needs[-1:] if is_idle[device] else [])
            if not fitting:
                break
            count, prompts, others = fitting[0]
            is_idle[device] = False
            shared[device], own[device] = shared[device] - prompts, own[device] - others - count * growth
            for pair in unit[:count]:
                begun[device * live.shape[1] + free[device].pop(0)] = pair
            if count < len(unit):
                break
        return begun

    def _split_units(self, waiting: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        """Divide waiting requests into units that may share the pages of a prompt."""
        most, unit = min(self.sizes.sharers, self.slots // self.devices), []
        for pair in waiting:
            if unit and (pair[1] != unit[0][1] or len(unit) == most):
                yield unit
                unit = []
            unit.append(pair)
        yield unit

    def _token_counts(self) -> Int[np.ndarray, "B"]:
        return np.asarray(fetch(self.decoding.rows.samples.count))

    def begin(self, prompts: Sequence[Prompts], begun: Mapping[int, tuple[int, int]]) -> None:
        """Begin responses in rows; `begun` has the (request, prompt) pair of each row, by row."""
        rows = np.array(list(begun))
        self.order[rows] = np.arange(self.count, self.count + len(rows))
        self.count += len(rows)
        self.decoding = self.engine.begin_rows(
            self.decoding, prompts, self.requests, rows, list(begun.values()), self.sampling
        )

    def _free(self) -> None:
        """Free the pages of rows that answer no request."""
        live = put_rows(self.mesh, self.live)
        self.decoding = self.decoding._replace(rows=free_rows(self.decoding.rows, live, self.devices))

    def decode(self, min_ended: int) -> dict[int, Response]:
        """Sample until `min_ended` live rows end or the pages may run out; return the ended responses and free their pages."""
        steps = self._plan_steps()
        free = len(self.live) - int(self.live.sum())
        self.decoding, ended, _ = self.engine.decode_some(
            self.params, self.decoding, self.requests, free + min_ended, steps, self.sampling
        )
        self.ended = [self.ended[0] + len(ended), self.ended[1] + sum(len(each.tokens) for each in ended.values())]
        if self.ended[0] >= FEWEST_ENDED:  # short responses end first, so their own mean would be too low
            unfinished = int(self._token_counts()[self.live].sum())
            self.expected = min(self.budget, (self.ended[1] + unfinished) / self.ended[0])
        if ended:
            self._free()
        return ended

    def _plan_steps(self) -> int:
        """Return for how many more tokens per row the pages suffice; if necessary, the latest rows give their pages back."""
        lengths = np.asarray(fetch(self.decoding.rows.state.pages.lengths)).reshape(self.devices, -1)
        while True:
            live = self.live.reshape(self.devices, -1)
            free = np.asarray(fetch(count_free_pages(self.decoding.rows, self.devices)[1]))
            steps = [
                steps_for(lengths[device, live[device]], int(free[device]), self.budget) for device in range(self.devices)
            ]
            short = [device for device in range(self.devices) if steps[device] < FEWEST_STEPS and live[device].sum() > 1]
            if not short:
                return max(1, min(steps))
            for device in short:
                rows = device * live.shape[1] + np.flatnonzero(live[device])
                latest = int(rows[self.order[rows].argmax()])
                self.returned.append(int(self.decoding.request_of_row[latest]))
                request_of_row = self.decoding.request_of_row.copy()
                request_of_row[latest] = -1
                self.decoding = self.decoding._replace(request_of_row=request_of_row)
            self._free()

    def fewer_rows(self) -> tuple[int, ...]:
        """Return the smaller numbers of rows with which decoding may continue at the end, in descending order."""
        return fewer_rows(len(self.live), self.budget, self.devices, on_cpus=is_on_cpus(self.mesh))

    def shrink(self, fewer: Sequence[int]) -> bool:
        """Move the live rows into the smallest batch whose page pools have room for them; return False if no batch has room."""
        live = self.live.reshape(self.devices, -1)
        free = (np.asarray(part) for part in fetch(count_free_pages(self.decoding.rows, self.devices)))
        used = [size - part.min() for size, part in zip(self.sizes[:2], free, strict=True)]

        def fits(rows: int) -> bool:
            sizes = self.sizes_for(rows)._replace(sharers=self.sizes.sharers)
            room = int(live.sum(-1).max()) <= rows // self.devices and used[0] <= sizes.shared
            return bool(room and used[1] + (rows // self.devices) <= sizes.own)

        found = [rows for rows in fewer if fits(rows)]
        if not found:
            return False
        rows, sizes = found[-1], self.sizes_for(found[-1])._replace(sharers=self.sizes.sharers)
        source = np.full((self.devices, rows // self.devices), -1, np.int32)
        for device in range(self.devices):
            kept = np.flatnonzero(live[device])
            source[device, : len(kept)] = kept
        origin = np.where(source >= 0, source + live.shape[1] * np.arange(self.devices)[:, None], -1).reshape(-1)
        placed = put_rows(self.mesh, source.reshape(-1))
        options = {"sizes": sizes, "sampling": self.sampling, "mesh": self.mesh}
        moved = move_paged_rows(self.engine.decoder, self.decoding.rows, placed, **options)
        request_of_row = np.where(origin >= 0, self.decoding.request_of_row[origin], -1)
        self.order = np.where(origin >= 0, self.order[origin], 0)
        self.decoding = Decoding(moved, request_of_row, self.budget)
        self.sizes = sizes
        return True
