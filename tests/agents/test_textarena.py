"""TextArena's single-player games, tested with the real package: episodes are reproducible, and messages are not repeated."""

import importlib.util
import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from rljax.agents.adapter_helpers import use_generator
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.rollout.environment import check_step, make_environment

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("textarena") is None, reason="the package textarena is not installed"
)
SEED = Problem("", "3")


def build(name, **options):
    return make_environment("textarena", json.dumps({"name": name, **options}))


def play(environment, moves, problem=SEED):
    state, steps = environment.reset(problem), []
    for move in moves:
        steps.append(environment.step(state, move))
        check_step(environment, steps[-1])
        state = steps[-1].state
        if steps[-1].done:
            break
    return steps


def observations_of(steps):
    return [step.observation[0]["content"] for step in steps]


def test_guess_the_number_is_won_by_bisection():
    environment = build("GuessTheNumber-v0")
    (message,) = environment.first_messages(SEED)
    assert "guess the number between 1 and 20 within 10 turns" in message["content"]
    state, low, high = environment.reset(SEED), 1, 20
    for _ in range(6):
        step = environment.step(state, f"I say [{(low + high) // 2}].")
        if step.done:
            break
        state, middle = step.state, (low + high) // 2
        assert step.observation[0]["content"] in ("The target number is higher.", "The target number is lower.")
        low, high = (middle + 1, high) if "higher" in step.observation[0]["content"] else (low, middle - 1)
    assert (step.done, step.reward, step.correct) == (True, 1.0, True)


def test_illegal_moves_are_counted_and_may_end_the_game():
    steps = play(build("GuessTheNumber-v0"), ["[1]", "I do not know", "[2]", "[500]", "[3]", "[500]", "[600]"])
    assert [step.metrics["illegal_actions"] for step in steps] == [0, 1, 0, 1, 0, 1, 1]
    assert observations_of(steps)[1].startswith("You attempted an invalid move. Reason: Invalid move format.")
    assert [step.done for step in steps] == [False] * 6 + [True]
    assert steps[-1].correct is False


def test_max_turns_ends_an_episode():
    steps = play(build("GuessTheNumber-v0", max_turns=2), ["[1]", "[2]", "[3]"])
    assert [(step.done, step.reward, step.correct) for step in steps] == [(False, 0, False), (True, 0, False)]


def test_options_reach_the_game():
    environment = build("GuessTheNumber-v0", options={"max_number": 7})
    assert "between 1 and 7" in environment.first_messages(SEED)[0]["content"]


MOVES = ["[up]", "[right]", "[down]", "[left]"] * 3


@pytest.mark.parametrize("name", ["2048-v0", "FrozenLake-v0-random", "GuessTheNumber-v0"])
def test_episodes_are_reproducible_on_threads(name):
    """2048 samples a new tile at each move from Python's global random generator."""
    environment = build(name)
    expected = observations_of(play(environment, MOVES))
    random.seed(1)
    before = random.getstate()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: observations_of(play(environment, MOVES)), range(16)))
    assert found == [expected] * 16
    assert random.getstate() == before, "the program's generator is unchanged"
    assert environment.first_messages(SEED) == environment.first_messages(SEED)
    assert observations_of(play(environment, MOVES, Problem("", "4"))) != expected or name == "GuessTheNumber-v0"


def test_moves_depend_on_the_generator():
    """The previous test can fail, because TextArena's games sample from the global generator during moves."""
    environment = build("2048-v0")
    state, boards = environment.reset(SEED), set()
    for seed in range(4):
        fresh = environment.reset(SEED)._replace(generator=random.Random(seed))
        boards.add(environment.step(fresh, "[up]").observation[0]["content"])
    assert len(boards) > 1
    with use_generator(state.generator):
        assert random.getstate() == state.generator.getstate()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("GuessNumber-v0", "textarena has no game 'GuessNumber-v0'.*GuessTheNumber-v0"),
        ("TicTacToe-v0", "'TicTacToe-v0' cannot begin with one player .*choose a game for one player"),
    ],
)
def test_unknown_or_multiplayer_game_raises(name, message):
    with pytest.raises(InputError, match=message):
        build(name)


def test_unknown_game_option_raises():
    with pytest.raises(InputError, match=r"cannot begin with one player and the options .*speed"):
        build("GuessTheNumber-v0", options={"speed": 3})
