"""TRL environments: classes written for TRL's `environment_factory` run unchanged."""

import asyncio
import inspect
import json
import random

import pytest
from small_cli import printed, refused

from rljax.agents import TrlEnvironment
from rljax.data.problem import Problem
from rljax.data.tokenizer import load_tokenizer
from rljax.data.tool_calls import parse_turn
from rljax.errors import InputError
from rljax.rollout.environment import (
    check_environment,
    check_step,
    has_trl_form,
    make_environment,
    with_environment_prompts,
)
from rljax.tracking.rows import read_metrics
from rljax.training.parts.problems import Problems

FILE = '''
import random


class Increment:
    def __init__(self):
        self.calls = 0

    def reset(self, **kwargs) -> str | None:
        self.counter = 0
        self.target = random.randint(1, 1000)
        self.row = kwargs
        return f" Increment the counter by {self.target}."

    def get_reward(self) -> float:
        return float(self.counter == self.target)

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.calls += 1
        self.counter += step
        if self.counter > 1000:
            raise ValueError("Counter over 1000.")
        return self.counter

    async def look(self) -> str:
        """Look at the counter."""
        return f"It is {self.counter}."

    def _hidden(self):
        raise AssertionError
'''
ROW = Problem("Begin.", "7", columns={"level": 3})


def load_classes():
    namespace = {}
    exec(FILE, namespace)
    return namespace


Increment = load_classes()["Increment"]


class Guess:
    """A TRL environment without `get_reward`."""

    def reset(self, target, **kwargs) -> None:
        self.target, self.guesses = target, []

    def step(self, word: str) -> str:
        """Guess a word.

        Args:
            word: the word.
        """
        self.guesses.append(word)
        return "right" if word == self.target else "wrong"


def count_right(environments, **kwargs):
    return [0.5 * ("yes" in environment.guesses) for environment in environments]


def act(environment, state, text):
    step = environment.step(state, parse_turn(text))
    step = asyncio.run(step) if inspect.isawaitable(step) else step
    check_step(environment, step)
    return step


def write_call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_public_methods_are_tools_of_the_episode():
    environment = TrlEnvironment(Increment)
    check_environment(environment)
    assert sorted(tool.__name__ for tool in environment.tools) == ["increment", "look"]
    states = [environment.reset(ROW) for _ in range(2)]
    step = act(environment, states[0], write_call("increment", step=2) + write_call("increment", step=3))
    assert [message["content"] for message in step.observation] == ["2", "5"]
    assert (step.done, step.reward, step.metrics["tool_calls"]) == (False, 0.0, 2)
    assert (states[0].tools.instance.counter, states[1].tools.instance.counter) == (5, 0), "episodes share nothing"
    assert act(environment, step.state, write_call("look")).observation[0]["content"] == "It is 5."
    failed = act(environment, step.state, write_call("increment", step=5000))
    assert failed.observation[0]["content"] == "Error: increment: ValueError: Counter over 1000.."
    assert failed.metrics["tool_errors"] == 1
    assert (
        act(environment, step.state, write_call("reset"))
        .observation[0]["content"]
        .startswith("Error: there is no tool 'reset'")
    )


def test_get_reward_judges_the_final_state():
    environment = TrlEnvironment(Increment)
    state = environment.reset(ROW)
    step = act(environment, state, write_call("increment", step=state.tools.instance.target))
    assert act(environment, step.state, "Done.").reward == 1.0
    assert act(environment, environment.reset(ROW), "Done.").reward == 0.0
    last = TrlEnvironment(Increment, max_turns=1)
    state = last.reset(ROW)
    step = act(last, state, write_call("increment", step=state.tools.instance.target))
    assert (step.done, step.reward) == (True, 1.0), "the last turn's call counts"


def test_get_reward_may_be_a_coroutine_function():
    class Judged(Increment):
        async def get_reward(self):
            await asyncio.sleep(0)
            return 0.25

    environment = TrlEnvironment(Judged)
    state = environment.reset(ROW)
    assert act(environment, state, write_call("increment", step=1)).reward == 0.0
    assert act(environment, state, "Done.").reward == 0.25


def test_reward_function_sees_the_environments_and_is_added():
    row = Problem("Guess.", "", columns={"target": "yes"})
    environment = TrlEnvironment(Guess, reward=count_right)
    step = act(environment, environment.reset(row), write_call("step", word="yes"))
    assert step.observation[0]["content"] == "right"
    assert act(environment, step.state, "It was yes.").reward == 0.5
    both = TrlEnvironment(type("Both", (Guess,), {"get_reward": lambda self: 2.0}), reward=count_right)
    step = act(both, both.reset(row), write_call("step", word="yes"))
    assert act(both, step.state, "").reward == 2.5


