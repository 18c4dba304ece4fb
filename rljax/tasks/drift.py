"""The task `drift`: the kind of problem changes while the policy learns, first sums and then differences.

A problem is `427+5=` or `427-5=`, and its answer is the last digit, `#2`, without steps. Demonstrations and held-out problems
contain the same number of each kind. The first `stage_prompts` training prompts are sums, and all later ones are differences. The
position in this order is part of a checkpoint, so a resumed run switches at the same point. The held-out accuracy by the column
`type` shows how well the policy remembers the first kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from rljax.data.heldout import Parts, sample_parts
from rljax.data.problem import Problem
from rljax.settings.checks import check_at_least
from rljax.tasks.task import Stages, TaskConfig

KINDS = ("sum", "difference")
"""The kinds in training order; values of the column `type`."""


@dataclass(frozen=True)
class DriftConfig(TaskConfig):
    """The task `drift`: the training prompts are sums at first, and differences later."""

    stage_prompts: int = 1000
    """Number of training prompts before sums become differences."""
    train_problems: int = 4000
    """Number of training problems to generate, of both kinds together."""

    def __post_init__(self):
        check_at_least(1, self, ["stage_prompts"])
        check_at_least(2, self, ["train_problems"])

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Generate distinct problems of both kinds."""
        return sample_parts(_generate, train=self.train_problems, heldout=heldout, seed=seed)

    def stages(self, problems: Sequence[Problem]) -> Stages:
        """Return the sums, then the differences."""
        stages = (
            [index for index, problem in enumerate(problems) if problem.columns.get("type") == kind] for kind in KINDS
        )
        return Stages(tuple(stages), self.stage_prompts)


def _generate(random: Random) -> Problem:
    kind = random.choice(KINDS)
    left, right = random.randint(100, 999), random.randint(1, 9)
    sign, answer = ("+", (left + right) % 10) if kind == "sum" else ("-", (left - right) % 10)
    return Problem(f"{left}{sign}{right}=", str(answer), f"#{answer}", {"type": kind})
