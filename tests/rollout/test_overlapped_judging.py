"""Tests of judging during sampling: the same calls and metrics as judging afterwards, and no thread is left running."""

import re
import threading
from contextlib import nullcontext
from dataclasses import replace

import jax
import numpy as np
import pytest
from run_states import first_state
from small_runs import SMALL, even_length

from rljax.data.history import no_history
from rljax.data.problem import Problem
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.rewards.correctness import Failed
from rljax.rollout import Judge, Request, Response, Sampling
from rljax.rollout.overlapped_judging import judge_while_sampling, split_into_calls
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.parts.reward import groups_per_reward_call
from rljax.training.rollout_data import make_prompt_chooser, next_rollout
from rljax.training.setup import make_setup

TOKENIZER = load_tokenizer("characters")
SAMPLING = Sampling(4, (TOKENIZER.eos_token_id,))
REQUESTS = [Request((2, 3), index // 2, index // 2, SAMPLING, seed=index) for index in range(10)]
PROBLEMS = [Problem(f"{request.group}+1=", str(request.group + 1)) for request in REQUESTS]
MAX_WAIT = 20.0
"""Longest time that one thread waits for another, in seconds."""


def make_response(request):
    """Return a response whose text is the request's seed."""
    tokens, logp = np.array(TOKENIZER.encode(str(request.seed)), np.int32), np.zeros(1, np.float32)
    return Response(request.prompt_id, request.group, tokens, np.ones(1, bool), logp, logp, "stop")


class BatchEngine:
    """An engine that generates all responses at once."""

    def generate(self, params, requests):
        return [make_response(request) for request in requests]


class StreamingEngine(BatchEngine):
    """An engine that streams the same responses in pieces; each piece is a list of request indices."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def stream(self, params, requests):
        for indices in self.pieces:
            yield {index: make_response(requests[index]) for index in indices}


def judge_with(engine, reward, *, groups=2, **options):
    judge = Judge(TOKENIZER, reward, **options)
    return judge_while_sampling(engine, judge, None, REQUESTS, PROBLEMS, 4, groups=groups, judging=nullcontext)


def record_calls(calls):
    def reward(prompts, completions):
        calls.append(list(zip(prompts, completions, strict=True)))
        return [float(text) - np.mean([float(text) for text in completions]) for text in completions]

    return reward


def engine_threads():
    return [thread for thread in threading.enumerate() if thread.name == "engine"]


REVERSED_PIECES = [[index] for index in reversed(range(10))]


@pytest.mark.parametrize(
    "engine",
    [BatchEngine(), StreamingEngine(range(10)), StreamingEngine(range(3), range(3, 10)), StreamingEngine(*REVERSED_PIECES)],
    ids=["batch", "1 piece", "2 pieces", "10 pieces"],
)
def test_reward_gets_the_same_calls_in_any_stream_order(engine):
    calls = []
    responses, verdicts = judge_with(engine, record_calls(calls))
    expected = [f"{index}" for index in range(10)]
    assert [[text for _, text in call] for call in calls] == [expected[:4], expected[4:8], expected[8:]]
    assert [prompt for call in calls for prompt, _ in call] == [problem.prompt for problem in PROBLEMS]
    assert [response.tokens.tolist() for response in responses] == [TOKENIZER.encode(text) for text in expected]
    assert verdicts.rewards.tolist() == [-1.5, -0.5, 0.5, 1.5] * 2 + [-0.5, 0.5]


def test_split_into_calls_keeps_groups_complete():
    groups = [0, 0, 0, 1, 2, 2, 3]
    requests = [Request((2,), group, group, SAMPLING, index) for index, group in enumerate(groups)]
    assert split_into_calls(requests, 2) == [[0, 1, 2, 3], [4, 5, 6]]
    assert split_into_calls(requests, 9) == [list(range(7))]


def test_reward_is_called_during_sampling():
    """The engine generates its second piece only after the first has been judged, so a run without overlap would fail."""
    is_judged = threading.Event()

    class WaitingEngine(StreamingEngine):
        def stream(self, params, requests):
            yield {index: make_response(requests[index]) for index in range(4)}
            assert is_judged.wait(MAX_WAIT), "the reward was not called during sampling"
            yield {index: make_response(requests[index]) for index in range(4, 10)}

    def reward(completions):
        assert threading.current_thread() is threading.main_thread()
        is_judged.set()
        return even_length(completions)

    assert judge_with(WaitingEngine(), reward)[1].rewards.tolist() == [0.0] * 10
    assert not engine_threads()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_engine_stops_when_the_reward_raises(error):
    has_failed = threading.Event()

    class EndlessEngine(StreamingEngine):
        def stream(self, params, requests):
            yield {index: make_response(requests[index]) for index in range(4)}
            assert has_failed.wait(MAX_WAIT)
            while True:
                yield {}

    def broken(completions):
        has_failed.set()
        raise error

    expected = InputError if error is ZeroDivisionError else error
    with pytest.raises(expected) as caught:
        judge_with(EndlessEngine(), broken)
    assert not engine_threads()
    if expected is InputError:
        assert re.search(
            rf"broken raised ZeroDivisionError.* at {re.escape(__file__)}:\d+; fix the function", str(caught.value)
        )


class FailingEngine(StreamingEngine):
    def stream(self, params, requests):
        yield from super().stream(params, requests)
        raise InputError("the server is gone")


FAULTS = {
    "engine error": (FailingEngine(range(4)), "^the server is gone$"),
    "engine error after the last response": (FailingEngine(range(10)), "^the server is gone$"),
    "repeated response after the last": (
        StreamingEngine(range(10), [2]),
        "index of an unanswered request, from 0 to 9; got 2",
    ),
    "missing responses": (
        StreamingEngine(range(4)),
        "each of 10 requests needs a response; the stream ended without one to request 4",
    ),
    "repeated response": (StreamingEngine(range(3), [2]), "index of an unanswered request, from 0 to 9; got 2"),
    "index out of range": (
        type("Eleven", (BatchEngine,), {"stream": lambda *_: iter([{10: None}])})(),
        "from 0 to 9; got 10",
    ),
    "not a dict": (type("Listed", (BatchEngine,), {"stream": lambda *_: iter([[1]])})(), r"must be a dict .*; got \[1\]"),
}


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("case", FAULTS)
def test_invalid_stream_is_rejected(case):
    engine, message = FAULTS[case]
    with pytest.raises(InputError, match=message):
        judge_with(engine, even_length)
    assert not engine_threads()


def test_failures_and_progress_are_summed_over_calls():
    counts = []

    def fail_on_4_and_5(completions, progress):
        progress(len(completions), len(completions))
        return [Failed("raised", "?") if text in "45" else 1.0 for text in completions]

    verdicts = judge_with(
        BatchEngine(), fail_on_4_and_5, max_failure_share=0.2, progress=lambda *pair: counts.append(pair)
    )[1]
    assert verdicts.failed.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert counts == [(4, 10), (8, 10), (10, 10)]
    with pytest.raises(InputError, match="failed on 2 of 10 completions"):
        judge_with(BatchEngine(), fail_on_4_and_5, max_failure_share=0.1, progress=lambda *_: None)


def test_step_rewards_are_computed_in_the_same_calls():
    def steps(prompts, completions, **columns):
        return [[(1, float(text))] for text in completions]

    verdicts = judge_with(StreamingEngine(range(10)), even_length, step_reward=steps)[1]
    assert verdicts.step_rewards.tolist() == [[float(index), 0, 0, 0] for index in range(10)]
    assert verdicts.step_end.tolist() == [[True, False, False, False]] * 10


def test_thread_local_jax_settings_are_rejected():
    with (
        jax.default_matmul_precision("highest"),
        pytest.raises(InputError, match=r"jax_default_matmul_precision is None and not 'highest'.*jax\.config\.update"),
    ):
        judge_with(StreamingEngine(range(10)), even_length)


RUN = SMALL.replace(train_problems=64, heldout_problems=4, prompts=6, group_size=4, max_tries=3, decode_slots=16)
"""A run whose rollouts sample 36 responses, to nine prompts, per try, in 16 rows."""


class EngineWithoutStream:
    """A run's engine without its `stream` method."""

    def __init__(self, engine):
        self.generate = engine.generate


def sample_rollout(reward_groups, reward, wrap_engine=lambda engine: engine):
    """Sample a rollout with dynamic sampling. Return the random state and prompt position, the history, and the groups."""
    setup, state = first_state(RUN.replace(reward_groups=reward_groups), reward=reward)
    history, choose_prompts = no_history(len(setup.train.prompts.tokens)), make_prompt_chooser(setup.config, setup.order)
    setup = setup._replace(train=replace(setup.train, engine=wrap_engine(setup.train.engine)))
    state, history, collected = next_rollout(setup, state, history, None, choose_prompts)
    return jax.device_get((state.draws, state.position)), history, collected


def reward_some(completions):
    """Reward about one completion in four, so that some groups are dropped and further tries are needed."""
    return [float(len(completion) % 4 == 1) for completion in completions]


def test_overlapped_judging_equals_judging_afterwards():
    """Groups, their order, rewards, tries and the run's state are bitwise equal, even after several tries."""
    overlapped, afterwards = sample_rollout(2, reward_some), sample_rollout(None, reward_some)
    assert overlapped[2].tries > 1
    jax.tree.map(np.testing.assert_array_equal, overlapped, afterwards)


def test_stateful_reward_gets_the_same_calls():
    """The reward gets the same calls from a streaming engine as from an engine that returns all responses at once."""

    def run(**wrap_engine):
        calls = []

        def reward(prompts, completions):
            calls.append((prompts, completions))
            longest = max(map(len, completions))
            return [float(len(calls) % 3 + (len(completion) == longest)) for completion in completions]

        return calls, sample_rollout(2, reward, **wrap_engine)

    (calls, overlapped), (expected, afterwards) = run(), run(wrap_engine=EngineWithoutStream)
    assert calls == expected
    assert [len(completions) for _, completions in calls[:5]] == [8, 8, 8, 8, 4]
    jax.tree.map(np.testing.assert_array_equal, overlapped, afterwards)


def reward_on_all_hosts(completions):
    return even_length(completions)


reward_on_all_hosts.on_all_hosts = True


@pytest.mark.parametrize(
    ("config", "message"),
    [({"reward_groups": 0}, "reward_groups is 0; it must be at least 1"), ({"reward_groups": 2}, "on_all_hosts")],
)
def test_invalid_reward_groups_are_rejected(config, message):
    with pytest.raises(InputError, match=message):
        make_setup(RUN.replace(**config), CustomParts(reward=reward_on_all_hosts))


@pytest.mark.usefixtures("without_type_checks")
def test_reward_groups_is_rejected_for_environments():
    worker = replace(make_setup(RUN, CustomParts(reward=even_length)).train, environment=object())
    assert groups_per_reward_call(RUN, worker) is None
    with pytest.raises(
        InputError,
        match="reward_groups=2 needs a reward, not an environment; leave reward_groups out",
    ):
        groups_per_reward_call(RUN.replace(reward_groups=2), worker)
