"""The task `brackets`: output in a formal language, in which a single wrong character makes the output worthless.

A problem is a formula in prefix notation, such as `*+342=`, and its answer is the same formula with a pair of brackets around
every operation, `((3+4)*2)`. The reward is 1 only for a text that parses and is the same formula. Some demonstrations lack a
bracket, as examples in scraped data often do, so a policy that imitates them often writes malformed output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from rljax.data.heldout import Parts, sample_parts
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.rewards.correctness import verifier
from rljax.settings.checks import check_at_least, check_share
from rljax.tasks.task import TaskConfig

DEEPEST = 20
"""Maximum nesting depth that is parsed; a limit is needed because responses may be nested arbitrarily deeply."""


def prefix_of(text: str) -> str | None:
    """Convert a text with brackets around every operation to prefix notation; None if it is malformed.

    Example:
        >>> prefix_of("((3+4)*2)")
        '*+342'
        >>> prefix_of("((3+4)*2"), prefix_of("(3+4)*2"), prefix_of("3+4")
        (None, None, None)
    """
    parsed = _parse(text, 0, 0)
    return parsed[0] if parsed is not None and parsed[1] == len(text) else None


def _parse(text: str, start: int, depth: int) -> tuple[str, int] | None:
    """Parse the formula that begins at an index; return it in prefix notation, and the index after it; None if malformed."""
    first = text[start : start + 1]
    if first.isdecimal() and first.isascii():
        return first, start + 1
    if first != "(" or depth == DEEPEST:
        return None
    left = _parse(text, start + 1, depth + 1)
    if left is None or text[left[1] : left[1] + 1] not in ("+", "-", "*"):
        return None
    right = _parse(text, left[1] + 1, depth + 1)
    if right is None or text[right[1] : right[1] + 1] != ")":
        return None
    return f"{text[left[1]]}{left[0]}{right[0]}", right[1] + 1


@verifier
def same_formula(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence) -> list[float]:
    """Return 1 for a completion that parses and is the prompt's formula, else 0.

    Args:
        prompts: the prompts, such as `*+342=`.
        completions: the responses; each must be a formula and nothing else.
        columns: unused.

    Returns:
        1.0 or 0.0 for each completion.

    Example:
        >>> same_formula(["+34="] * 3, ["(3+4)", "(3+4", "(4+3)"])
        [1.0, 0.0, 0.0]
    """
    del columns
    return [
        float(prefix_of(completion) == prompt.removesuffix("="))
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


@dataclass(frozen=True)
class BracketsConfig(TaskConfig):
    """The task `brackets`: rewrite prefix formulas with nested brackets; a malformed text has reward 0."""

    reward: ClassVar[str] = "rljax.tasks.brackets:same_formula"

    operations: tuple[int, int] = (2, 3)
    """Minimum and maximum number of operations in a formula, 1 to 5."""
    malformed_share: float = 0.5
    """Fraction of demonstrations that lack a bracket."""
    train_problems: int = 4000
    """Number of training problems to generate."""

    def __post_init__(self):
        check_at_least(1, self, ["train_problems"])
        check_share(self, ["malformed_share"])
        low, high = self.operations
        if not 1 <= low <= high <= 5:
            raise InputError(f"operations is {self.operations}; give the minimum and the maximum, from 1 to 5.")

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Generate distinct formulas."""
        return sample_parts(self._generate, train=self.train_problems, heldout=heldout, seed=seed)

    def _generate(self, random: Random) -> Problem:
        operations = random.randint(*self.operations)
        prefix, written = _generate_formula(random, operations)
        demonstration = written
        if random.random() < self.malformed_share:
            missing = random.choice([index for index, character in enumerate(written) if character in "()"])
            demonstration = written[:missing] + written[missing + 1 :]
        return Problem(f"{prefix}=", written, demonstration, {"operands": operations + 1})


def _generate_formula(random: Random, operations: int) -> tuple[str, str]:
    """Return a random formula, both in prefix notation and with brackets."""
    if not operations:
        digit = random.choice("123456789")
        return digit, digit
    left_operations = random.randrange(operations)
    left, sign, right = (
        _generate_formula(random, left_operations),
        random.choice("+-*"),
        _generate_formula(random, operations - 1 - left_operations),
    )
    return f"{sign}{left[0]}{right[0]}", f"({left[1]}{sign}{right[1]})"