def test_reset_receives_the_row_and_extends_the_prompt():
    environment = TrlEnvironment(Increment)
    rows = Problems([ROW, Problem("Begin!", "8")], [ROW], [], [])
    prompts = with_environment_prompts(rows, environment, load_tokenizer("bytes")).train
    target = environment.reset(prompts[0]).tools.instance.target
    assert prompts[0].messages == ({"role": "user", "content": f"Begin. Increment the counter by {target}."},)
    assert environment.reset(prompts[0]).tools.instance.row == {"prompt": "Begin.", "answer": "7", "level": 3}
    assert environment.reset(prompts[1]).tools.instance.target != target
    chat = Problem("Hi", "7", messages=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}))
    shown = environment.first_messages(chat)
    assert shown[0] == chat.messages[0]
    assert shown[1]["content"].startswith("Hi Increment the counter by ")


def test_random_reset_is_equal_for_episodes_of_a_problem():
    environment = TrlEnvironment(Increment)
    random.seed(5)
    before = random.getstate()
    targets = {environment.reset(ROW).tools.instance.target for _ in range(4)}
    assert len(targets) == 1
    assert random.getstate() == before, "the program's generator is unchanged"
    assert len({TrlEnvironment(Increment, seeded=False).reset(ROW).tools.instance.target for _ in range(9)}) > 1


def test_reset_must_match_the_prompt():
    environment = TrlEnvironment(Increment, seeded=False)
    prompts = with_environment_prompts(Problems([ROW], [], [], []), environment, load_tokenizer("bytes")).train
    with pytest.raises(InputError, match=r"^environment\.reset: .*Increment returned ' Increment the counter by "):
        [environment.reset(prompts[0]) for _ in range(5)]


class Silent:
    def reset(self, **kwargs):
        return None

    def get_reward(self):
        return 1.0


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (Silent, "Silent has no tools"),
        (Guess, "Guess has no method get_reward; write it, or name a reward"),
        (type("Bare", (), {"get_reward": Silent.get_reward}), "Bare has no method reset"),
        (type("Asking", (Silent,), {"__init__": lambda self, url: None}), "Asking.. failed .* it takes no arguments"),
        (type("Plain", (Silent,), {"go": lambda self, way: way}), "has no JSON schema"),
    ],
)
def test_invalid_class_raises(factory, message):
    with pytest.raises(InputError, match=message):
        TrlEnvironment(factory)


def test_reset_must_return_text_or_none():
    environment = TrlEnvironment(type("Image", (Increment,), {"reset": lambda self, **row: [{"type": "image"}]}))
    with pytest.raises(InputError, match="must return a text or None; got"):
        environment.first_messages(ROW)


class NativeEnvironment:
    """An rljax environment whose `reset` takes further keyword arguments."""

    max_turns = 1

    def reset(self, problem, **more):
        return None

    def step(self, state, completion):
        raise AssertionError


def test_has_trl_form():
    assert [
        has_trl_form(value) for value in (Increment, Guess, Silent, NativeEnvironment, NativeEnvironment(), int, len)
    ] == [True] * 3 + [False] * 4


def test_trl_class_in_a_file_trains_and_evaluates(tmp_path, capsys):
    (tmp_path / "game.py").write_text(FILE)
    rows = [json.dumps({"prompt": f"Problem {index}.", "target": index}) for index in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    game, run = f"{tmp_path}/game.py:Increment", tmp_path / "run"
    small = (
        "--width 16 --layers 1 --heads 2 --prompts 2 --group-size 2 --max-prompt-tokens 64 --heldout-problems 2 --steps 1"
    )
    small += " --max-response-tokens 16 --eval-every 0 --warm-start-steps 0 --tokenizer bytes --algorithm grpo --quiet"
    options = ("--environment-options", '{"max_turns": 2}')
    printed(
        capsys,
        "train",
        "--dataset",
        f"{tmp_path}/rows.jsonl",
        "--environment",
        game,
        *options,
        "--run",
        str(run),
        *small.split(),
    )
    row = next(row for row in read_metrics(run / "metrics.jsonl") if row["phase"] == "rl")
    assert row["reward"] == 0
    assert row["episode_tool_calls"] == 0
    refused(capsys, r"is judged by .*game\.py:Increment", "eval", str(run))
    assert "accuracy" in printed(capsys, "eval", str(run), "--trust")
    assert make_environment(game, options[1]).max_turns == 2
