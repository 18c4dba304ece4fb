"""Sizes used in decoding: the rows that fit into memory, the prompts that are read at once, and the room for new tokens.

Each size needs its own compiled program, so only a few sizes are used.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import PyTree

from rljax.errors import InputError
from rljax.models import Decoder, Params
from rljax.parallel import is_on_cpus, row_shards
from rljax.rollout.engine_protocols import Request, Sampling
from rljax.rollout.sampling import empty_rows, rows_shardings

PROMPT_TOKENS_AT_ONCE = 8_192
"""Number of prompt tokens that a device reads at once, unless a single prompt is longer."""
FEWEST_ROWS = 8
"""Size, in rows, of the smallest batch that the last responses of a decode are moved to."""
LONG_BUDGET = 128
"""Smallest token budget for which it is worth compiling further programs, for batches with fewer rows or less room. On CPUs,
batches with fewer rows are worth it from half of this budget on."""


def block_parts(slots: int, requests: int, prompts: int, length: int, devices: int) -> tuple[int, int]:
    """Return how many prompts are read at once, and how many such reads make up a block of prompts.

    All prompts of a block stay in memory until each of them has a row.

    Example:
        >>> block_parts(64, 64, 64, 100, 1), block_parts(64, 256, 16, 100, 1), block_parts(256, 1_024, 1_024, 1_024, 1)
        ((64, 1), (4, 1), (8, 4))
    """
    wanted = min(prompts, max(1, slots * prompts // requests))
    rows = compiled_rows(min(wanted, devices * max(1, PROMPT_TOKENS_AT_ONCE // max(1, length))), devices)
    return rows, max(1, min(wanted, slots // 8) // rows)


def padded_length(requests: Sequence[Request], usual: int) -> int:
    """Return the length that prompts are padded to: `usual`, or a power of two if a prompt is longer than `usual`."""
    longest = max(len(request.prompt_tokens) for request in requests)
    return usual if longest <= usual else 1 << (longest - 1).bit_length()


def compiled_rows(rows: int, devices: int) -> int:
    """Round a number of rows up to a batch size that the devices can share equally.

    There are eight sizes from each power of two to the next.

    Example:
        >>> [compiled_rows(rows, 1) for rows in (7, 64, 100, 384)], compiled_rows(6, 4)
        ([7, 64, 104, 384], 8)
    """
    unit = max(1, (1 << (rows.bit_length() - 1)) // 8)
    rows = -(-rows // unit) * unit
    return -(-rows // devices) * devices


def growth_sizes(rows: int, budget: int, length: int) -> tuple[int, ...]:
    """Return the sizes that a growing decoder state has one after another, in tokens after the prompt; the last size is the budget.

    If the budget is below `LONG_BUDGET` or below the length of the prompts, there is only one size, because growing would save
    little, and would copy the prompts, too. The same holds if all rows together have room for fewer tokens than `FEWEST_ROWS` rows
    of `LONG_BUDGET`.

    Args:
        rows: number of rows that are decoded together.
        budget: maximum number of tokens per response.
        length: padded length of a prompt, in tokens.

    Example:
        >>> growth_sizes(64, 8_192, 1_024), growth_sizes(64, 130, 20), growth_sizes(1, 1_024, 20)
        ((2048, 4096, 8192), (33, 66, 130), (256, 512, 1024))
        >>> growth_sizes(64, 512, 8_192), growth_sizes(64, 64, 8), growth_sizes(1, 512, 20)
        ((512,), (64,), (512,))
    """
    if budget < max(LONG_BUDGET, length) or rows * budget < FEWEST_ROWS * LONG_BUDGET:
        return (budget,)
    quarter = -(-budget // 4)
    return quarter, 2 * quarter, budget


def fewer_rows(rows: int, budget: int, devices: int, *, on_cpus: bool = True) -> tuple[int, ...]:
    """Return the sizes of the smaller batches in which the last responses of a decode continue, in descending order.

    On CPUs, where the time is proportional to the rows, the sizes are powers of two. A budget of at least four times `LONG_BUDGET`
    is worth more compiled programs, so the sizes then include 3/4 times powers of two. On accelerators, which take longer to
    compile and gain less from fewer rows, they are powers of four. For a small batch or budget (see `LONG_BUDGET`), the result is
    empty: the last responses stay in the full batch.

    Args:
        rows: number of rows in the full batch.
        budget: maximum number of tokens per response.
        devices: number of devices over which the rows are split.
        on_cpus: whether the devices are CPUs.

    Example:
        >>> fewer_rows(64, 1_024, 1), fewer_rows(64, 64, 1), fewer_rows(64, 32, 1), fewer_rows(12, 1_024, 1)
        ((48, 32, 24, 16, 12, 8), (32, 16, 8), (), ())
        >>> fewer_rows(256, 1_024, 1, on_cpus=False)
        (64, 16)
    """
    if budget < (LONG_BUDGET // 2 if on_cpus else LONG_BUDGET) or rows < 2 * FEWEST_ROWS:
        return ()
    powers = range(0, rows.bit_length(), 1 if on_cpus else 2)
    factors = (2, 3) if on_cpus and budget >= 4 * LONG_BUDGET else (1,)
    sizes = {compiled_rows(factor << power, devices) for power in powers for factor in factors}
    return tuple(sorted((size for size in sizes if FEWEST_ROWS <= size <= 7 * rows // 8), reverse=True))


Weights = Params | PyTree[jax.ShapeDtypeStruct]
"""Parameters of a model, or only their shapes and dtypes."""


class CacheSizes(NamedTuple):
    """Sizes that determine the peak memory of the caches during decoding."""

    row_caches: int
    """Bytes per device for the caches of all rows, with room for full responses."""
    prompt_caches: int
    """Bytes per device for the caches of one block of prompts, which stay in memory until all these prompts have rows."""
    rows: int
    """Number of rows, over all devices."""
    length: int
    """Padded length of a prompt, in tokens."""
    budget: int
    """Maximum number of tokens per response."""
    devices: int
    """Number of devices over which the rows are split."""
    on_cpus: bool = True
    """Whether the devices are CPUs."""


def peak_bytes(caches: CacheSizes) -> int:
    """Return the peak memory of the caches on each device, in bytes.

    The caches of all rows are in memory, and in addition the larger of two amounts. The first, while prompts wait for rows to
    become free, is the prompts' caches plus the smaller cache that a long decode copies when it grows. The second, once no prompt
    waits, is the cache of the smaller batch that the last rows are copied into.

    Example:
        >>> short = CacheSizes(row_caches=1000, prompt_caches=200, rows=8, length=8, budget=32, devices=1)
        >>> peak_bytes(short), peak_bytes(short._replace(rows=16, length=72, budget=128))
        (1200, 1880)
    """
    fewer = fewer_rows(caches.rows, caches.budget, caches.devices, on_cpus=caches.on_cpus)
    moved = caches.row_caches * max(fewer, default=0) // caches.rows
    return caches.row_caches + max(_bytes_before_growth(caches) + caches.prompt_caches, moved)


def dialogue_peak_bytes(caches: CacheSizes) -> int:
    """Return the peak memory of the caches on each device in a dialogue, in bytes.

    The caches of all rows are in memory, and in addition the larger of two copies: the cache before it grew for the last time, or
    the rows that read additions to their contexts between turns.

    Example:
        >>> short = CacheSizes(row_caches=800, prompt_caches=20, rows=8, length=8, budget=32, devices=1)
        >>> dialogue_peak_bytes(short), dialogue_peak_bytes(short._replace(row_caches=1600, rows=16, length=72, budget=128))
        (1600, 2688)
    """
    copies = caches.row_caches * rows_read_together(caches.rows, 1, caches.devices) // caches.rows
    return caches.row_caches + max(_bytes_before_growth(caches), copies)


def rows_read_together(rows: int, length: int, devices: int) -> int:
    """Return how many rows of a dialogue read new context together: an eighth of all rows, but at least 8; fewer for long contexts.

    Args:
        rows: number of rows, over all devices.
        length: number of tokens that each row reads.
        devices: number of devices over which the rows are split.
    """
    together = min(rows, max(FEWEST_ROWS, rows // 8), devices * max(1, PROMPT_TOKENS_AT_ONCE // length))
    return compiled_rows(together, devices)


def _bytes_before_growth(caches: CacheSizes) -> int:
    """Return the size in bytes of the largest cache that is copied into one with more room."""
    length, budget = caches.length, caches.budget
    rooms = growth_sizes(caches.rows, budget, length)
    return caches.row_caches * max((length + room for room in rooms[:-1]), default=0) // (length + budget)


@dataclass(frozen=True)
class FittingSlots:
    """Computes how many rows to decode at once: as many as fit into memory, for the prompts and the token budget of a call.

    Args:
        decoder: functions that run the model on prompts, and then on one new token at a time.
        mesh: devices over which the rows are split.
        memory: bytes available on each device.
        max_rows: upper limit on the number of rows; None sets it to the number of requests.
        per_row: bytes per row in addition to its cache.
        refuses: whether to raise an error if not even one row per device fits; if False, the result is then 1.
        peak: function that returns the peak bytes of the caches on a device: `peak_bytes`, or `dialogue_peak_bytes` in a dialogue.
    """

    decoder: Decoder
    mesh: Mesh
    memory: int
    max_rows: int | None = None
    per_row: int = 0
    refuses: bool = True
    peak: Callable[[CacheSizes], int] = peak_bytes

    def __call__(self, params: Weights, requests: int, prompts: int, length: int, budget: int) -> int:
        """Return the number of rows for a call.

        Args:
            params: parameters from `decode_weights`, or their shapes.
            requests: number of responses to sample.
            prompts: number of distinct prompts.
            length: padded length of a prompt, in tokens.
            budget: maximum number of tokens per response.

        Raises:
            InputError: not even one row on each device fits; the message reports the bytes needed.
        """
        cache_bytes_by_rows = self.cache_bytes_by_rows(params, requests, prompts, length, budget)
        wanted = requests if self.max_rows is None else min(requests, self.max_rows)

        def needed(rows: int) -> int:
            return cache_bytes_by_rows(rows) + self._rows_per_device(rows) * self.per_row

        fitting = next((rows for rows in range(wanted, 0, -1) if needed(rows) <= self.memory), None)
        if fitting is not None or not self.refuses:
            return 1 if fitting is None else fitting
        raise InputError(
            f"cache_memory is {self.memory:,} bytes on each device, but the keys and values of one row, {length} tokens of prompt "
            f"and {budget} of response, take {needed(1):,} bytes including copies; set cache_memory to at least {needed(1)}B, or "
            "shorten the responses."
        )

    def cache_peak_bytes(self, rows: int, params: Weights, requests: int, prompts: int, length: int, budget: int) -> int:
        """Return the peak memory of the caches of `rows` rows on each device, in bytes; see `__call__` for the other arguments."""
        return self.cache_bytes_by_rows(params, requests, prompts, length, budget)(rows)

    def _rows_per_device(self, rows: int) -> int:
        """Return the number of rows on each device, rounded up to a compiled size."""
        devices = row_shards(self.mesh)
        return compiled_rows(rows, devices) // devices

    def cache_bytes_by_rows(
        self, params: Weights, requests: int, prompts: int, length: int, budget: int
    ) -> Callable[[int], int]:
        """Return a function that maps a number of rows to the peak memory of their caches on each device, in bytes."""
        devices, room = row_shards(self.mesh), budget if self.decoder.grow is None else 0
        sizes = {"length": length, "budget": budget, "devices": devices, "on_cpus": is_on_cpus(self.mesh)}
        row, prompt = (row_bytes(self.decoder, params, self.mesh, length, tokens) for tokens in (budget, room))

        def peak_of(rows: int) -> int:
            local = self._rows_per_device(rows)
            read = math.prod(block_parts(local * devices, requests, prompts, length, devices)) // devices
            return self.peak(CacheSizes(local * row, read * prompt, local * devices, **sizes))

        return peak_of


def row_bytes(decoder: Decoder, params: Weights, mesh: Mesh, length: int, budget: int) -> int:
    """Return how many bytes one row of the decoder's state takes on a device.

    Args:
        decoder: functions that run the model on prompts, and then on one new token at a time.
        params: parameters from `decode_weights`, or their shapes.
        mesh: devices over which the rows are split.
        length: padded length of a prompt, in tokens.
        budget: maximum number of tokens per response.
    """
    sizes = {"rows": row_shards(mesh), "length": max(length, 1), "room": budget}
    make_rows = partial(empty_rows, decoder, **sizes, sampling=Sampling(budget, eos_ids=()))
    empty = jax.eval_shape(make_rows, params)
    shardings = rows_shardings(decoder, empty, mesh)

    def shard_bytes(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> int:
        return math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize

    return sum(jax.tree.leaves(jax.tree.map(shard_bytes, empty.state, shardings.state)))
