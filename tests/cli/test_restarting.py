"""A run that crashes is started again; one that ends by itself, or is asked to stop, is not."""

import signal

import pytest
from small_cli import refused

from rljax.cli.restarting import restarted


class Crashing:
    """Stands for the processes that are started: each ends with the next code."""

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
    [([0], 3, 0), ([-9, 1, 0], 3, 0), ([2], 3, 2), ([1, 130], 3, 130), ([-9, -9], 1, 137), ([1, 1, 1], 2, 1)],
)
def test_it_is_started_again_after_a_crash_alone(codes, restarts, expected, capsys):
    fake = Crashing(codes)
    assert restarted(["--run", "r", "--restarts", "3", "--steps", "5"], restarts, fake.start) == expected
    assert not fake.codes
    assert fake.words == [["train", "--run", "r", "--steps", "5", "--resume", "auto"]] * len(codes)
    assert capsys.readouterr().err.count("note: the run crashed (exit code ") == len(codes) - 1


def test_a_folder_to_resume_stays():
    fake = Crashing([1, 0])
    assert restarted(["--resume", "runs/a"], 1, fake.start) == 0
    assert fake.words[1] == ["train", "--resume", "runs/a"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_is_passed_on_and_ends_it(number):
    before = signal.getsignal(number)
    fake = Crashing([-15, 0], at_wait=lambda: signal.raise_signal(number))
    assert restarted(["--run", "r"], 3, fake.start) == 143
    assert fake.signals == [number]
    assert signal.getsignal(number) == before


def test_a_folder_has_to_be_named(capsys):
    refused(
        capsys, "--restarts 2 continues the run in a folder that you name; add --run FOLDER", "train", "--restarts", "2"
    )
    refused(capsys, "restarts is -1; it must not be negative", "train", "--restarts", "-1")
