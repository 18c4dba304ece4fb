"""Faults of environments and models: each raises a one-paragraph error or is counted in a metric."""

import random
import threading
import time

import numpy as np
import pytest

from rljax.agents import ToolEnvironment
from rljax.data.problem import Problem
from rljax.data.tokenizer import ByteTokenizer, CharacterTokenizer
from rljax.errors import InputError
from rljax.rewards.correctness import Failures
from rljax.rollout import Request, Response, Sampling, Step
from rljax.rollout.environment import with_environment_prompts
from rljax.rollout.episodes import play
from rljax.training.parts.problems import Problems

TOKENIZER = ByteTokenizer()


class Script:
    """An engine that replays the scripted turns of each problem's plan."""

    def __init__(self, plans):
        self.remaining = [list(plan) for plan in plans]

    def generate(self, params, requests):
        return [self.respond(request, self.remaining[request.prompt_id].pop(0)) for request in requests]

    def respond(self, request, text):
        tokens = np.array([*TOKENIZER.encode(text), TOKENIZER.eos_token_id][: request.sampling.max_tokens], np.int32)
        logp = np.full(len(tokens), -0.5, np.float32)
        finish = "stop" if tokens[-1] == TOKENIZER.eos_token_id else "length"
        return Response(request.prompt_id, request.group, tokens, np.ones(len(tokens), bool), logp, logp, finish)


def run(environment, plans, *, budget=400, **columns):
    """Play one episode per plan."""
    rows = [{name: values[index] for name, values in columns.items()} for index in range(len(plans))]
    problems = [Problem("2*3=", "6", columns=row) for row in rows]
    sampling = Sampling(budget, (TOKENIZER.eos_token_id,))
    requests = [Request((3,), index, index, sampling, index) for index in range(len(plans))]
    return play(Script(plans), environment, {}, requests, problems, TOKENIZER, max_failure_share=1.0)


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: the first factor.
        b: the second factor.
    """
    return a * b


def hang(a: int) -> int:
    """Never return.

    Args:
        a: unused.
    """
    while True:
        time.sleep(0.1)


class Tools(ToolEnvironment):
    """An environment with two tools; it crashes in the turn that the problem's column `crash` names."""

    tools = (multiply, hang)
    step_seconds, at_once = 5.0, 200

    def step(self, state, completion):
        if state.turns == state.problem.columns.get("crash"):
            raise OSError("down")
        return super().step(state, completion)


def write_call(text):
    return f"<tool_call>{text}</tool_call>"


CALL = write_call('{"name": "multiply", "arguments": {"a": 2, "b": 3}}')
TURNS = {
    "call": CALL,
    "no JSON": write_call("multiply(2, 3)"),
    "arguments no JSON": write_call('{"name": "multiply", "arguments": "2, 3"}'),
    "no end": "<tool_call>{",
    "undeclared": write_call('{"name": "divide", "arguments": {"a": 2}}'),
    "wrong arguments": write_call('{"name": "multiply", "arguments": {"a": 2}}'),
    "raises": write_call('{"name": "multiply", "arguments": {"a": null, "b": 3}}'),
    "hang": write_call('{"name": "hang", "arguments": {"a": 2}}'),
}
MALFORMED, WRONG = ("no JSON", "arguments no JSON", "no end"), ("undeclared", "wrong arguments", "raises")


def test_faults_in_1000_episodes_are_each_counted_once():
    """A plan lists the turns of an episode, which ends with an answer, a crash or a tool call that never returns."""
    generator = random.Random(1)
    kinds, crashes = [], []
    for number in range(1000):
        turns = generator.choices([kind for kind in TURNS if kind != "hang"], k=generator.randrange(5))
        kinds.append([*turns, "hang"] if number % 25 == 0 else turns)
        crashes.append(generator.randrange(len(kinds[-1]) + 1) if number % 5 == 1 else None)
    plans = [[*(TURNS[kind] for kind in turns), "#6"] for turns in kinds]
    responses, verdicts = run(Tools(), plans, budget=1500, crash=crashes)
    names = ("timed_out", "raised")
    timed_out, raised = (1 + Failures._fields.index(name) for name in names)
    for index, (turns, crash) in enumerate(zip(kinds, crashes, strict=True)):
        played = turns if crash is None else turns[:crash]
        hangs = crash is None and "hang" in turns
        answered = [kind for kind in played if kind != "hang"]
        assert verdicts.failed[index] == (timed_out if hangs else raised if crash is not None else 0)
        assert verdicts.valid[index] == (not verdicts.failed[index]), "a failure is not a wrong answer"
        assert verdicts.rewards[index] == verdicts.valid[index]
        assert responses[index].turns == len(played) + (not hangs)
        if answered:
            assert verdicts.metrics["malformed_calls"][index] == sum(kind in MALFORMED for kind in answered)
            assert verdicts.metrics["tool_errors"][index] == sum(kind in WRONG for kind in answered)
            assert verdicts.metrics["tool_calls"][index] == sum(kind not in MALFORMED for kind in answered)
    environment_threads = [thread for thread in threading.enumerate() if thread.name.startswith("environment")]
    for thread in environment_threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in environment_threads)


