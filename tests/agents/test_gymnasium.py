"""Gymnasium environments, tested with the real package: episodes are reproducible, and observations and actions are text."""

import importlib.util
import json

import numpy as np
import pytest
from small_cli import printed

from rljax.agents.adapter_helpers import OpenGame
from rljax.agents.gymnasium import GymnasiumEnvironment, count_numbers, write_observation
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.rollout.environment import check_step, make_environment
from rljax.tracking.rows import read_metrics

needs_gymnasium = pytest.mark.skipif(
    importlib.util.find_spec("gymnasium") is None, reason="the package gymnasium is not installed"
)
DIRECTIONS = ["left", "down", "right", "up"]
PATH = ("down", "down", "right", "right", "down", "right")
"""The moves from the start of FrozenLake's 4 x 4 map to its goal."""
PROBLEM = Problem("", "5")


def make_lake(**arguments):
    return GymnasiumEnvironment("FrozenLake-v1", {"is_slippery": False}, DIRECTIONS, **arguments)


def walk(environment, moves, problem=PROBLEM):
    state, steps = environment.reset(problem), []
    for move in moves:
        steps.append(environment.step(state, move))
        check_step(environment, steps[-1])
        state = steps[-1].state
        if steps[-1].done:
            break
    return steps


@needs_gymnasium
def test_reaching_the_goal_is_rewarded_and_correct():
    environment = make_lake()
    steps = walk(environment, [f"I go {direction}." for direction in PATH])
    assert [step.reward for step in steps] == [0, 0, 0, 0, 0, 1]
    assert [step.done for step in steps] == [False] * 5 + [True]
    assert [step.correct for step in steps] == [False] * 5 + [True]
    assert steps[0].observation == [{"role": "user", "content": "  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG"}]
    fallen = walk(environment, ["down", "right", "right"])
    assert (len(fallen), fallen[-1].done, fallen[-1].reward, fallen[-1].correct) == (2, True, 0, False)


@needs_gymnasium
def test_first_message_has_rules_and_observation():
    (message,) = make_lake(rules="Walk to G.").first_messages(PROBLEM)
    assert message == {"role": "user", "content": "Walk to G.\n\n[S]FFF\nFHFH\nFFFH\nHFFG"}
    rules = make_lake().first_messages(PROBLEM)[0]["content"]
    assert rules.startswith("You act in FrozenLake-v1. Answer with one action: left, down, right, up.\n\n")


@needs_gymnasium
@pytest.mark.parametrize(
    ("turn", "row"),
    [
        ("First I thought of right, but: DOWN!", 1),
        ("1", 1),
        ("2 or rather 1.", 1),
        ("7", None),
        ("-1", None),
        ("1.5", None),
        ("downstairs", None),
        ("9" * 5000, None),
        ("", None),
    ],
)
def test_turn_executes_its_last_legal_action(turn, row):
    environment = make_lake()
    (step,) = walk(environment, [turn])
    assert step.metrics == {"illegal_actions": float(row is None)}
    assert (step.reward, step.done) == (0.0, False)
    text = step.observation[0]["content"]
    if row is None:
        assert text == "There is no such action. Answer with one action: left, down, right, up."
    else:
        assert text.splitlines()[1 + row].startswith("[F]")
    assert environment.step(step.state, "down").observation[0]["content"].count("[") == 1, "the episode continues"


@needs_gymnasium
def test_episodes_are_reproducible_and_independent():
    slippery = GymnasiumEnvironment("FrozenLake-v1", {"is_slippery": True})
    one, other = slippery.reset(PROBLEM), slippery.reset(PROBLEM)
    texts = ([], [])
    for turn in range(8):  # the episodes alternate
        states = [slippery.step(state, str(turn % 3)) for state in (one, other)]
        one, other = (step.state for step in states)
        for observations, step in zip(texts, states, strict=True):
            observations.append(step.observation[0]["content"])
        if states[0].done:
            break
    assert texts[0] == texts[1]
    starts = {GymnasiumEnvironment("Taxi-v4").first_messages(Problem("", str(seed)))[0]["content"] for seed in range(5)}
    assert len(starts) > 1


@needs_gymnasium
def test_turn_limit_is_gymnasiums_or_max_turns():
    assert make_lake().max_turns == 100
    steps = walk(make_lake(max_turns=2), ["left", "left", "left"])
    assert [step.done for step in steps] == [False, True]
    cut = walk(GymnasiumEnvironment("FrozenLake-v1", {"max_episode_steps": 2}, DIRECTIONS), ["left", "left", "left"])
    assert [step.done for step in cut] == [False, True]


@needs_gymnasium
def test_episode_closes_once_at_its_end_or_deletion():
    closed, environment = [], make_lake()
    make = environment._make

    def make_and_watch():
        game = make()
        game.close = lambda: closed.append(1)
        return game

    environment._make = make_and_watch
    walk(environment, PATH)
    assert closed == [1]
    state = environment.reset(PROBLEM)
    assert closed == [1]
    del state
    assert closed == [1, 1]


