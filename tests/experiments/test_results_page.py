"""The committed comparisons with other libraries include every case, and the page matches them."""

import json
import statistics
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "benchmarks"
ROWS = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def benchmarks(import_benchmark):
    """The modules `run` and `report`."""
    return import_benchmark("run"), import_benchmark("report")


def test_results_have_current_titles_and_targets(benchmarks):
    run, _ = benchmarks
    assert {key: (row["title"], row["target"]) for key, row in ROWS.items()} == {
        case.key: (case.title, case.target) for case in run.CASES
    }


def test_rows_have_one_commit_and_machine():
    assert len({json.dumps(row["versions"]["rljax"]) for row in ROWS.values()}) == 1
    assert len({(row["machine"]["processor"], row["machine"]["cores"]) for row in ROWS.values()}) == 1


def test_page_matches_rows(benchmarks):
    _, report = benchmarks
    assert (FOLDER / "results.md").read_text(encoding="utf-8") == report.format_table(ROWS)


def test_comparison_takes_median_ratio(benchmarks):
    run, _ = benchmarks
    times = [(1.0, 3.0), (2.0, 2.0), (4.0, 20.0)]
    row = run.comparison_row(run.CASES[0], times)
    assert (row["ratio"], row["lowest"], row["highest"]) == (3.0, 1.0, 5.0)
    assert row["rounds"] == 3
    assert row["rljax_seconds"] == statistics.median(ours for ours, _ in times)


def test_verdict_marks_missed_target(benchmarks):
    _, report = benchmarks
    assert report.target_text({"target": 2.0, "ratio": 1.9}) == "≥ 2 missed"
    assert report.target_text({"target": 2.0, "ratio": 2.0}) == "≥ 2 ✓"
    assert report.target_text({"target": None, "ratio": 0.5}) == "–"
