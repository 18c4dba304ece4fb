"""Tests of concurrent environment calls, and of episodes whose environment raises an error or exceeds its time limit."""

import asyncio
import contextlib
import random
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest

from rljax.data.problem import Problem
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.rewards.correctness import Failures
from rljax.rollout import Request, Response, Sampling, Step, environment_calls
from rljax.rollout.environment_calls import Overdue, Raised, StepRunner
from rljax.rollout.episodes import play

TOKENIZER = load_tokenizer("characters:0123456789")
FAILURE_CODES = dict(
    zip(("raised", "timed_out"), (1 + Failures._fields.index(kind) for kind in ("raised", "timed_out")), strict=True)
)


def join_environment_threads():
    """Wait up to 20 seconds for each environment thread, and return whether all have ended."""
    environment_threads = [thread for thread in threading.enumerate() if thread.name.startswith("environment")]
    for thread in environment_threads:
        thread.join(20)
    return not any(thread.is_alive() for thread in environment_threads)


def sleep_forever():
    while True:
        time.sleep(0.1)


def exit_with_error():
    raise SystemExit(3)


async def return_later(value):
    await asyncio.sleep(0.001)
    return value


async def wait_forever():
    await asyncio.Event().wait()


async def block_event_loop():
    sleep_forever()


def run_calls(calls, *, seconds, max_concurrent=8):
    with StepRunner(seconds=seconds, max_concurrent=max_concurrent) as runner:
        return runner.start(calls).wait()


def test_outcomes_follow_call_order():
    calls = [lambda index=index: index for index in range(50)]
    assert run_calls(calls, seconds=None, max_concurrent=3) == list(range(50))
    assert run_calls([], seconds=None) == []
    assert join_environment_threads()


def test_calls_run_concurrently():
    """Each call returns only after all eight have begun."""
    barrier = threading.Barrier(8)
    assert len(run_calls([barrier.wait] * 8, seconds=60.0)) == 8


def test_queued_calls_begin_before_wait_is_called():
    last = threading.Event()
    calls = [lambda: 1, lambda: return_later(2), lambda: return_later(3), last.set]
    with StepRunner(seconds=60.0, max_concurrent=1) as runner:
        batch = runner.start(calls)
        assert last.wait(30)
        assert batch.wait() == [1, 2, 3, None]
    assert join_environment_threads()


def test_closing_the_runner_drops_queued_calls():
    release, begun = threading.Event(), []
    with StepRunner(seconds=60.0, max_concurrent=1) as runner:
        runner.start([release.wait, lambda: begun.append(1)])
    release.set()
    assert join_environment_threads()
    assert not begun


def test_failures_have_outcomes_and_leave_no_threads():
    calls = [lambda: 1, exit_with_error, sleep_forever, lambda: return_later(2), wait_forever, exit_with_error]
    one, raised, overdue, two, cancelled, raised_again = run_calls(calls, seconds=5.0)
    assert (one, two) == (1, 2)
    assert isinstance(raised, Raised)
    assert isinstance(raised.error, SystemExit)
    assert isinstance(raised_again, Raised)
    assert overdue == cancelled == Overdue(5.0)
    assert join_environment_threads()


def test_coroutine_that_blocks_the_event_loop_is_abandoned(monkeypatch):
    monkeypatch.setattr(environment_calls, "PATIENCE", 0.5)
    with StepRunner(seconds=5.0, max_concurrent=8) as runner:
        assert runner.start([block_event_loop]).wait() == [Overdue(5.0)]
        assert runner.start([lambda: return_later(3)]).wait() == [3], "the next call must run on a new event loop"
    assert join_environment_threads()


def test_immediate_results_do_not_deepen_the_stack(monkeypatch):
    """A completed future runs a new callback immediately, and the callback starts the next call, which could recurse."""

    def run_immediately(coroutine, loop):
        del loop
        future = Future()
        with contextlib.suppress(StopIteration):
            coroutine.send(None)
        future.set_result(7)
        return future

    monkeypatch.setattr(environment_calls.asyncio, "run_coroutine_threadsafe", run_immediately)
    monkeypatch.setattr(StepRunner, "loop", lambda self: None)
    assert run_calls([return_immediately] * 5_000, seconds=None) == [7] * 5_000


