"""Concurrent calls of environments, and episodes whose environment fails in every possible way."""

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
KINDS = dict(
    zip(("raised", "timed_out"), (1 + Failures._fields.index(kind) for kind in ("raised", "timed_out")), strict=True)
)


def all_end():
    """Whether all environment threads end; a slow machine may take a while."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("environment")]
    for thread in ours:
        thread.join(20)
    return not any(thread.is_alive() for thread in ours)


def forever():
    while True:
        time.sleep(0.1)


def fail():
    raise SystemExit(3)


async def wait_for(value):
    await asyncio.sleep(0.001)
    return value


async def never():
    await asyncio.Event().wait()


async def block():
    forever()


def outcomes_of(calls, *, seconds, max_concurrent=8):
    with StepRunner(seconds=seconds, max_concurrent=max_concurrent) as runner:
        return runner.start(calls).wait()


def test_outcomes_are_in_the_order_of_the_calls():
    calls = [lambda index=index: index for index in range(50)]
    assert outcomes_of(calls, seconds=None, max_concurrent=3) == list(range(50))
    assert outcomes_of([], seconds=None) == []
    assert all_end()


def test_calls_run_concurrently():
    """Each call waits for all others."""
    barrier = threading.Barrier(8)
    assert len(outcomes_of([barrier.wait] * 8, seconds=60.0)) == 8


def test_a_waiting_call_begins_when_another_ends_although_nobody_waits_for_the_batch():
    last = threading.Event()
    calls = [lambda: 1, lambda: wait_for(2), lambda: wait_for(3), last.set]
    with StepRunner(seconds=60.0, max_concurrent=1) as runner:
        batch = runner.start(calls)
        assert last.wait(30)
        assert batch.wait() == [1, 2, 3, None]
    assert all_end()


def test_calls_that_have_not_begun_when_the_runner_ends_are_dropped():
    release, begun = threading.Event(), []
    with StepRunner(seconds=60.0, max_concurrent=1) as runner:
        runner.start([release.wait, lambda: begun.append(1)])
    release.set()
    assert all_end()
    assert not begun


def test_every_kind_of_failure_has_its_outcome_and_leaves_no_thread():
    calls = [lambda: 1, fail, forever, lambda: wait_for(2), never, fail]
    one, raised, overdue, two, cancelled, again = outcomes_of(calls, seconds=5.0)
    assert (one, two) == (1, 2)
    assert isinstance(raised, Raised)
    assert isinstance(raised.error, SystemExit)
    assert isinstance(again, Raised)
    assert overdue == cancelled == Overdue(5.0)
    assert all_end()


def test_a_coroutine_that_blocks_the_event_loop_is_abandoned(monkeypatch):
    monkeypatch.setattr(environment_calls, "PATIENCE", 0.5)
    with StepRunner(seconds=5.0, max_concurrent=8) as runner:
        assert runner.start([block]).wait() == [Overdue(5.0)]
        assert runner.start([lambda: wait_for(3)]).wait() == [3], "on a new loop"
    assert all_end()


def test_calls_that_end_as_they_begin_need_no_deep_stack(monkeypatch):
    """A future that is done when its callback is added calls it at once, which starts the next call."""

    def at_once(coroutine, loop):
        del loop
        future = Future()
        with contextlib.suppress(StopIteration):
            coroutine.send(None)
        future.set_result(7)
        return future

    monkeypatch.setattr(environment_calls.asyncio, "run_coroutine_threadsafe", at_once)
    monkeypatch.setattr(StepRunner, "loop", lambda self: None)
    assert outcomes_of([wait_briefly] * 5_000, seconds=None) == [7] * 5_000


async def wait_briefly():
    """A coroutine that ends when it begins."""


def test_too_many_stuck_calls_stop_the_run(monkeypatch):
    monkeypatch.setattr(environment_calls, "MAX_STUCK", 2)
    ended = threading.Event()

    def stuck():
        while not ended.is_set():
            with contextlib.suppress(SystemExit):  # like C code, which no exception can interrupt
                time.sleep(0.01)

    with pytest.raises(InputError, match=r"3 steps are still running after their time limit of 0\.2 s"):
        outcomes_of([stuck] * 3, seconds=0.2)
    ended.set()


class Digits:
    """An engine that says one digit in each turn."""

    def generate(self, params, requests):
        return [self.say(request) for request in requests]

    def say(self, request):
        tokens = np.array([*TOKENIZER.encode(str(request.seed % 10)), TOKENIZER.eos_token_id], np.int32)
        logp = np.full(len(tokens), -0.5, np.float32)
        return Response(request.prompt_id, request.group, tokens, np.ones(len(tokens), bool), logp, logp, "stop")


class Chaos:
    """An environment of three turns; an episode's plan lists the turn and the kind of its failure."""

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
                forever()
        return Step((now + 1, turn, kind), "0", reward=1.0, done=now == 3, metrics={"digits": 1})


class AsyncChaos(Chaos):
    """`Chaos` with coroutines."""

    async def step(self, state, completion):
        if state[0] == state[1] and state[2] == "timed_out":
            await asyncio.Event().wait()
        return super().step(state, completion)