def observe_after(text):
    """Return the text that the policy reads after the turn `text`, and the metrics."""
    (response,), verdicts = run(Tools(), [[text, "#6"]])
    return TOKENIZER.decode(response.tokens[~response.mask].tolist()), verdicts.metrics


@pytest.mark.parametrize(
    ("text", "message", "counted"),
    [
        (TURNS["undeclared"], "Error: there is no tool 'divide'; the tools are multiply, hang.", "tool_errors"),
        (TURNS["arguments no JSON"], "must have a JSON object as its arguments.", "malformed_calls"),
        (TURNS["no JSON"], "Error: the tool call 'multiply(2, 3)' is not JSON", "malformed_calls"),
    ],
)
def test_wrong_call_is_explained_and_counted(text, message, counted):
    shown, metrics = observe_after(text)
    assert message in shown
    assert metrics[counted].tolist() == [1.0]


class LongWinded:
    """An environment whose second observation is longer than any token budget."""

    max_turns = 9

    def reset(self, problem):
        return 0

    def step(self, state, completion):
        return Step(state + 1, "x" * (5 if state == 0 else 10_000), reward=1.0, done=False)


def test_oversized_observation_ends_the_episode():
    (response,), verdicts = run(LongWinded(), [["a", "b", "c"]])
    assert (response.finish, response.turns) == ("length", 2)
    assert TOKENIZER.decode(response.tokens.tolist()) == "axxxxxb", "truncated before the observation"
    assert verdicts.metrics["overflow"].tolist() == [1.0]
    assert verdicts.rewards.tolist() == [2.0], "the turns so far keep their rewards"


class Endless(LongWinded):
    """An environment that never ends an episode."""

    max_turns = 4

    def step(self, state, completion):
        return Step(state + 1, "x", reward=1.0, done=False)


def test_endless_episode_stops_at_max_turns():
    (response,), verdicts = run(Endless(), [["a"] * 9])
    assert (response.finish, response.turns, verdicts.rewards.tolist()) == ("turns", 4, [4.0])


class AfterTheEnd(Endless):
    """An environment that ends after two turns; any later turn would earn a large reward."""

    def __init__(self):
        self.calls = 0

    def step(self, state, completion):
        self.calls += 1
        return Step(state + 1, "more", reward=1.0 if state < 2 else 100.0, done=state >= 1)


def test_done_episode_is_not_continued():
    environment = AfterTheEnd()
    (response,), verdicts = run(environment, [["a", "b", "c"]])
    assert environment.calls == response.turns == 2
    assert verdicts.rewards.tolist() == [2.0]
    assert TOKENIZER.decode(response.tokens.tolist()) == "amoreb", "the last observation is not appended"


class Mutating(Endless):
    """An environment that modifies every object that it receives."""

    max_turns = 1

    def first_messages(self, problem):
        problem.columns["list"].append("changed")
        problem.messages[0]["content"] = "changed"
        return [{"role": "user", "content": "Begin."}]

    def reset(self, problem):
        problem.columns["list"].append("changed")
        problem.columns["new"] = 1
        return problem

    def step(self, state, completion):
        return Step(state, reward=1.0)


def test_environment_modifies_only_copies_of_problems():
    values = [["kept"], ["kept"]]
    run(Mutating(), [["a"], ["a"]], list=values)
    problem = Problem("hi", "6", columns={"list": ["kept"]}, messages=({"role": "user", "content": "hi"},))
    (prompted,) = with_environment_prompts(Problems([problem], []), Mutating(), TOKENIZER).train
    assert prompted.messages == ({"role": "user", "content": "Begin."},)
    assert values == [["kept"], ["kept"]]
    assert problem == Problem("hi", "6", columns={"list": ["kept"]}, messages=({"role": "user", "content": "hi"},))


