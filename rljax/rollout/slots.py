"""Sizes in a decode: the rows of a batch (as many as fit into memory), the prompts read at once, and the room for tokens.

Each size needs its own compiled program.
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
from rljax.rollout.request import Request
from rljax.rollout.sampling import empty_rows, rows_shardings

PROMPT_TOKENS_AT_ONCE = 8_192
"""Number of prompt tokens that a device reads at once, unless a single prompt is longer."""
FEWEST_ROWS = 8
"""Number of rows in the smallest batch that the last responses of a decode are moved to."""
LONG_BUDGET = 128
"""Response length, in tokens, from which programs for fewer rows and for less room are worth compiling."""


def block_parts(slots: int, requests: int, prompts: int, length: int, devices: int) -> tuple[int, int]:
    """Return how many prompts of a block are read at once, and in how many parts; a block stays in memory until all have rows.

    Example:
        >>> block_parts(64, 64, 64, 100, 1), block_parts(64, 256, 16, 100, 1), block_parts(256, 1_024, 1_024, 1_024, 1)
        ((64, 1), (4, 1), (8, 4))
    """
    count = min(prompts, max(1, slots * prompts // requests))
    rows = compiled_rows(min(count, devices * max(1, PROMPT_TOKENS_AT_ONCE // max(1, length))), devices)
    return rows, max(1, min(count, slots // 8) // rows)


def padded_length(requests: Sequence[Request], usual: int) -> int:
    """Return the length that prompts are padded to: the usual one, or a power of two if a prompt is longer."""
    longest = max(len(request.prompt_tokens) for request in requests)
    return usual if longest <= usual else 1 << (longest - 1).bit_length()


def compiled_rows(rows: int, devices: int) -> int:
    """Round a number of rows up to a batch size that the devices can share; there are eight sizes per doubling.

    Example:
        >>> [compiled_rows(rows, 1) for rows in (7, 64, 100, 384)], compiled_rows(6, 4)
        ([7, 64, 104, 384], 8)
    """
    unit = max(1, (1 << (rows.bit_length() - 1)) // 8)
    rows = -(-rows // unit) * unit
    return -(-rows // devices) * devices


def growth_sizes(budget: int, length: int) -> tuple[int, ...]:
    """Return the successive sizes, in tokens of room after the prompt, of a decoder state that can grow, up to the budget.

    If prompts are longer than the budget, growing saves little and copies the prompts too, so there is only one size.

    Args:
        budget: maximum number of tokens per response.
        length: padded length of a prompt, in tokens.

    Example:
        >>> growth_sizes(8_192, 1_024), growth_sizes(130, 20), growth_sizes(512, 8_192), growth_sizes(64, 8)
        ((2048, 4096, 8192), (33, 66, 130), (512,), (64,))
    """
    if budget < max(LONG_BUDGET, length):
        return (budget,)
    quarter = -(-budget // 4)
    return quarter, 2 * quarter, budget


def fewer_rows(rows: int, budget: int, devices: int, *, on_cpus: bool = True) -> tuple[int, ...]:
    """Return the sizes of the smaller batches in which the last responses of a decode continue, in descending order.

    Each size needs its own program. CPUs, whose time is proportional to the rows, have powers of two and three quarters of them.
    Accelerators, which compile for longer and gain less from fewer rows, have powers of four. There are no sizes if the responses
    stay in the batch.

    Args:
        rows: rows of the decode.
        budget: maximum number of tokens per response.
        devices: number of devices that share the rows.
        on_cpus: whether the devices are CPUs.

    Example:
        >>> fewer_rows(64, 1_024, 1), fewer_rows(64, 192, 8), fewer_rows(64, 32, 1), fewer_rows(12, 1_024, 1)
        ((48, 32, 24, 16, 12, 8), (48, 32, 24, 16, 8), (), ())
        >>> fewer_rows(256, 1_024, 1, on_cpus=False)
        (64, 16)
    """
    if budget < LONG_BUDGET or rows < 2 * FEWEST_ROWS:
        return ()
    powers, factors = (range(rows.bit_length()), (2, 3)) if on_cpus else (range(0, rows.bit_length(), 2), (1,))
    sizes = {compiled_rows(factor << power, devices) for power in powers for factor in factors}
    return tuple(sorted((size for size in sizes if FEWEST_ROWS <= size <= 7 * rows // 8), reverse=True))


Weights = Params | PyTree[jax.ShapeDtypeStruct]
"""Parameters, or their shapes."""


class Caches(NamedTuple):
    """Sizes of the caches in a decode."""

    full: int
    """Bytes per device for the rows' caches, with room for full responses."""
    read: int
    """Bytes per device for the caches of a block of prompts, which are read before they are put into rows."""
    rows: int
    """Number of rows of the decode, on all devices together."""
    length: int
    """Slots per prompt, in tokens."""
    budget: int
    """Most tokens per response."""
    devices: int
    """Number of devices that share the rows."""
    on_cpus: bool = True
    """Whether the devices are CPUs."""


