"""Rows in which several responses share their prompt, so that the model reads most of the prompt only once for them.

The gradient is the same as with `lay_out`, from fewer computed tokens. A row begins with a prompt without its last token. Then
follow, for each response, the last token of the prompt and the response. `rljax.models.packed.visible_slots` lets these attend to
the shared part and to themselves, and each keeps the positions of its own sequence.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int

from rljax.models.language_model import reads_shared_prompts
from rljax.models.packed import MEMBERS
from rljax.rollout.layout import (
    MOST_IN_A_ROW,
    Layout,
    Placement,
    Sequences,
    balance,
    dense_rows,
    lay_out,
    micro_batch,
    scored_slots,
)

LEAST_SAVED = 0.2
"""Fraction of the work that sharing must save; otherwise prompts are not shared."""
ATTENTION_SLOTS = 4_096
"""Row length at which attention costs as much as the other matrix products, in a small language model; larger in a large one."""


class Chunk(NamedTuple):
    """Responses to one prompt, next to each other in a row."""

    lead: int
    """Number of prompt tokens that they share: all but the last one."""
    responses: tuple[int, ...]
    """Indices of the responses."""
    length: int
    """Number of slots that the chunk takes."""


def layout_for(score: object, teacher: object | None) -> Callable[..., Layout]:
    """Choose the layout of an update: `lay_out_shared` if the policy's `score` supports it and no teacher reads the rows."""
    return lay_out_shared if teacher is None and reads_shared_prompts(score) else lay_out


