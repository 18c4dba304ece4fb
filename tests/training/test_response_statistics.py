"""Statistics of responses, compared with loops over Python lists."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.training.metrics import REPEAT_LENGTH, commonest_share, correlation, repetition, unanimous_share

RESPONSES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=6)


def pad(responses):
    """Token ids padded to length 32 with other ids, and the true lengths."""
    lengths = np.array([len(response) for response in responses])
    rows = [response + [7 + i % 3 for i in range(32 - len(response))] for response in responses]
    return np.array(rows, np.int32), lengths


@given(RESPONSES)
def test_repetition_matches_a_count_of_unique_n_grams(responses):
    repeated_fractions = []
    for response in responses:
        runs = [tuple(response[i : i + REPEAT_LENGTH]) for i in range(len(response) - REPEAT_LENGTH + 1)]
        repeated_fractions.append(1 - len(set(runs)) / len(runs) if runs else 0.0)
    assert repetition(*pad(responses)) == pytest.approx(np.mean(repeated_fractions))


@given(RESPONSES)
def test_the_commonest_response_matches_a_counter(responses):
    counts = Counter(map(tuple, responses))
    assert commonest_share(*pad(responses)) == max(counts.values()) / len(responses)


def test_statistics_of_short_or_no_responses():
    assert repetition(np.ones((3, 5), np.int32), np.array([5, 4, 0])) == 0.0
    assert repetition(np.ones((0, 50), np.int32), np.zeros(0, int)) == 0.0
    assert commonest_share(np.ones((0, 50), np.int32), np.zeros(0, int)) == 0.0


def test_correlation_matches_numpy():
    rng = np.random.default_rng(0)
    rewards, lengths = rng.normal(size=50).astype(np.float32), rng.integers(1, 99, 50)
    assert correlation(rewards, lengths) == pytest.approx(np.corrcoef(rewards, lengths)[0, 1])
    assert correlation(rewards, np.full(50, 3)) is None
    assert correlation(np.zeros(0, np.float32), np.zeros(0, int)) is None


def groups_of(rewards, valid, correct=None):
    rollout = SimpleNamespace(rewards=np.array(rewards, np.float32), valid=np.array(valid, bool), correct=correct)
    return SimpleNamespace(rollout=rollout)


@pytest.mark.usefixtures("without_type_checks")
def test_shares_of_groups_ignore_unjudged_responses():
    rewards = [[1, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 0]]
    groups = groups_of(rewards, [[1, 1, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]])
    assert unanimous_share(groups, right=True) == pytest.approx(1 / 3), "all responses are right"
    assert unanimous_share(groups, right=False) == pytest.approx(1 / 3), "all responses are wrong"
    assert unanimous_share(groups_of(rewards, np.zeros((4, 3))), right=True) is None


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("sign", [-1, 1])
def test_groups_with_different_rewards_are_neither_all_right_nor_all_wrong(sign):
    groups = groups_of([[0.1 * sign, 0.7 * sign], [0.3 * sign, 0.2 * sign]], np.ones((2, 2)))
    assert unanimous_share(groups, right=True) == unanimous_share(groups, right=False) == 0.0


@pytest.mark.usefixtures("without_type_checks")
def test_a_verifier_decides_which_groups_are_all_right_or_all_wrong():
    correct = np.array([[0, 0], [1, 1], [1, 0]], np.float32)
    groups = groups_of([[0.1, 0.2], [1.1, 1.2], [1.1, 0.1]], np.ones((3, 2)), correct)
    assert unanimous_share(groups, right=True) == unanimous_share(groups, right=False) == pytest.approx(1 / 3)


@pytest.mark.usefixtures("without_type_checks")
def test_groups_of_one_response_do_not_count():
    assert unanimous_share(groups_of([[1.0], [0.0]], np.ones((2, 1))), right=True) is None
    assert unanimous_share(groups_of([[1.0, 1.0], [0.0, 0.0]], [[1, 1], [1, 0]]), right=False) == 0.0
