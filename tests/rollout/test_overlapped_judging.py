"""Judging while responses are sampled: the same calls and metrics as judging afterwards, in less time, leaving nothing running."""

import re
import threading
from contextlib import nullcontext
from dataclasses import replace

import jax
import numpy as np
import pytest
from reopened import first_state
from small_runs import SMALL, even_length

from rljax.data.history import no_history
from rljax.data.problem import Problem
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.rewards.correctness import Failed
from rljax.rollout import Judge, Request, Response, Sampling
from rljax.rollout.overlapped_judging import judge_while_sampling, split_into_calls
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.parts.reward import reward_groups
from rljax.training.scored_rollout import make_choice, next_rollout
from rljax.training.setup import make_setup

TOKENIZER = load_tokenizer("characters")
SAMPLING = Sampling(4, (TOKENIZER.eos_token_id,))
REQUESTS = [Request((2, 3), place // 2, place // 2, SAMPLING, seed=place) for place in range(10)]
PROBLEMS = [Problem(f"{request.group}+1=", str(request.group + 1)) for request in REQUESTS]
SECONDS = 20.0
"""Longest time that one thread waits for another."""


def answer(request):
    """A response that contains the request's seed."""
    tokens, logp = np.array(TOKENIZER.encode(str(request.seed)), np.int32), np.zeros(1, np.float32)
    return Response(request.prompt_id, request.group, tokens, np.ones(1, bool), logp, logp, "stop")


class Whole:
    """An engine that generates all responses at once."""

    def generate(self, params, requests):
        return [answer(request) for request in requests]


class Pieces(Whole):
    """An engine that generates the same responses in pieces, given as places of requests."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def stream(self, params, requests):
        for places in self.pieces:
            yield {place: answer(requests[place]) for place in places}


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


BACKWARDS = [[place] for place in reversed(range(10))]


@pytest.mark.parametrize(
    "engine",
    [Whole(), Pieces(range(10)), Pieces(range(3), range(3, 10)), Pieces(*BACKWARDS)],
    ids=["whole", "1", "2", "10"],
)
def test_a_reward_is_called_with_the_same_complete_groups_whatever_ends_first(engine):
    calls = []
    responses, verdicts = judge_with(engine, record_calls(calls))
    expected = [f"{place}" for place in range(10)]
    assert [[text for _, text in call] for call in calls] == [expected[:4], expected[4:8], expected[8:]]
    assert [prompt for call in calls for prompt, _ in call] == [problem.prompt for problem in PROBLEMS]
    assert [response.tokens.tolist() for response in responses] == [TOKENIZER.encode(text) for text in expected]
    assert verdicts.rewards.tolist() == [-1.5, -0.5, 0.5, 1.5] * 2 + [-0.5, 0.5]


def test_groups_of_different_sizes_stay_complete():
    groups = [0, 0, 0, 1, 2, 2, 3]
    requests = [Request((2,), group, group, SAMPLING, place) for place, group in enumerate(groups)]
    assert split_into_calls(requests, 2) == [[0, 1, 2, 3], [4, 5, 6]]
    assert split_into_calls(requests, 9) == [list(range(7))]


def test_the_reward_is_called_while_the_engine_samples():
    """The engine generates its second piece only after the reward has judged the first; without overlap both would wait."""
    is_judged = threading.Event()

    class Waiting(Pieces):
        def stream(self, params, requests):
            yield {place: answer(requests[place]) for place in range(4)}
            assert is_judged.wait(SECONDS), "the reward was not called during sampling"
            yield {place: answer(requests[place]) for place in range(4, 10)}

    def reward(completions):
        assert threading.current_thread() is threading.main_thread()
        is_judged.set()
        return even_length(completions)

    assert judge_with(Waiting(), reward)[1].rewards.tolist() == [0.0] * 10
    assert not engine_threads()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_engine_stops_at_its_next_piece_when_the_reward_ends_the_run(error):
    has_failed = threading.Event()

    class Endless(Pieces):
        def stream(self, params, requests):
            yield {place: answer(requests[place]) for place in range(4)}
            assert has_failed.wait(SECONDS)
            while True:
                yield {}

    def broken(completions):
        has_failed.set()
        raise error

    expected = InputError if error is ZeroDivisionError else error
    with pytest.raises(expected) as caught:
        judge_with(Endless(), broken)
    assert not engine_threads()
    if expected is InputError:
        assert re.search(
            rf"broken raised ZeroDivisionError.* at {re.escape(__file__)}:\d+; fix the function", str(caught.value)
        )


class Breaking(Pieces):
    def stream(self, params, requests):
        yield from super().stream(params, requests)
        raise InputError("the server is gone")


FAULTS = {
    "its own error": (Breaking(range(4)), "^the server is gone$"),
    "its own error after the last": (Breaking(range(10)), "^the server is gone$"),
    "twice after the last": (Pieces(range(10), [2]), "index of an unanswered request, from 0 to 9; got 2"),
    "too few": (Pieces(range(4)), "each of 10 requests needs a response; the stream ended without one to request 4"),
    "twice": (Pieces(range(3), [2]), "index of an unanswered request, from 0 to 9; got 2"),
    "no place": (type("Eleven", (Whole,), {"stream": lambda *_: iter([{10: None}])})(), "from 0 to 9; got 10"),
    "no dict": (type("Listed", (Whole,), {"stream": lambda *_: iter([[1]])})(), r"must be a dict .*; got \[1\]"),
}


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("case", FAULTS)
def test_a_stream_with_wrong_responses_is_refused(case):
    engine, message = FAULTS[case]
    with pytest.raises(InputError, match=message):
        judge_with(engine, even_length)
    assert not engine_threads()


def test_failures_and_progress_are_counted_over_all_calls():
    counts = []

    def fails_on_two(completions, progress):
        progress(len(completions), len(completions))
        return [Failed("raised", "?") if text in "45" else 1.0 for text in completions]

    verdicts = judge_with(Whole(), fails_on_two, max_failure_share=0.2, progress=lambda *numbers: counts.append(numbers))[1]
    assert verdicts.failed.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert counts == [(4, 10), (8, 10), (10, 10)]
    with pytest.raises(InputError, match="failed on 2 of 10 completions"):
        judge_with(Whole(), fails_on_two, max_failure_share=0.1, progress=lambda *_: None)


def test_steps_are_judged_in_the_same_calls():
    def steps(prompts, completions, **columns):
        return [[(1, float(text))] for text in completions]

    verdicts = judge_with(Pieces(range(10)), even_length, step_reward=steps)[1]
    assert verdicts.step_rewards.tolist() == [[float(place), 0, 0, 0] for place in range(10)]
    assert verdicts.step_end.tolist() == [[True, False, False, False]] * 10


def test_settings_that_need_a_single_thread_are_refused():
    with (
        jax.default_matmul_precision("highest"),
        pytest.raises(InputError, match=r"jax_default_matmul_precision is None and not 'highest'.*jax\.config\.update"),
    ):
        judge_with(Pieces(range(10)), even_length)


RUN = SMALL.replace(train_problems=64, heldout_problems=4, prompts=6, group_size=4, max_tries=3, decode_slots=16)
"""36 responses to nine prompts per try, sampled in 16 rows."""


class Hidden:
    """A run's engine without its `stream` method."""

    def __init__(self, engine):
        self.generate = engine.generate


def rollout(reward_groups, reward, hide=lambda engine: engine):
    """State, history and groups of a rollout with dynamic sampling."""
    setup, state = first_state(RUN.replace(reward_groups=reward_groups), reward=reward)
    history, choose_prompts = no_history(len(setup.train.prompts.tokens)), make_choice(setup.config, setup.order)
    setup = setup._replace(train=replace(setup.train, engine=hide(setup.train.engine)))
    state, history, collected = next_rollout(setup, state, history, None, choose_prompts)
    return jax.device_get((state.draws, state.position)), history, collected


def seldom(completions):
    """1 for about one completion in four, so that groups are dropped and more are sampled."""
    return [float(len(completion) % 4 == 1) for completion in completions]


def test_a_rollout_with_several_tries_equals_judging_afterwards():
    """Groups, their order, rewards, tries and the run's state are equal bit for bit."""
    meanwhile, afterwards = rollout(2, seldom), rollout(None, seldom)
    assert meanwhile[2].tries > 1
    jax.tree.map(np.testing.assert_array_equal, meanwhile, afterwards)


def test_a_stateful_reward_sees_the_same_calls():
    """A streaming engine causes the same calls as one that returns all responses at once."""

    def run(**hide):
        calls = []

        def reward(prompts, completions):
            calls.append((prompts, completions))
            longest = max(map(len, completions))
            return [float(len(calls) % 3 + (len(completion) == longest)) for completion in completions]

        return calls, rollout(2, reward, **hide)

    (calls, meanwhile), (expected, afterwards) = run(), run(hide=Hidden)
    assert calls == expected
    assert [len(completions) for _, completions in calls[:5]] == [8, 8, 8, 8, 4]
    jax.tree.map(np.testing.assert_array_equal, meanwhile, afterwards)


def compares(completions):
    return even_length(completions)


compares.on_all_hosts = True


@pytest.mark.parametrize(
    ("config", "message"),
    [({"reward_groups": 0}, "reward_groups is 0; it must be at least 1"), ({"reward_groups": 2}, "on_all_hosts")],
)
def test_parts_that_a_reward_cannot_be_called_with_are_refused(config, message):
    with pytest.raises(InputError, match=message):
        make_setup(RUN.replace(**config), CustomParts(reward=compares))


@pytest.mark.usefixtures("without_type_checks")
def test_an_environment_has_no_reward_that_is_called_with_groups():
    worker = replace(make_setup(RUN, CustomParts(reward=even_length)).train, environment=object())
    assert reward_groups(RUN, worker) is None
    with pytest.raises(
        InputError, match="reward_groups=2 applies to a reward; this run has an environment instead; leave it out"
    ):
        reward_groups(RUN.replace(reward_groups=2), worker)
