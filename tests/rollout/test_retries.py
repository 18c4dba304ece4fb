"""Tests of retries: a judge that is briefly down is called again; one that stays down ends the run without losing steps."""

import json
import re
import time

import pytest
from small_runs import SMALL, even_length, is_time

import rljax
from rljax.errors import InputError
from rljax.rewards.reward_call import FailedJudgeError, OutOfRangeError, check_failures, read_result
from rljax.rollout import Step, judging
from rljax.rollout.judging import Patience
from rljax.training import loop

TINY = SMALL.replace(
    **{"train_problems": 40, "heldout_problems": 4, "warm_start_steps": 0, "steps": 4, "prompts": 2, "group_size": 2},
    **{"eval_every": 2, "checkpoint_every": 3, "algorithm": "grpo", "algorithm_options": {}},
)


def make_failing_call(times, error=FailedJudgeError):
    calls = []

    def call():
        calls.append(None)
        if len(calls) <= times:
            raise error("the judge is down.")
        return len(calls)

    call.calls = calls
    return call


def test_failed_calls_are_retried_up_to_a_limit(monkeypatch):
    messages = []
    patience = Patience((0.0, 0.0), messages.append)
    assert patience.retry(make_failing_call(2)) == 3
    assert messages == ["the judge is down. Retrying in 0 s."] * 2
    with pytest.raises(FailedJudgeError):
        patience.retry(make_failing_call(3))
    wrong_input = make_failing_call(1, InputError)
    with pytest.raises(InputError):
        patience.retry(wrong_input)
    assert len(wrong_input.calls) == 1, "an error that the user must correct should not be retried"


def test_bug_is_retried_once_unless_stopped():
    def raise_bug():
        calls.append(None)
        raise FailedJudgeError("it has a mistake.") from KeyError("choices")

    calls = []
    with pytest.raises(FailedJudgeError):
        Patience((0.0,) * 5, lambda text: None).retry(raise_bug)
    assert len(calls) == 2
    calls.clear()
    with pytest.raises(FailedJudgeError):
        Patience((60.0,) * 5, lambda text: None, lambda: bool(calls)).retry(raise_bug)
    assert len(calls) == 1


def test_list_of_the_wrong_length_is_retried_once_as_a_mistake():
    def answer():
        calls.append(None)
        check_failures(read_result([1.0], "mine", 2), "mine", 0.0)

    calls = []
    with pytest.raises(FailedJudgeError, match="the reward mine returned 1 value for 2 completions"):
        Patience((0.0,) * 3, lambda text: None).retry(answer)
    assert len(calls) == 2


def test_out_of_range_value_is_not_retried():
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
    """An environment whose reward is too large for float32."""

    max_turns = 1

    def reset(self, problem):
        return problem

    def step(self, state, action):
        return Step(state, "", reward=3e38, done=True)


@pytest.mark.parametrize("judge", [{"reward": too_large}, {"environment": TooLarge()}], ids=["reward", "environment"])
def test_out_of_range_reward_ends_the_run_at_once(tmp_path, judge):
    (kind,) = judge
    start = time.monotonic()
    with pytest.raises(
        InputError, match=rf"the {kind} \S*[Tt]oo.?[Ll]arge failed on 4 of 4 .*returned 3e\+38, which is not"
    ):
        rljax.train(TINY.replace(run=str(tmp_path / "run")), **judge)
    assert time.monotonic() - start < sum(judging.WAITS)


class Unreachable(TooLarge):
    """An environment whose server is always down."""

    def step(self, state, action):
        raise ConnectionError("the server is down")


@pytest.mark.usefixtures("no_waits")
def test_failed_environment_error_shows_file_and_line(tmp_path):
    line = Unreachable.step.__code__.co_firstlineno + 1
    message = rf"the environment \S*Unreachable .*ConnectionError: the server is down at {re.escape(__file__)}:{line}\."
    with pytest.raises(InputError, match=message):
        rljax.train(TINY.replace(run=str(tmp_path / "run")), environment=Unreachable())


def read_metrics(folder):
    parsed = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not is_time(name)} for row in parsed]


@pytest.fixture
def no_waits(monkeypatch):
    monkeypatch.setattr(loop, "WAITS", (0.0, 0.0))


class FlakyReward:
    """A reward that is unreachable for `times` calls, starting with call number `first`."""

    def __init__(self, first, times):
        self.calls, self.down = 0, range(first, first + times)

    def __call__(self, completions):
        self.calls += 1
        if self.calls in self.down:
            raise ConnectionError("the judge is down")
        return even_length(completions)


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize("first", [3, 4])  # call 3 is in a training step, call 4 in an evaluation
def test_unreachable_reward_does_not_change_the_run(tmp_path, first):
    config = TINY.replace(run=str(tmp_path / "good"))
    rljax.train(config, FlakyReward(0, 0))
    rljax.train(config.replace(run=str(tmp_path / "moment")), FlakyReward(first, 2))
    assert read_metrics(tmp_path / "moment") == read_metrics(tmp_path / "good")
    with pytest.raises(InputError, match=r"the judge is down.*No step is lost\. To continue: rljax\.train\(resume="):
        rljax.train(config.replace(run=str(tmp_path / "down")), FlakyReward(first, 99))
    rljax.train(resume=tmp_path / "down", reward=FlakyReward(0, 0))
    assert read_metrics(tmp_path / "down") == read_metrics(tmp_path / "good")


class FlakyEnvironment:
    """A one-turn environment whose server is down for the first two calls."""

    max_turns = 1
    down = 2

    def reset(self, problem):
        if FlakyEnvironment.down:
            FlakyEnvironment.down -= 1
            raise ConnectionError("the server is down")
        return problem

    def step(self, state, action):
        return Step(state, "", reward=float(len(action) % 2 == 0), done=True)


@pytest.mark.usefixtures("no_waits")
def test_episodes_restart_after_environment_failure(tmp_path):
    config = TINY.replace(run=str(tmp_path / "run"), steps=1, heldout_problems=1, max_failure_share=0)
    rljax.train(config, environment=FlakyEnvironment())
    assert FlakyEnvironment.down == 0
    assert (
        "The environment" in (tmp_path / "run/log.txt").read_text()
        or "Retrying in 0 s." in (tmp_path / "run/log.txt").read_text()
    )


def test_waits_add_up_to_half_a_minute():
    assert sum(judging.WAITS) == 31
