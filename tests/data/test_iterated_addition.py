"""Iterated-addition problems are correct, differ between the splits, are reproducible, and have long solutions."""

import re
from itertools import pairwise

import pytest

from rljax.data.arithmetic import ALPHABET
from rljax.data.iterated_addition import add_errors, sample_problems
from rljax.errors import InputError
from rljax.rewards.exact import exact


def replay(problem):
    """Check a demonstration line by line; return the wrong steps (marked *) and, among them, those without a result."""
    prompt_step, first, second, value = map(int, re.fullmatch(r"(\d+)=(\d)\+(\d)=(\d);", problem.prompt).groups())
    assert value == (first + second) % 10
    *lines, answer = problem.demonstration.split(";")
    assert len(lines) == prompt_step - 1 == problem.columns["steps"]
    left, right, wrong, uncorrected = second, value, [], []
    for k, line in zip(range(prompt_step - 1, 0, -1), lines, strict=True):
        step, summands, written = line.split("=")
        assert (step, summands) == (str(k), f"{left}+{right}")
        if written.startswith("*"):
            wrong.append(k)
        if written == "*":
            uncorrected.append(k)
        else:
            assert written.removeprefix("*") == str((left + right) % 10)
        left, right = right, 0 if written == "*" else (left + right) % 10
    assert answer == f"#{right}"
    return wrong, uncorrected


def test_iteration_steps_are_correct():
    for problem in sample_problems("train", 200, seed=0):
        assert replay(problem) == ([], [])
        assert exact([problem.prompt], [problem.demonstration], [problem.answer]) == [1.0]
        assert set(problem.prompt + problem.demonstration) <= set(ALPHABET)


def test_iteration_lengths_vary_and_fit_512_tokens():
    lengths = [len(problem.demonstration) + 1 for problem in sample_problems("train", 2000, seed=1)]
    assert min(lengths) <= 52
    assert 490 < max(lengths) <= 512


def test_iteration_splits_and_seeds():
    train, heldout = sample_problems("train", 500, seed=0), sample_problems("heldout", 300, seed=0)
    assert not {p.prompt for p in train} & {p.prompt for p in heldout}
    assert len({p.prompt for p in train}) == 500
    assert sample_problems("train", 500, seed=0) == train
    assert sample_problems("train", 500, seed=1) != train


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": (0, 5)}, r"iterations is \(0, 5\); give the minimum"),
        ({"steps": (6, 5)}, r"iterations is \(6, 5\)"),
        ({"count": 0}, "train_problems is 0, but iterations="),
        ({"count": 10**6}, "allows 1 to .* distinct train problems"),
        ({"split": "test"}, "the split is 'test'; choose"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_iteration_invalid_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        sample_problems(**{"split": "train", "count": 3, "seed": 0, **arguments})


def test_some_of_the_steps_11_21_31_are_wrong():
    problems = add_errors(sample_problems("train", 1500, seed=0), share=0.65)
    replayed = [replay(problem) for problem in problems]
    wrong = [k for steps, _ in replayed for k in steps]
    uncorrected = [k for _, steps in replayed for k in steps]
    assert set(wrong) == {11, 21, 31, 41, 51}
    possible_errors = sum((problem.columns["steps"] - 1) // 10 for problem in problems)
    assert abs(len(wrong) / possible_errors - 0.65) < 0.02
    assert abs(len(uncorrected) / len(wrong) - 0.65) < 0.02
    correct = [exact([problem.prompt], [problem.demonstration], [problem.answer]) == [1.0] for problem in problems]
    has_uncorrected = [bool(steps) for _, steps in replayed]  # then the answer is right only by chance
    assert all(right or error for right, error in zip(correct, has_uncorrected, strict=True))
    assert sum(right for right, error in zip(correct, has_uncorrected, strict=True) if error) / sum(has_uncorrected) < 0.12


def test_error_share_0_changes_nothing():
    problems = sample_problems("train", 50, seed=0)
    assert add_errors(problems, share=0.0) == problems
    with pytest.raises(InputError, match=r"the share of errors is 1\.5; it must be between 0 and 1"):
        add_errors(problems, share=1.5)


def test_first_60_digit_pairs_are_distinct():
    for problem in sample_problems("train", 200, seed=2, steps=(70, 80)):
        digits = [int(line[-1]) for line in problem.demonstration.split(";")[:-1]]
        pairs = [*pairwise(digits)]
        assert len(set(pairs[:60])) == 60
