"""Comparing answers before and after RL: the counts and the selected example answers."""

import pytest

from rljax.evaluation.comparison import answer_rows, compare, describe_measure, interval_of, last_answers, paired_difference
from rljax.evaluation.statistics import Estimate, wilson_interval


def rows(step, rewards, *, words="x"):
    return [
        {
            "step": step,
            "problem": index,
            "prompt": f"p{index}",
            "completion": f"{words}{reward}",
            "answer": "a",
            "reward": reward,
        }
        for index, reward in enumerate(rewards)
    ]


def test_compare_counts_changes():
    found = compare(rows(0, [0, 0, 1, 1, 0, None]) + rows(4, [1, 0, 1, 0, 1, 1]))
    assert found is not None
    assert (found.gained, found.lost, found.kept, found.missed) == (2, 1, 1, 1)
    assert [(row["prompt"], row["reward_before"], row["reward_after"]) for row in found.shown] == [
        ("p0", 0, 1), ("p4", 0, 1), ("p3", 1, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ([0, 0, 0, 0], [1, 1, 1, 1], ["p0", "p1", "p2"]),
        ([1, 1, 1, 1], [0, 0, 0, 0], ["p0", "p1", "p2"]),
        ([0, 1, 1, 1], [1, 0, 0, 0], ["p0", "p1", "p2"]),
        ([0, 1, 0], [0, 1, 1], ["p2"]),
        ([0, 1], [0, 1], []),
        ([-1, 0.25], [-0.5, 0.5], ["p0", "p1"]),
    ],
)
def test_compare_shows_changed_answers(before, after, shown):
    found = compare(rows(0, before) + rows(2, after))
    assert found is not None
    assert [row["prompt"] for row in found.shown] == shown


def with_verdicts(rows, correct):
    return [{**row, "correct": found} for row, found in zip(rows, correct, strict=True)]


def difference_of(one, other):
    """The paired difference of two runs with RL steps, from all their rows."""
    return paired_difference(last_answers(one), last_answers(other))


def test_compare_uses_verdicts():
    before = with_verdicts(rows(0, [0.2, 0.2, 0.2]), (False, None, True))
    after = with_verdicts(rows(2, [1.2, 0.0, 0.2]), (True, True, False))
    found = compare([*before, *after])
    assert found is not None
    assert found[:4] == (1, 1, 0, 0)
    assert [(row["correct_before"], row["correct_after"]) for row in found.shown] == [(False, True), (True, False)]
    difference = difference_of(before + after, [{**row, "step": 2} for row in before])
    assert difference is not None
    assert (difference.value, difference.problems) == (0.0, 2)
    assert interval_of(0.5, before + after).problems == 2
    assert [describe_measure(some) for some in (before, rows(0, [1.0]), [])] == [
        "accuracy",
        "share of rewards above 0",
        "accuracy",
    ]


def test_compare_uses_last_step_and_last_row():
    found = compare(rows(0, [1, 1]) + rows(0, [0, 0]) + rows(2, [0, 0]) + rows(4, [1, 0]))
    assert found is not None
    assert found[:4] == (1, 0, 0, 1)


@pytest.mark.parametrize("sides", [[], rows(0, [1.0]), rows(3, [1.0])])
def test_compare_needs_two_evaluations(sides):
    assert compare(sides) is None


def test_answer_rows_of_unjudged_answers():
    shown = [{"prompt": "p", "completion": "c", "answer": "a", "reward": reward} for reward in (1.0, 0.0, float("nan"))]
    assert [row["reward"] for row in answer_rows(shown, [True, False, True], 7)] == [1.0, None, None]
    assert [row["problem"] for row in answer_rows(shown, [True] * 3, 7)] == [0, 1, 2]


def test_interval_of_judged_problems():
    heldout = rows(0, [1.0, 0.0, 0.0, 1.0, None]) + rows(2, [1.0] * 5)
    found = interval_of(0.75, heldout)
    assert found == Estimate(0.75, *wilson_interval(3, 4), 4)
    assert interval_of(None, heldout) is None
    assert interval_of(0.5, []) is None


def test_paired_difference():
    one, other = rows(0, [1, 1, 1, 1]) + rows(3, [0, 0, 1, 1, 1]), rows(9, [1, 1, 0, 1, None])
    found = difference_of(one, other)
    assert found.problems == 4, "the last problem has no verdict in the other run"
    assert found.value == (1 + 1 - 1 + 0) / 4
    assert found.low < found.value < found.high
    same = difference_of(one, one)
    assert same.low < same.value == 0 < same.high, "equal answers do not prove that the models are equally accurate"
    assert difference_of(other, one).value == -found.value
    assert difference_of(one, rows(0, [1, 1])) is None, "the other run has no evaluation after RL"
    elsewhere = [row | {"prompt": "another"} for row in other]
    assert difference_of(one, elsewhere) is None


def test_the_last_answers_of_a_run_without_rl_are_at_step_0():
    assert not last_answers(rows(0, [1, 0]))
    one, other = (last_answers(rows(0, rewards), has_rl=False) for rewards in ([1, 0, 0], [1, 1, 0]))
    assert paired_difference(one, other).value == pytest.approx(1 / 3)
