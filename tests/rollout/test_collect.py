"""Dynamic sampling: refill, drop, carry over, give up."""

import numpy as np
import pytest

from rljax.rollout.collect import collect
from rljax.rollout.groups import Groups, concatenate, pad, take


def groups(*problems):
    """Groups of two responses; the reward of a group's first response is 1 where its problem number is odd."""
    count = len(problems)
    rewards = np.array([[problem % 2, 0] for problem in problems], np.float32).reshape(count, 2)
    token = np.ones((count, 2, 3))
    return Groups(
        problem=np.array(problems, int),
        prompt_tokens=np.ones((count, 4), int),
        prompt_mask=np.ones((count, 4), bool),
        tokens=token.astype(int),
        mask=token.astype(bool),
        behaviour_logp=-token,
        policy_logp=-token,
        truncated=np.zeros((count, 2), bool),
        rewards=rewards,
        valid=np.ones((count, 2), bool),
        failed=np.zeros((count, 2), np.int8),
    )


def mixed(sampled):
    return sampled.rewards[:, 0] != sampled.rewards[:, 1]


def serve(*batches):
    queue = iter(batches)
    return lambda: groups(*next(queue))


def test_refills_until_enough_are_kept_and_carries_the_surplus():
    collected = collect(serve([1, 2, 4], [3, 5, 7]), mixed, wanted=3, carried=None, max_tries=5)
    assert collected.groups.problem.tolist() == [1, 3, 5]
    assert collected.surplus.problem.tolist() == [7]
    assert (collected.tries, collected.filtered_ratio, collected.complete) == (2, pytest.approx(2 / 6), True)
    assert collected.sampled.problem.tolist() == [1, 2, 4, 3, 5, 7]


def test_carried_groups_fill_up_behind_fresh_ones():
    collected = collect(serve([1, 3]), mixed, wanted=3, carried=groups(11, 13), max_tries=5)
    assert collected.groups.problem.tolist() == [1, 3, 11]
    assert collected.surplus is None, "what was carried over and not needed is let go"
    assert collected.sampled.problem.tolist() == [1, 3]


def test_the_surplus_never_grows_and_is_never_older_than_one_rollout():
    carried = None
    for step in range(10):
        drawn = range(10 * step + 1, 10 * step + 9, 2)
        collected = collect(serve(drawn), mixed, wanted=3, carried=carried, max_tries=1)
        assert set(collected.groups.problem) <= set(drawn)
        assert collected.surplus.problem.tolist() == [10 * step + 7]
        carried = collected.surplus


def test_gives_up_after_the_stated_tries():
    collected = collect(serve([1, 2], [4, 6], [3, 8]), mixed, wanted=3, carried=None, max_tries=2)
    assert collected.groups.problem.tolist() == [1]
    assert (collected.tries, collected.complete, collected.surplus) == (2, False, None)


def test_without_a_filter_one_try_is_enough():
    collected = collect(serve([2, 4, 6]), None, wanted=3, carried=None, max_tries=5)
    assert collected.groups.problem.tolist() == [2, 4, 6]
    assert (collected.tries, collected.filtered_ratio, collected.surplus) == (1, 0.0, None)


def test_padding_adds_groups_that_hold_no_token():
    padded = pad(groups(1, 3), 4)
    assert padded.count == 4
    assert padded.mask.reshape(4, -1).any(axis=1).tolist() == [True, True, False, False]
    assert padded.prompt_mask.any(axis=1).all(), "every row needs a token to attend to"
    assert take(padded, slice(0, 2)).problem.tolist() == [1, 3]
    assert concatenate([groups(1), groups(3)]).problem.tolist() == [1, 3]
