"""Problems, and the reward columns built from them."""

import dataclasses

import pytest

from rljax.data.problem import Problem, reward_columns
from rljax.errors import InputError


def test_problem_is_immutable():
    problem = Problem("1+1=", "2")
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.answer = "3"
    assert (problem.demonstration, problem.columns, problem.messages) == (None, {}, None)


def test_reward_columns_fill_missing_with_none():
    problems = [Problem("a", "1", columns={"x": 1}), Problem("b", "2", columns={"y": [2]}), Problem("c", "3")]
    assert reward_columns(problems) == {"answer": ["1", "2", "3"], "x": [1, None, None], "y": [None, [2], None]}


def test_reward_columns_refuse_column_answer():
    with pytest.raises(InputError, match="extra column called 'answer'"):
        reward_columns([Problem("a", "1", columns={"answer": "2"})])
