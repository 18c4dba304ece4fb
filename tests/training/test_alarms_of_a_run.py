"""Alarms of a resumed run: of the remaining rows, in the file and in the watch; at its end; and on other hosts."""

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from recorded_runs import recorded

from rljax.errors import InputError
from rljax.tracking.alarms import alarms_raised, watch_rows
from rljax.tracking.rows import read_metrics
from rljax.tracking.trackers import Trackers
from rljax.training.checkpoints.saver import DiskWriter
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.outcome import finish
from rljax.training.reinforce import show_samples
from rljax.training.run import Run, begin_watch


@pytest.fixture
def run(tmp_path):
    """A run whose entropy has collapsed, and whose alarms are of a future that was cut off."""
    folder = recorded(tmp_path / "run", entropy=0.001)
    folder.write_alarms([{"step": 99, "alarm": "truncated", "event": "raised"}])
    setup = SimpleNamespace(options=())
    return SimpleNamespace(folder=folder, setup=setup, disk=DiskWriter(str(folder.path), print, lambda: False, ""))


def rows_in(folder):
    return [json.loads(line) for line in folder.alarms.read_text(encoding="utf-8").splitlines()]


@pytest.mark.usefixtures("untyped")
def test_a_resumed_run_has_the_alarms_of_its_rows(run):
    watch = begin_watch(run, SimpleNamespace(journal={}))
    assert watch == watch_rows(read_metrics(run.folder.metrics))[0]
    assert [(row["alarm"], row["event"]) for row in rows_in(run.folder)] == [("entropy_collapse", "raised")]


@pytest.mark.usefixtures("untyped")
def test_a_run_whose_metrics_are_gone_begins_anew(run):
    run.folder.metrics.write_bytes(b"")
    assert begin_watch(run, SimpleNamespace(journal={})).history.steps == 0
    assert rows_in(run.folder) == []


@pytest.mark.usefixtures("untyped")
def test_the_second_of_two_hosts_hears_that_the_first_one_stopped(run, monkeypatch):
    """The first one may be stopped while it waits for room; the others have nothing to write, and must not continue alone."""
    monkeypatch.setattr("rljax.parallel.hosts.is_first", lambda: False)
    monkeypatch.setattr("rljax.parallel.hosts.process_allgather", lambda _: np.array([True, False]))
    nothing = lambda *_: None  # noqa: E731
    run.display, run.trackers = SimpleNamespace(update=nothing), Trackers([])
    run.record = partial(Run.record, run)
    run.setup = SimpleNamespace(train=SimpleNamespace(shown=lambda *_: []))
    run.config, sampled = TrainConfig(), SimpleNamespace(collected=SimpleNamespace(sampled=None))
    run.saver, run.write = SimpleNamespace(wait=lambda: None), nothing
    for work in (
        lambda: Run.log(run, "rl", 1, {}),
        lambda: Run.report(run, []),
        lambda: show_samples(run, SimpleNamespace(step=1), sampled),
        lambda: finish(run, None),
    ):
        with pytest.raises(InputError, match=r"Host 0 of \d+ failed"):
            work()


@pytest.mark.usefixtures("untyped")
def test_what_is_raised_is_a_warning_and_what_is_over_a_message(run):
    texts = []
    run.display = SimpleNamespace(warning=lambda text: texts.append("!"), message=texts.append)
    trouble = [{"phase": "rl", "step": step, "reward": 0.5, "truncated_share": 0.9 * (step < 9)} for step in range(1, 30)]
    _, events = watch_rows(trouble)
    Run.report(run, events)
    assert texts == ["!", events[-1].text()]
    assert texts[1].startswith("truncated: over at step ")
    assert [row["event"] for row in rows_in(run.folder)[1:]] == ["raised", "cleared"]


def test_the_end_of_a_run_names_its_alarms(run, tmp_path):
    (line,) = alarms_raised(run.folder)
    assert line.startswith("Alarms: entropy collapse (step 1")
    assert f"rljax doctor {run.folder.path}" in line
    assert alarms_raised(recorded(tmp_path / "good")) == []
