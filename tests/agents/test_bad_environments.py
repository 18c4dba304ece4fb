"""What an environment or a model may do wrong: each case is one paragraph, or is counted where a person sees it."""

import random
import threading
import time

import numpy as np
import pytest

from rljax.agents import ToolEnvironment
from rljax.data.problem import Problem
from rljax.data.tokenizer import ByteTokenizer
from rljax.errors import InputError
from rljax.rewards.correctness import Failures
from rljax.rollout import Request, Response, Sampling, Step
from rljax.rollout.environment import prompts_for
from rljax.rollout.episodes import play
from rljax.training.parts.problems import Problems

TOKENIZER = ByteTokenizer()


class Script:
    """An engine that writes the turns of each problem's plan."""

    def __init__(self, plans):
        self.left = [list(plan) for plan in plans]

    def generate(self, params, requests):
        return [self.say(request, self.left[request.prompt_id].pop(0)) for request in requests]

    def say(self, request, text):
        tokens = np.array([*TOKENIZER.encode(text), TOKENIZER.eos_token_id][: request.sampling.max_tokens], np.int32)
        logp = np.full(len(tokens), -0.5, np.float32)
        finish = "stop" if tokens[-1] == TOKENIZER.eos_token_id else "length"
        return Response(request.prompt_id, request.group, tokens, np.ones(len(tokens), bool), logp, logp, finish)


