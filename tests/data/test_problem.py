"""Problems, and the reward columns that are made from them."""

import dataclasses

import pytest

from rljax.data.problem import Problem, reward_columns
from rljax.errors import InputError


def test_a_problem_cannot_be_changed():
    problem = Problem("1+1=", "2")
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.answer = "3"
    assert (problem.demonstration, problem.columns, problem.messages) == (None, {}, None)


def test_columns_are_one_list_each_and_none_where_missing():
    problems = [Problem("a", "1", columns={"x": 1}), Problem("b", "2", columns={"y": [2]}), Problem("c", "3")]
    assert reward_columns(problems) == {"answer": ["1", "2", "3"], "x": [1, None, None], "y": [None, [2], None]}


def test_the_answer_cannot_be_shadowed():
    with pytest.raises(InputError, match="extra column called 'answer'"):
        reward_columns([Problem("a", "1", columns={"answer": "2"})])
