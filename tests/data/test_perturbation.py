"""Perturbed prompts differ from the originals, depend only on the seed, and keep numbers and formulas."""

import random
import re

import pytest

from rljax.data.perturbation import PERTURBATIONS, perturb
from rljax.data.problem import Problem
from rljax.errors import InputError

TEXT = r"Natalia sold 48 clips in April, and 1/2 as many in May; what is x+y if \frac{x}{2} = 3?"


@pytest.mark.parametrize("name", [name for name in PERTURBATIONS if name != "order"])
def test_perturb_keeps_numbers_formulas_and_letters(name):
    problem = Problem(TEXT, "72", columns={"level": 1})
    (changed,) = perturb([problem], name)
    assert changed.prompt != TEXT
    assert perturb([problem], name) == [changed]
    assert perturb([problem], name, seed=1)[0].prompt != changed.prompt
    assert (changed.answer, changed.columns) == ("72", {"level": 1})
    assert re.findall(r"\d+", changed.prompt) == re.findall(r"\d+", TEXT)
    assert r"\frac{x}{2}" in changed.prompt
    assert sorted(changed.prompt.lower().replace(" ", "")) == sorted(TEXT.lower().replace(" ", ""))


def test_perturb_order_reorders_only_summands():
    problem = Problem("What is 3+4+12, if 2*3+4=10, (1+2)/3=1 and x+7=8?", "19")
    (changed,) = perturb([problem], "order")
    head, _, tail = changed.prompt.partition(",")
    assert tail == problem.prompt.partition(",")[2]
    assert head != "What is 3+4+12"
    assert sorted(head.removeprefix("What is ").split("+")) == ["12", "3", "4"]
    with pytest.raises(InputError, match="--perturb order changes no prompt"):
        perturb([Problem("5+5=", "10")], "order")


def test_perturb_changes_only_user_messages():
    messages = (
        {"role": "system", "content": "Think before you answer."},
        {"role": "user", "content": "What is seven times two?"},
    )
    (changed,) = perturb([Problem("Think before you answer.\nWhat is seven times two?", "14", messages=messages)], "typos")
    assert changed.messages[0] == messages[0]
    assert changed.messages[1]["content"] != messages[1]["content"]
    assert changed.prompt == "\n".join(message["content"] for message in changed.messages)


def test_perturb_needs_a_changeable_prompt():
    reason = r"no prompt of these problems, such as '3\+4=', because it needs words of at least four letters; perturbations that "
    with pytest.raises(InputError, match=reason + r"would change some of these prompts: spaces, order\."):
        perturb([Problem("3+4=", "7")], "typos")
    with pytest.raises(InputError, match=r"would change some of these prompts: none\."):
        perturb([Problem("x", "7")], "case")
    with pytest.raises(InputError, match="no perturbation 'noise'; choose one of spaces, case, typos"):
        perturb([Problem("3+4=", "7")], "noise")


def test_spaces_treats_minus_as_operator_but_not_hyphen():
    always = type("Always", (random.Random,), {"random": lambda self: 0.0})()
    assert PERTURBATIONS["spaces"]("9-4=", always) == "9 - 4 ="
    assert PERTURBATIONS["spaces"](r"\frac{1}{2}-x", always) == r"\frac{1}{2} - x"
    for text in ("a well-known", "x=-3", "a 3-year-old"):
        assert "- " not in PERTURBATIONS["spaces"](text, always)
