"""Pack sequences into rows for the model: one sequence per row, or several sequences of different lengths in rows of equal length.

Only the model sees these rows: algorithms see `[B, T]`.

Several responses may share their prompt (`lay_out_shared`), so that the model reads most of the prompt only once for all of them.
The gradient is the same as with `lay_out`, but fewer tokens are computed. The shared prompt comes first, except its last token.
Then comes, for each response, the last token of the prompt followed by the response. `rljax.models.packed.visible_slots` lets each
response attend to the shared prompt and to itself, and its tokens have the same positions as in a row of its own.

Axes: B responses, L prompt slots, T response slots; M micro-batches, R rows of S slots, K scored tokens per row, room for C
responses in a micro-batch.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float32, Int, Int16, Int32

from rljax.data.prompts import Demonstrations
from rljax.models import Packed
from rljax.models.language_model import supports_shared_prompts
from rljax.models.packed import SEGMENTS_PER_PROMPT
from rljax.records import required
from rljax.rollout.groups import Groups

MAX_SEQUENCES_PER_ROW = (8, 16, 32, 64)
"""Limits on the number of sequences per row; the smallest that leaves little padding is used."""
MOST_PADDING = 0.1
"""If a larger fraction of the slots is padding, more sequences per row are tried, and then shorter rows."""
ROW_LENGTHS_TRIED = 16
"""Number of row lengths that are tried."""


class Rounding(NamedTuple):
    """How coarsely shapes are rounded, so that few programs are compiled."""

    min_slots: int
    """For batches with at least this many computed slots, less padding is worth compiling another program."""
    parts: int
    """K, the number of scored tokens per row, is rounded up to a multiple of (L + T) / `parts`."""


ROUNDING = {"cpu": Rounding(16_384, 4), "accelerator": Rounding(262_144, 2)}
"""Shapes are coarser on accelerators, where compiling a deep model's update takes a minute, not seconds, and padding costs less."""
LEAST_SAVED = 0.2
"""Prompts are shared only if this saves at least this fraction of the work."""
ATTENTION_SLOTS = 2_304
"""Row length at which attention is assumed to take as long as the other matrix products; it depends on the model's size."""


class Sequences(NamedTuple):
    """Prompts and responses, one row per response; any axes may precede the rows."""

    prompt_tokens: Int32[np.ndarray, "*M B L"]
    """Token ids of the prompts, left-padded."""
    prompt_attention: Bool[np.ndarray, "*M B L"]
    """Which prompt slots contain a token."""
    tokens: Int32[np.ndarray, "*M B T"]
    """Token ids of the responses, right-padded."""
    attention: Bool[np.ndarray, "*M B T"]
    """Which response slots contain a token."""
    policy_logp: Float32[np.ndarray, "*M B T"] | None = None
    """Log-probability of each response token under the policy that sampled it, in nats. Some critics read it."""
    mask: Bool[np.ndarray, "*M B T"] | None = None
    """Which response tokens are trained on; None for all of them."""
    kept: Int32[np.ndarray, "*M B T N"] | None = None
    """Ids of the tokens that top-k and top-p kept at each response token, padded with -1; None for the full vocabulary."""
    experts: Int16[np.ndarray, "*M B S Y C"] | None = None
    """Experts of the token in each of S = L + T slots, see `Packed.experts`; None if the routers choose."""

    @property
    def learned(self) -> Bool[np.ndarray, "*M B T"]:
        """Mask of the response tokens that are trained on."""
        return self.attention if self.mask is None else self.mask


def sequences_of(groups: Groups) -> Sequences:
    """Return the responses of all groups as sequences; the responses of a group are adjacent."""
    size, length = groups.tokens.shape[1:]
    return Sequences(
        groups.prompt_tokens.repeat(size, axis=0),
        groups.prompt_attention.repeat(size, axis=0),
        groups.tokens.reshape(-1, length),
        groups.attention.reshape(-1, length),
        required(groups.rollout.policy_logp, "rollout.policy_logp").reshape(-1, length),
        kept=None if groups.kept is None else groups.kept.reshape(-1, *groups.kept.shape[2:]),
        experts=None if groups.experts is None else groups.experts.reshape(-1, *groups.experts.shape[2:]),
    )