def test_open_game_closes_once():
    closed = []
    opened = OpenGame(None, lambda: closed.append(1))
    opened.close()
    opened.close()
    del opened
    assert closed == [1]


@needs_gymnasium
def test_text_actions_and_numeric_observations():
    import gymnasium

    class Echo(gymnasium.Env):
        action_space = gymnasium.spaces.Text(4)
        observation_space = gymnasium.spaces.Text(9)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return "say abc", {}

        def step(self, action):
            return action, float(action == "abc"), action == "abc", False, {}

    gymnasium.register("rljax/Echo-v0", Echo)
    echo = GymnasiumEnvironment("rljax/Echo-v0", max_turns=3)
    assert echo.first_messages(PROBLEM)[0]["content"].endswith("Answer with a text of 1 to 4 characters.\n\nsay abc")
    steps = walk(echo, ["ab ", "abcde", "abc"])
    assert [step.observation[0]["content"][:9] for step in steps] == ["ab", "There is ", "abc"]
    assert [step.metrics["illegal_actions"] for step in steps] == [0, 1, 0]
    assert (steps[-1].reward, steps[-1].done, steps[-1].correct) == (1.0, True, None)
    cards = GymnasiumEnvironment("Blackjack-v1", max_turns=5).first_messages(PROBLEM)[0]["content"].split("\n\n")[1]
    assert len([int(number) for number in cards.split(", ")]) == 3
    numeric = GymnasiumEnvironment("FrozenLake-v1", picture=False).first_messages(PROBLEM)[0]["content"]
    assert numeric.endswith("\n\n0")


def test_only_numbers_are_counted_in_observations():
    sentence = ", ".join(["left"] * 100)
    assert count_numbers(sentence) == 0
    assert count_numbers({"says": sentence, "at": np.zeros((2, 3)), "free": True, "cards": (1, np.int64(2))}) == 9


def test_write_observation_names_dict_entries():
    assert write_observation({"at": np.array([[1.0, -2.123456]]), "free": np.bool_(True)}) == "at: 1, -2.123, free: 1"


@needs_gymnasium
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "Pendulum-v1"}, r"the actions of 'Pendulum-v1' are Box.* needs text as actions, or at most 1000"),
        ({"name": "Lake-v1"}, "gymnasium has no environment 'Lake-v1'"),
        ({"name": "os:Lake-v1"}, "'os:Lake-v1' names a module to import; import it in a Python file"),
        ({"name": "FrozenLake-v1", "options": {"ice": 1}}, "'FrozenLake-v1' rejects the options .*ice"),
        ({"name": "FrozenLake-v1", "actions": ["left"]}, "has 4 actions, which need distinct names; got"),
        ({"name": "FrozenLake-v1", "actions": ["left"] * 4}, "has 4 actions, which need distinct names; got"),
        ({"name": "FrozenLake-v1", "max_turns": 0}, "must set the largest number of turns"),
        ({"name": "CliffWalking-v1"}, "'CliffWalking-v1' has no step limit; set max_turns"),
        ({}, "cannot be built with the arguments .*name"),
    ],
)
def test_unsupported_environment_raises(arguments, message):
    with pytest.raises(InputError, match=message):
        make_environment("gymnasium", json.dumps(arguments))


@needs_gymnasium
@pytest.mark.parametrize("answer", ["", "-1", "1.5", "seven", "1" * 10, "²"])
def test_answer_must_be_a_seed(answer):
    with pytest.raises(InputError, match="must be a whole number of at most 9 digits: the seed of its game"):
        make_lake().reset(Problem("", answer))


@needs_gymnasium
def test_train_command_runs_gymnasium(tmp_path, capsys):
    rows = [json.dumps({"prompt": f"Game {seed}", "answer": str(seed)}) for seed in range(20)]
    (tmp_path / "seeds.jsonl").write_text("\n".join(rows) + "\n")
    small = (
        "--width 16 --layers 1 --heads 2 --prompts 2 --group-size 2 --max-prompt-tokens 128 --heldout-problems 2 --steps 1"
    )
    small += " --max-response-tokens 64 --eval-every 0 --warm-start-steps 0 --tokenizer bytes --algorithm grpo --quiet"
    options = json.dumps({"name": "FrozenLake-v1", "actions": DIRECTIONS, "max_turns": 2})
    game, run = ("--environment", "gymnasium", "--environment-options", options), str(tmp_path / "run")
    printed(capsys, "train", "--dataset", f"{tmp_path}/seeds.jsonl", *game, "--run", run, *small.split())
    row = next(row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl")
    assert row["reward"] == 0
    assert row["episode_illegal_actions"] > 0, "an untrained model writes no action"
    assert "accuracy" in printed(capsys, "eval", run), "a built-in environment needs no --trust"
