"""Rewards for the form of a response: tags in the right order, and lengths in tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.errors import InputError
from rljax.rewards.format import in_tags, tags, think_answer
from rljax.rewards.length import length_penalty, soft_overlong

GOOD = "<think>7+5</think><answer>12</answer>"


@pytest.mark.parametrize(
    ("completion", "good"),
    [
        (GOOD, True),
        (f" \n{GOOD}\n", True),
        ("<think>a\nb</think>\n\n<answer>12</answer>", True),
        ("<think>a < b > c</think><answer>12</answer>", True),
        ("<answer>12</answer><think>7+5</think>", False),
        ("<think>7+5</think>", False),
        ("<answer>12</answer>", False),
        (f"Well: {GOOD}", False),
        (f"{GOOD} Done.", False),
        ("<think>7+5</think> so <answer>12</answer>", False),
        (GOOD + GOOD, False),
        ("<think>7+5</think><answer>12</answer></answer>", False),
        ("<think><think>7+5</think><answer>12</answer>", False),
        ("<think>7+5<answer>12</answer></think>", False),
        ("<think>7<answer>5</think><answer>12</answer>", False),
        ("<think>7</answer>5</think><answer>12</answer>", False),
        ("<think> </think><answer>12</answer>", False),
        ("<think>7+5</think><answer></answer>", False),
        ("<think>7+5</think><answer>12", False),
        ("<Think>7+5</Think><answer>12</answer>", False),
        ("", False),
    ],
)
def test_think_answer(completion, good):
    assert in_tags(completion, ["think", "answer"]) is good
    assert think_answer(prompts=["?"], completions=[completion], answer=["12"]) == [float(good)]


def test_tags_with_other_names():
    reward = tags(["a", "b", "c"])
    assert reward(completions=["<a>1</a><b>2</b><c>3</c>", "<a>1</a><c>3</c><b>2</b>", GOOD]) == [1.0, 0.0, 0.0]
    for names in ([], "think", ["a", "a"]):
        with pytest.raises(InputError, match=r"the tags are .*; give a list"):
            tags(names)


def test_soft_overlong_counts_tokens():
    def count(text):
        return len(text.split())

    reward = soft_overlong(count, max_length=10, cache=4)
    completions = ["word " * length for length in (0, 6, 7, 8, 9, 10, 11, 99)]
    np.testing.assert_allclose(reward(completions=completions), [0.0, 0.0, -0.25, -0.5, -0.75, -1.0, -1.0, -1.0])
    assert reward(prompts=[], completions=[]) == []


@given(st.integers(0, 40))
def test_length_penalty_is_relative_to_the_maximum_length(length):
    (penalty,) = length_penalty(len, max_length=20)(completions=["a" * length])
    assert penalty == min(1.0, length / 20)


def test_invalid_lengths_are_refused_at_construction():
    with pytest.raises(ValueError, match="max_length"):
        length_penalty(len, max_length=0)
    with pytest.raises(ValueError, match="cache"):
        soft_overlong(len, max_length=4, cache=5)
