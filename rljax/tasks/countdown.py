"""The task `countdown`: a search with sparse rewards. Reach a target with some digits, each used once, and `+`, `-` and `*`.

A problem is `13;723=`. Its demonstration is a short written search, which lists tried expressions with their values and then
the solution: `2+3+7=12;2*3+7=13;#2*3+7`. Products bind tighter than sums; there are no parentheses. Every target can be
reached. The column `solutions` counts the expressions that reach the target, `expressions` counts all expressions, and
`reachable` counts the targets from 1 to 99 that these digits can reach. Three digits make up to 54 expressions, which reach 9
targets on average, and one expression in twelve is right. A guess is therefore seldom right, and there is no partial credit.
"""

import itertools
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import ClassVar

from rljax.data.heldout import Parts, sample_parts
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.rewards.correctness import verifier
from rljax.rewards.extract import final_answer
from rljax.settings.checks import check_at_least
from rljax.tasks.task import TaskConfig

LARGEST_TARGET = 99
"""Largest target."""
_APPLY = {"+": operator.add, "-": operator.sub}
_EXPRESSION = re.compile(r"[1-9](?:[+*-][1-9])*")


def value_of(expression: str) -> int | None:
    """Evaluate an expression of digits and signs; None if the text is not an expression.

    Example:
        >>> value_of("2*3+7"), value_of("7-2*3"), value_of("2*"), value_of("23")
        (13, 1, None, None)
    """
    if _EXPRESSION.fullmatch(expression) is None:
        return None
    value = 0
    for sign, product in re.findall(r"(^|[+-])([1-9*]+)", expression):
        factors = 1
        for factor in product.split("*"):
            factors *= int(factor)
        value = _APPLY.get(sign, operator.add)(value, factors)
    return value


@cache
def expressions(digits: str) -> Mapping[str, int]:
    """Map every expression that uses each digit once to its value.

    Example:
        >>> found = expressions("12")
        >>> len(found), found["1-2"], found["2*1"]
        (6, -1, 2)
    """
    written = (
        "".join(part for pair in zip(order, (*signs, ""), strict=True) for part in pair)
        for order in sorted(set(itertools.permutations(digits)))
        for signs in itertools.product("+-*", repeat=len(digits) - 1)
    )
    values = {text: value_of(text) for text in written}
    return {text: value for text, value in values.items() if value is not None}


@verifier
def solved(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence) -> list[float]:
    """Return 1 for a final expression that uses every digit of the prompt once and equals the target, else 0.

    Args:
        prompts: the prompts, such as `13;723=`.
        completions: the responses; the answer follows the last `#`.
        columns: unused.

    Returns:
        1.0 or 0.0 for each completion.

    Example:
        >>> solved(["13;723="] * 3, ["2+3+7=12;#2*3+7", "#7+3+3", "2*3+7=13"])
        [1.0, 0.0, 0.0]
    """
    del columns
    return [float(_solves(prompt, completion)) for prompt, completion in zip(prompts, completions, strict=True)]


def _solves(prompt: str, completion: str) -> bool:
    target, _, digits = prompt.removesuffix("=").partition(";")
    expression = final_answer(completion) or ""
    used = re.sub(r"[^0-9]", "", expression)
    return sorted(used) == sorted(digits) and value_of(expression) == int(target)


@dataclass(frozen=True)
class CountdownConfig(TaskConfig):
    """The task `countdown`: reach a target with some digits, each used once; rewards are sparse."""

    reward: ClassVar[str] = "rljax.tasks.countdown:solved"

    numbers: int = 3
    """Number of digits in a problem, 2 to 4."""
    tries: int = 2
    """Maximum number of expressions that a demonstration tries; the last one reaches the target."""
    train_problems: int = 4000
    """Number of training problems to generate."""

    def __post_init__(self):
        check_at_least(1, self, ["numbers", "tries", "train_problems"])
        if not 2 <= self.numbers <= 4:
            raise InputError(f"numbers is {self.numbers}; it must be between 2 and 4.")

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Generate distinct problems, each with a target that its digits can reach."""
        return sample_parts(self._generate, train=self.train_problems, heldout=heldout, seed=seed)

    def _generate(self, random: Random) -> Problem:
        digits = "".join(random.choice("123456789") for _ in range(self.numbers))
        found = expressions("".join(sorted(digits)))
        targets = sorted({value for value in found.values() if 1 <= value <= LARGEST_TARGET})
        target = random.choice(targets)
        right = sorted(text for text, value in found.items() if value == target)
        wrong = sorted(text for text, value in found.items() if value != target)
        tried = random.sample(wrong, min(random.randrange(self.tries), len(wrong)))
        answer = random.choice(right)
        columns = {"solutions": len(right), "expressions": len(found), "reachable": len(targets)}
        return Problem(
            prompt=f"{target};{digits}=",
            answer=answer,
            demonstration=";".join([*(f"{text}={found[text]}" for text in (*tried, answer)), f"#{answer}"]),
            columns=columns | {"difficulty": "rare" if len(right) <= 3 else "common"},
        )
