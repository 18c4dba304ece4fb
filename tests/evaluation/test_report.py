"""The evaluation report: metrics overall, by length and by column, on the screen and in a file."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.evaluation.answers import SampledAnswers
from rljax.evaluation.problem_kinds import choose_columns
from rljax.evaluation.report import length_parts, make_report

LEVELS = [10, 2, 2, None, "hard"]
PROBLEMS = [Problem("?", "7", columns={} if level is None else {"level": level}) for level in LEVELS]
REWARDS = [[1.0, 0.0, 1.0], [0.0, 0.0, 0.2], [np.nan, 1.0, 1.0], [np.nan] * 3, [0.0, 0.0, 0.0]]
ANSWERS = [["7", "8", "7"], ["1", "1", "7"], ["7", "7", "7"], ["7"] * 3, [None, "1", "2"]]
LENGTHS = [[1, 16, 17], [32, 33, 40], [16, 16, 16], [64, 64, 64], [9, 9, 9]]


def report(**changes):
    settings = {"at": (1, 2, 3), "columns": ["level"], "right_above": 0.5, **changes}
    answers = settings.pop("answers", ANSWERS)
    sampled = SampledAnswers(np.array(REWARDS), np.array(LENGTHS), np.array(LENGTHS) == 64, answers)
    return make_report(sampled, PROBLEMS, **settings)


def print_tables(found):
    console = Console(width=80, file=io.StringIO())
    for table in found.tables():
        console.print(table)
    return console.file.getvalue()


def values(part):
    return {name: estimate.value for name, estimate in part.measures.items()}


def test_report_metrics_over_all_problems():
    expected = {
        "avg@3": (2 / 3 + 0 + 1 + 0) / 4,
        "pass@1": (2 / 3 + 0 + 1 + 0) / 4,
        "pass@2": (1 + 0 + 1 + 0) / 4,
        "pass@3": (1 + 0 + 0) / 3,
        "maj@2": ((1 + 0.5 + 0.5) / 3 + 0 + 1 + 0) / 4,
        "maj@3": (1 + 0 + 0) / 3,
        "truncated": 1 / 5,
        "reward": (2 / 3 + 0.2 / 3 + 1 + 0) / 4,
        "response_length": np.mean(LENGTHS),
    }
    whole = report().whole
    assert values(whole) == pytest.approx(expected)
    problems = {name: estimate.problems for name, estimate in whole.measures.items()}
    assert (problems["avg@3"], problems["pass@3"], problems["truncated"]) == (4, 3, 5)


def test_report_right_above_limit():
    assert values(report(right_above=0.0).whole)["pass@3"] == pytest.approx(2 / 3)
    assert values(report(right_above=0.2).whole)["pass@3"] == pytest.approx(1 / 3)
    assert values(report(right_above=1.0).whole)["pass@3"] == 0


def test_report_expected_score():
    found = report(out_of=15)
    assert values(found.whole)["score"] == pytest.approx(15 * values(found.whole)["avg@3"])
    assert "; expected score 6.2" in found.headline()
    assert "of 15" in found.headline()
    assert "score" not in report().whole.measures


def test_report_contains_group_gap():
    halves = [Problem("?", "7", columns={"level": index % 2}) for index in range(40)]
    right = np.array([[float(index % 2)] for index in range(40)])
    sampled = SampledAnswers(right, np.ones((40, 1), int), right < 0, [["7"]] * 40)
    found = make_report(sampled, halves, at=(1,), columns=["level"])
    assert found.lines()[0].startswith("By level: 1 is 100.0 points above 0")
    assert found.to_json()["gaps"]["level"]["best"] == "1"


def test_report_without_answers_has_no_vote():
    assert not [name for name in report(answers=[[None] * 3] * 5).whole.measures if name.startswith("maj@")]


def test_report_orders_column_values():
    parts = report().by_column["level"]
    assert [(part.label, part.count) for part in parts] == [("2", 2), ("10", 1), ("-", 1), ("hard", 1)]
    assert values(parts[0])["avg@3"] == pytest.approx(0.5)
    assert values(parts[1])["avg@3"] == pytest.approx(2 / 3)
    assert np.isnan(values(parts[2])["avg@3"])


def test_report_by_length():
    parts = report().by_length
    found = [(part.label, part.count, part.measures["accuracy"].value) for part in parts]
    assert found == [("1 to 16", 7, pytest.approx(3 / 7)), ("17 to 32", 2, 0.5), ("33 to 64", 2, 0.0)]
    assert [part.measures["accuracy"].problems for part in parts] == [3, 2, 1]
    assert length_parts(*np.zeros((2, 4, 1), bool), np.ones((4, 1), int)) == []


def test_report_json_has_no_nan():
    text = json.dumps(report().to_json(), allow_nan=False)
    (missing,) = (part for part in json.loads(text)["by_column"]["level"] if part["label"] == "-")
    assert missing["measures"]["avg@3"] == {"value": None, "low": None, "high": None, "problems": 0}


def test_report_tables_and_headline():
    found = report()
    shown = print_tables(found)
    for words in ("avg@3", "pass@2", "maj@3", "response length", "17 to 32", "By level", "66.7%", "hard"):
        assert words in shown, words
    assert max(map(len, shown.splitlines())) <= 80
    assert "share of rewards above 0.5: 41.7% (95 % interval" in found.headline()
    assert "on 4 of 5 problems, 3 answers each, 4 answers not judged, mean reward 0.433" in found.headline()
    assert "20.0% truncated" in found.headline()


def test_report_escapes_terminal_commands():
    problems = [Problem("?", "7", columns={"level": "[red]\x1b[31m"}) for _ in LEVELS]
    sampled = SampledAnswers(np.array(REWARDS), np.array(LENGTHS), np.array(LENGTHS) == 64, ANSWERS)
    assert r"[red]\x1b[31m" in print_tables(make_report(sampled, problems, at=(1,), columns=["level"]))


def test_choose_columns():
    assert choose_columns(PROBLEMS, None) == ["level"]
    assert choose_columns(PROBLEMS, ["level", "level"]) == ["level"]
    assert choose_columns(PROBLEMS, []) == []
    with pytest.raises(InputError, match="--by color: the problems have no such column; choose among level"):
        choose_columns(PROBLEMS, ["level", "color"])
    with pytest.raises(InputError, match="no such column; they have no columns at all"):
        choose_columns([Problem("?", "7")], ["level"])


def test_report_of_reward_that_only_subtracts():
    """3 of 8 answers break a rule; an answer that breaks none has a reward of 0."""
    rewards = np.array([[0.0], [0.0], [-1.0], [0.0], [-0.5], [0.0], [0.0], [-1.5]])
    nothing = [[None]] * 8
    kept = SampledAnswers(rewards, np.ones((8, 1), int), rewards > 1, nothing, only_subtracts=True)
    found = make_report(kept, [Problem("?", "")] * 8, at=[1], columns=[])
    assert found.headline().startswith("share of answers from which the reward subtracts nothing: 62.5% (95 % interval")
    assert kept._replace(only_subtracts=False).measured(None) == "share of rewards above 0"
    assert kept.measured(-0.7) == "share of rewards above -0.7"
