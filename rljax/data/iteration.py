"""Long chains that can be verified: a rule applied over and over, its result alone rewarded.

A problem is `3+7(4)=`: begin with 7, and in step k add 3·k, keeping the last digit, 4 times. Its demonstration writes every step
with its number, one character a token: `1=0;2=6;3=5;4=7;#7`. Each step needs the one before, so one slip spoils the answer, and the
chains are as long as one likes: 8 steps are some 35 tokens, 99 steps some 490.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from rljax.data.arithmetic import is_heldout
from rljax.data.problem import Problem
from rljax.errors import InputError


def solve(increment: int, start: int, steps: int) -> list[int]:
    """Last digits after each step: x_k = (x_{k-1} + increment · k) mod 10.

    Example:
        >>> solve(3, 7, 4)
        [0, 6, 5, 7]
    """
    values = [start]
    for k in range(1, steps + 1):
        values.append((values[-1] + increment * k) % 10)
    return values[1:]


def iteration(
    split: Literal["train", "heldout"], count: int, *, seed: int, steps: tuple[int, int] = (8, 99)
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
        ('6+7(4)=', '1=3;2=5;3=3;4=7;#7')
    """
    low, high = steps
    if not 1 <= low <= high:
        raise InputError(f"iterations is {steps}; give the fewest (1 or more) and the most steps of a problem.")
    if split not in ("train", "heldout"):
        raise InputError(f"the split is {split!r}; choose 'train' or 'heldout'.")
    every = [(a, x, n) for a in range(1, 10) for x in range(10) for n in range(low, high + 1)]
    mine = [parts for parts in every if is_heldout(_prompt(*parts)) == (split == "heldout")]
    if not 0 < count <= len(mine):
        raise InputError(
            f"count is {count}, but iterations={steps} can supply 1 to {len(mine)} different {split} problems; ask for fewer, or "
            "widen it."
        )
    chosen = np.random.default_rng(seed).choice(len(mine), count, replace=False)
    return [_problem(*mine[index]) for index in chosen]


def _prompt(increment: int, start: int, steps: int) -> str:
    return f"{increment}+{start}({steps})="


def _problem(increment: int, start: int, steps: int) -> Problem:
    values = solve(increment, start, steps)
    return Problem(
        prompt=_prompt(increment, start, steps),
        answer=str(values[-1]),
        demonstration=_written(values),
        columns={"steps": steps},
    )


def _written(values: Sequence[int]) -> str:
    lines = [f"{k}={value}" for k, value in enumerate(values, 1)]
    return ";".join([*lines, f"#{values[-1]}"])
