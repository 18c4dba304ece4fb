"""Chains of a rule applied over and over: right, disjoint between splits, reproducible, and long."""

import re
from itertools import pairwise

import pytest

from rljax.data.arithmetic import ALPHABET
from rljax.data.iteration import iteration, lapses
from rljax.errors import InputError
from rljax.rewards.exact import exact


def beginning(prompt):
    """The two numbers that a prompt gives, and how many steps are left."""
    above, before, steps, value = map(int, re.fullmatch(r"(\d+)=(\d);(\d+)=(\d);", prompt).groups())
    assert above == steps + 1
    return before, value, steps - 1


def test_every_step_follows_from_the_one_before():
    for problem in iteration("train", 200, seed=0):
        before, value, steps = beginning(problem.prompt)
        *lines, answer = problem.demonstration.split(";")
        assert len(lines) == steps == problem.columns["steps"]
        for k, line in zip(range(steps, 0, -1), lines, strict=True):
            before, value = value, (before + value) % 10
            assert line == f"{k}={value}"
        assert answer == f"#{value}"
        assert exact([problem.prompt], [problem.demonstration], [problem.answer]) == [1.0]
        assert set(problem.prompt + problem.demonstration) <= set(ALPHABET)


def test_lengths_spread_over_an_order_of_magnitude_and_fit_512_tokens():
    lengths = [len(problem.demonstration) + 1 for problem in iteration("train", 2000, seed=1)]
    assert min(lengths) < 40
    assert 470 < max(lengths) <= 512


def test_splits_share_nothing_and_seeds_repeat():
    train, heldout = iteration("train", 500, seed=0), iteration("heldout", 500, seed=0)
    assert not {p.prompt for p in train} & {p.prompt for p in heldout}
    assert len({p.prompt for p in train}) == 500
    assert iteration("train", 500, seed=0) == train
    assert iteration("train", 500, seed=1) != train


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": (0, 5)}, r"iterations is \(0, 5\); give the fewest"),
        ({"steps": (6, 5)}, r"iterations is \(6, 5\)"),
        ({"count": 0}, "count is 0, but iterations="),
        ({"count": 10**6}, "can supply 1 to .* different train problems"),
        ({"split": "test"}, "the split is 'test'; choose"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        iteration(**{"split": "train", "count": 3, "seed": 0, **arguments})


def replayed(problem):
    """The demonstration's own numbers, checked one by one; which steps lapsed, and which of them were left open."""
    before, value, steps = beginning(problem.prompt)
    *lines, answer = problem.demonstration.split(";")
    lapsed, left_open = [], []
    for k, line in zip(range(steps, 0, -1), lines, strict=True):
        number, written = line.split("=")
        assert int(number) == k
        right = (before + value) % 10
        if written.startswith("*"):
            lapsed.append(k)
        if written == "*":
            left_open.append(k)
        else:
            assert written.removeprefix("*") == str(right)
        before, value = value, 0 if written == "*" else right
    assert answer == f"#{value}"
    return lapsed, left_open


def test_lapses_come_at_every_tenth_step_and_spoil_the_answer_where_they_stay_open():
    problems = lapses(iteration("train", 1500, seed=0), share=0.65)
    steps = [replayed(problem) for problem in problems]
    lapsed = [k for some, _ in steps for k in some]
    left_open = [k for _, some in steps for k in some]
    assert set(lapsed) == {11, 21, 31, 41, 51, 61, 71, 81, 91}
    places = sum((problem.columns["steps"] - 1) // 10 for problem in problems)
    assert abs(len(lapsed) / places - 0.65) < 0.02
    assert abs(len(left_open) / len(lapsed) - 0.65) < 0.02
    right = [exact([problem.prompt], [problem.demonstration], [problem.answer]) == [1.0] for problem in problems]
    spoilt = [bool(some) for _, some in steps]
    assert all(fine or bad for fine, bad in zip(right, spoilt, strict=True))
    assert sum(fine for fine, bad in zip(right, spoilt, strict=True) if bad) / sum(spoilt) < 0.12


def test_no_lapses_leave_everything_as_it_is():
    problems = iteration("train", 50, seed=0)
    assert lapses(problems, share=0.0) == problems
    with pytest.raises(InputError, match=r"the share of lapses is 1\.5; it must lie between 0 and 1"):
        lapses(problems, share=1.5)


def test_only_beginnings_are_asked_whose_numbers_repeat_late():
    for problem in iteration("train", 200, seed=2, steps=(90, 97)):
        digits = [int(line[-1]) for line in problem.demonstration.split(";")[:-1]]
        pairs = [*pairwise(digits)]
        assert len(set(pairs[:60])) == 60
