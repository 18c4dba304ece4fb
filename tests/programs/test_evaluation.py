"""Optional parts of an evaluation report: the expected AIME score, the accuracy of answer choosers, and calibration."""

import numpy as np

from rljax.data.problem import Problem
from rljax.evaluation.answers import SampledAnswers
from rljax.programs.evaluation import JudgedAnswers, report_of

PROBLEMS = [Problem(f"{n}?", "7") for n in range(4)]
RIGHT = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])


def make_judged(judged_by="math", choosers=(), **changes):
    sampled = SampledAnswers(RIGHT, np.ones(RIGHT.shape, int), RIGHT < 0, [["7", "8"]] * 4, RIGHT)._replace(**changes)
    return JudgedAnswers(sampled, PROBLEMS, 0, judged_by, [1, 2], [], list(choosers))


def test_aime_headline_has_an_expected_score():
    assert "; expected score 7.5 (" in report_of(make_judged("aime")).headline()
    assert report_of(make_judged("aime")).headline().endswith("of 15")
    assert "expected score" not in report_of(make_judged()).headline()


def test_choosers_have_a_table_and_rows():
    report = report_of(make_judged(choosers=["verifier", "critic"], scores={"critic": 1 - RIGHT}))
    assert [row["value"] for row in report.to_json()["chosen"]["critic"]] == [0.5, 0.25]
    assert "Accuracy of the chosen response" in [table.title for table in report.tables()]


def test_calibration_of_stated_confidences():
    report = report_of(make_judged(confidence=np.full(RIGHT.shape, 0.9)))
    (line,) = report.lines()
    assert line.startswith("Calibration: 100.0% of the answers state a confidence: mean 90.0%")
    assert abs(report.to_json()["calibration"]["error"]["value"] - 0.4) < 1e-9
    assert report_of(make_judged()).to_json()["calibration"] is None
