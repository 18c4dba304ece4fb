"""Alarms of a run: after a resume that drops rows, at the end of the run, and on several hosts."""

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from fake_runs import write_run

from rljax.errors import InputError
from rljax.tracking.alarms import list_raised_alarms, watch_rows
from rljax.tracking.rows import read_metrics
from rljax.tracking.trackers import Trackers
from rljax.training.checkpoints.saver import DiskWriter
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.finish import finish
from rljax.training.rl_phase import show_samples
from rljax.training.run import Run, begin_watch


@pytest.fixture
def run(tmp_path):
    """A run whose entropy has collapsed; its alarms file also has an alarm from a step that resuming discards."""
    folder = write_run(tmp_path / "run", entropy=0.001)
    folder.write_alarms([{"step": 99, "alarm": "truncated", "event": "raised"}])
    setup = SimpleNamespace(options=())
    return SimpleNamespace(folder=folder, setup=setup, disk=DiskWriter(str(folder.path), print, lambda: False, ""))


def rows_in(folder):
    return [json.loads(line) for line in folder.alarms.read_text(encoding="utf-8").splitlines()]


@pytest.mark.usefixtures("without_type_checks")
def test_a_resumed_run_has_the_alarms_of_its_remaining_rows(run):
    watch = begin_watch(run, SimpleNamespace(journal={}))
    assert watch == watch_rows(read_metrics(run.folder.metrics))[0]
    assert [(row["alarm"], row["event"]) for row in rows_in(run.folder)] == [("entropy_collapse", "raised")]


@pytest.mark.usefixtures("without_type_checks")
def test_without_metrics_there_are_no_alarms(run):
    run.folder.metrics.write_bytes(b"")
    assert begin_watch(run, SimpleNamespace(journal={})).history.steps == 0
    assert rows_in(run.folder) == []


@pytest.mark.usefixtures("without_type_checks")
def test_the_second_of_two_hosts_stops_with_the_first(run, monkeypatch):
    """If the first host stops while it waits for disk space, the other hosts, which write nothing, must stop too."""
    monkeypatch.setattr("rljax.parallel.hosts.is_first", lambda: False)
    monkeypatch.setattr("rljax.parallel.hosts.process_allgather", lambda _: np.array([True, False]))
    nothing = lambda *_: None  # noqa: E731
    run.display, run.trackers = SimpleNamespace(update=nothing), Trackers([])
    run.record = partial(Run.record, run)
    run.setup = SimpleNamespace(train=SimpleNamespace(sample_rows=lambda *_: []))
    run.config, sampled = TrainConfig(), SimpleNamespace(collected=SimpleNamespace(sampled=None))
    run.saver, run.write = SimpleNamespace(wait=lambda: None), nothing
    for call in (
        lambda: Run.log(run, "rl", 1, {}),
        lambda: Run.report(run, []),
        lambda: show_samples(run, SimpleNamespace(step=1), sampled),
        lambda: finish(run, None),
    ):
        with pytest.raises(InputError, match=r"Host 0 \(of hosts 0 to \d+\) failed"):
            call()


@pytest.mark.usefixtures("without_type_checks")
def test_a_raised_alarm_is_a_warning_and_a_cleared_one_a_message(run):
    texts = []
    run.display = SimpleNamespace(warning=lambda text: texts.append("!"), message=texts.append)
    rows = [{"phase": "rl", "step": step, "reward": 0.5, "truncated_share": 0.9 * (step < 9)} for step in range(1, 30)]
    _, events = watch_rows(rows)
    Run.report(run, events)
    assert texts == ["!", events[-1].text()]
    assert texts[1].startswith("truncated: cleared at step ")
    assert [row["event"] for row in rows_in(run.folder)[1:]] == ["raised", "cleared"]


def test_the_last_line_of_a_run_names_its_alarms(run, tmp_path):
    (line,) = list_raised_alarms(run.folder)
    assert line.startswith("Alarms: entropy collapse (step 1")
    assert f"rljax doctor {run.folder.path}" in line
    assert list_raised_alarms(write_run(tmp_path / "good")) == []
