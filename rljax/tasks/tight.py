"""The task `tight`: there is a long and a short way to write the solution, and the token limit truncates the long one.

A problem is `7593=`, a sum of single digits. The long way writes every step, `7+5=12;12+9=21;21+3=24;#24`, and the short way
only the running sums, `12;21;24;#24`. Within 32 tokens the long way reaches the answer for up to four digits, the short way for
up to seven. Only demonstrations with few digits show the short way, and a warm start omits demonstrations that the limit would
truncate. RL must therefore discover that the short way works with more digits, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from rljax.data.heldout import Parts, sample_parts
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.settings.checks import check_at_least, check_share
from rljax.tasks.task import TaskConfig


def long_way(digits: Sequence[int]) -> str:
    """Write every step with both summands.

    Example:
        >>> long_way([7, 5, 9])
        '7+5=12;12+9=21;#21'
    """
    sums = list(accumulate(digits))
    steps = [f"{left}+{right}={left + right}" for left, right in zip(sums, digits[1:], strict=False)]
    return ";".join([*steps, f"#{sums[-1]}"])


def short_way(digits: Sequence[int]) -> str:
    """Write only the running sums.

    Example:
        >>> short_way([7, 5, 9])
        '12;21;#21'
    """
    sums = list(accumulate(digits))
    return ";".join([*map(str, sums[1:]), f"#{sums[-1]}"])


@dataclass(frozen=True)
class TightConfig(TaskConfig):
    """The task `tight`: a long and a short way to the answer; the response's token limit truncates the long one."""

    terms: tuple[int, int] = (3, 6)
    """Minimum and maximum number of digits in a problem, 2 to 7."""
    short_terms: int = 4
    """Maximum number of digits for which demonstrations may use the short way."""
    short_share: float = 0.3
    """Fraction of demonstrations with up to `short_terms` digits that use the short way."""
    train_problems: int = 4000
    """Number of training problems to generate."""

    def __post_init__(self):
        check_at_least(1, self, ["train_problems"])
        check_share(self, ["short_share"])
        low, high = self.terms
        if not 2 <= low <= high <= 7:
            raise InputError(f"terms is {self.terms}; give the minimum and the maximum number of digits, from 2 to 7.")

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Generate distinct problems; every number of digits is equally likely."""
        return sample_parts(self._generate, train=self.train_problems, heldout=heldout, seed=seed)

    def _generate(self, random: Random) -> Problem:
        digits = [random.randint(1, 9) for _ in range(random.randint(*self.terms))]
        is_short = len(digits) <= self.short_terms and random.random() < self.short_share
        way = short_way if is_short else long_way
        prompt = f"{''.join(map(str, digits))}="
        return Problem(prompt, str(sum(digits)), way(digits), {"operands": len(digits)})
