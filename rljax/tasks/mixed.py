"""The task `mixed`: problems of varying difficulty in the same rollout.

There are three kinds: copy a number, `(427)=`; give the last digit of a sum, `427+5=`; and multiply, `7*42=`. Each is answered
directly, without steps: the response is just `#2`. A small model soon learns to copy, later learns last digits, and rarely learns
to multiply. So at any time many groups contain only right or only wrong responses, and the task shows how well an algorithm uses
the other groups. The column `type` names the kind.
"""

from dataclasses import dataclass
from random import Random

from rljax.data.heldout import Parts, sample_parts
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.settings.checks import check_at_least
from rljax.tasks.task import TaskConfig

KINDS = ("copy", "sum", "product")
"""The kinds, easiest first; values of the column `type`."""


@dataclass(frozen=True)
class MixedConfig(TaskConfig):
    """The task `mixed`: copying, last digits of sums, and products, all without intermediate steps."""

    kinds: tuple[str, ...] = KINDS
    """Kinds of problems, equally likely: copy, sum, product."""
    train_problems: int = 4000
    """Number of training problems to generate."""

    def __post_init__(self):
        check_at_least(1, self, ["train_problems"])
        if not self.kinds or not set(self.kinds) <= set(KINDS) or len(set(self.kinds)) < len(self.kinds):
            raise InputError(f"kinds is {self.kinds}; choose one or more of {', '.join(KINDS)}, each once.")

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Generate distinct problems of all kinds."""
        return sample_parts(self._generate, train=self.train_problems, heldout=heldout, seed=seed)

    def _generate(self, random: Random) -> Problem:
        kind = random.choice(self.kinds)
        if kind == "copy":
            answer = random.randint(100, 999)
            prompt = f"({answer})="
        elif kind == "sum":
            left, right = random.randint(100, 999), random.randint(1, 9)
            prompt, answer = f"{left}+{right}=", (left + right) % 10
        else:
            left, right = random.randint(2, 9), random.randint(10, 99)
            prompt, answer = f"{left}*{right}=", left * right
        return Problem(prompt, str(answer), f"#{answer}", {"type": kind})