def sequences_of_demonstrations(demonstrations: Demonstrations) -> Sequences:
    """Return demonstrations as sequences."""
    return Sequences(
        demonstrations.prompt_tokens,
        demonstrations.prompt_attention,
        demonstrations.response_tokens,
        demonstrations.response_attention,
        mask=demonstrations.response_mask,
    )


def pack_one_per_row(sequences: Sequences) -> Packed:
    """Put each prompt, followed by its response, in a row of its own.

    Args:
        sequences: rows `[..., B, L]` and `[..., B, T]`; the axes before B are micro-batches, each packed separately.

    Returns:
        Rows of L + T slots; all T response slots are scored.
    """
    attention = np.concatenate([sequences.prompt_attention, sequences.attention], axis=-1)
    *leading, rows, length = sequences.tokens.shape
    start = sequences.prompt_tokens.shape[-1]
    logp = None
    if sequences.policy_logp is not None:
        response_logp = np.where(sequences.attention, sequences.policy_logp, np.float32(0))
        logp = np.concatenate([np.zeros(sequences.prompt_tokens.shape, np.float32), response_logp], axis=-1)
    return Packed(
        tokens=np.concatenate([sequences.prompt_tokens, sequences.tokens], axis=-1),
        positions=np.maximum(np.cumsum(attention, axis=-1, dtype=np.int32) - 1, 0),
        segments=attention.astype(np.int32),
        scored=np.broadcast_to(np.arange(start, start + length, dtype=np.int32), (*leading, rows, length)),
        place=np.broadcast_to(np.arange(rows * length, dtype=np.int32).reshape(rows, length), (*leading, rows, length)),
        policy_logp=logp,
        kept=sequences.kept,
        experts=sequences.experts,
    )


class Layout(NamedTuple):
    """Sequences packed into rows, and the rows divided into micro-batches."""

    packed: Packed
    """Rows of each micro-batch, `[M, R, S]`; a micro-batch has room for C responses, but may contain fewer."""
    responses: Int32[Array | np.ndarray, "M C"]
    """Indices of the responses in each micro-batch, padded with -1."""


def rounding() -> Rounding:
    """Return how shapes are rounded on the devices of this process."""
    return ROUNDING["cpu" if jax.default_backend() == "cpu" else "accelerator"]


