"""The grace period after SIGTERM: if a step takes longer, it is dropped and everything before it is saved in time."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import chex
import pytest
from small_runs import SMALL, even_length, is_time

import rljax
from rljax.errors import InputError
from rljax.tracking.rows import read_metrics
from rljax.training import phase
from rljax.training.checkpoints.checkpoint import Checkpoint
from rljax.training.config import RunConfig
from rljax.training.interrupt import INTERRUPTED, GracePeriod, Interrupted, StopRequest
from rljax.training.run import Run

PROGRAM = """
import ast, sys, time
from pathlib import Path
import rljax
from small_runs import even_length
from test_grace_period import SLOW

def reward(completions):
    if len(completions) > 4:  # not the held-out problems
        calls.append(None)
    if len(calls) == 2:
        print("judging", flush=True)
        time.sleep(600)
    return even_length(completions)

calls = []
rljax.train(SLOW.replace(run=sys.argv[1], **ast.literal_eval(sys.argv[2])), reward)
"""
SLOW = SMALL.replace(
    algorithm="grpo",
    train_problems=24,
    heldout_problems=4,
    steps=3,
    prompts=4,
    group_size=4,
    microbatch_rows=8,
    learning_rate=1e-2,
    eval_every=0,
    checkpoint_every=100,
    grace=0.5,
)
GRACE_AND_A_SAVE = 15.0
"""Time limit in seconds; most of it allows for a slow save on a busy machine."""


def untimed_metrics(run):
    return [
        {name: value for name, value in row.items() if not is_time(name)} for row in read_metrics(run / "metrics.jsonl")
    ]


@pytest.mark.parametrize("settings", [{}, {"staleness": 1, "eval_every": 1}], ids=["one after another", "overlapping"])
def test_long_step_is_dropped_and_repeated_on_resume(tmp_path, settings):
    run, uninterrupted = tmp_path / "run", tmp_path / "uninterrupted"
    here = Path(__file__).resolve()
    paths = os.pathsep.join([str(here.parents[2]), str(here.parents[1]), str(here.parent)])
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(run), str(settings)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    with process:
        lines = iter(process.stdout)
        assert any(line == "judging\n" for line in lines)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        final_output = "".join(lines)
        assert process.wait(60) == INTERRUPTED, final_output
        assert time.monotonic() - began < GRACE_AND_A_SAVE
    assert (
        "Stopped in the middle of a step, which is abandoned. Everything up to the previous step is saved." in final_output
    )
    assert not (run / ".lock").exists()
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl") if row["phase"] == "rl"] == [1]
    rljax.train(resume=run, reward=even_length)
    rljax.train(SLOW.replace(run=str(uninterrupted), **settings), even_length)
    assert untimed_metrics(run) == untimed_metrics(uninterrupted)
    chex.assert_trees_all_equal(
        *(rljax.load(folder, which="last", reward=even_length).params for folder in (run, uninterrupted))
    )


def test_only_the_first_sigterm_starts_the_grace_period():
    started = []
    for signal_number, expected in ((signal.SIGTERM, 1), (signal.SIGINT, 0)):
        started.clear()
        with StopRequest(on_sigterm=lambda: started.append(None)):
            signal.raise_signal(signal_number)
            assert len(started) == expected
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            assert len(started) == expected


def test_droppable_work_is_dropped():
    exited, grace_period = threading.Event(), GracePeriod(0.0)
    with grace_period.within(exited.set):
        grace_period.begin()
        assert exited.wait(10.0)


def test_other_work_is_finished():
    exited, grace_period = threading.Event(), GracePeriod(0.0)
    grace_period.begin()
    assert not exited.wait(0.2)
    with grace_period.within(exited.set):
        pass
    assert not exited.is_set()


@pytest.mark.parametrize(("failing", "code"), [(None, INTERRUPTED), ("save", 1), ("room", INTERRUPTED), ("close", 1)])
def test_save_and_exit_order_and_failures(monkeypatch, capsys, failing, code):
    calls = []

    def recorded_call(name, error=OSError):
        def work(*arguments):
            calls.append(name)
            if failing == name:
                raise error("gone")

        return work

    monkeypatch.setattr(phase, "end_process", calls.append)
    run = mock.Mock(
        spec=Run,
        save=recorded_call("save"),
        say_stopped=recorded_call("say"),
        saver=SimpleNamespace(wait=recorded_call("room", Interrupted)),
        trackers=SimpleNamespace(close=recorded_call("close")),
        folder=SimpleNamespace(mark_normal_end=recorded_call("mark normal end")),
    )
    phase.save_and_exit(run, mock.Mock(spec=Checkpoint))
    expected_calls = {"save": ["save", "close"], "room": ["save", "room", "close"]}
    assert calls == [*expected_calls.get(failing, ["save", "room", "say", "close", "mark normal end"]), code]
    assert ("OSError: gone" in capsys.readouterr().err) == (code == 1)


@pytest.mark.parametrize("setting", ["grace", "host_timeout"])
def test_times_of_more_than_a_year_are_refused(setting):
    with pytest.raises(InputError, match=rf"{setting} is 1e\+12; it must be at most 31,536,000, a year in seconds"):
        SMALL.replace(**{setting: 1e12})


def test_there_is_no_grace_period_by_default():
    assert RunConfig().grace is None