def full_responses(prompt: int, response: int, size: int, rows: int) -> int:
    """Choose how many responses of full length a row has room for: 1 unless longer rows save a fifth of the work.

    A longer row has more responses per prompt, but each token then attends to more slots.

    Args:
        prompt: L, slots per prompt.
        response: T, slots per response.
        size: G, responses per prompt. The result divides this number.
        rows: number of rows of L + T slots on each device; the longer rows that replace them have no more slots in total.

    Example:
        >>> full_responses(64, 24, 8, 15), full_responses(64, 24, 8, 2), full_responses(512, 8_192, 8, 8)
        (8, 4, 1)
    """

    def work(count: int) -> float:
        slots = row_slots(prompt, response, count)
        return slots / count * (1 + slots / ATTENTION_SLOTS)

    def fits(count: int) -> bool:
        return -(-rows // count) * row_slots(prompt, response, count) <= rows * (prompt + response)

    best = min((count for count in range(1, size + 1) if size % count == 0 and fits(count)), key=work)
    return best if work(best) <= (1 - LEAST_SAVED) * work(1) else 1


def row_slots(prompt: int, response: int, count: int) -> int:
    """Return the slots of a prompt and `count` responses that share it; for one response this is L + T."""
    return prompt - 1 + count * (response + 1)


def lay_out_shared(sequences: Sequences, mask: Bool[np.ndarray, "B T"], *, rows: int, devices: int = 1) -> Layout:
    """Pack sequences as `lay_out` does, but let the responses to a prompt share it if that saves work.

    The shapes of the arrays, and thus the program, depend on L, T, G and the rows, and hardly on the lengths of the responses.

    Args:
        sequences: rows `[B, L]` and `[B, T]`; the responses to a prompt have equal rows of prompt tokens.
        mask: the tokens that matter, `[B, T]`; sequences without any are left out.
        rows: R, rows of L + T slots per micro-batch; they may be replaced by fewer, longer rows with no more slots in total.
        devices: number of devices that share a micro-batch's rows equally.
    """
    groups = groups_of(sequences)
    size = Counter(map(len, groups)).most_common(1)[0][0]
    (count, length), prompt = sequences.tokens.shape, sequences.prompt_tokens.shape[1]
    full, parts = full_responses(prompt, length, size, rows // devices), -(-count // rows)
    is_used = np.asarray(mask.any(axis=-1))
    groups = [[response for response in group if is_used[response]] for group in groups]
    # most batches end here, before any row is packed
    if full == 1 and (parts == 1 or saved_share(sequences, groups) < LEAST_SAVED):
        return lay_out(sequences, mask, rows=rows, devices=devices)
    fewer = -(-rows // devices // full) * devices
    slots, most = row_slots(prompt, length, full), full * MOST_IN_A_ROW[0]
    shared = pack_groups(sequences, groups, slots, most)
    used = -(-len(shared) // fewer)
    if used > parts or (full == 1 and not _saves(sequences, is_used, used * rows * slots, rows)):
        return lay_out(sequences, mask, rows=rows, devices=devices)
    responses = [[response for chunk in row for response in chunk.responses] for row in shared]
    needed = max((int(sequences.attention[row].sum()) for row in responses), default=1)
    scored = scored_slots(needed, slots, quarter=-(-slots // 4))
    tokens = np.array([sum(chunk.length for chunk in row) for row in shared], int)
    blocks = [[shared[row] if row >= 0 else [] for row in part] for part in balance(tokens, rows=fewer, devices=devices)]
    blocks += [[]] * (parts - len(blocks))
    made = [
        micro_batch(sequences, placements(sequences, block), fewer, slots, scored=scored, places=fewer * most)
        for block in blocks
    ]
    return jax.tree.map(lambda *arrays: np.stack(arrays), *made)


def _saves(sequences: Sequences, is_used: Bool[np.ndarray, "B"], computed: int, rows: int) -> bool:
    """Whether this many computed slots are a fifth fewer than those of rows that share nothing."""
    lengths = (sequences.prompt_attention.sum(-1) + sequences.attention.sum(-1))[is_used]
    slots = sequences.prompt_tokens.shape[1] + sequences.tokens.shape[1]
    alone = dense_rows(lengths, slots, count=len(sequences.tokens), rows=rows)
    return computed <= (1 - LEAST_SAVED) * -(-len(alone.shared) // rows) * rows * alone.slots


def saved_share(sequences: Sequences, groups: list[list[int]]) -> float:
    """Share of the tokens that need not be computed if each group reads its prompt, except the last token, once."""
    leads, lengths = sequences.prompt_attention.sum(-1) - 1, sequences.attention.sum(-1)
    used = [response for group in groups for response in group]
    total = int((leads[used] + 1 + lengths[used]).sum())
    return sum((len(group) - 1) * int(leads[group[0]]) for group in groups if group) / max(total, 1)


def groups_of(sequences: Sequences) -> list[list[int]]:
    """Return the responses to each prompt; prompts are equal if their tokens are equal."""
    groups: dict[bytes, list[int]] = {}
    for response, (tokens, attention) in enumerate(zip(sequences.prompt_tokens, sequences.prompt_attention, strict=True)):
        groups.setdefault(tokens[attention].tobytes(), []).append(response)
    return list(groups.values())


def pack_groups(sequences: Sequences, groups: list[list[int]], slots: int, most: int) -> list[list[Chunk]]:
    """Distribute groups over rows, the longest group first, each into the fullest row that has room for the entire group.

    If no row has, the emptiest row takes the responses that fit, or a new row does, and the rest of the group is placed likewise.

    Args:
        sequences: prompts and responses.
        groups: responses to each prompt.
        slots: S, capacity of a row in tokens.
        most: largest number of responses per row.
    """
    lengths, leads = 1 + sequences.attention.sum(-1), sequences.prompt_attention.sum(-1) - 1
    rows: list[list[Chunk]] = []
    free: list[tuple[int, int]] = []  # slots and responses that each row still has room for
    for group in sorted(filter(None, groups), key=lambda each: -(leads[each[0]] + lengths[each].sum())):
        lead, left = int(leads[group[0]]), sorted(group, key=lambda each: -lengths[each])
        while left:
            needed = (lead + int(lengths[left].sum()), len(left))
            whole = [row for row, room in enumerate(free) if needed[0] <= room[0] and needed[1] <= room[1]]
            some = [row for row, room in enumerate(free) if lead + lengths[left[-1]] <= room[0] and room[1]]
            if not (whole or some):
                rows.append([])
                free.append((slots, most))
            row = min(whole, key=lambda each: free[each]) if whole else max(some, key=lambda each: free[each], default=-1)
            taken = _select_fitting(left, lengths, free[row][0] - lead, free[row][1])
            left = [response for response in left if response not in taken]
            chunk = Chunk(lead, taken, lead + int(lengths[list(taken)].sum()))
            rows[row].append(chunk)
            free[row] = (free[row][0] - chunk.length, free[row][1] - len(taken))
    return rows


def _select_fitting(responses: list[int], lengths: Int[np.ndarray, "B"], slots: int, most: int) -> tuple[int, ...]:
    """Select the first responses, at most `most`, that fit into `slots` slots."""
    taken: list[int] = []
    for response in responses:
        if lengths[response] <= slots and len(taken) < most:
            taken.append(response)
            slots -= int(lengths[response])
    return tuple(taken)


def placements(sequences: Sequences, rows: list[list[Chunk]]) -> Iterator[Placement]:
    """Place the responses of chunks one after the other; the first response of a chunk includes the start of the prompt."""
    for row, chunks in enumerate(rows):
        start = 0
        for number, chunk in enumerate(chunks, start=1):
            for member, response in enumerate(chunk.responses, start=1):
                skipped = 0 if member == 1 else chunk.lead
                yield Placement(row, start, response, number * MEMBERS + member, skipped)
                start += chunk.lead - skipped + 1 + int(sequences.attention[response].sum())
