"""Progress by kind of problem: accuracies before and after, and a text that claims only what the intervals support."""

import pytest

from rljax.data.problem import Problem
from rljax.evaluation.problem_kinds import MAX_KINDS, describe_progress, kinds_of


def problems(values, column="operands"):
    return [Problem(f"p{index}", "a", columns={column: value}) for index, value in enumerate(values)]


def rows(step, rewards):
    return [
        {"step": step, "problem": index, "prompt": f"p{index}", "completion": "c", "answer": "a", "reward": reward}
        for index, reward in enumerate(rewards)
    ]


def test_kinds_of_before_and_after():
    found = kinds_of(rows(0, [1, 0, 0, 0, None]) + rows(9, [1, 1, 1, 0, 1]), problems([10, 10, 9, 9, 9]))
    assert [(kind.name, kind.before, kind.after, kind.change.problems) for kind in found] == [
        ("9 operands", 0.0, 0.5, 2),
        ("10 operands", 0.5, 1.0, 2),
    ]


def test_describe_progress_needs_significant_change():
    before = [0] * 40 + [1] * 40 + [1, 0]
    after = [1] * 40 + [0] * 40 + [1, 1]
    kinds = kinds_of(rows(0, before) + rows(9, after), problems([4] * 40 + [5] * 40 + [2] * 2))
    assert describe_progress(kinds) == [
        "Learned: 4 operands 0.0% -> 100.0% (40 problems).",
        "Worse than before: 5 operands 100.0% -> 0.0% (40 problems).",
        "No certain change: 2 operands 50.0% -> 100.0% (2 problems).",
    ]


def test_kinds_of_uses_verdicts():
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
        (range(MAX_KINDS + 1), "level", []),
        ([3, 4], "color", []),
    ],
)
def test_kinds_of_one_or_too_many_kinds(values, column, names):
    both = rows(0, [0] * len(values)) + rows(9, [1] * len(values))
    assert [kind.name for kind in kinds_of(both, problems(values, column))] == names


def test_kinds_of_ignores_other_problems():
    both = rows(0, [0, 0, 0]) + rows(9, [1, 1, 1])
    changed = [problems([2])[0], Problem("another", "a", columns={"operands": 3})]
    assert [kind.name for kind in kinds_of(both, changed)] == ["2 operands"]


def test_kinds_of_needs_both_evaluations():
    assert kinds_of([], problems([2, 3])) == []
    assert kinds_of(rows(0, [0, 1]), problems([2, 3])) == []
    assert kinds_of(rows(0, [None, None]) + rows(9, [1, 1]), problems([2, 3])) == []
    assert describe_progress([]) == []
