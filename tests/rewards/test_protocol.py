"""Calling rewards as TRL's users write them, and refusing what they must not answer."""

import asyncio
import functools
import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.errors import InputError
from rljax.rewards.exact import exact
from rljax.rewards.protocol import score, weighted_scores

PROMPTS, COMPLETIONS = ["1+1=", "1+2="], ["#2", "#4"]
COLUMNS = {"answer": ["2", "3"], "level": [1, 7]}


def ask(reward, columns=COLUMNS):
    return score(reward, PROMPTS, COMPLETIONS, columns)


def test_a_builtin_reward():
    values, valid = ask(exact)
    assert (values.tolist(), valid.tolist()) == ([1.0, 0.0], [True, True])
    assert (values.dtype, valid.dtype) == (np.float32, np.bool_)


def test_kwargs_receive_everything_as_lists():
    def everything(**kwargs):
        assert kwargs == {"prompts": PROMPTS, "completions": COMPLETIONS, **COLUMNS}
        assert all(type(column) is list for column in kwargs.values())
        return [1.0, 2.0]

    columns = {name: tuple(column) for name, column in COLUMNS.items()}
    assert ask(everything, columns)[0].tolist() == [1.0, 2.0]


def test_without_kwargs_only_what_is_named_is_passed():
    def by_level(completions, level, bonus=1.0):
        return [x + len(c) + bonus for x, c in zip(level, completions, strict=True)]

    def keyword_only(*, level):
        return level

    assert ask(by_level)[0].tolist() == [4.0, 10.0]
    assert ask(keyword_only)[0].tolist() == [1.0, 7.0]
    assert ask(functools.partial(by_level, bonus=0.0))[0].tolist() == [3.0, 9.0]


def test_a_reward_may_change_its_lists_but_not_ours():
    def greedy(completions, **kwargs):
        kwargs["level"].clear()
        completions.clear()
        return [0.0, 0.0]

    ask(greedy)
    assert (COMPLETIONS, COLUMNS["level"]) == (["#2", "#4"], [1, 7])


def test_none_is_no_opinion():
    values, valid = ask(lambda completions: [None, 3])
    assert (values.tolist(), valid.tolist()) == ([0.0, 3.0], [False, True])


@pytest.mark.parametrize(
    "returned",
    [
        [1, 0.5],
        (True, Fraction(1, 2)),
        np.array([1.0, 0.5]),
        [np.float32(1), np.array(0.5)],
        [np.bool_(True), np.float16(0.5)],
        jnp.array([1.0, 0.5]),
    ],
)
def test_numbers_of_many_kinds(returned):
    assert ask(lambda completions: returned)[0].tolist() == [1.0, 0.5]


async def patient(completions, **kwargs):
    await asyncio.sleep(0)
    return [float(len(completion)) for completion in completions]


def test_coroutines_are_awaited():
    assert ask(patient)[0].tolist() == [2.0, 2.0]


def test_coroutines_are_awaited_inside_a_running_loop():
    async def notebook():
        return ask(patient)[0].tolist()

    assert asyncio.run(notebook()) == [2.0, 2.0]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned None; it must return a list"),
        (1.0, "returned 1.0; it must return a list"),
        ("ab", "returned 'ab'; it must return a list"),
        ({0: 1.0, 1: 2.0}, r"returned \{0: 1.0, 1: 2.0\}; it must return a list"),
        (np.float32(1), "returned .*1.0.*; it must return a list"),
        ([1.0], "returned 1 values for 2 completions; it must return one for each"),
        ([1.0] * 3, "returned 3 values for 2 completions"),
        ([1.0, "2"], r"returned '2' for completion 1 \(in \[1.0, '2'\]\); it must return a number"),
        ([[1.0], [2.0]], r"returned \[1.0\] for completion 0"),
        (np.ones((2, 1)), r"returned \[1.0\] for completion 0"),
        ([1j, 1.0], "returned 1j for completion 0"),
        ([0.0, math.nan], "returned nan for completion 1; it must return a finite number, or None"),
        ([math.inf, 0.0], "returned inf for completion 0"),
        ([0.0, 1e300], r"returned 1e\+300 for completion 1"),
        ([0.0, 10**400], r"returned 10+\.\.\.0+ for completion 1"),
        ([None, -math.inf], "returned -inf for completion 1"),
    ],
)
def test_bad_answers_name_the_function_and_what_it_returned(returned, message):
    def strange(completions):
        return returned

    with pytest.raises(InputError, match=rf"the reward .*test_protocol\S*strange {message}"):
        ask(strange)


class Judge:
    def __call__(self, completions):
        raise KeyError("no\nkey")


async def failing(completions):
    raise KeyError("no\nkey")


@pytest.mark.parametrize(("reward", "name"), [(Judge(), "Judge"), (failing, "failing")])
def test_what_a_reward_raises_is_chained(reward, name):
    with pytest.raises(InputError, match=rf"the reward \S*{name} raised KeyError: .* mend the function") as caught:
        ask(reward)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_column_that_is_not_there_is_named():
    with pytest.raises(
        InputError, match=r"asks for solution, tests, but the data has the columns prompts, completions, answer"
    ):
        ask(lambda completions, solution, tests, **kwargs: [0.0, 0.0])


def test_a_column_that_hides_an_argument_is_refused():
    with pytest.raises(InputError, match="a column called 'completions' and 'prompts'"):
        ask(exact, {"prompts": [1, 2], "completions": [1, 2]})


def test_a_reward_that_hides_its_arguments_is_refused():
    with pytest.raises(InputError, match=r"the reward builtins\.dict does not tell its arguments; wrap it"):
        ask(dict)


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="completions must have one entry a prompt, got 1 for 2 prompts"):
        score(exact, PROMPTS, ["#2"], COLUMNS)
    with pytest.raises(ValueError, match="level must have one entry a prompt, got 1 for 2 prompts"):
        ask(exact, {"answer": ["2", "3"], "level": [1]})


def combine(rewards, weights):
    return weighted_scores(rewards, weights, PROMPTS, COMPLETIONS, COLUMNS)


def test_weighted_scores():
    rewards = {"exact": exact, "level": lambda level: level, "shy": lambda completions: [None, 4.0]}
    scores = combine(rewards, {"exact": 2.0, "level": 0.5, "shy": -1.0})
    assert scores.total.tolist() == [2.5, -0.5]
    assert scores.valid.tolist() == [True, True]
    assert {name: part.tolist() for name, part in scores.parts.items() if name != "shy"} == {
        "exact": [1.0, 0.0],
        "level": [1.0, 7.0],
    }
    np.testing.assert_array_equal(scores.parts["shy"], [np.nan, 4.0])
    assert {array.dtype for array in (scores.total, *scores.parts.values())} == {np.dtype(np.float32)}


def test_a_row_without_any_opinion_is_not_valid():
    scores = combine({"a": lambda completions: [None, 1.0], "b": lambda completions: [None, None]}, {"a": 1.0, "b": 1.0})
    assert (scores.total.tolist(), scores.valid.tolist()) == ([0.0, 1.0], [False, True])


@pytest.mark.parametrize(
    ("rewards", "weights", "message"),
    [
        ({}, {}, "there is no reward"),
        ({"a": exact}, {}, r"the weights are for \[\], the rewards are \['a'\]"),
        ({"a": exact}, {"a": 1.0, "b": 1.0}, r"the weights are for \['a', 'b'\]"),
        ({"a": exact}, {"a": math.nan}, "the weight of the reward 'a' is nan"),
    ],
)
def test_weights_must_match(rewards, weights, message):
    with pytest.raises(InputError, match=message):
        combine(rewards, weights)