def run(environment, plans, *, budget=400, **columns):
    """Play one episode per plan."""
    rows = [{name: values[place] for name, values in columns.items()} for place in range(len(plans))]
    problems = [Problem("2*3=", "6", columns=row) for row in rows]
    sampling = Sampling(budget, (TOKENIZER.eos_token_id,))
    requests = [Request((3,), place, place, sampling, place) for place in range(len(plans))]
    return play(Script(plans), environment, {}, requests, problems, TOKENIZER, max_failure_share=1.0)


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: the first one.
        b: the second one.
    """
    return a * b


def hang(a: int) -> int:
    """Never return.

    Args:
        a: not read.
    """
    while True:
        time.sleep(0.1)


class Tools(ToolEnvironment):
    """Two tools; the column `crash` is the turn in which the environment itself fails."""

    tools = (multiply, hang)
    step_seconds, at_once = 5.0, 200

    def step(self, state, completion):
        if state.turns == state.problem.columns.get("crash"):
            raise OSError("down")
        return super().step(state, completion)


def call(text):
    return f"<tool_call>{text}</tool_call>"


CALL = call('{"name": "multiply", "arguments": {"a": 2, "b": 3}}')
TURNS = {
    "call": CALL,
    "no JSON": call("multiply(2, 3)"),
    "arguments no JSON": call('{"name": "multiply", "arguments": "2, 3"}'),
    "no end": "<tool_call>{",
    "undeclared": call('{"name": "divide", "arguments": {"a": 2}}'),
    "wrong arguments": call('{"name": "multiply", "arguments": {"a": 2}}'),
    "raises": call('{"name": "multiply", "arguments": {"a": null, "b": 3}}'),
    "hang": call('{"name": "hang", "arguments": {"a": 2}}'),
}
MALFORMED, WRONG = ("no JSON", "arguments no JSON", "no end"), ("undeclared", "wrong arguments", "raises")


def test_a_thousand_episodes_of_crashes_time_outs_and_malformed_calls_count_each_once():
    """The plan of an episode lists its turns; it ends with an answer, a crash of the environment or a call without an end."""
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
    for place, (turns, crash) in enumerate(zip(kinds, crashes, strict=True)):
        played = turns if crash is None else turns[:crash]
        hangs = crash is None and "hang" in turns
        answered = [kind for kind in played if kind != "hang"]
        assert verdicts.failed[place] == (timed_out if hangs else raised if crash is not None else 0)
        assert verdicts.valid[place] == (not verdicts.failed[place]), "a failure is not a wrong answer"
        assert verdicts.rewards[place] == verdicts.valid[place]
        assert responses[place].turns == len(played) + (not hangs)
        if answered:
            assert verdicts.metrics["malformed_calls"][place] == sum(kind in MALFORMED for kind in answered)
            assert verdicts.metrics["tool_errors"][place] == sum(kind in WRONG for kind in answered)
            assert verdicts.metrics["tool_calls"][place] == sum(kind not in MALFORMED for kind in answered)
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("environment")]
    for thread in ours:
        thread.join(20)
    assert not any(thread.is_alive() for thread in ours)


def shown_after(text):
    """What the policy reads after a turn."""
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
def test_a_wrong_call_is_answered_with_its_fault_and_counted(text, message, counted):
    shown, metrics = shown_after(text)
    assert message in shown
    assert metrics[counted].tolist() == [1.0]


class Longwinded:
    """Its second observation is longer than any budget."""

    max_turns = 9

    def reset(self, problem):
        return 0

    def step(self, state, completion):
        return Step(state + 1, "x" * (5 if state == 0 else 10_000), reward=1.0, done=False)


def test_an_observation_that_leaves_no_room_ends_the_episode_and_is_counted():
    (response,), verdicts = run(Longwinded(), [["a", "b", "c"]])
    assert (response.finish, response.turns) == ("length", 2)
    assert TOKENIZER.decode(response.tokens.tolist()) == "axxxxxb", "cut before the observation"
    assert verdicts.metrics["overflow"].tolist() == [1.0]
    assert verdicts.rewards.tolist() == [2.0], "the turns so far keep their rewards"


class Endless(Longwinded):
    """It never ends an episode."""

    max_turns = 4

    def step(self, state, completion):
        return Step(state + 1, "x", reward=1.0, done=False)


def test_an_environment_without_an_end_is_cut_off_at_its_limit():
    (response,), verdicts = run(Endless(), [["a"] * 9])
    assert (response.finish, response.turns, verdicts.rewards.tolist()) == ("turns", 4, [4.0])


class AfterTheEnd(Endless):
    """It ends after two turns, and would reward every later one."""

    def __init__(self):
        self.calls = 0

    def step(self, state, completion):
        self.calls += 1
        return Step(state + 1, "more", reward=1.0 if state < 2 else 100.0, done=state >= 1)


def test_an_episode_that_has_ended_is_not_continued_so_no_reward_follows_its_end():
    environment = AfterTheEnd()
    (response,), verdicts = run(environment, [["a", "b", "c"]])
    assert environment.calls == response.turns == 2
    assert verdicts.rewards.tolist() == [2.0]
    assert TOKENIZER.decode(response.tokens.tolist()) == "amoreb", "the last observation is not read"


class Mutating(Endless):
    """It changes whatever it gets."""

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


def test_an_environment_changes_only_copies_of_the_problems():
    values = [["kept"], ["kept"]]
    run(Mutating(), [["a"], ["a"]], list=values)
    problem = Problem("hi", "6", columns={"list": ["kept"]}, messages=({"role": "user", "content": "hi"},))
    (begun,) = prompts_for(Problems([problem], []), Mutating(), TOKENIZER).train
    assert begun.messages == ({"role": "user", "content": "Begin."},)
    assert values == [["kept"], ["kept"]]
    assert problem == Problem("hi", "6", columns={"list": ["kept"]}, messages=({"role": "user", "content": "hi"},))


class AsyncQuestion(Endless):
    """`is_others_turn` and `first_messages` are coroutine functions, which only other methods may be."""

    async def is_others_turn(self, state):
        return False

    async def first_messages(self, problem):
        return []


@pytest.mark.filterwarnings("error")
def test_async_where_a_plain_function_is_expected_is_refused():
    advice = r"it must be a plain function, .*; write it as `def`, not `async def`\. Only reset, step and tools may be"
    with pytest.raises(InputError, match=rf"^environment\.is_others_turn: {advice}"):
        run(AsyncQuestion(), [["a"]])
    with pytest.raises(InputError, match=rf"^environment\.first_messages: {advice}"):
        prompts_for(Problems([Problem("1", "1")], []), AsyncQuestion(), TOKENIZER)