def peak_bytes(caches: Caches) -> int:
    """Return the peak bytes of caches on a device: the rows' caches, plus either prompts or copies.

    Prompts are read while all rows' caches are in memory, and wait until rows end. Meanwhile a long decode copies its cache into
    one with more room. Once no prompt waits, it copies the last rows into a cache of fewer rows.

    Example:
        >>> short = Caches(full=1000, read=200, rows=8, length=8, budget=32, devices=1)
        >>> peak_bytes(short), peak_bytes(short._replace(rows=16, length=72, budget=128))
        (1200, 1880)
    """
    fewer = fewer_rows(caches.rows, caches.budget, caches.devices, on_cpus=caches.on_cpus)
    move = caches.full * max(fewer, default=0) // caches.rows
    return caches.full + max(_before_growth(caches) + caches.read, move)


def turn_bytes(caches: Caches) -> int:
    """Return the peak bytes of caches on a device in a dialogue, see `peak_bytes`.

    A dialogue copies its cache into one with more room, and between turns it copies the rows that read additions to their contexts.

    Example:
        >>> short = Caches(full=800, read=20, rows=8, length=8, budget=32, devices=1)
        >>> turn_bytes(short), turn_bytes(short._replace(full=1600, rows=16, length=72, budget=128))
        (1600, 2688)
    """
    copies = caches.full * turn_rows(caches.rows, 1, caches.devices) // caches.rows
    return caches.full + max(_before_growth(caches), copies)


def turn_rows(rows: int, length: int, devices: int) -> int:
    """Return how many rows of a dialogue read their turns together: an eighth of all rows, or fewer if turns are long.

    Args:
        rows: rows of the decode, on all devices.
        length: number of tokens that each row reads.
        devices: number of devices that share the rows.
    """
    most = min(rows, max(FEWEST_ROWS, rows // 8), devices * max(1, PROMPT_TOKENS_AT_ONCE // length))
    return compiled_rows(most, devices)


def _before_growth(caches: Caches) -> int:
    """Return the bytes of the largest cache that is copied into one with more room."""
    length, budget = caches.length, caches.budget
    return caches.full * max((length + room for room in growth_sizes(budget, length)[:-1]), default=0) // (length + budget)


@dataclass(frozen=True)
class FittingSlots:
    """Computes how many rows are decoded at once, for any length of prompts and responses: as many as fit into memory.

    Args:
        decoder: how the model reads prompts and tokens.
        mesh: devices that share the rows.
        memory: bytes available on each device.
        most: upper limit on the number of rows; None for the number of requests.
        per_row: bytes per row in addition to its cache.
        refuses: whether to raise an error if not even one row per device fits; otherwise one row is decoded.
        peak: function that returns the peak bytes of caches on a device: `peak_bytes`, or `turn_bytes` in a dialogue.
    """

    decoder: Decoder
    mesh: Mesh
    memory: int
    most: int | None = None
    per_row: int = 0
    refuses: bool = True
    peak: Callable[[Caches], int] = peak_bytes

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
        held = self.cache_bytes(params, requests, prompts, length, budget)
        wanted = requests if self.most is None else min(requests, self.most)

        def needed(rows: int) -> int:
            return held(rows) + self._each(rows) * self.per_row

        fitting = next((rows for rows in range(wanted, 0, -1) if needed(rows) <= self.memory), None)
        if fitting is not None or not self.refuses:
            return 1 if fitting is None else fitting
        raise InputError(
            f"cache_memory is {self.memory:,} bytes on each device, but the keys and values of one row, {length} tokens of prompt "
            f"and {budget} of response, take {needed(1):,} bytes with copies; set cache_memory to at least {needed(1)}B, or "
            "shorten the responses."
        )

    def cache(self, rows: int, params: Weights, requests: int, prompts: int, length: int, budget: int) -> int:
        """Return the peak bytes of caches on each device while this many rows are decoded; see `__call__`."""
        return self.cache_bytes(params, requests, prompts, length, budget)(rows)

    def _each(self, rows: int) -> int:
        """Return the number of rows on each device."""
        devices = row_shards(self.mesh)
        return compiled_rows(rows, devices) // devices

    def cache_bytes(self, params: Weights, requests: int, prompts: int, length: int, budget: int) -> Callable[[int], int]:
        """Return a function from the number of rows to the bytes of `cache`."""
        devices, room = row_shards(self.mesh), budget if self.decoder.grow is None else 0
        of_decode = {"length": length, "budget": budget, "devices": devices, "on_cpus": is_on_cpus(self.mesh)}
        row, prompt = (row_bytes(self.decoder, params, self.mesh, length, tokens) for tokens in (budget, room))

        def count(rows: int) -> int:
            each = self._each(rows)
            read = math.prod(block_parts(each * devices, requests, prompts, length, devices)) // devices
            return self.peak(Caches(each * row, read * prompt, each * devices, **of_decode))

        return count


def row_bytes(decoder: Decoder, params: Weights, mesh: Mesh, length: int, budget: int) -> int:
    """Return the bytes that one row of the decoder's state takes on a device.

    Args:
        decoder: how the model reads prompts and tokens.
        params: parameters from `decode_weights`, or their shapes.
        mesh: devices that share the rows.
        length: padded length of a prompt, in tokens.
        budget: maximum number of tokens per response.
    """
    make = partial(empty_rows, decoder, rows=row_shards(mesh), length=max(length, 1), budget=budget, room=budget)
    empty = jax.eval_shape(make, params)
    places = rows_shardings(decoder, empty, mesh)

    def part(leaf: jax.ShapeDtypeStruct, place: NamedSharding) -> int:
        return math.prod(place.shard_shape(leaf.shape)) * leaf.dtype.itemsize

    return sum(jax.tree.leaves(jax.tree.map(part, empty.state, places.state)))
