"""What is said of held-out answers."""

import numpy as np
import pytest

from rljax.evaluation.greedy import Evaluation, accuracy_by_length, wilson_interval
from rljax.rollout import Groups


def answered(lengths, rewards, valid):
    count = len(lengths)
    mask = np.arange(40) < np.asarray(lengths)[:, None, None]
    shape = (count, 1, 40)
    zeros = np.zeros(shape, np.float32)
    return Evaluation(
        Groups(
            problem=np.arange(count),
            prompt_tokens=np.zeros((count, 3), int),
            prompt_mask=np.ones((count, 3), bool),
            tokens=zeros.astype(int),
            mask=mask,
            behaviour_logp=zeros,
            policy_logp=zeros,
            truncated=np.asarray(lengths)[:, None] == 40,
            rewards=np.float32(rewards)[:, None],
            valid=np.asarray(valid)[:, None],
            failed=np.zeros((count, 1), np.int8),
        )
    )


def test_averages_leave_out_what_has_no_opinion():
    evaluation = answered([4, 20, 40, 8], [1, 0, 1, 1], [True, True, True, False])
    assert evaluation.metrics() == pytest.approx(
        {
            "accuracy": 2 / 3,
            "reward": 2 / 3,
            "response_length": 18.0,
            "truncated_share": 0.25,
            "accuracy_to_16_tokens": 1.0,
            "accuracy_to_32_tokens": 0.0,
            "accuracy_to_64_tokens": 1.0,
        }
    )


@pytest.mark.parametrize(("length", "most"), [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (512, 512), (513, 1024)])
def test_length_ranges_double(length, most):
    assert accuracy_by_length(np.array([True]), np.array([length])) == {f"accuracy_to_{most}_tokens": 1.0}


def test_the_interval_is_wilsons():
    low, high = wilson_interval(50, 100)
    assert (low, high) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson_interval(0, 0) == (0.0, 1.0)
