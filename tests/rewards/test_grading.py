"""A sample of the differential test of `tests/grading`: answers that are right or wrong by construction."""

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
    """Reference answers: our own, and those of MATH if the real data are available."""
    if request.param == "own":
        return references(250)
    rows = json.loads((request.getfixturevalue("shared_data") / "math_train.json").read_text(encoding="utf-8"))
    cases_of_kind = random.Random(0).sample([str(row["answer"]).strip() for row in rows if row["answer"]], 1500)
    return [answer for answer in cases_of_kind if not answer.isdigit()]


def find_misjudged(cases_of_kind, reward):
    draw = random.Random(0)
    completions = [completion(answer, draw) for _, _, answer in cases_of_kind]
    rewards = math(["?"] * len(cases_of_kind), completions, [reference for _, reference, _ in cases_of_kind])
    return [case for case, found in zip(cases_of_kind, rewards, strict=True) if found != reward]


def test_right_answers_are_rewarded(answers):
    cases_of_kind = cases(answers, RIGHT, COUNT, seed=2)
    assert len(cases_of_kind) == COUNT
    assert len(find_misjudged(cases_of_kind, 1.0)) <= 0.01 * COUNT


def test_wrong_answers_are_not_rewarded(answers):
    cases_of_kind = cases(answers, WRONG, COUNT, seed=2)
    assert len(cases_of_kind) == COUNT
    assert not find_misjudged(cases_of_kind, 0.0), "0.2 % of so few answers is less than one"


@pytest.mark.parametrize(("rewritings", "answer"), [(RIGHT, r"\frac{3}{2}"), (WRONG, "(1,2)")])
def test_a_rewriting_changes_its_text(rewritings, answer):
    found = cases([answer], rewritings, 100, seed=0)
    assert len(found) >= 5
    assert all(rewritten != reference == answer for _, reference, rewritten in found)
