"""Reward functions that exit, change the working folder, close files of the run, or take too long."""

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from rljax.errors import InputError
from rljax.rewards.correctness import Failed, Failures
from rljax.rewards.reward_call import call_function, check_failures, join_results, read_result, wait_for
from rljax.rewards.reward_scores import call_reward


class Uncaught(BaseException):
    """An exception that `except Exception` does not catch."""


def raise_base_exception(completions):
    raise Uncaught("up")


def call_sys_exit(completions):
    sys.exit(0)


def call_os_exit(completions):
    os._exit(0)


async def call_sys_exit_in_coroutine(completions):
    sys.exit("later")


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (raise_base_exception, "Uncaught: up"),
        (call_sys_exit, "SystemExit: 0"),
        (call_os_exit, "SystemExit: os._exit(0)"),
        (call_sys_exit_in_coroutine, "SystemExit: later"),
    ],
)
def test_reward_that_tries_to_exit_fails(reward, message):
    (returned,) = wait_for([call_function(reward, ["a"], ["b"], {}, None)])
    result = read_result(returned, "reward", 1)
    assert not result.valid.any()
    assert result.failed.all()
    assert message in result.reason


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_child_process_of_a_reward_may_exit():
    def fork(completions):
        child = os.fork()
        if child == 0:
            os._exit(7)
        return [float(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))]

    original = os._exit
    assert call_function(fork, ["a"], ["b"], {}, None) == [7.0]
    assert os._exit is original


def test_a_reward_that_closes_files_of_the_run_is_refused():
    before = {name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}

    def closes(completions):
        for name in set(os.listdir("/proc/self/fd")) - before:
            with suppress(OSError):  # `listdir` has already closed its own descriptor
                os.close(int(name))
        return [1.0]

    with pytest.raises(InputError, match=r"the reward .*closes closed file descriptors that it had not opened"):
        call_function(closes, ["a"], ["b"], {}, None)


def test_ctrl_c_is_not_a_failure_of_the_reward():
    def interrupt(completions):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_function(interrupt, ["a"], ["b"], {}, None)


def test_a_reward_cannot_change_the_runs_working_folder(tmp_path):
    def change_folder(completions):
        os.chdir(tmp_path)
        return [float(Path.cwd() == tmp_path)]

    before = Path.cwd()
    assert call_function(change_folder, ["a"], ["b"], {}, None) == [1.0]
    assert Path.cwd() == before


def test_first_failure_is_reported_with_its_index():
    failure = Failed("raised", "KeyError: 'x'")
    calls = [read_result(values, "mine", len(values)) for values in ([1.0, None], [0.0, failure, 1.0], [failure])]
    with pytest.raises(
        InputError, match=r"failed on 2 of 6 completions .*; the first was completion 3: KeyError: 'x'\. Fix"
    ):
        check_failures(join_results(calls), "mine", 0.1)


def sleep_blocking(completions):
    time.sleep(30.0)
    return [1.0] * len(completions)


async def sleep_in_coroutine(completions):
    await asyncio.sleep(30.0)
    return [1.0] * len(completions)


@pytest.mark.parametrize("reward", [sleep_blocking, sleep_in_coroutine])
def test_slow_call_is_interrupted_and_named(reward):
    started = time.monotonic()
    (result,) = call_reward(reward, ["?"] * 2, ["a"] * 2, {}, max_failure_share=1.0, seconds=0.3)
    assert time.monotonic() - started < 20
    assert result.failures == Failures(timed_out=2)
    with pytest.raises(
        InputError, match=rf"{reward.__name__} was interrupted.*it took longer than 0.3 s \(--reward-seconds\)"
    ):
        call_reward(reward, ["?"] * 2, ["a"] * 2, {}, seconds=0.3)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    (quick,) = call_reward(lambda completions: [1.0, 0.0], ["?"] * 2, ["a"] * 2, {}, seconds=5.0)
    assert quick.values.tolist() == [1.0, 0.0]
