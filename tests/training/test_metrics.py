"""Step metrics: they match values computed by hand, and are absent if there is nothing to measure."""

import math

import numpy as np
import pytest

from rljax.algorithms import LossMetrics, Rollout
from rljax.rollout import Collected, Groups
from rljax.training.metrics import (
    CriticMetrics,
    LearnMetrics,
    UpdateMetrics,
    average_critic_updates,
    average_updates,
    mean_of,
    present,
    rollout_metrics,
)

LENGTHS = np.array([[1, 3], [2, 0]])


def groups(*, valid, rewards=((1.0, 0.0), (0.5, 0.0))):
    """Two groups of up to two responses; the last slot is empty."""
    attention = np.arange(3) < LENGTHS[..., None]
    logp = np.zeros(attention.shape, np.float32)
    return Groups(
        rollout=Rollout(
            mask=attention,
            behaviour_logp=logp,
            policy_logp=logp,
            rewards=np.array(rewards, np.float32),
            truncated=np.array([[False, True], [False, True]]),
            valid=np.array(valid),
            reward_parts={
                "length": np.array([[1.0, np.nan], [3.0, np.nan]], np.float32),
                "style": np.full((2, 2), np.nan, np.float32),
            },
        ),
        prompt_ids=np.array([3, 4]),
        prompt_tokens=np.ones((2, 2), np.int32),
        prompt_attention=np.ones((2, 2), bool),
        tokens=np.ones(attention.shape, np.int32),
        attention=attention,
        version=np.array([[5, 5], [7, 0]], np.int32),
        turns=np.array([[1, 4], [2, 0]], np.int32),
        failed=np.array([[0, 2], [0, 0]], np.int8),
    )


def measure(sampled, **changes):
    collected = Collected(groups=sampled, surplus=None, sampled=sampled, tries=2, filtered_ratio=0.25, complete=True)
    return present(rollout_metrics(collected._replace(**changes), wanted=5, version=8, seconds=2.0))


def test_metrics_of_a_rollout_match_values_computed_by_hand():
    metrics = measure(groups(valid=[[True, True], [True, False]]))
    assert metrics == {
        "reward": pytest.approx(0.5),
        "accuracy": pytest.approx(2 / 3),
        "response_length": 2.0,
        "turns": pytest.approx(7 / 3),
        "truncated_share": pytest.approx(1 / 3),
        "group_size": 1.5,
        "filtered_ratio": 0.25,
        "tries": 2.0,
        "trained_groups": 2.0,
        "unfilled_groups": 3.0,
        "unjudged": 1.0,
        "staleness": pytest.approx((3 + 3 + 1) / 3),
        "tokens_per_second": 3.0,
        "seconds": 2.0,
        "reward_variance": pytest.approx((0.25 + 0.25) / 3),
        "groups_all_right": 0.0,
        "groups_all_wrong": 0.0,
        "reward_length_correlation": pytest.approx(-1.0),
        "repetition": 0.0,
        "commonest_response": pytest.approx(1 / 3),
        "reward_length": 2.0,
        "reward_timed_out": 1.0,
    }


def test_reward_metrics_are_absent_if_the_reward_always_abstains():
    numbers = measure(groups(valid=[[False, False], [False, False]]))
    assert not {"reward", "accuracy"} & set(numbers)
    assert all(np.isfinite(value) for value in numbers.values())


def test_without_updates_there_are_no_update_metrics():
    assert present(LearnMetrics()) == {}
    nothing = LossMetrics(*(np.float32(0),) * 5, None, {})
    assert present(UpdateMetrics(nothing, 0.5)) == {"grad_norm": 0.5, "skipped_updates": 0.0}
    assert mean_of([]) is None


def test_update_metrics_and_loss_terms_are_averaged():
    one, three = (LossMetrics(*(np.float32(x),) * 5, None, {"entropy_bonus": np.float32(x)}) for x in (1, 3))
    mean = present(mean_of([UpdateMetrics(one, 1.0, learning_rate=0.1), UpdateMetrics(three, 3.0, learning_rate=0.3)]))
    names = {"loss", "clip_fraction", "kl", "ratio", "entropy_bonus", "grad_norm"}
    assert mean == {**dict.fromkeys(names, 2.0), "skipped_updates": 0.0, "learning_rate": pytest.approx(0.2)}


def test_skipped_updates_are_counted_and_left_out_of_averages():
    valid_update, skipped_update = CriticMetrics(1.0, 0.5, 2.0), CriticMetrics(math.nan, math.nan, math.inf, 1.0)
    assert present(average_critic_updates([valid_update, skipped_update, skipped_update, valid_update])) == present(
        valid_update
    ) | {"skipped_value_updates": 0.5}
    assert present(average_critic_updates([skipped_update])) == {"skipped_value_updates": 1.0}
    assert present(average_updates([UpdateMetrics(None, math.nan, 1.0)])) == {"skipped_updates": 1.0}
    assert average_updates([]) is average_critic_updates([]) is None
