"""The Adventure and Shop environments: every world is solvable, and only a solution earns a reward."""

from itertools import product

import pytest

from rljax.agents import Adventure, Shop
from rljax.agents.shop import ATTRIBUTES
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.rollout.environment import check_step, make_environment


def shortest_solution(house, problem):
    """Return the shortest winning sequence of commands, found by breadth-first search."""
    commands = [*(f"go {room}" for room in house.rooms), "take key", "open chest", "take gold"]
    paths, seen = [((), house.reset(problem))], set()
    while paths:
        (path, state), *paths = paths
        for command in commands:
            step = house.step(state, command)
            if step.correct:
                return (*path, command)
            position = (step.state.room, step.state.inventory, tuple(sorted(step.state.things.items())))
            if position not in seen:
                seen.add(position)
                paths.append(((*path, command), step.state))
    raise AssertionError("there is no solution")


@pytest.mark.parametrize("seed", range(12))
def test_adventure_is_solvable_within_max_turns(seed):
    house = make_environment("adventure", '{"rooms": 5}')
    problem, parts, state = Problem("", str(seed)), {"key": 0.0, "gold": 0.0}, None
    solution = shortest_solution(house, problem)
    assert len(solution) <= house.max_turns
    assert [command for command in solution if not command.startswith("go")] == ["take key", "open chest", "take gold"]
    state = house.reset(problem)
    for number, command in enumerate(solution, start=1):
        step = house.step(state, f"I think I should {command}.")
        check_step(house, step)
        assert step.done == (number == len(solution)) == bool(step.reward)
        parts = {name: parts[name] + step.parts[name] for name in parts}
        state = step.state
    assert parts == {"key": 1.0, "gold": 1.0}
    assert step.metrics == {"refused_commands": 0.0}


def test_adventure_refuses_and_counts_impossible_commands():
    house, problem = Adventure(rooms=4, max_turns=3), Problem("", "0")
    assert "You have 3 turns. You are in the hall." in house.first_messages(problem)[0]["content"]
    state = house.reset(problem)
    for command, reply in (
        ("take gold", "You cannot do that."),
        ("dance", "Give a command."),
        ("go moon", "You cannot do that."),
    ):
        step = house.step(state, command)
        assert step.observation[0]["content"].startswith(f"{reply} You are in the hall.")
        assert (step.metrics["refused_commands"], step.reward, step.correct) == (1.0, 0.0, False)
        state = step.state
    assert step.done
    chest = house.reset(problem)._replace(room=house.reset(problem).things["chest"])
    assert house.step(chest, "open the chest").observation[0]["content"].startswith("The chest is locked.")


@pytest.mark.parametrize("seed", range(12))
def test_shop_rewards_only_the_wanted_item(seed):
    shop, problem = make_environment("shop", '{"articles": 9}'), Problem("", str(seed))
    state, answers = shop.reset(problem), {}
    for name in ATTRIBUTES:
        step = shop.step(state, f"Which {name} would you like?")
        check_step(shop, step)
        assert (step.done, step.reward, step.metrics) == (False, 0.0, {"questions": 1.0})
        answers[name] = step.observation[0]["content"].removeprefix(f"The {name} should be ").rstrip(".")
        state = step.state
    rewards = {number: shop.step(state, f"I recommend number {number}.").reward for number in state.shelf}
    assert [number for number, reward in rewards.items() if reward] == [
        number for number, item in state.shelf.items() if item == answers
    ]
    assert len({*map(str, state.shelf.values())}) == 9, "items differ"
    first = shop.first_messages(problem)[0]["content"]
    assert any(f"I want a bag. The {name} should be {value}." in first for name, value in answers.items())


def test_shop_without_recommendation_ends_unsolved():
    shop = Shop(max_turns=2)
    step = shop.step(shop.reset(Problem("", "5")), "Good morning!")
    assert (step.observation[0]["content"], step.metrics) == ("I do not understand.", {"questions": 0.0})
    step = shop.step(step.state, "What color?")
    assert (step.done, step.reward, step.correct) == (True, 0.0, False)
    assert shop.step(shop.reset(Problem("", "5")), "recommend 99").correct is False


def test_seeds_give_different_worlds():
    houses = [Adventure().reset(Problem("", str(seed))) for seed in range(20)]
    shops = [Shop().reset(Problem("", str(seed))) for seed in range(20)]
    for worlds in (houses, shops):
        assert len({*map(str, worlds)}) >= 18
    assert len([*product(*ATTRIBUTES.values())]) == 18


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Adventure(rooms=2), "rooms must be a whole number from 3 to 8; got 2"),
        (lambda: Adventure(rooms=9), "rooms must be a whole number from 3 to 8; got 9"),
        (lambda: Adventure(max_turns=0), "max_turns must be a whole number of at least 1; got 0"),
        (lambda: Shop(articles=1), "articles must be a whole number from 2 to 18; got 1"),
    ],
)
def test_out_of_range_sizes_raise(build, message):
    with pytest.raises(InputError, match=message):
        build()
