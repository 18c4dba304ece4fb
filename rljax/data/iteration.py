"""Long chains that can be verified: a rule applied over and over, its result alone rewarded.

A problem is `5=6+7=3;`, the first line of a chain. Its demonstration goes on to the end, one character a token:
`4=7+3=0;3=3+0=3;2=0+3=3;1=3+3=6;#6`. Each line counts down, adds the last two numbers and keeps the last digit, so one slip spoils
the answer, and the chains are as long as one likes: 6 lines are some 50 tokens, 56 lines some 500. Only such beginnings are asked
whose digits do not repeat before 60 lines, so that no number can be had by looking back instead of adding.

With `lapses`, demonstrations lose the thread at every tenth line: they write `*` where the sum belongs, and then either make up
for it (`21=3+4=*7`) or go on as if it were 0 (`21=3+4=*`), which spoils the answer eighty tokens later or more. A model that
imitates them does both; that making up for it pays is left for it to find.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np

from rljax.data.arithmetic import is_heldout, share_of
from rljax.data.problem import Problem
from rljax.errors import InputError


def solve(first: int, second: int, steps: int) -> list[int]:
    """Last digits of a chain of sums: x_k = (x_{k-1} + x_{k-2}) mod 10.

    Example:
        >>> solve(3, 7, 4)
        [0, 7, 7, 4]
    """
    values = [first, second]
    for _ in range(steps):
        values.append((values[-1] + values[-2]) % 10)
    return values[2:]


def repeats_late(first: int, second: int) -> bool:
    """Whether the digits of a chain go through all of the 60 pairs that the longest cycle of sums modulo 10 has.

    Example:
        >>> repeats_late(0, 1), repeats_late(0, 5)
        (True, False)
    """
    values = [first, second, *solve(first, second, 60)]
    return len(set(pairwise(values))) == 60


def iteration(
    split: Literal["train", "heldout"], count: int, *, seed: int, steps: tuple[int, int] = (6, 56)
) -> list[Problem]:
    """Draw different problems, every one with its steps written out; all numbers of steps are equally likely.

    Args:
        split: `train`, or `heldout` for about one prompt in eight; no prompt is ever in both.
        count: how many problems, all different.
        seed: the same seed gives the same problems in the same order.
        steps: fewest and most steps.

    Returns:
        `count` problems in random order, each with the column `steps`.

    Raises:
        InputError: a value out of its range, or more problems asked for than there are.

    Example:
        >>> problem, *_ = iteration("train", 3, seed=0, steps=(4, 4))
        >>> problem.prompt, problem.demonstration
        ('5=6+5=1;', '4=5+1=6;3=1+6=7;2=6+7=3;1=7+3=0;#0')
    """
    low, high = steps
    if not 1 <= low <= high:
        raise InputError(f"iterations is {steps}; give the fewest (1 or more) and the most steps of a problem.")
    if split not in ("train", "heldout"):
        raise InputError(f"the split is {split!r}; choose 'train' or 'heldout'.")
    beginnings = [(x, y) for x in range(10) for y in range(10) if repeats_late(x, y)]
    every = [(*beginning, n) for beginning in beginnings for n in range(low, high + 1)]
    mine = [parts for parts in every if is_heldout(_prompt(*parts)) == (split == "heldout")]
    if not 0 < count <= len(mine):
        raise InputError(
            f"count is {count}, but iterations={steps} can supply 1 to {len(mine)} different {split} problems; ask for fewer, or "
            "widen it."
        )
    chosen = np.random.default_rng(seed).choice(len(mine), count, replace=False)
    return [_problem(*mine[index]) for index in chosen]


def lapses(problems: Sequence[Problem], *, share: float) -> list[Problem]:
    """Let demonstrations lose the thread at some of the steps 11, 21, 31, ..., and make up for it at some of those.

    From these steps a wrong number nearly always comes through to the answer: its error is multiplied by a Fibonacci number, which
    modulo 10 is 9, 6, 9, 1, 4, ...; from steps 10, 20, ... it would be 5, and half of the errors would vanish.

    Args:
        problems: of `iteration`.
        share: how many of those steps are lapses, and how many of the lapses are left open, in [0, 1].

    Returns:
        The problems in their order; where the lapses are is decided by a hash of the prompt and the step alone.

    Raises:
        InputError: a share outside [0, 1].

    Example:
        >>> [problem] = lapses(iteration("train", 1, seed=1, steps=(11, 11)), share=1.0)
        >>> problem.prompt, problem.answer, problem.demonstration
        ('12=5+2=7;', '6', '11=2+7=*;10=7+0=7;9=0+7=7;8=7+7=4;7=7+4=1;6=4+1=5;5=1+5=6;4=5+6=1;3=6+1=7;2=1+7=8;1=7+8=5;#5')
    """
    if not 0 <= share <= 1:
        raise InputError(f"the share of lapses is {share}; it must lie between 0 and 1.")

    def lapse(problem: Problem) -> Problem:
        places = range(11, problem.columns["steps"] + 1, 10)
        lapsed = {k for k in places if share_of(f"lapse {k} {problem.prompt}") < share}
        left_open = {k for k in lapsed if share_of(f"open {k} {problem.prompt}") < share}
        written = _written(*_numbers(problem.prompt), problem.columns["steps"], lapsed=lapsed, left_open=left_open)
        return replace(problem, demonstration=written)

    return [lapse(problem) for problem in problems]


def _prompt(first: int, second: int, steps: int) -> str:
    return f"{steps + 1}={first}+{second}={(first + second) % 10};"


def _numbers(prompt: str) -> tuple[int, int]:
    """The two summands of a prompt."""
    return int(prompt[-6]), int(prompt[-4])


def _problem(first: int, second: int, steps: int) -> Problem:
    return Problem(
        prompt=_prompt(first, second, steps),
        answer=str(solve(first, second, steps + 1)[-1]),
        demonstration=_written(first, second, steps),
        columns={"steps": steps},
    )


def _written(first: int, second: int, steps: int, *, lapsed: Collection[int] = (), left_open: Collection[int] = ()) -> str:
    """The lines of a chain and its result, with a mark at the steps that lapsed and no sum at those left open."""
    left, right = second, (first + second) % 10
    lines = []
    for k in range(steps, 0, -1):
        value = (left + right) % 10
        lines.append(f"{k}={left}+{right}={'*' * (k in lapsed)}{'' if k in left_open else value}")
        left, right = right, 0 if k in left_open else value
    return ";".join([*lines, f"#{right}"])
