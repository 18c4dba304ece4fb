"""`--restarts` restarts a run after a crash, but not if the run ends normally or is told to stop."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_cli import refused

import rljax
from rljax.cli import main
from rljax.cli.restarting import note, run_with_restarts


class FakeProcesses:
    """A stand-in for the started processes; each ends with the next exit code."""

    def __init__(self, codes, at_wait=lambda: None):
        self.codes, self.at_wait, self.words, self.signals = list(codes), at_wait, [], []

    def start(self, words):
        self.words.append(list(words))
        return self

    def wait(self):
        self.at_wait()
        return self.codes.pop(0)

    def send_signal(self, number):
        self.signals.append(number)


@pytest.mark.parametrize(
    ("codes", "restarts", "expected"),
    [([0], 3, 0), ([-9, 1, 75, 0], 3, 0), ([2], 3, 2), ([1, 130], 3, 130), ([-9, -9], 1, 137), ([1, 1, 1], 2, 1)],
)
def test_only_a_crash_leads_to_a_restart(codes, restarts, expected, capsys):
    fake = FakeProcesses(codes)
    assert run_with_restarts(["--run", "r", "--restarts", "3", "--steps", "5"], restarts, fake.start) == expected
    assert not fake.codes
    assert fake.words == [["train", "--run", "r", "--steps", "5", "--resume", "auto"]] * len(codes)
    assert capsys.readouterr().err.count("note: the run crashed (exit code ") == len(codes) - 1


def test_restart_keeps_the_resumed_folder():
    fake = FakeProcesses([1, 0])
    assert run_with_restarts(["--resume", "runs/a"], 1, fake.start) == 0
    assert fake.words[1] == ["train", "--resume", "runs/a"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_stop_signal_is_forwarded_and_ends_the_restarts(number):
    fake = FakeProcesses([-15, 0], at_wait=lambda: signal.raise_signal(number))
    before = signal.signal(number, signal.SIG_DFL)
    try:
        assert run_with_restarts(["--run", "r"], 3, fake.start) == 143
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert fake.signals == [number]


@pytest.mark.parametrize("target", ["closed pipe", "/dev/full"])
def test_unwritable_note_raises_nothing(target):
    if target == "closed pipe":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(target, os.O_WRONLY)
    with os.fdopen(writer, "w") as stream:
        for _ in range(2):
            note("one more trial", stream)


def test_ignored_signal_stays_ignored():
    """`nohup` ignores SIGHUP so that a command outlives its terminal."""
    fake = FakeProcesses([0], at_wait=lambda: signal.raise_signal(signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_with_restarts(["--run", "r"], 3, fake.start) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert fake.signals == []


TRAINING = """
import signal, sys, time
from pathlib import Path

received = []
signal.signal(signal.SIGINT, lambda *_: received.append(1))
Path("ready").touch()
while not received:
    time.sleep(0.01)
time.sleep(0.5)
Path("received").write_text(str(len(received)))
sys.exit(130)
"""


STARTER = """
import signal
import sys

from rljax.cli.restarting import note, run_with_restarts

signal.signal(signal.SIGINT, signal.default_int_handler)  # SIGINT is ignored if a shell runs the suite in the background
sys.exit(run_with_restarts(["--run", "r"], 3))
"""


def test_ctrl_c_reaches_the_training_process_once(tmp_path):
    """A terminal sends the signal to every process in the process group of its command."""
    (tmp_path / "rljax").mkdir()
    (tmp_path / "rljax" / "__init__.py").touch()
    (tmp_path / "rljax" / "__main__.py").write_text(TRAINING)  # `python -m rljax` in this directory runs this file
    (tmp_path / "starts").mkdir()
    starter = tmp_path / "starts" / "start.py"
    starter.write_text(STARTER)
    environment = os.environ | {"PYTHONPATH": str(Path(rljax.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, str(starter)], cwd=tmp_path, env=environment, start_new_session=True)
    try:
        while not (tmp_path / "ready").exists():
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "received").read_text() == "1"


@pytest.mark.parametrize("command", ["train", "sft", "pretrain"])
def test_a_command_restarts_itself(command, tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("abc " * 50)
    started = []
    monkeypatch.setattr("rljax.cli.train.run_with_restarts", lambda *arguments, program: started.append(program) or 0)
    data = [str(tmp_path / "text.txt")] if command == "pretrain" else ["--task", "sums"]
    assert main([command, *data, "--steps", "2", "--restarts", "1", "--run", str(tmp_path / "run")]) == 0
    assert started == [command]


def test_restarts_need_a_run_folder(capsys):
    refused(
        capsys, "--restarts 2 continues a crashed run from its folder, .*; add --run FOLDER", "train", "--restarts", "2"
    )
    refused(capsys, "restarts is -1; it must not be negative", "train", "--restarts", "-1")
