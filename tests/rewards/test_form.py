"""Rewards for the form of a response: tags in the right order."""

import pytest

from rljax.errors import InputError
from rljax.rewards.format import in_tags, tags, think_answer

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