class AsyncQuestion(Endless):
    """An environment whose `is_others_turn` and `first_messages` are coroutine functions, which is not allowed."""

    async def is_others_turn(self, state):
        return False

    async def first_messages(self, problem):
        return []


@pytest.mark.filterwarnings("error")
def test_async_method_raises_where_not_allowed():
    advice = r"it must be a plain function, .*; write it as `def`, not `async def`\. Only reset, step and tools may be"
    with pytest.raises(InputError, match=rf"^environment\.is_others_turn: {advice}"):
        run(AsyncQuestion(), [["a"]])
    with pytest.raises(InputError, match=rf"^environment\.first_messages: {advice}"):
        with_environment_prompts(Problems([Problem("1", "1")], []), AsyncQuestion(), TOKENIZER)


class OneStep:
    """An environment of one or more turns that returns the given step."""

    max_turns = 3

    def __init__(self, **fields):
        self.fields = fields

    def reset(self, problem):
        return None

    def step(self, state, completion):
        return Step(state, **self.fields)


@pytest.mark.parametrize("done", ["no", None, 0, 1])
def test_done_that_is_not_a_boolean_is_refused(done):
    with pytest.raises(InputError, match=r"^environment\.step: done in .*OneStep must be True or False; got"):
        run(OneStep(reward=1.0, done=done), [["a"]])


def test_numpy_boolean_ends_an_episode():
    responses, _ = run(OneStep(reward=1.0, done=np.bool_(True)), [["a"]])
    assert responses[0].turns == 1


@pytest.mark.parametrize("observation", ["1\ud83d2", [{"role": "tool", "content": "1\ud83d2"}]])
def test_lone_surrogate_becomes_the_replacement_character(observation):
    plan = ["a", "b", "c"]
    responses, _ = run(OneStep(observation=observation, reward=1.0, done=False), [plan])
    end = "" if isinstance(observation, str) else "\n"
    assert TOKENIZER.decode(responses[0].tokens) == f"a1\N{REPLACEMENT CHARACTER}2{end}b1\N{REPLACEMENT CHARACTER}2{end}c"


def test_observation_outside_the_alphabet_names_the_environment():
    problem, sampling = Problem("1", "1"), Sampling(40, (CharacterTokenizer.eos_token_id,))
    requests = [Request((3,), 0, 0, sampling, 0)]

    class Engine:
        def generate(self, params, requests):
            logp = np.zeros(1, np.float32)
            tokens = np.array([CharacterTokenizer.eos_token_id], np.int32)
            return [Response(0, 0, tokens, np.ones(1, bool), logp, logp, "stop") for _ in requests]

    with pytest.raises(
        InputError,
        match=r"^the observation of the environment .*OneStep: the character 'x' in 'x1' is not in the tokenizer's",
    ):
        play(
            Engine(),
            OneStep(observation="x1", done=False),
            {},
            requests,
            [problem],
            CharacterTokenizer("01"),
            max_failure_share=1.0,
        )


@pytest.mark.parametrize(
    ("fields", "metric"),
    [
        ({"parts": {"variance": 1.0}}, "reward_variance"),
        ({"parts": {"raised": 1.0}}, "reward_raised"),
        ({"metrics": {"overflow": 1.0}}, "episode_overflow"),
        ({"metrics": {"no_turn": 1.0}}, "episode_no_turn"),
    ],
)
def test_name_of_a_metric_of_the_run_is_refused(fields, metric):
    with pytest.raises(
        InputError, match=rf"OneStep must not contain '\w+', because {metric} is a metric of the run; rename"
    ):
        run(OneStep(reward=1.0, **fields), [["a"]])


class RaisingQuestion(OneStep):
    """An environment two of whose methods raise."""

    def is_others_turn(self, state):
        raise KeyError("who")

    def first_messages(self, problem):
        return [{"role": "system", "content": problem.columns["rules"]}]


def test_method_that_raises_is_named_with_its_line():
    with pytest.raises(
        InputError,
        match=r"^environment\.is_others_turn: it raised KeyError: 'who' at .*test_bad_environments\.py:\d+; correct",
    ):
        run(RaisingQuestion(), [["a"]])
    with pytest.raises(
        InputError, match=r"^environment\.first_messages: it raised KeyError: 'rules' at .*\.py:\d+; correct"
    ):
        with_environment_prompts(Problems([Problem("1", "1")], []), RaisingQuestion(), TOKENIZER)
