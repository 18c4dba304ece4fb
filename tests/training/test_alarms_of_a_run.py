"""Alarms of a run that goes on: those of the rows that are left, in the file and in the watch; and what its end says of them."""

import json
from types import SimpleNamespace

import pytest
from recorded_runs import recorded

from rljax.tracking.alarms import watched
from rljax.tracking.rows import read_metrics
from rljax.training.closing import alarms_raised
from rljax.training.run import Run, begin_watch


@pytest.fixture
def run(tmp_path):
    """A run whose entropy has collapsed, and whose alarms are of a future that was cut off."""
    folder = recorded(tmp_path / "run", entropy=0.001)
    folder.write_alarms([{"step": 99, "alarm": "truncated", "event": "raised"}])
    return SimpleNamespace(folder=folder, room=SimpleNamespace(attempt=lambda work: work()))


def rows_in(folder):
    return [json.loads(line) for line in folder.alarms.read_text(encoding="utf-8").splitlines()]


@pytest.mark.usefixtures("untyped")
def test_a_resumed_run_has_the_alarms_of_its_rows(run):
    watch = begin_watch(run)
    assert watch == watched(read_metrics(run.folder.metrics))[0]
    assert [(row["alarm"], row["event"]) for row in rows_in(run.folder)] == [("entropy_collapse", "raised")]


@pytest.mark.usefixtures("untyped")
def test_a_run_whose_metrics_are_gone_begins_anew(run):
    run.folder.metrics.write_bytes(b"")
    assert begin_watch(run).history.steps == 0
    assert rows_in(run.folder) == []


@pytest.mark.usefixtures("untyped")
def test_what_is_raised_is_a_warning_and_what_is_over_a_message(run):
    said = []
    run.display = SimpleNamespace(warning=lambda text: said.append("!"), message=said.append)
    trouble = [{"phase": "rl", "step": step, "reward": 0.5, "truncated_share": 0.9 * (step < 9)} for step in range(1, 30)]
    _, events = watched(trouble)
    Run.report(run, events)
    assert said == ["!", events[-1].text()]
    assert said[1].startswith("truncated: over at step ")
    assert [row["event"] for row in rows_in(run.folder)[1:]] == ["raised", "cleared"]


def test_the_end_of_a_run_names_its_alarms(run, tmp_path):
    (line,) = alarms_raised(run.folder)
    assert line.startswith("Alarms: entropy collapse (step 1")
    assert f"rljax doctor {run.folder.path}" in line
    assert alarms_raised(recorded(tmp_path / "good")) == []
