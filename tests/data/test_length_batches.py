"""Batches by length: every prompt equally often, never over the budget, resumable anywhere."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.data.length_batches import LengthState, first_state, group_sizes, next_batch, pack_rows, plan_lengths
from rljax.errors import InputError

LENGTHS = [5 * (i % 20 + 1) for i in range(200)]
ARRAY = np.array(LENGTHS, float)
SIZES = np.where(ARRAY > 50, 2, 4)


def draw(plan, count, state=None, *, prompts=4, budget=10_000):
    batches, state = [], first_state(plan) if state is None else state
    for _ in range(count):
        batch, state = next_batch(plan, state, lengths=ARRAY, sizes=SIZES, prompts=prompts, budget=budget)
        batches.append(batch)
    return batches, state


def test_bins_end_at_the_percentiles():
    plan = plan_lengths(LENGTHS, seed=0)
    edges = np.percentile(LENGTHS, [25, 50, 75, 95])
    bins = [sum(length > edge for edge in edges) for length in LENGTHS]
    assert [part.tolist() for part in plan.members] == [[i for i, b in enumerate(bins) if b == k] for k in range(5)]
    np.testing.assert_allclose(plan.probabilities, [0.25, 0.25, 0.25, 0.2, 0.05])


def test_every_prompt_of_a_bin_comes_once_an_epoch_of_it():
    plan = plan_lengths(LENGTHS, seed=0)
    batches, state = draw(plan, 30, prompts=40)
    drawn = np.concatenate([batch.problems for batch in batches])
    assert len(drawn) == 1200 == state.draws == state.taken.sum()
    for part, taken in zip(plan.members, state.taken, strict=True):
        of_bin = [i for i in drawn if i in part]
        assert len(of_bin) == taken
        for epoch in range(len(of_bin) // len(part)):
            assert sorted(of_bin[epoch * len(part) : (epoch + 1) * len(part)]) == part.tolist()
    counts = np.bincount(drawn, minlength=200)
    assert counts.min() >= 3, "each comes six times on average"
    assert counts.max() <= 10


def test_probabilities_decide_between_bins():
    plan = plan_lengths(LENGTHS, seed=0, probabilities=[0, 0, 3, 1, 0])
    (batch,), state = draw(plan, 1, prompts=400, budget=10**6)
    assert state.taken[[0, 1, 4]].tolist() == [0, 0, 0]
    assert 270 < state.taken[2] < 330
    assert set(batch.problems) == set(plan.members[2]) | set(plan.members[3])


@given(st.integers(200, 900), st.integers(1, 6))
def test_the_budget_holds_and_a_batch_is_as_large_as_it_allows(budget, prompts):
    if (SIZES * ARRAY).max() > budget:
        return
    plan = plan_lengths(LENGTHS, seed=1)
    batches, _ = draw(plan, 4, prompts=prompts, budget=budget)
    for batch, following in itertools.pairwise(batches):
        cost = int((batch.group_sizes * ARRAY[batch.problems]).sum())
        assert cost == batch.tokens <= budget
        assert batch.group_sizes.tolist() == SIZES[batch.problems].tolist()
        first = following.problems[0]
        assert len(batch.problems) == prompts or cost + SIZES[first] * ARRAY[first] > budget


def test_the_sequence_of_prompts_depends_on_no_budget():
    plan = plan_lengths(LENGTHS, seed=2)
    wide = np.concatenate([batch.problems for batch in draw(plan, 10, prompts=6)[0]])
    narrow = np.concatenate([batch.problems for batch in draw(plan, 10, prompts=6, budget=300)[0]])
    assert len(narrow) < len(wide)
    assert narrow.tolist() == wide[: len(narrow)].tolist()


def test_a_state_goes_through_a_checkpoint():
    whole, end = draw(plan_lengths(LENGTHS, seed=3), 8)
    _, middle = draw(plan_lengths(LENGTHS, seed=3), 3)
    restored = LengthState(*(np.array(np.asarray(array).tolist()) for array in middle))
    rest, again = draw(plan_lengths(LENGTHS, seed=3), 5, restored)
    assert [batch.problems.tolist() for batch in rest] == [batch.problems.tolist() for batch in whole[3:]]
    assert (int(again.draws), again.taken.tolist()) == (int(end.draws), end.taken.tolist())


def test_seeds_differ():
    orders = {tuple(draw(plan_lengths(LENGTHS, seed=seed), 1, prompts=20)[0][0].problems) for seed in range(5)}
    assert len(orders) == 5


def test_group_sizes_are_bounded_on_both_sides():
    np.testing.assert_array_equal(group_sizes(np.array([1.0, 64, 512, 600, 2048, 5000])), [64, 64, 8, 6, 2, 2])
    np.testing.assert_array_equal(group_sizes(np.array([10.0, 40]), base=4, reference=100, floor=3, most=16), [16, 10])
    with pytest.raises(ValueError, match="most must be at least floor=2, got 1"):
        group_sizes(np.ones(1), most=1)


@given(st.lists(st.integers(1, 30), max_size=20))
def test_packed_rows(lengths):
    batches = pack_rows(lengths, 40)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * max(lengths[row] for row in batch) <= 40
    flat = [lengths[row] for batch in batches for row in batch]
    assert flat == sorted(flat, reverse=True)
    for batch in batches[:-1]:
        assert (len(batch) + 1) * lengths[batch[0]] > 40, "as many rows as there is room for"


def test_refusals():
    plan = plan_lengths(LENGTHS, seed=0)
    with pytest.raises(InputError, match="budget of 100 tokens is less than the 200 that the 4 responses of prompt 9"):
        draw(plan, 1, budget=100)
    with pytest.raises(InputError, match="a batch of 0 prompts"):
        draw(plan, 1, prompts=0)
    for lengths in ([], [3, 0]):
        with pytest.raises(InputError, match="at least one prompt"):
            plan_lengths(lengths, seed=0)
    with pytest.raises(InputError, match="seed of the length batches is -1"):
        plan_lengths([1], seed=-1)
    for wrong in ([1, 2], [1, 1, 1, 1, -1], [0] * 5, [float("nan")] * 5):
        with pytest.raises(InputError, match="give 5 numbers of 0 or more"):
            plan_lengths(LENGTHS, seed=0, probabilities=wrong)
    with pytest.raises(InputError, match="a row of 9 tokens does not fit into a batch of 8"):
        pack_rows([1, 9], 8)
