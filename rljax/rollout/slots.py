"""Rows that are decoded at once: as many as fit into some bytes of each device."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import PyTree

from rljax.errors import InputError
from rljax.models import Decoder, Params
from rljax.parallel import row_shards
from rljax.records import documented
from rljax.rollout.engine import FEWEST_ROWS, PROMPT_TOKENS_AT_ONCE, block_parts, compiled_rows, fewer_rows, rooms
from rljax.rollout.sampling import empty_rows, rows_shardings

Weights = Params | PyTree[jax.ShapeDtypeStruct]
"""Parameters, or their shapes."""


@documented
class Caches(NamedTuple):
    """Caches of a decode."""

    whole: int
    """Bytes of a device's part of the rows' caches, with room for whole responses."""
    read: int
    """Bytes of a device's part of the caches of a block of prompts, which are read before they are put into rows."""
    rows: int
    """Rows of the decode, on all devices."""
    length: int
    """Slots of a prompt, in tokens."""
    budget: int
    """Most tokens of a response."""
    devices: int
    """Number of devices that share the rows."""


def peak_bytes(caches: Caches) -> int:
    """The most bytes of caches that a device holds at once: those of the rows, beside them prompts or copies.

    Prompts are read while all rows are held, and wait for those that end. Meanwhile a long decode copies a cache with less room
    into a larger one. When no prompt waits any more, it copies the last rows into a cache of fewer rows.

    Example:
        >>> short = Caches(whole=1000, read=200, rows=8, length=8, budget=32, devices=1)
        >>> peak_bytes(short), peak_bytes(short._replace(rows=16, length=72, budget=128))
        (1200, 1880)
    """
    move = caches.whole * max(fewer_rows(caches.rows, caches.budget, caches.devices), default=0) // caches.rows
    return caches.whole + max(_before_growth(caches) + caches.read, move)


def turn_bytes(caches: Caches) -> int:
    """The most bytes of caches that a device holds at once in a dialogue, see `peak_bytes`.

    It copies a cache with less room into a larger one, and between turns the rows that read what was added to their contexts.

    Example:
        >>> short = Caches(whole=800, read=20, rows=8, length=8, budget=32, devices=1)
        >>> turn_bytes(short), turn_bytes(short._replace(whole=1600, rows=16, length=72, budget=128))
        (1600, 2688)
    """
    copies = caches.whole * turn_rows(caches.rows, 1, caches.devices) // caches.rows
    return caches.whole + max(_before_growth(caches), copies)


def turn_rows(rows: int, length: int, devices: int) -> int:
    """Rows of a dialogue that read their turns together: an eighth of those that are drawn, or fewer if turns are long.

    Args:
        rows: of the decode, on all devices.
        length: tokens that each of them reads.
        devices: number of devices that share the rows.
    """
    most = min(rows, max(FEWEST_ROWS, rows // 8), devices * max(1, PROMPT_TOKENS_AT_ONCE // length))
    return compiled_rows(most, devices)


def _before_growth(caches: Caches) -> int:
    """Bytes of the largest cache that is copied into one with more room."""
    length, budget = caches.length, caches.budget
    return caches.whole * max((length + room for room in rooms(budget, length)[:-1]), default=0) // (length + budget)


@dataclass(frozen=True)
class FittingSlots:
    """Most rows that are decoded at once, for each length of prompts and responses: as many as a number of bytes holds.

    Args:
        decoder: how the model reads prompts and tokens.
        mesh: devices that share the rows.
        memory: bytes of each device.
        most: most rows, whatever fits; None: as many as there are requests.
        beside: bytes of a row beside its cache.
        refuses: whether memory for less than a row on each device is refused; otherwise such a row is decoded.
        peak: bytes of caches that a device holds at once: `peak_bytes`, or `turn_bytes` in a dialogue.
    """

    decoder: Decoder
    mesh: Mesh
    memory: int
    most: int | None = None
    beside: int = 0
    refuses: bool = True
    peak: Callable[[Caches], int] = peak_bytes

    def __call__(self, params: Weights, requests: int, prompts: int, length: int, budget: int) -> int:
        """Most rows of a call.

        Args:
            params: ready for reading, or their shapes.
            requests: number of responses to draw.
            prompts: number of different prompts that they have.
            length: slots of a prompt, in tokens.
            budget: most tokens of a response.

        Raises:
            InputError: not even one row on each device fits; the message has the bytes that it needs.
        """
        held = self._counted(params, requests, prompts, length, budget)
        wanted = requests if self.most is None else min(requests, self.most)

        def needed(rows: int) -> int:
            return held(rows) + self._each(rows) * self.beside

        fitting = next((rows for rows in range(wanted, 0, -1) if needed(rows) <= self.memory), None)
        if fitting is not None or not self.refuses:
            return 1 if fitting is None else fitting
        raise InputError(
            f"cache_memory is {self.memory:,} bytes on each device, and the keys and values of one row, {length} tokens of prompt "
            f"and {budget} of response, take {needed(1):,} bytes with copies; give at least {needed(1)}B, or shorter responses."
        )

    def cache(self, rows: int, params: Weights, requests: int, prompts: int, length: int, budget: int) -> int:
        """The most bytes of caches that each device holds while so many rows are decoded; see `__call__`."""
        return self._counted(params, requests, prompts, length, budget)(rows)

    def _each(self, rows: int) -> int:
        """Rows of a device."""
        devices = row_shards(self.mesh)
        return compiled_rows(rows, devices) // devices

    def _counted(self, params: Weights, requests: int, prompts: int, length: int, budget: int) -> Callable[[int], int]:
        """Rows -> bytes of `cache`."""
        devices, room = row_shards(self.mesh), budget if self.decoder.grow is None else 0
        row, prompt = (row_bytes(self.decoder, params, self.mesh, length, tokens) for tokens in (budget, room))

        def count(rows: int) -> int:
            each = self._each(rows)
            read = math.prod(block_parts(each * devices, requests, prompts, length, devices)) // devices
            return self.peak(Caches(each * row, read * prompt, each * devices, length, budget, devices))

        return count


def row_bytes(decoder: Decoder, params: Weights, mesh: Mesh, length: int, budget: int) -> int:
    """Bytes on a device of the decoder's state for one row.

    Args:
        decoder: how the model reads prompts and tokens.
        params: ready for reading, or their shapes.
        mesh: devices that share the rows.
        length: slots of a prompt, in tokens.
        budget: most tokens of a response.
    """
    make = partial(empty_rows, decoder, rows=row_shards(mesh), length=max(length, 1), budget=budget, room=budget)
    empty = jax.eval_shape(make, params)
    places = rows_shardings(decoder, empty, mesh)

    def part(leaf: jax.ShapeDtypeStruct, place: NamedSharding) -> int:
        return math.prod(place.shard_shape(leaf.shape)) * leaf.dtype.itemsize

    return sum(jax.tree.leaves(jax.tree.map(part, empty.state, places.state)))