@pytest.mark.parametrize("environment", [Chaos(), AsyncChaos()], ids=["threads", "coroutines"])
def test_a_thousand_episodes_count_every_failure_once_and_leave_no_thread(environment):
    generator = random.Random(0)
    plans = [
        (generator.randrange(0, 9), "raised") for _ in range(940)
    ]  # the turn that fails: 0 is the reset; above 3, none fails
    plans = generator.sample([*plans, *[(2, "timed_out")] * 60], 1000)
    problems = [Problem("1", "", columns={"plan": list(plan)}) for plan in plans]
    requests = [Request((3,), index, index, Sampling(40, (1,)), index) for index in range(1000)]
    responses, verdicts = play(Digits(), environment, {}, requests, problems, TOKENIZER, max_failure_share=1.0)
    expected = [KINDS[kind] if turn <= 3 else 0 for turn, kind in plans]
    assert verdicts.failed.tolist() == expected
    assert set(expected) == {0, *KINDS.values()}
    assert verdicts.valid.tolist() == [not failed for failed in expected], "a failure is not a wrong answer"
    assert verdicts.rewards.tolist() == [0.0 if failed else 3.0 for failed in expected]
    assert verdicts.metrics["digits"][np.array(expected) == 0].tolist() == [3.0] * expected.count(0)
    turns = [min(max(turn, 1), 3) if failed else 3 for (turn, _), failed in zip(plans, expected, strict=True)]
    assert [response.turns for response in responses] == turns
    assert [list(problem.columns["plan"]) for problem in problems] == [list(plan) for plan in plans], (
        "the environment changes only a copy"
    )
    assert all_end()


@pytest.mark.parametrize("waits", [True, 3, 1000])
@pytest.mark.parametrize("count", [1, 7])
def test_steps_that_wait_do_not_change_the_episodes(count, waits):
    problems = [Problem("1", "", columns={"plan": [9, ""]}) for _ in range(count)]
    requests = [Request((3,), index, index, Sampling(40, (1,)), index) for index in range(count)]
    (plain, _), (waiting, _) = (
        play(Digits(), one, {}, requests, problems, TOKENIZER, max_failure_share=0.0)
        for one in (Chaos(), type("Waiting", (Chaos,), {"waits": waits})())
    )
    assert [response.tokens.tolist() for response in plain] == [response.tokens.tolist() for response in waiting]


class OneByOne:
    """An engine whose dialogue ends one turn in each draw."""

    draws = 0

    def generate(self, params, requests):
        raise AssertionError("it has a dialogue")

    def dialogue(self, params, requests):
        self.turns = dict(requests)
        return self

    def add(self, requests):
        self.turns |= requests

    def draw(self):
        self.draws += 1
        episode = min(self.turns)
        return {episode: Digits().generate({}, [self.turns.pop(episode)])[0]}


class UntilDraw:
    """The first step ends once the engine has drawn a number of times."""

    max_turns, step_seconds = 1, 2.0

    def __init__(self, engine, waits, draws):
        self.engine, self.waits, self.draws = engine, waits, draws

    def reset(self, problem):
        return int(problem.answer)

    def step(self, state, completion):
        while state == 0 and self.engine.draws < self.draws:
            time.sleep(0.01)
        return Step(state, reward=1.0)


@pytest.mark.parametrize(("waits", "draws"), [(False, 1), (True, 2), (3, 4)])
def test_the_engine_samples_as_often_as_stated_before_it_waits_for_a_step(waits, draws):
    problems = [Problem("1", str(index)) for index in range(6)]
    requests = [Request((3,), index, index, Sampling(40, (1,)), index) for index in range(6)]
    for needed, failed in ((draws, False), (draws + 1, True)):
        engine = OneByOne()
        environment = UntilDraw(engine, waits, needed)
        _, verdicts = play(engine, environment, {}, requests, problems, TOKENIZER, max_failure_share=1.0)
        assert verdicts.failed.astype(bool).tolist() == [failed] + [False] * 5


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"step_seconds": 0}, r"^environment\.step_seconds: .* must set a positive number of seconds; got 0"),
        ({"at_once": 0}, r"^environment\.at_once: .* must set a whole number of at least 1; got 0"),
        ({"waits": -1}, r"^environment\.waits: .* must set True, False or a whole number of at least 0; got -1"),
        ({"waits": 0.5}, r"^environment\.waits: .* must set True, False or a whole number of at least 0; got 0\.5"),
        ({"tools": "search"}, r"^environment\.tools: .* must set a list of functions or JSON schemas; got 'search'"),
    ],
)
def test_an_invalid_attribute_is_refused(attributes, message):
    with pytest.raises(InputError, match=message):
        play(Digits(), type("Other", (Chaos,), attributes)(), {}, [], [], TOKENIZER, max_failure_share=0.0)


@pytest.mark.parametrize("field", ["parts", "metrics"])
@pytest.mark.parametrize("numbers", [[1.0], {"a": "1"}, {"a": float("nan")}, {1: 1.0}])
def test_parts_and_metrics_must_be_finite_numbers(field, numbers):
    environment = type("Other", (Chaos,), {"step": lambda self, state, completion: Step(None, **{field: numbers})})()
    request = Request((3,), 0, 0, Sampling(8, (1,)), 0)
    problem = Problem("1", "", columns={"plan": [9, ""]})
    with pytest.raises(InputError, match=rf"^environment\.step: {field} in .* must be finite numbers by name"):
        play(Digits(), environment, {}, [request], [problem], TOKENIZER, max_failure_share=0.0)
