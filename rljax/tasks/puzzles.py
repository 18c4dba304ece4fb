"""The task `reasoning_gym:NAME`: puzzles of the package reasoning-gym."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import tyro

from rljax.data.heldout import Parts
from rljax.data.problem import Problem
from rljax.records import documented
from rljax.settings.checks import check_at_least
from rljax.settings.options import Words
from rljax.tasks.task import TaskConfig


@documented
@dataclass(frozen=True)
class ReasoningGymConfig(TaskConfig):
    """The task `reasoning_gym:NAME`: puzzles that a generator of the package reasoning-gym draws and scores."""

    reward: ClassVar[str] = "reasoning_gym"
    tokenizer: ClassVar[str] = "bytes"

    generator: Annotated[str, tyro.conf.Fixed, tyro.conf.Suppress] = "countdown"
    """Name of the generator; it is the second half of the task's name."""
    options: Annotated[Words, tyro.conf.arg(name="task-options")] = field(default_factory=dict)
    """Settings of the generator, e.g. `--task reasoning_gym:countdown --task-options min_numbers=3 max_numbers=3`; by default its
    own. A list is written with commas."""
    train_problems: int = 1000
    """Number of training problems to generate."""

    def __post_init__(self):
        """Refuse problems that cannot be generated."""
        check_at_least(1, self, ["train_problems"])

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Different problems of the generator, drawn in a process of its own."""
        from rljax.data.reasoning_gym import reasoning_gym  # noqa: PLC0415  --help need not wait for NumPy

        return reasoning_gym(self.generator, train=self.train_problems, heldout=heldout, seed=seed, options=self.options)

    def optimum(self, problems: Sequence[Problem]) -> None:
        """Not known: the package says of no generator whether all of its problems can be solved."""
        del problems
