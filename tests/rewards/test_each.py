"""Rewards that judge one completion per call: a call gets one entry of each column, and a failure affects no other call."""

import os

import numpy as np
import pytest

from rljax.errors import InputError
from rljax.rewards.correctness import Failed, Failures
from rljax.rewards.each import each
from rljax.rewards.format import in_tags
from rljax.rewards.reward_scores import judge

PROMPTS, COMPLETIONS = ["a", "b", "c", "d"], ["one", "three", "five", ""]

MODULE = """
import os, time

def judge(prompt, completion, level=0):
    if completion == "three":
        time.sleep(60)
    if not completion:
        raise ValueError("nothing")
    return os.getpid() if level == 7 else len(completion) + level
"""


def by_length(completion, level):
    if not completion:
        raise ValueError("nothing\nto see")
    return None if completion == "five" else float(len(completion) * level)


def test_each_call_gets_the_entries_of_its_completion():
    progress = []
    outcomes = each(by_length)(
        PROMPTS, COMPLETIONS, lambda *counts: progress.append(counts), level=[1, 2, 3, 4], other=[0] * 4
    )
    assert outcomes == [3.0, 10.0, None, Failed("raised", "ValueError: nothing to see")]
    assert progress == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_kwargs_receive_every_column():
    def check_arguments(**entries):
        assert entries == {"prompt": "a", "completion": "one", "level": 3}
        return 1

    assert each(check_arguments)(["a"], ["one"], level=[3]) == [1]
    assert each(lambda prompt: len(prompt) + 1)(PROMPTS, COMPLETIONS) == [2] * 4


def test_failures_are_counted_but_abstentions_are_not():
    reward = each(by_length)
    assert reward.__qualname__ == "each(by_length)"
    scores = judge(reward, PROMPTS, COMPLETIONS, {"level": [1, 2, 3, 4]})
    assert scores.valid.tolist() == [True, True, False, False]
    assert scores.total.tolist() == [3.0, 10.0, 0.0, 0.0]
    assert scores.failures == {"each(by_length)": Failures(raised=1)}
    np.testing.assert_array_equal(scores.parts["each(by_length)"], [3.0, 10.0, np.nan, np.nan])
    with pytest.raises(InputError, match=r"needs level, but the data has the columns prompt, completion"):
        reward(PROMPTS, COMPLETIONS)


def test_calls_with_a_time_limit_run_in_workers(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    reward = each(f"{tmp_path}/mine.py:judge", seconds=0.5, workers=2)
    progress = []
    outcomes = reward(PROMPTS, COMPLETIONS, lambda *counts: progress.append(counts), level=[1, 1, 1, 1])
    assert outcomes == [4, Failed("timed_out", "no answer within 0.5 s"), 5, Failed("raised", "ValueError: nothing")]
    assert progress[-1] == (4, 4)
    first, second = (reward(["a"], ["x"], level=[7])[0] for _ in range(2))
    assert first == second != os.getpid()


def test_a_function_that_workers_can_import_may_be_passed_directly():
    reward = each(in_tags, seconds=20.0, workers=1)
    assert reward(["?"] * 2, ["<a>1</a>", "1"], names=[["a"], ["a"]]) == [True, False]


@pytest.mark.parametrize(
    "function", [lambda completion: 1.0, type("Judge", (), {"__call__": lambda self, completion: 1.0})()]
)
def test_a_function_that_workers_cannot_import_is_refused(function):
    assert each(function)(["?"], ["x"]) == [1.0]
    with pytest.raises(
        InputError, match=r"a worker process cannot import the function .*; define it at the top level of a file"
    ):
        each(function, seconds=1.0)


def test_a_function_of_the_main_script_is_refused(monkeypatch):
    monkeypatch.setattr(by_length, "__module__", "__main__")
    with pytest.raises(InputError, match=r"cannot import the function __main__\.by_length"):
        each(by_length, seconds=1.0)


def test_worker_options_need_a_time_limit():
    for options in ({"workers": 2}, {"memory": 10}):
        with pytest.raises(InputError, match="set `seconds`, or remove them"):
            each(by_length, **options)
    with pytest.raises(InputError, match=r"time limit of .* is -1"):
        each("math:sqrt", seconds=-1)
