"""A sample of the differential test in `tests/grading`: answers that are right or wrong by construction."""

import json
import random

import pytest
from grading.cases import cases, completion
from grading.generated_references import references
from grading.right import RIGHT
from grading.wrong import WRONG

from rljax.rewards.math import math

COUNT = 400


@pytest.fixture(scope="module", params=["own", "math_train"])
def answers(request):
    """Reference answers: generated ones, and those of the MATH training set if it is available."""
    if request.param == "own":
        return references(250)
    rows = json.loads((request.getfixturevalue("shared_data") / "math_train.json").read_text(encoding="utf-8"))
    sample = random.Random(0).sample([str(row["answer"]).strip() for row in rows if row["answer"]], 1500)
    return [answer for answer in sample if not answer.isdigit()]


def find_misjudged(tested, reward):
    """Return the cases that do not get the reward."""
    rng = random.Random(0)
    completions = [completion(answer, rng) for _, _, answer in tested]
    rewards = math(["?"] * len(tested), completions, [reference for _, reference, _ in tested])
    return [case for case, found in zip(tested, rewards, strict=True) if found != reward]


def test_right_answers_are_rewarded(answers):
    tested = cases(answers, RIGHT, COUNT, seed=2)
    assert len(tested) == COUNT
    assert len(find_misjudged(tested, 1.0)) <= 0.01 * COUNT


def test_wrong_answers_are_not_rewarded(answers):
    tested = cases(answers, WRONG, COUNT, seed=2)
    assert len(tested) == COUNT
    assert not find_misjudged(tested, 0.0), "the allowed 0.2% is less than one of these answers"


@pytest.mark.parametrize(("rewritings", "answer"), [(RIGHT, r"\frac{3}{2}"), (WRONG, "(1,2)")])
def test_rewriting_changes_the_answer(rewritings, answer):
    tested = cases([answer], rewritings, 100, seed=0)
    assert len(tested) >= 5
    assert all(rewritten != reference == answer for _, reference, rewritten in tested)
