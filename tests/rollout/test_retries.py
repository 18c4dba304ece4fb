"""A judge that is down for a moment is called again; one that stays down or has a bug ends the run with its steps saved."""

import json
import re
import time

import pytest
from small_runs import SMALL, even_length, is_time

import rljax
from rljax.errors import InputError
from rljax.rewards.reward_call import FailedJudgeError, OutOfRangeError
from rljax.rollout import Step
from rljax.rollout import judging as module
from rljax.rollout.judging import Patience
from rljax.training import loop

TINY = SMALL.replace(
    **{"train_problems": 40, "heldout_problems": 4, "warm_start_steps": 0, "steps": 4, "prompts": 2, "group_size": 2},
    **{"eval_every": 2, "checkpoint_every": 3, "algorithm": "grpo", "algorithm_options": {}},
)


def failing(times, error=FailedJudgeError):
    calls = []

    def call():
        calls.append(None)
        if len(calls) <= times:
            raise error("the judge is down.")
        return len(calls)

    call.calls = calls
    return call


def test_a_failed_call_is_retried_and_the_last_failure_is_final(monkeypatch):
    messages = []
    patient = Patience((0.0, 0.0), messages.append)
    assert patient.retry(failing(2)) == 3
    assert messages == ["the judge is down. Retrying in 0 s."] * 2
    with pytest.raises(FailedJudgeError):
        patient.retry(failing(3))
    other = failing(1, InputError)
    with pytest.raises(InputError):
        patient.retry(other)
    assert len(other.calls) == 1, "an error that the user must correct is not retried"


def test_a_bug_is_retried_once_and_a_stop_is_obeyed():
    def mistaken():
        calls.append(None)
        raise FailedJudgeError("it has a mistake.") from KeyError("choices")

    calls = []
    with pytest.raises(FailedJudgeError):
        Patience((0.0,) * 5, lambda text: None).retry(mistaken)
    assert len(calls) == 2
    calls.clear()
    with pytest.raises(FailedJudgeError):
        Patience((60.0,) * 5, lambda text: None, lambda: bool(calls)).retry(mistaken)
    assert len(calls) == 1


def test_a_value_out_of_range_is_final_at_once():
    def too_large():
        calls.append(None)
        raise OutOfRangeError("it returned 3e+38.")

    calls, warnings = [], []
    with pytest.raises(OutOfRangeError):
        Patience((60.0,) * 5, warnings.append).retry(too_large)
    assert (len(calls), warnings) == (1, [])


def too_large(completions):
    return [3e38 for _ in completions]


class TooLarge:
    """An environment whose reward does not fit into 32-bit numbers."""

    max_turns = 1

    def reset(self, problem):
        return problem

    def step(self, state, action):
        return Step(state, "", reward=3e38, done=True)


@pytest.mark.parametrize("judge", [{"reward": too_large}, {"environment": TooLarge()}], ids=["reward", "environment"])
def test_a_judge_out_of_range_is_named_without_a_wait(tmp_path, judge):
    (kind,) = judge
    start = time.monotonic()
    with pytest.raises(
        InputError, match=rf"the {kind} \S*[Tt]oo.?[Ll]arge failed on 4 of 4 .*returned 3e\+38, which is not"
    ):
        rljax.train(TINY.replace(run=str(tmp_path / "run")), **judge)
    assert time.monotonic() - start < sum(module.WAITS)


class Unreachable(TooLarge):
    """An environment whose server is down."""

    def step(self, state, action):
        raise ConnectionError("the server is down")


@pytest.mark.usefixtures("impatient")
def test_an_environment_that_fails_is_named_with_its_file_and_line(tmp_path):
    line = Unreachable.step.__code__.co_firstlineno + 1
    message = rf"the environment \S*Unreachable .*ConnectionError: the server is down at {re.escape(__file__)}:{line}\."
    with pytest.raises(InputError, match=message):
        rljax.train(TINY.replace(run=str(tmp_path / "run")), environment=Unreachable())


def rows(folder):
    parsed = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not is_time(name)} for row in parsed]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(loop, "WAITS", (0.0, 0.0))


class Judge:
    """A reward that is unreachable for `times` calls, starting with call `first`."""

    def __init__(self, first, times):
        self.calls, self.down = 0, range(first, first + times)

    def __call__(self, completions):
        self.calls += 1
        if self.calls in self.down:
            raise ConnectionError("the judge is down")
        return even_length(completions)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("first", [3, 4])  # a step, and an evaluation
def test_a_reward_that_is_down_for_a_moment_changes_nothing_and_one_that_stays_down_loses_nothing(tmp_path, first):
    config = TINY.replace(run=str(tmp_path / "good"))
    rljax.train(config, Judge(0, 0))
    rljax.train(config.replace(run=str(tmp_path / "moment")), Judge(first, 2))
    assert rows(tmp_path / "moment") == rows(tmp_path / "good")
    with pytest.raises(InputError, match=r"the judge is down.*No step is lost\. To continue: rljax\.train\(resume="):
        rljax.train(config.replace(run=str(tmp_path / "down")), Judge(first, 99))
    rljax.train(resume=tmp_path / "down", reward=Judge(0, 0))
    assert rows(tmp_path / "down") == rows(tmp_path / "good")


class Echo:
    """A one-turn environment whose server is down at first."""

    max_turns = 1
    down = 2

    def reset(self, problem):
        if Echo.down:
            Echo.down -= 1
            raise ConnectionError("the server is down")
        return problem

    def step(self, state, action):
        return Step(state, "", reward=float(len(action) % 2 == 0), done=True)


@pytest.mark.usefixtures("impatient")
def test_an_environment_that_is_down_for_a_moment_restarts_its_episodes(tmp_path):
    config = TINY.replace(run=str(tmp_path / "run"), steps=1, heldout_problems=1, max_failure_share=0)
    rljax.train(config, environment=Echo())
    assert Echo.down == 0
    assert (
        "The environment" in (tmp_path / "run/log.txt").read_text()
        or "Retrying in 0 s." in (tmp_path / "run/log.txt").read_text()
    )


def test_the_waits_of_a_run_add_up_to_half_a_minute():
    assert sum(module.WAITS) == 31
