"""Batches by length: prompts drawn from bins of length, fewer responses where they are long, all under a budget of tokens.

A plan is made once from the lengths; after that, a batch is a pure function of the plan and of a small state of NumPy arrays, which
a checkpoint can hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from rljax.data.measure import bins_of
from rljax.data.prompts import PromptStream
from rljax.errors import InputError
from rljax.ops.selection import adaptive_group_size


class LengthState(NamedTuple):
    """How far a plan has come."""

    draws: Int[np.ndarray, ""]
    """Prompts drawn from all bins."""
    taken: Int[np.ndarray, "K"]
    """Prompts drawn from each bin."""


class LengthBatch(NamedTuple):
    """Prompts to ask now, and how often each."""

    problems: Int[np.ndarray, "B"]
    group_sizes: Int[np.ndarray, "B"]
    tokens: int
    """Response tokens that are expected of all of them."""


@dataclass(frozen=True)
class LengthPlan:
    """Bins of prompts, each in an order of its own, and how likely each bin is.

    Made by `plan_lengths`.
    """

    members: tuple[Int[np.ndarray, "n"], ...]
    """Which prompts are in each bin."""
    streams: tuple[PromptStream, ...]
    """The order of each bin, anew in each epoch."""
    probabilities: Float[np.ndarray, "K"]
    """How likely each bin is drawn from."""
    seed: int


def plan_lengths(lengths: Sequence[int], *, seed: int, probabilities: Sequence[float] | None = None) -> LengthPlan:
    """Sort prompts into bins that end at the 25th, 50th, 75th and 95th percentile of length.

    Args:
        lengths: expected tokens of a response to each prompt, at least 1 each.
        seed: of the order within the bins and of the draws between them.
        probabilities: how likely each of the five bins is drawn from, in any scale; None takes the share of prompts in it, so
            that in the long run each prompt comes equally often.

    Returns:
        The plan. Bins without prompts are left out.

    Raises:
        InputError: no lengths, a length below 1, a negative seed, or probabilities that are not five numbers of 0 or more with
            one above 0 at a bin that has prompts.

    Example:
        >>> [bin.tolist() for bin in plan_lengths([10, 20, 30, 40, 50], seed=0).members]
        [[0, 1], [2], [3], [4]]

    Source:
        MF Algorithm 3, steps 2 and 4, which leave p(ℓ) open.
    """
    if not len(lengths) or min(lengths) < 1:
        raise InputError("a plan of lengths needs at least one prompt, each with an expected length of at least 1 token.")
    if seed < 0:
        raise InputError(f"the seed of the length batches is {seed}; give a whole number of 0 or more.")
    numbers, edges = bins_of(lengths)
    count = len(edges) + 1
    sizes = np.bincount(numbers, minlength=count)
    weights = np.asarray(sizes if probabilities is None else probabilities, float)
    if (
        weights.shape != (count,)
        or not np.isfinite(weights).all()
        or (weights < 0).any()
        or not weights[sizes > 0].sum() > 0
    ):
        raise InputError(
            f"the probabilities of the length bins are {probabilities}; give {count} numbers of 0 or more, with one above 0 at a "
            f"bin that has prompts (these have {sizes.tolist()})."
        )
    there = np.flatnonzero(sizes)
    members = tuple(np.flatnonzero(np.asarray(numbers) == number) for number in there)
    # Far apart, so that two bins of one size are not in the same order.
    seeds = [int(np.random.SeedSequence((seed, int(number))).generate_state(1)[0]) for number in there]
    streams = tuple(PromptStream(range(len(part)), seed=own) for part, own in zip(members, seeds, strict=True))
    return LengthPlan(members, streams, weights[there] / weights[there].sum(), seed)


def first_state(plan: LengthPlan) -> LengthState:
    """Begin with nothing drawn.

    Example:
        >>> first_state(plan_lengths([10, 20], seed=0)).taken.tolist()
        [0, 0]
    """
    return LengthState(np.zeros((), np.int64), np.zeros(len(plan.members), np.int64))


def group_sizes(
    lengths: Float[np.ndarray, "N"], *, base: int = 8, reference: int = 512, floor: int = 2, most: int = 64
) -> Int[np.ndarray, "N"]:
    """Say how many responses each prompt gets: fewer where they are long.

    ::

        G(ℓ) = min(most, max(floor, ⌊base · reference / ℓ⌋))

    Args:
        lengths: ℓ, expected tokens of a response.
        base: responses at the reference length.
        reference: in tokens.
        floor: the smallest group, at least 2.
        most: the largest group, at least `floor`; MF has no such limit, and gives 409 responses to a prompt of 10 tokens.

    Returns:
        `[N]`, responses.

    Raises:
        ValueError: whatever `rljax.ops.selection.adaptive_group_size` refuses, or a `most` below `floor`.

    Example:
        >>> group_sizes(np.array([10.0, 512.0, 9000.0])).tolist()
        [64, 8, 2]

    Source:
        MF Eq. 27.
    """
    if most < floor:
        raise ValueError(f"most must be at least floor={floor}, got {most}")
    sizes = adaptive_group_size(jnp.asarray(lengths, jnp.float32), base=base, reference=reference, floor=floor)
    return np.minimum(np.asarray(sizes, np.int64), most)


def next_batch(
    plan: LengthPlan,
    state: LengthState,
    *,
    lengths: Float[np.ndarray, "N"],
    sizes: Int[np.ndarray, "N"],
    prompts: int,
    budget: int,
) -> tuple[LengthBatch, LengthState]:
    """Draw prompts until there are enough of them or the next group would burst the budget.

    The prompts form one endless sequence; a batch is a piece of it. The group that did not fit opens the next batch.

    ::

        while |B| < prompts and T + G(ℓ) ℓ ≤ budget:    bin ∼ p,    x ∼ bin,    T ← T + G(ℓ) ℓ

    Args:
        plan: bins and orders.
        state: how far it has come; it is not changed.
        lengths: expected tokens of a response to each prompt, as they are known now.
        sizes: responses that each prompt gets, as `group_sizes` says.
        prompts: most prompts of a batch, at least 1.
        budget: most response tokens that are expected of a batch.

    Returns:
        The batch, and the state after it.

    Raises:
        InputError: fewer than 1 prompt, or a single group that is larger than the budget.

    Example:
        >>> lengths = np.array([10.0, 20.0, 30.0, 40.0])
        >>> plan = plan_lengths([10, 20, 30, 40], seed=0)
        >>> batch, state = next_batch(plan, first_state(plan), lengths=lengths, sizes=np.full(4, 2), prompts=3, budget=200)
        >>> len(batch.problems), int(state.draws), batch.tokens <= 200
        (3, 3, True)

    Source:
        MF Algorithm 3, which goes on until the budget is passed; this stops before.
    """
    if prompts < 1:
        raise InputError(f"a batch of {prompts} prompts cannot be drawn; ask for at least 1.")
    costs = np.asarray(sizes, np.int64) * np.ceil(np.asarray(lengths)).astype(np.int64)
    if costs.max() > budget:
        largest = int(costs.argmax())
        raise InputError(
            f"the budget of {budget} tokens is less than the {costs[largest]} that the {sizes[largest]} responses of prompt "
            f"{largest} are expected to take; raise the budget, or lower the group size."
        )
    drawn: list[int] = []
    taken, total = state.taken.copy(), 0
    while len(drawn) < prompts:
        number = int(
            np.random.default_rng((plan.seed, int(state.draws) + len(drawn))).choice(len(taken), p=plan.probabilities)
        )
        (place,) = plan.streams[number].indices(int(taken[number]), 1)
        problem = int(plan.members[number][place])
        if total + costs[problem] > budget:
            break
        drawn.append(problem)
        taken[number] += 1
        total += int(costs[problem])
    problems = np.array(drawn, np.int64)
    batch = LengthBatch(problems, np.asarray(sizes, np.int64)[problems], total)
    return batch, LengthState(state.draws + np.int64(len(drawn)), taken)


def pack_rows(lengths: Sequence[int], budget: int) -> list[Int[np.ndarray, "rows"]]:
    """Put rows of like length together, so that no batch has more than `budget` slots, padding included.

    Args:
        lengths: tokens of each row, at least 1.
        budget: most slots of a batch, rows times its longest row.

    Returns:
        Batches of indices, longest rows first; each row is in one. Equal lengths keep their order.

    Raises:
        InputError: a row longer than the budget.

    Example:
        >>> [rows.tolist() for rows in pack_rows([3, 9, 4, 8, 2], 18)]
        [[1, 3], [2, 0, 4]]
    """
    if len(lengths) and max(lengths) > budget:
        raise InputError(f"a row of {max(lengths)} tokens does not fit into a batch of {budget}; raise the budget.")
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    batches, start = [], 0
    while start < len(order):
        rows = budget // lengths[order[start]]
        batches.append(np.array(order[start : start + rows]))
        start += rows
    return batches
