"""Sequences of many lengths in rows of one length, which several sequences share.

Nothing above `score` sees rows: algorithms see `[B, T]`.

Axes: B responses, L prompt slots, T response slots; M micro-batches, R rows of S slots, K scored tokens of a row, C places for
responses in a micro-batch.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Int, Int32

from rljax.models import Packed
from rljax.records import documented
from rljax.rollout.packing import Sequences

MOST_IN_A_ROW = (8, 16, 32, 64)
"""Sequences that may share a row: the fewest with which little is padding."""
MOST_PADDING = 0.1
"""Share of the computed slots from which on more sequences share a row, and then rows are shorter."""
LENGTHS = 16
"""Different lengths of rows."""
WORTH_A_PROGRAM = 16_384
"""Computed slots from which on less padding is worth another compiled program."""


@documented
class Layout(NamedTuple):
    """Sequences packed into rows, a few rows at a time."""

    packed: Packed
    """Rows of each micro-batch, `[M, R, S]`; its batch has C places, each for a response or for none."""
    responses: Int32[Array | np.ndarray, "M C"]
    """The response at each place of a micro-batch; -1 where there is none."""


def shared_rows(lengths: Int[np.ndarray, "N"], slots: int, *, most: int = MOST_IN_A_ROW[0]) -> list[list[int]]:
    """Distribute sequences over as few rows as best-fit-decreasing finds.

    Args:
        lengths: tokens of each sequence, at most `slots`.
        slots: S, tokens that a row holds.
        most: sequences that may share a row.

    Returns:
        The sequences of each row.

    Example:
        >>> shared_rows(np.array([3, 6, 4, 5, 2]), 10)
        [[1, 2], [3, 0, 4]]
    """
    rows: list[list[int]] = []
    space: list[tuple[int, int]] = []  # (free slots, row), sorted
    for sequence in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[sequence])
        place = bisect_left(space, (length, -1))
        free, row = space.pop(place) if place < len(space) else (slots, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(sequence)
        if len(rows[row]) < most:
            insort(space, (free - length, row))
    return rows


@documented
class DenseRows(NamedTuple):
    """Sequences in the rows that they share."""

    shared: list[list[int]]
    """The sequences of each row."""
    slots: int
    """S, tokens that a row holds."""
    most: int
    """Sequences that may share a row, one of `MOST_IN_A_ROW`."""


def dense_rows(lengths: Int[np.ndarray, "N"], slots: int, *, count: int, rows: int) -> DenseRows:
    """Distribute sequences over rows so that at most a tenth of what is computed is padding, if that can be.

    Rows of all slots with few sequences come first, because their program is the one that most batches use; then more sequences to
    a row, then shorter rows. Of a batch that reaches the tenth with none of them, the way with the least padding is taken; one of
    less than `WORTH_A_PROGRAM` computed slots is always laid out in the first way.

    Padding is a tenth or less where a device has the tokens of ten rows or more: with fewer rows, those that fill up the last
    micro-batch on all devices may be more.

    Args:
        lengths: tokens of each sequence, at most `slots`.
        slots: most tokens that a row holds.
        count: B, responses that there may be.
        rows: R, rows of a micro-batch.
    """
    tokens, parts = int(lengths.sum()), -(-count // rows)
    longest, best, least = max(lengths, default=1), DenseRows([], slots, MOST_IN_A_ROW[0]), 0
    for size in sorted({-(-slots * part // LENGTHS) for part in range(1, LENGTHS + 1)}, reverse=True):
        for most in MOST_IN_A_ROW:
            if size < longest or (best.shared and -(-tokens // (rows * size)) * rows * size >= least):
                break
            found = DenseRows(shared_rows(lengths, size, most=most), size, most)
            used = -(-len(found.shared) // rows)
            computed = used * rows * size
            if used <= _parts(parts, most) and (not best.shared or computed < least):
                best, least = found, computed
            if tokens >= (1 - MOST_PADDING) * least or least < WORTH_A_PROGRAM:
                return best
    return best


def _parts(parts: int, most: int) -> int:
    """M: where more sequences share a row there are fewer micro-batches, so that there are as many places."""
    return -(-parts * MOST_IN_A_ROW[0] // most)


def balance(tokens: Int[np.ndarray, "N"], *, rows: int, devices: int) -> list[list[int]]:
    """Distribute rows over micro-batches and their devices, so that all devices hold about as many tokens.

    Each device gets one of the next rows, in their order: the one with the fewest tokens so far gets the fullest. So two devices
    never differ by more than the rows of one such round do.

    Args:
        tokens: of each row.
        rows: R, rows of a micro-batch: each device holds as many, side by side.
        devices: number of devices.

    Returns:
        The row at each of the R places of each micro-batch; -1 where there is none.

    Example:
        >>> balance(np.array([9, 8, 5, 9, 7]), rows=4, devices=2)
        [[0, 2, 1, 3], [4, -1, -1, -1]]
    """
    own, held = rows // devices, np.zeros(devices, int)
    places = np.full((-(-len(tokens) // rows), devices, own), -1)
    for number, begin in enumerate(range(0, len(tokens), devices)):
        fullest = begin + np.argsort(-tokens[begin : begin + devices], kind="stable")
        poorest = np.argsort(held, kind="stable")[: len(fullest)]
        places[number // own, poorest, number % own] = fullest
        held[poorest] += tokens[fullest]
    return places.reshape(-1, rows).tolist()


def lay_out(sequences: Sequences, mask: Bool[np.ndarray, "B T"], *, rows: int, devices: int = 1) -> Layout:
    """Pack sequences into rows of at most L + T slots, and the rows into micro-batches.

    Few programs are compiled: most batches have rows of L + T slots, see `dense_rows`, and K is rounded up to a quarter of them.
    There are micro-batches for the case that every sequence fills a row; those at the end may be empty. Only where more than eight
    sequences share a row there are fewer.

    Args:
        sequences: rows `[B, L]` and `[B, T]`.
        mask: the tokens that matter, `[B, T]`; sequences without one are left out.
        rows: R, rows of a micro-batch.
        devices: that share the rows of a micro-batch equally; each gets about as many tokens, see `balance`.
    """
    count, length = sequences.tokens.shape
    slots = sequences.prompt_tokens.shape[-1] + length
    places = np.flatnonzero(mask.any(axis=-1))
    lengths = sequences.prompt_attention.sum(-1) + sequences.attention.sum(-1)
    found = dense_rows(lengths[places], slots, count=count, rows=rows)
    shared = [[int(places[sequence]) for sequence in row] for row in found.shared]
    needed = max((int(sequences.attention[row].sum()) for row in shared), default=1)
    scored = _scored_slots(needed, found.slots, quarter=-(-slots // 4))
    tokens = np.array([lengths[row].sum() for row in shared], int)
    blocks = [[shared[row] if row >= 0 else [] for row in part] for part in balance(tokens, rows=rows, devices=devices)]
    blocks += [[]] * (_parts(-(-count // rows), found.most) - len(blocks))
    parts = [
        _micro_batch(sequences, block, rows=rows, slots=found.slots, scored=scored, places=rows * found.most)
        for block in blocks
    ]
    return jax.tree.map(lambda *arrays: np.stack(arrays), *parts)


def _scored_slots(needed: int, slots: int, *, quarter: int) -> int:
    """K: what the fullest row needs, rounded up to quarters of the longest rows."""
    return min(slots - 1, -(-needed // quarter) * quarter)


def _micro_batch(
    sequences: Sequences, shared: list[list[int]], *, rows: int, slots: int, scored: int, places: int
) -> Layout:
    """Write sequences into the rows that they share."""
    tokens, positions, segments = np.zeros((3, rows, slots), np.int32)
    logp = np.zeros((rows, slots), np.float32)
    columns, ends = np.ones((rows, scored), np.int32), np.zeros(rows, np.int32)
    place = np.zeros((places, sequences.tokens.shape[1]), np.int32)
    responses = np.full(places, -1, np.int32)
    for number, (row, segment, start, response) in enumerate(_starts(sequences, shared)):
        prompt = sequences.prompt_tokens[response][sequences.prompt_attention[response]]
        attended = np.flatnonzero(sequences.attention[response])
        first, end = start + prompt.size, start + prompt.size + attended.size
        tokens[row, start:end] = np.concatenate([prompt, sequences.tokens[response, attended]])
        positions[row, start:end] = np.arange(end - start)
        segments[row, start:end] = segment
        if sequences.policy_logp is not None:
            logp[row, first:end] = sequences.policy_logp[response, attended]
        column = np.arange(ends[row], ends[row] + attended.size)
        columns[row, column] = np.arange(first, end)
        place[number, attended] = row * scored + column
        responses[number] = response
        ends[row] += attended.size
    packed = Packed(tokens, positions, segments, columns, place, None if sequences.policy_logp is None else logp)
    return Layout(packed, responses)


def _starts(sequences: Sequences, shared: list[list[int]]) -> Iterator[tuple[int, int, int, int]]:
    """Row, segment, first slot and response of every sequence."""
    for row, responses in enumerate(shared):
        start = 0
        for segment, response in enumerate(responses, start=1):
            yield row, segment, start, response
            start += int(sequences.prompt_attention[response].sum() + sequences.attention[response].sum())
