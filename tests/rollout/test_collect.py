"""Tests of dynamic sampling: refilling a batch, dropping groups, carrying groups over, and giving up."""

import numpy as np
import pytest

from rljax.algorithms import Rollout
from rljax.errors import InputError
from rljax.rollout.groups import Groups, collect, concatenate, from_dict, pad, take, to_dict


def make_groups(*prompt_ids):
    """Build groups of two responses; only the first response gets reward 1, and only if the prompt id is odd."""
    count = len(prompt_ids)
    rewards = np.array([[prompt_id % 2, 0] for prompt_id in prompt_ids], np.float32).reshape(count, 2)
    ones = np.ones((count, 2, 3), np.float32)
    return Groups(
        rollout=Rollout(
            mask=ones.astype(bool),
            behaviour_logp=-ones,
            policy_logp=-ones,
            rewards=rewards,
            truncated=np.zeros((count, 2), bool),
            valid=np.ones((count, 2), bool),
        ),
        prompt_ids=np.array(prompt_ids, int),
        prompt_tokens=np.ones((count, 4), np.int32),
        prompt_attention=np.ones((count, 4), bool),
        tokens=ones.astype(np.int32),
        attention=ones.astype(bool),
        version=np.zeros((count, 2), np.int32),
        turns=np.ones((count, 2), np.int32),
        failed=np.zeros((count, 2), np.int8),
    )


def has_mixed_rewards(sampled):
    return sampled.rollout.rewards[:, 0] != sampled.rollout.rewards[:, 1]


def make_sampler(*batches):
    """Return the arguments `sample` and `place` of `collect`; each call of `sample` returns the next batch."""
    return lambda position: (position + 1, make_groups(*batches[position])), 0


def test_collect_refills_batch_and_carries_surplus():
    position, collected = collect(
        *make_sampler([1, 2, 4], [3, 5, 7]), has_mixed_rewards, wanted=3, carried=None, max_tries=5
    )
    assert collected.groups.prompt_ids.tolist() == [1, 3, 5]
    assert collected.surplus.prompt_ids.tolist() == [7]
    assert (collected.tries, collected.filtered_ratio, collected.complete) == (2, pytest.approx(2 / 6), True)
    assert collected.sampled.prompt_ids.tolist() == [1, 2, 4, 3, 5, 7]
    assert position == 2, "the next call must sample a new batch"


def test_collect_uses_carried_groups_after_fresh_ones():
    _, collected = collect(*make_sampler([1, 3]), has_mixed_rewards, wanted=3, carried=make_groups(11, 13), max_tries=5)
    assert collected.groups.prompt_ids.tolist() == [1, 3, 11]
    assert collected.surplus is None, "carried groups that are not needed must be dropped"
    assert collected.sampled.prompt_ids.tolist() == [1, 3]


def test_surplus_is_bounded_and_from_the_last_rollout():
    carried = None
    for step in range(10):
        prompt_ids = range(10 * step + 1, 10 * step + 9, 2)
        _, collected = collect(*make_sampler(prompt_ids), has_mixed_rewards, wanted=3, carried=carried, max_tries=1)
        assert set(collected.groups.prompt_ids) <= set(prompt_ids)
        assert collected.surplus.prompt_ids.tolist() == [10 * step + 7]
        carried = collected.surplus


def test_collect_gives_up_after_max_tries():
    _, collected = collect(*make_sampler([1, 2], [4, 6], [3, 8]), has_mixed_rewards, wanted=3, carried=None, max_tries=2)
    assert collected.groups.prompt_ids.tolist() == [1]
    assert (collected.tries, collected.complete, collected.surplus) == (2, False, None)


def test_collect_without_filter_needs_one_try():
    _, collected = collect(*make_sampler([2, 4, 6]), None, wanted=3, carried=None, max_tries=5)
    assert collected.groups.prompt_ids.tolist() == [2, 4, 6]
    assert (collected.tries, collected.filtered_ratio, collected.surplus) == (1, 0.0, None)


def test_pad_adds_groups_without_tokens():
    padded = pad(make_groups(1, 3), 4)
    assert padded.count == 4
    assert padded.rollout.mask.reshape(4, -1).any(axis=1).tolist() == [True, True, False, False]
    assert not padded.rollout.valid[2:].any(), "padding groups have no reward"
    np.testing.assert_array_equal(padded.rollout.valid[:2], make_groups(1, 3).rollout.valid)
    assert padded.prompt_attention.any(axis=1).all(), "every row needs a token to attend to"
    assert take(padded, slice(0, 2)).prompt_ids.tolist() == [1, 3]
    assert concatenate([make_groups(1), make_groups(3)]).prompt_ids.tolist() == [1, 3]


def test_groups_survive_dict_round_trip():
    restored = from_dict(to_dict(make_groups(1, 3)))
    assert restored.rollout.reward_parts is None
    assert restored.rollout.step_rewards is None
    np.testing.assert_array_equal(restored.rollout.rewards, make_groups(1, 3).rollout.rewards)
    np.testing.assert_array_equal(restored.prompt_ids, [1, 3])


def test_from_dict_rejects_groups_of_another_version():
    arrays = to_dict(make_groups(1, 3))
    old_format = {name: array for name, array in arrays.items() if name != "turns"} | {"parts": {}}
    with pytest.raises(
        InputError, match=r"another version of rljax: they differ in the fields parts, turns\. Continue with"
    ):
        from_dict(old_format)
