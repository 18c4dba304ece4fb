"""Rows that are decoded at once: as many as fit into some bytes of each device."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import jax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import PyTree

from rljax.errors import InputError
from rljax.models import Decoder, Params
from rljax.parallel import row_shards
from rljax.rollout.engine import FEWEST_ROWS, PROMPT_TOKENS_AT_ONCE, compiled_rows, fewer_rows, rooms
from rljax.rollout.sampling import empty_rows, rows_shardings

Weights = Params | PyTree[jax.ShapeDtypeStruct]
"""Parameters, or their shapes."""


@runtime_checkable
class Peak(Protocol):
    """The most bytes of caches that a device holds at once."""

    def __call__(self, whole: int, rows: int, *, length: int, budget: int, devices: int) -> int:
        """Count them.

        Args:
            whole: bytes of a device's part of the whole cache.
            rows: of the decode, on all devices.
            length: slots of a prompt, in tokens.
            budget: most tokens of a response.
            devices: number of devices that share the rows.
        """
        ...


def peak_bytes(whole: int, rows: int, *, length: int, budget: int, devices: int) -> int:
    """The most bytes of caches that a device holds at once: a long decode copies its cache.

    It copies a cache with less room into a larger one, and at the end the last rows into a cache of fewer rows.

    Args:
        whole: bytes of a device's part of the whole cache.
        rows: of the decode, on all devices.
        length: slots of a prompt, in tokens.
        budget: most tokens of a response.
        devices: number of devices that share the rows.

    Example:
        >>> peak_bytes(1000, 8, length=8, budget=32, devices=1), peak_bytes(1000, 16, length=72, budget=128, devices=1)
        (1000, 1750)
    """
    move = whole * max(fewer_rows(rows, budget, devices), default=0) // rows
    return whole + max(_before_growth(whole, length, budget), move)


def turn_bytes(whole: int, rows: int, *, length: int, budget: int, devices: int) -> int:
    """The most bytes of caches that a device holds at once in a dialogue, see `peak_bytes`.

    It copies a cache with less room into a larger one, and between turns the rows that read what was added to their contexts.

    Example:
        >>> turn_bytes(800, 8, length=8, budget=32, devices=1), turn_bytes(1600, 16, length=72, budget=128, devices=1)
        (1600, 2688)
    """
    copies = whole * turn_rows(rows, 1, devices) // rows
    return whole + max(_before_growth(whole, length, budget), copies)


def turn_rows(rows: int, length: int, devices: int) -> int:
    """Rows of a dialogue that read their turns together: an eighth of those that are drawn, or fewer if turns are long.

    Args:
        rows: of the decode, on all devices.
        length: tokens that each of them reads.
        devices: number of devices that share the rows.
    """
    most = min(rows, max(FEWEST_ROWS, rows // 8), devices * max(1, PROMPT_TOKENS_AT_ONCE // length))
    return compiled_rows(most, devices)


def _before_growth(whole: int, length: int, budget: int) -> int:
    """Bytes of the largest cache that is copied into one with more room."""
    return whole * max((length + room for room in rooms(budget, length)[:-1]), default=0) // (length + budget)


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
        peak: what a decode holds of the rows' caches: `peak_bytes`, or `turn_bytes` in a dialogue.
    """

    decoder: Decoder
    mesh: Mesh
    memory: int
    most: int | None = None
    beside: int = 0
    refuses: bool = True
    peak: Peak = peak_bytes

    def __call__(self, params: Weights, requests: int, length: int, budget: int) -> int:
        """Most rows of a call.

        Args:
            params: ready for reading, or their shapes.
            requests: number of responses to draw.
            length: slots of a prompt, in tokens.
            budget: most tokens of a response.

        Raises:
            InputError: not even one row on each device fits; the message has the bytes that it needs.
        """
        row = row_bytes(self.decoder, params, self.mesh, length, budget)
        wanted = requests if self.most is None else min(requests, self.most)

        def needed(rows: int) -> int:
            return self._bytes(rows, row, length, budget) + self._each(rows) * self.beside

        fitting = next((rows for rows in range(wanted, 0, -1) if needed(rows) <= self.memory), None)
        if fitting is not None or not self.refuses:
            return 1 if fitting is None else fitting
        raise InputError(
            f"cache_memory is {self.memory:,} bytes on each device, and the keys and values of one row, {length} tokens of prompt "
            f"and {budget} of response, take {needed(1):,} bytes; give at least {needed(1)}B, or shorter responses."
        )

    def cache(self, params: Weights, rows: int, length: int, budget: int) -> int:
        """The most bytes of caches that each device holds while so many rows are decoded; see `__call__`."""
        return self._bytes(rows, row_bytes(self.decoder, params, self.mesh, length, budget), length, budget)

    def _each(self, rows: int) -> int:
        """Rows of a device."""
        devices = row_shards(self.mesh)
        return compiled_rows(rows, devices) // devices

    def _bytes(self, rows: int, row: int, length: int, budget: int) -> int:
        devices, each = row_shards(self.mesh), self._each(rows)
        return self.peak(each * row, each * devices, length=length, budget=budget, devices=devices)


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
