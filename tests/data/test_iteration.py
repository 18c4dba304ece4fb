"""Chains of a rule applied over and over: right, disjoint between splits, reproducible, and long."""

import re

import pytest

from rljax.data.arithmetic import ALPHABET
from rljax.data.iteration import iteration
from rljax.errors import InputError
from rljax.rewards.exact import exact


def test_every_step_follows_from_the_one_before():
    for problem in iteration("train", 200, seed=0):
        before, value, steps = map(int, re.fullmatch(r"(\d)\+(\d)\((\d+)\)=", problem.prompt).groups())
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
    assert 480 < max(lengths) <= 512


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
