"""Verifiable problems with long chains of thought: one rule is applied repeatedly, and only the result is rewarded.

A line is `n=a+b=c;`: n counts down, and c is the last digit of a + b; the next line adds b and c. A problem is the first line of a
chain, such as `5=6+7=3;`. Its demonstration continues to the end, one token per character: `4=7+3=0;3=3+0=3;2=0+3=3;1=3+3=6;#6`.
One error makes the answer wrong. Chains can have any length: 6 lines are about 50 tokens, 56 lines about 500. Only chains in which
no pair of digits (a, b) recurs within 60 lines are used, so that no sum can be copied from an earlier line.

With `add_errors`, some lines of a demonstration contain an error, marked with `*` after the second `=`. The demonstration then
either corrects it with the sum (`21=3+4=*7`) or continues as if the sum were 0 (`21=3+4=*`), which makes the answer wrong eighty or
more tokens later. A model that imitates these demonstrations does both; RL has to discover that correcting pays.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np

from rljax.data.heldout import hash_to_unit_interval, is_heldout
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.lazy import lazy_names

__getattr__ = lazy_names(
    __name__, renamed={"iteration": "sample_problems", "lapses": "add_errors", "repeats_late": "is_on_longest_cycle"}
)[0]


def solve(first: int, second: int, steps: int) -> list[int]:
    """Compute the digits of a chain: x_k = (x_{k-1} + x_{k-2}) mod 10.

    Example:
        >>> solve(3, 7, 4)
        [0, 7, 7, 4]
    """
    values = [first, second]
    for _ in range(steps):
        values.append((values[-1] + values[-2]) % 10)
    return values[2:]


def is_on_longest_cycle(first: int, second: int) -> bool:
    """Return True if a chain is on the longest cycle modulo 10, whose 60 digit pairs all differ, so it repeats as late as possible.

    Example:
        >>> is_on_longest_cycle(0, 1), is_on_longest_cycle(0, 5)
        (True, False)
    """
    values = [first, second, *solve(first, second, 60)]
    return len(set(pairwise(values))) == 60


def sample_problems(
    split: Literal["train", "heldout"], count: int, *, seed: int, steps: tuple[int, int] = (6, 56)
) -> list[Problem]:
    """Sample distinct problems, each with its steps written out; all step counts are equally likely.

    Args:
        split: `train` or `heldout`; about one prompt in eight is held out, and no prompt is in both.
        count: the number of problems; error messages call it `train_problems` or `heldout_problems`, as the task's settings do.
        seed: the same seed gives the same problems in the same order.
        steps: minimum and maximum number of steps; error messages call it `iterations`, the name of the task's setting.

    Returns:
        `count` problems in random order, each with the column `steps`.

    Raises:
        InputError: a value is out of range, or there are fewer distinct problems than `count`.

    Example:
        >>> problem, *_ = sample_problems("train", 3, seed=0, steps=(4, 4))
        >>> problem.prompt, problem.demonstration
        ('5=6+5=1;', '4=5+1=6;3=1+6=7;2=6+7=3;1=7+3=0;#0')
    """
    low, high = steps
    if not 1 <= low <= high:
        raise InputError(f"iterations is {steps}; give the minimum (1 or more) and the maximum number of steps.")
    if split not in ("train", "heldout"):
        raise InputError(f"the split is {split!r}; choose 'train' or 'heldout'.")
    beginnings = [(x, y) for x in range(10) for y in range(10) if is_on_longest_cycle(x, y)]
    candidates = [(*beginning, n) for beginning in beginnings for n in range(low, high + 1)]
    prompts = [parts for parts in candidates if is_heldout(_prompt(*parts)) == (split == "heldout")]
    if not 0 < count <= len(prompts):
        raise InputError(
            f"{split}_problems is {count}, but iterations={steps} allows 1 to {len(prompts)} distinct {split} problems; lower "
            f"{split}_problems, or widen iterations."
        )
    chosen = np.random.default_rng(seed).choice(len(prompts), count, replace=False)
    return [_problem(*prompts[index]) for index in chosen]


def add_errors(problems: Sequence[Problem], *, share: float | int) -> list[Problem]:
    """Add errors to demonstrations at some of the steps 11, 21, 31, ..., and correct some of these errors.

    An error at these steps nearly always changes the answer, because the error is multiplied by a Fibonacci number (modulo 10:
    9, 6, 9, 1, 4, ...). At steps 10, 20, ... the factor would be 5, and half of the errors would vanish.

    Args:
        problems: problems that `sample_problems` returned.
        share: the fraction of those steps that get an error, and the fraction of these errors that stay uncorrected, in [0, 1].

    Returns:
        The problems in their original order. Only a hash of the prompt and the step decides where the errors are.

    Raises:
        InputError: the share is outside [0, 1], or a problem has no column `steps`.

    Example:
        >>> [problem] = add_errors(sample_problems("train", 1, seed=1, steps=(11, 11)), share=1.0)
        >>> problem.prompt, problem.answer, problem.demonstration
        ('12=5+2=7;', '6', '11=2+7=*;10=7+0=7;9=0+7=7;8=7+7=4;7=7+4=1;6=4+1=5;5=1+5=6;4=5+6=1;3=6+1=7;2=1+7=8;1=7+8=5;#5')
    """
    if not 0 <= share <= 1:
        raise InputError(f"the share of errors is {share}; it must be between 0 and 1.")

    def with_errors(problem: Problem) -> Problem:
        steps = problem.columns.get("steps")
        if not isinstance(steps, int):
            raise InputError(
                f"the problem {problem.prompt!r} has no column 'steps'; use problems made by `sample_problems`."
            )
        wrong = {k for k in range(11, steps + 1, 10) if hash_to_unit_interval(f"lapse {k} {problem.prompt}") < share}
        uncorrected = {k for k in wrong if hash_to_unit_interval(f"open {k} {problem.prompt}") < share}
        lines = _demonstration(*_numbers(problem.prompt), steps, wrong=wrong, uncorrected=uncorrected)
        return replace(problem, demonstration=lines)

    return [with_errors(problem) for problem in problems]


def _prompt(first: int, second: int, steps: int) -> str:
    return f"{steps + 1}={first}+{second}={(first + second) % 10};"


def _numbers(prompt: str) -> tuple[int, int]:
    """Read the two numbers that a prompt adds."""
    return int(prompt[-6]), int(prompt[-4])


def _problem(first: int, second: int, steps: int) -> Problem:
    return Problem(
        prompt=_prompt(first, second, steps),
        answer=str(solve(first, second, steps + 1)[-1]),
        demonstration=_demonstration(first, second, steps),
        columns={"steps": steps},
    )


def _demonstration(
    first: int, second: int, steps: int, *, wrong: Collection[int] = (), uncorrected: Collection[int] = ()
) -> str:
    """Write the lines of a chain and its result, with a mark at wrong steps, and without the sum at uncorrected steps."""
    left, right = second, (first + second) % 10
    lines = []
    for k in range(steps, 0, -1):
        value = (left + right) % 10
        lines.append(f"{k}={left}+{right}={'*' * (k in wrong)}{'' if k in uncorrected else value}")
        left, right = right, 0 if k in uncorrected else value
    return ";".join([*lines, f"#{right}"])
