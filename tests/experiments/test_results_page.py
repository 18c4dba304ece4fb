"""The committed comparisons with other libraries include every case, and the table matches the numbers."""

import importlib
import json
import statistics
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "benchmarks"
ROWS = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def benchmarks():
    """The modules of the command; they are forgotten again, because their names are short."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("run"), importlib.import_module("report")
    sys.path.remove(str(FOLDER))
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_every_case_was_measured_with_its_present_title_and_target(benchmarks):
    run, _ = benchmarks
    assert {key: (row["title"], row["target"]) for key, row in ROWS.items()} == {
        case.key: (case.title, case.target) for case in run.CASES
    }


def test_all_rows_are_of_one_commit_and_one_machine():
    assert len({json.dumps(row["versions"]["rljax"]) for row in ROWS.values()}) == 1
    assert len({(row["machine"]["processor"], row["machine"]["cores"]) for row in ROWS.values()}) == 1


def test_the_table_has_these_numbers(benchmarks):
    _, report = benchmarks
    assert (FOLDER / "results.md").read_text(encoding="utf-8") == report.table(ROWS)


def test_a_ratio_is_the_median_over_rounds_that_take_turns(benchmarks):
    run, _ = benchmarks
    times = [(1.0, 3.0), (2.0, 2.0), (4.0, 20.0)]
    row = run.comparison(run.CASES[0], times)
    assert (row["ratio"], row["lowest"], row["highest"]) == (3.0, 1.0, 5.0)
    assert row["rounds"] == 3
    assert row["rljax_seconds"] == statistics.median(ours for ours, _ in times)


def test_a_target_that_is_missed_is_marked(benchmarks):
    _, report = benchmarks
    assert report.verdict({"target": 2.0, "ratio": 1.9}) == "≥ 2 missed"
    assert report.verdict({"target": 2.0, "ratio": 2.0}) == "≥ 2 ✓"
    assert report.verdict({"target": None, "ratio": 0.5}) == "–"
