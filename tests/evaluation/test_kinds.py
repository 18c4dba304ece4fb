"""Progress by kind of problem: shares are counted by hand, and the text claims no more than the interval supports."""

import pytest

from rljax.data.problem import Problem
from rljax.evaluation.kinds import MOST_KINDS, describe_progress, kinds_of


def problems(values, column="operands"):
    return [Problem(f"p{place}", "a", columns={column: value}) for place, value in enumerate(values)]


def rows(step, rewards):
    return [
        {"step": step, "problem": place, "prompt": f"p{place}", "completion": "c", "answer": "a", "reward": reward}
        for place, reward in enumerate(rewards)
    ]


def test_shares_before_and_after_are_counted_by_kind():
    found = kinds_of(rows(0, [1, 0, 0, 0, None]) + rows(9, [1, 1, 1, 0, 1]), problems([10, 10, 9, 9, 9]))
    assert [(kind.name, kind.before, kind.after, kind.change.problems) for kind in found] == [
        ("9 operands", 0.0, 0.5, 2),
        ("10 operands", 0.5, 1.0, 2),
    ]


def test_only_a_significant_change_is_called_learned():
    before = [0] * 40 + [1] * 40 + [1, 0]
    after = [1] * 40 + [0] * 40 + [1, 1]
    kinds = kinds_of(rows(0, before) + rows(9, after), problems([4] * 40 + [5] * 40 + [2] * 2))
    assert describe_progress(kinds) == [
        "Learned: 4 operands 0.0% -> 100.0% (40 problems).",
        "Worse than before: 5 operands 100.0% -> 0.0% (40 problems).",
        "No certain change: 2 operands 50.0% -> 100.0% (2 problems).",
    ]


def test_a_verifier_decides_and_answers_without_a_verdict_are_not_counted():
    before = [
        {**row, "correct": correct} for row, correct in zip(rows(0, [0.1, 0.1, 0.1]), (False, True, None), strict=True)
    ]
    after = [{**row, "correct": correct} for row, correct in zip(rows(9, [0.1, 0.1, 0.1]), (True, True, None), strict=True)]
    (kind,) = kinds_of(before + after, problems([2, 2, 3]))
    assert (kind.name, kind.before, kind.after, kind.change.problems) == ("2 operands", 0.5, 1.0, 2)


@pytest.mark.parametrize(
    ("values", "column", "names"),
    [
        (["algebra", "geometry"], "subject", ["subject algebra", "subject geometry"]),
        (["algebra", None], "subject", ["subject -", "subject algebra"]),
        ([3, 3], "level", []),
        (range(MOST_KINDS + 1), "level", []),
        ([3, 4], "color", []),
    ],
)
def test_problems_of_one_kind_or_of_too_many_are_not_split(values, column, names):
    both = rows(0, [0] * len(values)) + rows(9, [1] * len(values))
    assert [kind.name for kind in kinds_of(both, problems(values, column))] == names


def test_answers_to_other_problems_are_left_out():
    both = rows(0, [0, 0, 0]) + rows(9, [1, 1, 1])
    changed = [problems([2])[0], Problem("another", "a", columns={"operands": 3})]
    assert [kind.name for kind in kinds_of(both, changed)] == ["2 operands"]


def test_a_run_without_answers_before_and_after_has_no_progress():
    assert kinds_of([], problems([2, 3])) == []
    assert kinds_of(rows(0, [0, 1]), problems([2, 3])) == []
    assert kinds_of(rows(0, [None, None]) + rows(9, [1, 1]), problems([2, 3])) == []
    assert describe_progress([]) == []
