"""Metrics of the answers to held-out problems."""

import numpy as np
import pytest

from rljax.algorithms import Rollout
from rljax.evaluation.heldout import Evaluation, accuracy_by_length
from rljax.rollout import Groups


def make_evaluation(lengths, rewards, valid):
    count = len(lengths)
    attention = np.arange(40) < np.asarray(lengths)[:, None, None]
    trained = attention & (np.arange(40) != 2)  # token 2 is an observation: part of the response, but not trained on
    zeros = np.zeros((count, 1, 40), np.float32)
    return Evaluation(
        Groups(
            rollout=Rollout(
                mask=trained,
                behaviour_logp=zeros,
                policy_logp=zeros,
                rewards=np.float32(rewards)[:, None],
                truncated=np.asarray(lengths)[:, None] == 40,
                valid=np.asarray(valid)[:, None],
            ),
            prompt_ids=np.arange(count),
            prompt_tokens=np.zeros((count, 3), np.int32),
            prompt_attention=np.ones((count, 3), bool),
            tokens=np.zeros((count, 1, 40), np.int32),
            attention=attention,
            version=np.zeros((count, 1), np.int32),
            turns=np.ones((count, 1), np.int32),
            failed=np.zeros((count, 1), np.int8),
        )
    )


def test_metrics_leave_out_unjudged_answers():
    evaluation = make_evaluation([4, 20, 40, 8], [1, 0, 1, 1], [True, True, True, False])
    assert evaluation.metrics() == pytest.approx(
        {
            "accuracy": 2 / 3,
            "reward": 2 / 3,
            "judged": 3,
            "answers": 4,
            "response_length": 18.0,
            "truncated_share": 0.25,
            "accuracy_to_16_tokens": 1.0,
            "accuracy_to_32_tokens": 0.0,
            "accuracy_to_64_tokens": 1.0,
        }
    )


def test_metrics_average_reward_parts_over_judged_answers():
    evaluation = make_evaluation([4, 20, 40], [1, 0, 1], [True, True, True])
    parts = {"rules/brief": np.float32([[1], [0], [np.nan]]), "silent": np.full((3, 1), np.nan, np.float32)}
    groups = evaluation.groups
    metrics = Evaluation(groups._replace(rollout=groups.rollout._replace(reward_parts=parts))).metrics()
    assert {name: value for name, value in metrics.items() if name.startswith("reward_")} == {"reward_rules/brief": 0.5}


@pytest.mark.parametrize(("length", "most"), [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (512, 512), (513, 1024)])
def test_accuracy_by_length_ranges_double(length, most):
    assert accuracy_by_length(np.array([True]), np.array([length])) == {f"accuracy_to_{most}_tokens": 1.0}