async def return_immediately():
    """Return without suspending."""


def test_too_many_stuck_calls_end_the_run(monkeypatch):
    monkeypatch.setattr(environment_calls, "MAX_STUCK", 2)
    ended = threading.Event()

    def stuck():
        while not ended.is_set():
            # The runner interrupts calls with SystemExit. This call ignores it, as C code would.
            with contextlib.suppress(SystemExit):
                time.sleep(0.01)

    with pytest.raises(InputError, match=r"3 steps are still running after their time limit of 0\.2 s"):
        run_calls([stuck] * 3, seconds=0.2)
    ended.set()


class DigitEngine:
    """An engine whose every turn is one digit."""

    def generate(self, params, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        tokens = np.array([*TOKENIZER.encode(str(request.seed % 10)), TOKENIZER.eos_token_id], np.int32)
        logp = np.full(len(tokens), -0.5, np.float32)
        return Response(request.prompt_id, request.group, tokens, np.ones(len(tokens), bool), logp, logp, "stop")


class FailingEnvironment:
    """A three-turn environment. The problem's "plan" column contains the failing turn and the kind of failure."""

    max_turns, step_seconds, at_once = 3, 10.0, 100

    def reset(self, problem):
        problem.columns["plan"].append("mutated")
        turn, kind = problem.columns["plan"][:2]
        if (turn, kind) == (0, "raised"):
            raise OSError("down")
        return 1, turn, kind

    def step(self, state, completion):
        now, turn, kind = state
        if now == turn:
            if kind == "raised":
                raise ValueError(completion)
            if kind == "timed_out":
                sleep_forever()
        return Step((now + 1, turn, kind), "0", reward=1.0, done=now == 3, metrics={"digits": 1})


class AsyncFailingEnvironment(FailingEnvironment):
    """A `FailingEnvironment` whose `step` is a coroutine."""

    async def step(self, state, completion):
        if state[0] == state[1] and state[2] == "timed_out":
            await asyncio.Event().wait()
        return super().step(state, completion)


@pytest.mark.parametrize("environment", [FailingEnvironment(), AsyncFailingEnvironment()], ids=["threads", "coroutines"])
def test_every_failed_episode_is_counted_once(environment):
    generator = random.Random(0)
    # In turn 0, the reset fails. A turn above 3 is never reached, so nothing fails.
    plans = [(generator.randrange(0, 9), "raised") for _ in range(940)]
    plans = generator.sample([*plans, *[(2, "timed_out")] * 60], 1000)
    problems = [Problem("1", "", columns={"plan": list(plan)}) for plan in plans]
    requests = [Request((3,), index, index, Sampling(40, (1,)), index) for index in range(1000)]
    responses, verdicts = play(DigitEngine(), environment, {}, requests, problems, TOKENIZER, max_failure_share=1.0)
    expected = [FAILURE_CODES[kind] if turn <= 3 else 0 for turn, kind in plans]
    assert verdicts.failed.tolist() == expected
    assert set(expected) == {0, *FAILURE_CODES.values()}
    assert verdicts.valid.tolist() == [not failed for failed in expected], (
        "a failed episode must be invalid, rather than count as a wrong answer"
    )
    assert verdicts.rewards.tolist() == [0.0 if failed else 3.0 for failed in expected]
    assert verdicts.metrics["digits"][np.array(expected) == 0].tolist() == [3.0] * expected.count(0)
    turns = [min(max(turn, 1), 3) if failed else 3 for (turn, _), failed in zip(plans, expected, strict=True)]
    assert [response.turns for response in responses] == turns
    assert [list(problem.columns["plan"]) for problem in problems] == [list(plan) for plan in plans], (
        "the environment must receive a copy of the problem"
    )
    assert join_environment_threads()


@pytest.mark.parametrize("waits", [True, 3, 1000])
@pytest.mark.parametrize("count", [1, 7])
def test_waits_does_not_change_the_episodes(count, waits):
    problems = [Problem("1", "", columns={"plan": [9, ""]}) for _ in range(count)]
    requests = [Request((3,), index, index, Sampling(40, (1,)), index) for index in range(count)]
    (plain, _), (waiting, _) = (
        play(DigitEngine(), one, {}, requests, problems, TOKENIZER, max_failure_share=0.0)
        for one in (FailingEnvironment(), type("Waiting", (FailingEnvironment,), {"waits": waits})())
    )
    assert [response.tokens.tolist() for response in plain] == [response.tokens.tolist() for response in waiting]


class OneTurnPerCallEngine:
    """An engine whose dialogue finishes one turn in each call of `sample_turns`."""

    calls = 0

    def generate(self, params, requests):
        raise AssertionError("the dialogue must be used instead")

    def dialogue(self, params, requests):
        self.turns = dict(requests)
        return self

    def add(self, requests):
        self.turns |= requests

    def sample_turns(self):
        self.calls += 1
        episode = min(self.turns)
        return {episode: DigitEngine().generate({}, [self.turns.pop(episode)])[0]}


class BlockingEnvironment:
    """The first episode's step blocks until the engine's `sample_turns` has been called `calls` times."""

    max_turns, step_seconds = 1, 2.0

    def __init__(self, engine, waits, calls):
        self.engine, self.waits, self.calls = engine, waits, calls

    def reset(self, problem):
        return int(problem.answer)

    def step(self, state, completion):
        while state == 0 and self.engine.calls < self.calls:
            time.sleep(0.01)
        return Step(state, reward=1.0)


@pytest.mark.parametrize(("waits", "calls"), [(False, 1), (True, 2), (3, 4)])
def test_waits_sets_how_often_the_engine_samples(waits, calls):
    problems = [Problem("1", str(index)) for index in range(6)]
    requests = [Request((3,), index, index, Sampling(40, (1,)), index) for index in range(6)]
    for needed, failed in ((calls, False), (calls + 1, True)):
        engine = OneTurnPerCallEngine()
        environment = BlockingEnvironment(engine, waits, needed)
        _, verdicts = play(engine, environment, {}, requests, problems, TOKENIZER, max_failure_share=1.0)
        assert verdicts.failed.astype(bool).tolist() == [failed] + [False] * 5


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"step_seconds": 0}, r"^environment\.step_seconds: .* must set it to a positive number of seconds; got 0"),
        ({"at_once": 0}, r"^environment\.at_once: .* must set it to a whole number of at least 1; got 0"),
        ({"waits": -1}, r"^environment\.waits: .* must set it to True, False or a whole number of at least 0; got -1"),
        ({"waits": 0.5}, r"^environment\.waits: .* must set it to True, False or a whole number of at least 0; got 0\.5"),
        ({"tools": "search"}, r"^environment\.tools: .* must set it to a list of functions or JSON schemas; got 'search'"),
    ],
)
def test_invalid_environment_attribute_is_rejected(attributes, message):
    with pytest.raises(InputError, match=message):
        play(
            DigitEngine(), type("Other", (FailingEnvironment,), attributes)(), {}, [], [], TOKENIZER, max_failure_share=0.0
        )


@pytest.mark.parametrize("field", ["parts", "metrics"])
@pytest.mark.parametrize("values", [[1.0], {"a": "1"}, {"a": float("nan")}, {1: 1.0}])
def test_step_parts_and_metrics_must_be_finite(field, values):
    environment = type(
        "Other", (FailingEnvironment,), {"step": lambda self, state, completion: Step(None, **{field: values})}
    )()
    request = Request((3,), 0, 0, Sampling(8, (1,)), 0)
    problem = Problem("1", "", columns={"plan": [9, ""]})
    with pytest.raises(InputError, match=rf"^environment\.step: {field} in .* must be finite numbers by name"):
        play(DigitEngine(), environment, {}, [request], [problem], TOKENIZER, max_failure_share=0.0)
