"""Dynamic sampling: refilling, dropping groups, carrying groups over, and giving up."""

import numpy as np
import pytest

from rljax.algorithms import Rollout
from rljax.errors import InputError
from rljax.rollout.groups import Groups, collect, concatenate, from_dict, pad, take, to_dict


def groups(*prompt_ids):
    """Groups of two responses; a group's first response has reward 1 if its prompt's number is odd."""
    count = len(prompt_ids)
    rewards = np.array([[prompt_id % 2, 0] for prompt_id in prompt_ids], np.float32).reshape(count, 2)
    token = np.ones((count, 2, 3), np.float32)
    return Groups(
        rollout=Rollout(
            mask=token.astype(bool),
            behaviour_logp=-token,
            policy_logp=-token,
            rewards=rewards,
            truncated=np.zeros((count, 2), bool),
            valid=np.ones((count, 2), bool),
        ),
        prompt_ids=np.array(prompt_ids, int),
        prompt_tokens=np.ones((count, 4), np.int32),
        prompt_attention=np.ones((count, 4), bool),
        tokens=token.astype(np.int32),
        attention=token.astype(bool),
        version=np.zeros((count, 2), np.int32),
        turns=np.ones((count, 2), np.int32),
        failed=np.zeros((count, 2), np.int8),
    )


def mixed(sampled):
    return sampled.rollout.rewards[:, 0] != sampled.rollout.rewards[:, 1]


def serve(*batches):
    """The arguments `sample` and `place` of `collect`, which serve the batches one after another."""
    return lambda place: (place + 1, groups(*batches[place])), 0


def test_collect_refills_until_enough_groups_are_kept_and_carries_the_surplus():
    place, collected = collect(*serve([1, 2, 4], [3, 5, 7]), mixed, wanted=3, carried=None, max_tries=5)
    assert collected.groups.prompt_ids.tolist() == [1, 3, 5]
    assert collected.surplus.prompt_ids.tolist() == [7]
    assert (collected.tries, collected.filtered_ratio, collected.complete) == (2, pytest.approx(2 / 6), True)
    assert collected.sampled.prompt_ids.tolist() == [1, 2, 4, 3, 5, 7]
    assert place == 2, "what was sampled is not sampled again"


def test_carried_groups_complete_the_batch_after_fresh_ones():
    _, collected = collect(*serve([1, 3]), mixed, wanted=3, carried=groups(11, 13), max_tries=5)
    assert collected.groups.prompt_ids.tolist() == [1, 3, 11]
    assert collected.surplus is None, "carried groups that are not needed are dropped"
    assert collected.sampled.prompt_ids.tolist() == [1, 3]


def test_the_surplus_never_grows_and_is_never_older_than_one_rollout():
    carried = None
    for step in range(10):
        drawn = range(10 * step + 1, 10 * step + 9, 2)
        _, collected = collect(*serve(drawn), mixed, wanted=3, carried=carried, max_tries=1)
        assert set(collected.groups.prompt_ids) <= set(drawn)
        assert collected.surplus.prompt_ids.tolist() == [10 * step + 7]
        carried = collected.surplus


def test_collect_gives_up_after_max_tries():
    _, collected = collect(*serve([1, 2], [4, 6], [3, 8]), mixed, wanted=3, carried=None, max_tries=2)
    assert collected.groups.prompt_ids.tolist() == [1]
    assert (collected.tries, collected.complete, collected.surplus) == (2, False, None)


def test_without_a_filter_one_try_is_enough():
    _, collected = collect(*serve([2, 4, 6]), None, wanted=3, carried=None, max_tries=5)
    assert collected.groups.prompt_ids.tolist() == [2, 4, 6]
    assert (collected.tries, collected.filtered_ratio, collected.surplus) == (1, 0.0, None)


def test_padding_adds_groups_without_tokens():
    padded = pad(groups(1, 3), 4)
    assert padded.count == 4
    assert padded.rollout.mask.reshape(4, -1).any(axis=1).tolist() == [True, True, False, False]
    assert not padded.rollout.valid[2:].any(), "they have no reward"
    np.testing.assert_array_equal(padded.rollout.valid[:2], groups(1, 3).rollout.valid)
    assert padded.prompt_attention.any(axis=1).all(), "every row needs a token to attend to"
    assert take(padded, slice(0, 2)).prompt_ids.tolist() == [1, 3]
    assert concatenate([groups(1), groups(3)]).prompt_ids.tolist() == [1, 3]


def test_groups_survive_a_checkpoint_s_dict():
    again = from_dict(to_dict(groups(1, 3)))
    assert again.rollout.reward_parts is None
    assert again.rollout.step_rewards is None
    np.testing.assert_array_equal(again.rollout.rewards, groups(1, 3).rollout.rewards)
    np.testing.assert_array_equal(again.prompt_ids, [1, 3])


def test_groups_of_another_version_are_refused():
    arrays = to_dict(groups(1, 3))
    before = {name: array for name, array in arrays.items() if name != "turns"} | {"parts": {}}
    with pytest.raises(InputError, match=r"saved by another version of rljax: they differ in parts, turns\. Continue with"):
        from_dict(before)
