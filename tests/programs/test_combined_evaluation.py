"""Runs that vote: the most frequent answer wins, and each run is compared with the vote."""

import numpy as np
import pytest

from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.evaluation.answers import SampledAnswers
from rljax.programs.combined_evaluation import check_comparable, vote_of
from rljax.programs.evaluation import JudgedAnswers

TRUE = "7"


def make_answers(*answers):
    """Return a run's answers, one per problem; all problems have the same true answer."""
    right = np.array([[float(answer == TRUE)] for answer in answers])
    return SampledAnswers(right, np.ones(right.shape, int), right < 0, [[answer] for answer in answers])


def test_vote_corrects_different_errors():
    runs = [make_answers("7", "7", "1", "5"), make_answers("7", "2", "7", "6"), make_answers("3", "7", "7", "7")]
    found = vote_of(("a", "b", "c"), runs)
    assert [alone.value for alone in found.alone] == [0.5, 0.5, 0.75]
    assert found.vote.value == pytest.approx((1 + 1 + 1 + 1 / 3) / 4), "three different answers win with equal probability"
    assert found.gains[0].value == pytest.approx(found.vote.value - 0.5)
    assert found.lines()[-1].startswith("vote of 3 runs: 83.3%")
    assert [row["run"] for row in found.to_json()["runs"]] == ["a", "b", "c"]


def test_vote_keeps_common_errors():
    runs = [make_answers("7", "1", "1"), make_answers("7", "1", "1"), make_answers("7", "7", "1")]
    found = vote_of(("a", "b", "c"), runs)
    assert found.vote.value == pytest.approx(1 / 3)
    assert found.gains[2].value == pytest.approx(-1 / 3)


def test_runs_with_different_rewards_or_problems_are_refused():
    first = JudgedAnswers(make_answers("7", "1"), [Problem("3+4=", TRUE)] * 2, 0, "exact", [1], [], [])
    check_comparable("b", first, first)
    with pytest.raises(InputError, match="'b' are judged by the reward 'math', and those of the first run by 'exact'"):
        check_comparable("b", first._replace(judged_by="math"), first)
    with pytest.raises(InputError, match="'b' accepts only 1 of the 2 problems"):
        check_comparable("b", first._replace(problems=first.problems[:1]), first)


def test_problem_without_a_verdict_is_left_out():
    first, second = make_answers("7", "7", "1"), make_answers("7", "7", "1")
    first.rewards[0] = np.nan
    found = vote_of(("a", "b"), [first, second])
    assert [alone.problems for alone in found.alone] == [2, 2] == [found.vote.problems, found.gains[1].problems]
    assert [alone.value for alone in found.alone] == [0.5, 0.5] == [found.vote.value, found.alone[0].value]


def test_losing_vote_is_reported_as_a_loss():
    runs = [make_answers("7", "7", "1"), make_answers("1", "1", "1"), make_answers("1", "1", "1")]
    assert "; vote minus a: -66.7 points (" in vote_of(("a", "b", "c"), runs).lines()[0]
