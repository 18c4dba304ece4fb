"""Majority votes: equal answers count together, and a response votes for the answer that its reward function reads."""

import pytest

from rljax.rewards import BY_NAME
from rljax.rewards.votes import VOTE_READERS, canonical_form, vote, vote_reader

EQUAL = [
    ("18", "18.00", "18.", "+18", "018"),
    ("0", "-0", "0.0", "-.0", "00"),
    ("-0.5", "-.5", "-0.50"),
    (r"\frac{1}{2}", r"\dfrac{1}{2}", r"\frac {1}{2}"),
    ("(1,2)", r"\left( 1,\, 2 \right)"),
]


@pytest.mark.parametrize("alike", EQUAL)
def test_equal_answers_have_one_form(alike):
    assert len({canonical_form(answer) for answer in alike}) == 1, [canonical_form(answer) for answer in alike]


def test_different_answers_have_different_forms():
    forms = [canonical_form(alike[0]) for alike in EQUAL]
    forms += [
        canonical_form(answer) for answer in ("180", "1.8", "-18", "0.05", "5", "(1,3)", "1 2", "12", "e", "10", "100")
    ]
    assert len(set(forms)) == len(forms)


def test_a_very_long_number_is_left_unchanged():
    assert canonical_form("1" * 100_000 + ".0") == "1" * 100_000 + ".0"


@pytest.mark.parametrize(
    ("reward", "completion", "voted"),
    [
        ("exact", "7+5=12;#12.0", "12"),
        ("exact", "The answer is 12", None),
        ("math", r"\boxed{\dfrac{1}{2}}", r"\frac{1}{2}"),
        ("math", "#12", None),
        ("multiple_choice", "<think>A or C?</think>B", "B"),
        ("yes_no", "<think>No, it can.</think>\n\nYes.", "yes"),
        ("math_or_last_number", "so 1,080", "1080"),
        ("gsm8k", "#### 1,080", "1080"),
        ("aime", r"\boxed{042}", "42"),
        ("yes_no", "The answer is True.", "yes"),
        ("yes_no", "no", "no"),
        ("yes_no", "maybe", None),
        ("multiple_choice", "(b)", "B"),
        ("multiple_choice", r"\boxed{A}", "A"),
        ("code", "The answer is 12", None),
        ("code_fraction", "#12", None),
        ("mine.py:judge", "The answer is 12.0.", "12"),
        ("mine.py:judge", "#12", "12"),
        ("mine.py:judge", "12", None),
        ("count_bonus:0.1,brier:math", "The answer is 12, confidence: 0.8", "12"),
        ("brier:math,format", "The answer is 12, confidence: 0.8", "12"),
        ("brier:yes_no", "Yes, confidence: 0.8", "yes"),
    ],
)
def test_response_votes_for_the_answer_that_its_reward_reads(reward, completion, voted):
    assert vote_reader(reward)(completion) == voted


def test_every_vote_reader_belongs_to_a_reward():
    assert set(VOTE_READERS) <= set(BY_NAME)
    assert vote_reader("format") is vote
