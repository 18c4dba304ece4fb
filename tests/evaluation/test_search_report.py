"""A search compared with as many independent responses as its tokens would pay for."""

import numpy as np
import pytest

from rljax.evaluation.answers import SampledAnswers
from rljax.evaluation.search_report import search_report, search_row


def make_row(tokens, *, problems=4, right=True):
    """The report row of a search with this many tokens, next to four 10-token responses per problem, two of them right."""
    rewards = np.tile([1.0, 0.0, 1.0, 0.0], (problems, 1))
    sampled = SampledAnswers(
        rewards, np.full((problems, 4), 10), rewards < 0, [["7", "5", "7", "5"]] * problems, None, {"critic": rewards}
    )
    known = np.ones(problems, bool)
    spent = np.full(problems, tokens)
    row = search_row(sampled, "critic", right=known & right, known=known, tokens=spent, samples=4, keep=1)
    return row, search_report(sampled, "critic", [row]).lines()[0]


@pytest.mark.parametrize(
    ("tokens", "k", "note"),
    [(25, 2, None), (65, 4, "would give 6 responses, but only 4 were sampled"), (7, 1, "are too few for one response")],
)
def test_search_row_uses_equal_tokens(tokens, k, note):
    row, line = make_row(tokens)
    assert (row.responses, row.response_tokens) == (k, 10 * k)
    assert "tokens" not in line if note is None else note in line


def test_search_report_left_out_problems():
    rewards = np.array([[1.0, 0.0], [np.nan, np.nan], [np.nan, 1.0]])
    sampled = SampledAnswers(rewards, np.full((3, 2), 10), rewards < 0, [["7", "5"]] * 3, None, {"critic": rewards})
    report = search_report(sampled, "critic", [])._replace(dropped=4)
    assert (report.single.value, report.problems, report.unjudged) == (0.75, 2, 1)
    assert report.lines() == [
        "1 problem left out: no response to them has a verdict.",
        "4 problems left out: their prompts have too many tokens.",
    ]


def test_search_row_interval_with_zero_variance():
    row, line = make_row(10)
    assert row.over_best.value == 0.5
    assert "best of 1 +50.0 points;" in line
    assert "nan" not in make_row(10, problems=1)[1]
    missed, _ = make_row(40, right=False)
    assert missed.over_best.low < -0.9 < missed.over_best.high, "four problems are too few to conclude that it is -1"
