"""Sequences of many lengths in rows of one length, which several sequences share.

Nothing above `score` sees rows: algorithms see `[B, T]`.

Axes: B responses, L prompt slots, T response slots; M micro-batches, R rows of S = L + T slots, K scored tokens of a row, C places
for responses in a micro-batch.
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

MOST_IN_A_ROW = 8
"""Sequences that may share a row."""


@documented
class Layout(NamedTuple):
    """Sequences packed into rows, a few rows at a time."""

    packed: Packed
    """Rows of each micro-batch, `[M, R, S]`; its batch has C places, each for a response or for none."""
    responses: Int32[Array | np.ndarray, "M C"]
    """The response at each place of a micro-batch; -1 where there is none."""


def shared_rows(lengths: Int[np.ndarray, "N"], slots: int) -> list[list[int]]:
    """Distribute sequences over as few rows as best-fit-decreasing finds, at most `MOST_IN_A_ROW` to a row.

    Args:
        lengths: tokens of each sequence, at most `slots`.
        slots: S, tokens that a row holds.

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
        if len(rows[row]) < MOST_IN_A_ROW:
            insort(space, (free - length, row))
    return rows


def lay_out(sequences: Sequences, mask: Bool[np.ndarray, "B T"], *, rows: int) -> Layout:
    """Pack sequences into rows of L + T slots, and the rows into micro-batches.

    All shapes but K follow from the shapes of the sequences, and K is rounded up to a quarter of a row: few programs are compiled.
    There are micro-batches for the case that every sequence fills a row; those at the end may be empty.

    Args:
        sequences: rows `[B, L]` and `[B, T]`.
        mask: the tokens that matter, `[B, T]`; sequences without one are left out.
        rows: R, rows of a micro-batch.
    """
    count, length = sequences.tokens.shape
    slots = sequences.prompt_tokens.shape[-1] + length
    places = np.flatnonzero(mask.any(axis=-1))
    lengths = sequences.prompt_attention.sum(-1) + sequences.attention.sum(-1)
    shared = [[int(places[sequence]) for sequence in row] for row in shared_rows(lengths[places], slots)]
    scored = _scored_slots(max((int(sequences.attention[row].sum()) for row in shared), default=1), slots)
    blocks = [shared[begin : begin + rows] for begin in range(0, count, rows)]
    parts = [_micro_batch(sequences, block, rows=rows, slots=slots, scored=scored) for block in blocks]
    return jax.tree.map(lambda *arrays: np.stack(arrays), *parts)


def _scored_slots(needed: int, slots: int) -> int:
    """K: what the fullest row needs, rounded up to a quarter of a row."""
    quarter = -(-slots // 4)
    return min(slots - 1, -(-needed // quarter) * quarter)


def _micro_batch(sequences: Sequences, shared: list[list[int]], *, rows: int, slots: int, scored: int) -> Layout:
    """Write sequences into the rows that they share."""
    places = rows * MOST_IN_A_ROW
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