def best_fit_rows(lengths: Int[np.ndarray, "N"], slots: int, *, most: int = MAX_SEQUENCES_PER_ROW[0]) -> list[list[int]]:
    """Distribute sequences over few rows, with the best-fit-decreasing heuristic.

    Args:
        lengths: number of tokens in each sequence, at most `slots`.
        slots: S, capacity of a row in tokens.
        most: largest number of sequences per row.

    Returns:
        The sequences of each row.

    Example:
        >>> best_fit_rows(np.array([3, 6, 4, 5, 2]), 10)
        [[1, 2], [3, 0, 4]]
    """
    rows: list[list[int]] = []
    space: list[tuple[int, int]] = []  # (free slots, row), sorted
    for sequence in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[sequence])
        index = bisect_left(space, (length, -1))
        free, row = space.pop(index) if index < len(space) else (slots, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(sequence)
        if len(rows[row]) < most:
            insort(space, (free - length, row))
    return rows


class DenseRows(NamedTuple):
    """An assignment of sequences to rows."""

    rows: list[list[int]]
    """The sequences of each row."""
    slots: int
    """S, capacity of a row in tokens."""
    most: int
    """Largest number of sequences per row, one of `MAX_SEQUENCES_PER_ROW`."""


def dense_rows(
    lengths: Int[np.ndarray, "N"], slots: int, *, count: int, rows: int, min_slots: int = ROUNDING["cpu"].min_slots
) -> DenseRows:
    """Distribute sequences over rows so that at most a tenth of the computed slots is padding, if possible.

    Rows of full length with few sequences are tried first, because most batches use the program compiled for them; then more
    sequences per row, then shorter rows. If no layout reaches a tenth, the one with the least padding is used. A batch
    with fewer than `min_slots` computed slots always gets the first layout.

    A tenth can be reached if each device has enough tokens for at least ten rows. With fewer, the empty rows that complete the last
    micro-batch on all devices may be more than a tenth.

    Args:
        lengths: number of tokens in each sequence, at most `slots`.
        slots: largest capacity of a row in tokens.
        count: B, largest possible number of responses.
        rows: R, rows per micro-batch.
        min_slots: for batches with at least this many computed slots, less padding is worth compiling another program.
    """
    tokens, parts = int(lengths.sum()), -(-count // rows)
    longest, best, least = max(lengths, default=1), DenseRows([], slots, MAX_SEQUENCES_PER_ROW[0]), 0
    for size in sorted({-(-slots * part // ROW_LENGTHS_TRIED) for part in range(1, ROW_LENGTHS_TRIED + 1)}, reverse=True):
        for most in MAX_SEQUENCES_PER_ROW:
            if size < longest or (best.rows and -(-tokens // (rows * size)) * rows * size >= least):
                break
            found = DenseRows(best_fit_rows(lengths, size, most=most), size, most)
            used = -(-len(found.rows) // rows)
            computed = used * rows * size
            if used <= _count_micro_batches(parts, most) and (not best.rows or computed < least):
                best, least = found, computed
            if tokens >= (1 - MOST_PADDING) * least or least < min_slots:
                return best
    return best


def _count_micro_batches(parts: int, most: int) -> int:
    """Return M. With more sequences per row there are fewer micro-batches, so that M * C stays about the same."""
    return -(-parts * MAX_SEQUENCES_PER_ROW[0] // most)


def balance(tokens: Int[np.ndarray, "N"], *, rows: int, devices: int) -> list[list[int]]:
    """Distribute rows over micro-batches and their devices, so that all devices get about the same number of tokens.

    Rows are handed out in rounds, in order, one per device. The device with the fewest tokens so far gets the fullest row of the
    round, so the totals of two devices never differ by more than two rows of one round do.

    Args:
        tokens: number of tokens in each row.
        rows: R, rows per micro-batch; each device gets an equal, contiguous part of them.
        devices: number of devices.

    Returns:
        For each micro-batch, the indices of its R rows; -1 stands for an empty row.

    Example:
        >>> balance(np.array([9, 8, 5, 9, 7]), rows=4, devices=2)
        [[0, 2, 1, 3], [4, -1, -1, -1]]
    """
    own, totals = rows // devices, np.zeros(devices, int)
    assigned = np.full((-(-len(tokens) // rows), devices, own), -1)
    for number, begin in enumerate(range(0, len(tokens), devices)):
        fullest = begin + np.argsort(-tokens[begin : begin + devices], kind="stable")
        emptiest = np.argsort(totals, kind="stable")[: len(fullest)]
        assigned[number // own, emptiest, number % own] = fullest
        totals[emptiest] += tokens[fullest]
    return assigned.reshape(-1, rows).tolist()


def lay_out(sequences: Sequences, mask: Bool[np.ndarray, "B T"], *, rows: int, devices: int = 1) -> Layout:
    """Pack sequences into rows of at most L + T slots, and the rows into micro-batches.

    Few programs are compiled, because most batches have rows of L + T slots (see `dense_rows`), and K is rounded up to a multiple
    of a quarter of L + T on CPUs, and of half of it on accelerators. There are enough micro-batches for one sequence per row, so
    the last ones may be empty; there are fewer only if a row may contain more than eight sequences.

    Args:
        sequences: rows `[B, L]` and `[B, T]`.
        mask: the tokens that the caller trains on or evaluates, `[B, T]`; sequences without such a token are left out.
        rows: R, rows per micro-batch.
        devices: number of devices that share a micro-batch's rows equally, with about equal numbers of tokens; see `balance`.
    """
    count, length = sequences.tokens.shape
    slots = sequences.prompt_tokens.shape[-1] + length
    used = np.flatnonzero(mask.any(axis=-1))
    lengths = sequences.prompt_attention.sum(-1) + sequences.attention.sum(-1)
    found = dense_rows(lengths[used], slots, count=count, rows=rows, min_slots=rounding().min_slots)
    shared = [[int(used[sequence]) for sequence in row] for row in found.rows]
    needed = max((int(sequences.attention[row].sum()) for row in shared), default=1)
    scored = scored_slots(needed, found.slots, part=-(-slots // rounding().parts))
    tokens = np.array([lengths[row].sum() for row in shared], int)
    blocks = [[shared[row] if row >= 0 else [] for row in part] for part in balance(tokens, rows=rows, devices=devices)]
    blocks += [[]] * (_count_micro_batches(-(-count // rows), found.most) - len(blocks))
    parts = [
        micro_batch(
            sequences, _place_sequences(sequences, block), rows, found.slots, scored=scored, places=rows * found.most
        )
        for block in blocks
    ]
    return jax.tree.map(lambda *arrays: np.stack(arrays), *parts)


def lay_out_examples(sequences: Sequences, mask: Bool[np.ndarray, "B T"], *, rows: int, devices: int = 1) -> Layout:
    """Put each sequence in a row of its own, in one micro-batch; if there are more sequences than `rows`, use `lay_out`.

    Args:
        sequences: rows `[B, L]` and `[B, T]`.
        mask: the tokens that the caller trains on or evaluates, `[B, T]`; used only if `lay_out` is used.
        rows: maximum number of rows per micro-batch.
        devices: number of devices that share a micro-batch's rows equally.
    """
    if len(sequences.tokens) > rows:
        return lay_out(sequences, mask, rows=rows, devices=devices)
    every = np.arange(len(sequences.tokens), dtype=np.int32)
    return Layout(*jax.tree.map(lambda array: array[None], (pack_one_per_row(sequences), every)))


def scored_slots(needed: int, slots: int, *, part: int) -> int:
    """Return K: the number of scored tokens in the fullest row, rounded up to a multiple of `part`."""
    return min(slots - 1, -(-needed // part) * part)


class Placement(NamedTuple):
    """Position of a sequence in a micro-batch."""

    row: int
    """Index of the row."""
    start: int
    """First slot of the sequence in the row."""
    response: int
    """Index of the response."""
    segment: int
    """Position of the sequence in the row, counted from 1; see `Packed.segments`."""
    skipped: int = 0
    """Number of prompt tokens that are left out, because an earlier sequence in the row contains them."""


def micro_batch(
    sequences: Sequences, placements: Iterable[Placement], rows: int, slots: int, *, scored: int, places: int
) -> Layout:
    """Write sequences into rows.

    Args:
        sequences: all sequences.
        placements: where to write the sequences of this micro-batch.
        rows: R, number of rows.
        slots: S, slots per row.
        scored: K, number of scored tokens that a row has room for.
        places: C, number of responses that the micro-batch has room for.
    """
    tokens, positions, segments = np.zeros((3, rows, slots), np.int32)
    logp = np.zeros((rows, slots), np.float32)
    columns, ends = np.ones((rows, scored), np.int32), np.zeros(rows, np.int32)
    place = np.zeros((places, sequences.tokens.shape[1]), np.int32)
    responses = np.full(places, -1, np.int32)
    kept = None if sequences.kept is None else np.full((rows, scored, sequences.kept.shape[-1]), -1, np.int32)
    experts = None if sequences.experts is None else np.full((rows, slots, *sequences.experts.shape[2:]), -1, np.int16)
    for number, (row, start, response, segment, skipped) in enumerate(placements):
        prompt = sequences.prompt_tokens[response][sequences.prompt_attention[response]][skipped:]
        attended = np.flatnonzero(sequences.attention[response])
        first, end = start + prompt.size, start + prompt.size + attended.size
        tokens[row, start:end] = np.concatenate([prompt, sequences.tokens[response, attended]])
        positions[row, start:end] = skipped + np.arange(end - start)
        segments[row, start:end] = segment
        if segment > SEGMENTS_PER_PROMPT:  # the prompt is shared with the other responses, except for its last token
            segments[row, start : first - 1] = segment - segment % SEGMENTS_PER_PROMPT
        if sequences.policy_logp is not None:
            logp[row, first:end] = sequences.policy_logp[response, attended]
        column = np.arange(ends[row], ends[row] + attended.size)
        columns[row, column] = np.arange(first, end)
        if kept is not None:
            kept[row, column] = required(sequences.kept, "sequences.kept")[response, attended]
        if experts is not None:
            present = np.concatenate([sequences.prompt_attention[response], sequences.attention[response]])
            experts[row, start:end] = required(sequences.experts, "sequences.experts")[response, present][skipped:]
        place[number, attended] = row * scored + column
        responses[number] = response
        ends[row] += attended.size
    logp = None if sequences.policy_logp is None else logp
    return Layout(Packed(tokens, positions, segments, columns, place, logp, kept, experts), responses)


def _place_sequences(sequences: Sequences, shared: list[list[int]]) -> Iterator[Placement]:
    """Place sequences one after another; `shared` lists the sequences of each row."""
    for row, responses in enumerate(shared):
        start = 0
        for segment, response in enumerate(responses, start=1):
            yield Placement(row, start, response, segment)
            start += int(sequences.prompt_attention[response].sum() + sequences.attention[response].sum())


class Chunk(NamedTuple):
    """Responses to one prompt that share it, next to each other in a row."""

    lead: int
    """Number of prompt tokens that the responses share: all but the last token."""
    responses: tuple[int, ...]
    """Indices of the responses."""
    length: int
    """Number of slots that the chunk takes."""


def layout_for(score: object, teacher: object | None) -> Callable[..., Layout]:
    """Return the layout function of an update: `lay_out_shared` if `score` supports it and there is no teacher, else `lay_out`."""
    return lay_out_shared if teacher is None and supports_shared_prompts(score) else lay_out


def full_responses_per_row(prompt: int, response: int, size: int, rows: int) -> int:
    """Choose how many responses of full length a row can hold: 1, unless longer rows save at least a fifth of the work.

    A longer row has more responses per prompt, but each token then attends to more slots.

    Args:
        prompt: L, padded length of a prompt.
        response: T, slots per response.
        size: G, responses per prompt. The result divides this number.
        rows: number of rows of L + T slots on each device; the longer rows that replace them have no more slots in total.

    Example:
        >>> full_responses_per_row(64, 24, 8, 15), full_responses_per_row(64, 24, 8, 2), full_responses_per_row(45, 64, 8, 8)
        (8, 4, 4)
        >>> full_responses_per_row(512, 8_192, 8, 8)
        1
    """

    def work(count: int) -> float:
        slots = row_slots(prompt, response, count)
        return slots / count * (1 + slots / ATTENTION_SLOTS)

    def fits(count: int) -> bool:
        return -(-rows // count) * row_slots(prompt, response, count) <= rows * (prompt + response)

    best = min((count for count in range(1, size + 1) if size % count == 0 and fits(count)), key=work)
    return best if work(best) <= (1 - LEAST_SAVED) * work(1) else 1


def row_slots(prompt: int, response: int, count: int) -> int:
    """Return the number of slots for a prompt and `count` responses that share it; for one response it is L + T."""
    return prompt - 1 + count * (response + 1)


def lay_out_shared(sequences: Sequences, mask: Bool[np.ndarray, "B T"], *, rows: int, devices: int = 1) -> Layout:
    """Pack sequences as `lay_out` does, but let the responses to a prompt share it if that saves work.

    The shapes of the arrays, and thus the compiled programs, depend on L, T, G and the number of rows, but hardly on the lengths of
    the responses.

    Args:
        sequences: rows `[B, L]` and `[B, T]`; responses to the same prompt have equal prompt tokens.
        mask: the tokens that the caller trains on or evaluates, `[B, T]`; sequences without such a token are left out.
        rows: R, rows of L + T slots per micro-batch; they may be replaced by fewer, longer rows with no more slots in total.
        devices: number of devices that share a micro-batch's rows equally.
    """
    groups = groups_of(sequences)
    size = Counter(map(len, groups)).most_common(1)[0][0]
    (count, length), prompt = sequences.tokens.shape, sequences.prompt_tokens.shape[1]
    full, parts = full_responses_per_row(prompt, length, size, rows // devices), -(-count // rows)
    is_used = np.asarray(mask.any(axis=-1))
    groups = [[response for response in group if is_used[response]] for group in groups]
    # most batches end here, before any row is packed
    if full == 1 and (parts == 1 or saved_share(sequences, groups) < LEAST_SAVED):
        return lay_out(sequences, mask, rows=rows, devices=devices)
    fewer = -(-rows // devices // full) * devices
    slots, most = row_slots(prompt, length, full), full * MAX_SEQUENCES_PER_ROW[0]
    shared = pack_groups(sequences, groups, slots, most)
    used = -(-len(shared) // fewer)
    if used > parts or (full == 1 and not _saves_enough(sequences, is_used, used * rows * slots, rows)):
        return lay_out(sequences, mask, rows=rows, devices=devices)
    responses = [[response for chunk in row for response in chunk.responses] for row in shared]
    needed = max((int(sequences.attention[row].sum()) for row in responses), default=1)
    scored = scored_slots(needed, slots, part=-(-slots // rounding().parts))
    tokens = np.array([sum(chunk.length for chunk in row) for row in shared], int)
    blocks = [[shared[row] if row >= 0 else [] for row in part] for part in balance(tokens, rows=fewer, devices=devices)]
    blocks += [[]] * (parts - len(blocks))
    micro_batches = [
        micro_batch(sequences, place_chunks(sequences, block), fewer, slots, scored=scored, places=fewer * most)
        for block in blocks
    ]
    return jax.tree.map(lambda *arrays: np.stack(arrays), *micro_batches)


def _saves_enough(sequences: Sequences, is_used: Bool[np.ndarray, "B"], computed: int, rows: int) -> bool:
    """Return True if `computed`, a number of slots, is at least a fifth less than without sharing."""
    lengths = (sequences.prompt_attention.sum(-1) + sequences.attention.sum(-1))[is_used]
    slots = sequences.prompt_tokens.shape[1] + sequences.tokens.shape[1]
    alone = dense_rows(lengths, slots, count=len(sequences.tokens), rows=rows, min_slots=rounding().min_slots)
    return computed <= (1 - LEAST_SAVED) * -(-len(alone.rows) // rows) * rows * alone.slots


def saved_share(sequences: Sequences, groups: list[list[int]]) -> float:
    """Return the fraction of tokens that need not be computed if each group reads its prompt, except the last token, only once."""
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

    If no row has room for the group, the emptiest row with room for one of its responses, or else a new row, takes the responses
    that fit. The rest of the group is distributed in the same way.

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
            fits_all = [row for row, room in enumerate(free) if needed[0] <= room[0] and needed[1] <= room[1]]
            fits_one = [row for row, room in enumerate(free) if lead + lengths[left[-1]] <= room[0] and room[1]]
            if not (fits_all or fits_one):
                rows.append([])
                free.append((slots, most))
            row = (
                min(fits_all, key=lambda each: free[each])
                if fits_all
                else max(fits_one, key=lambda each: free[each], default=-1)
            )
            taken = _select_fitting(left, lengths, free[row][0] - lead, free[row][1])
            left = [response for response in left if response not in taken]
            chunk = Chunk(lead, taken, lead + int(lengths[list(taken)].sum()))
            rows[row].append(chunk)
            free[row] = (free[row][0] - chunk.length, free[row][1] - len(taken))
    return rows


def _select_fitting(responses: list[int], lengths: Int[np.ndarray, "B"], slots: int, most: int) -> tuple[int, ...]:
    """Select responses in order, and skip those that no longer fit into `slots` slots; stop after `most` responses."""
    taken: list[int] = []
    for response in responses:
        if lengths[response] <= slots and len(taken) < most:
            taken.append(response)
            slots -= int(lengths[response])
    return tuple(taken)


def place_chunks(sequences: Sequences, rows: list[list[Chunk]]) -> Iterator[Placement]:
    """Place the responses of chunks one after the other; only the first response of a chunk includes the shared prompt tokens."""
    for row, chunks in enumerate(rows):
        start = 0
        for number, chunk in enumerate(chunks, start=1):
            for member, response in enumerate(chunk.responses, start=1):
                skipped = 0 if member == 1 else chunk.lead
                yield Placement(row, start, response, number * SEGMENTS_PER_PROMPT + member, skipped)
                start += chunk.lead - skipped + 1 + int(sequences.attention[response].sum())
