"""The task `reasoning_gym:NAME`: puzzles of the package reasoning-gym."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import tyro

from rljax.data.heldout import Parts
from rljax.data.problem import Problem
from rljax.settings.checks import check_at_least
from rljax.settings.options import Words
from rljax.tasks.task import TaskConfig


@dataclass(frozen=True)
class ReasoningGymConfig(TaskConfig):
    """The task `reasoning_gym:NAME`: puzzles generated and scored by the package reasoning-gym."""

    reward: ClassVar[str] = "reasoning_gym"
    tokenizer: ClassVar[str] = "bytes"

    generator: Annotated[str, tyro.conf.Fixed, tyro.conf.Suppress] = "countdown"
    """Name of the generator: the part of the task's name after the colon."""
    options: Annotated[Words, tyro.conf.arg(name="task-options")] = field(default_factory=dict)
    """Settings of the generator, e.g. `--task reasoning_gym:countdown --task-options min_numbers=3 max_numbers=3`; by default
    the generator's own defaults. Separate the items of a list by commas."""
    train_problems: int = 1000
    """Number of training problems to generate."""

    def __post_init__(self):
        check_at_least(1, self, ["train_problems"])

    @property
    def variant(self) -> str:
        """The name of the generator, after a colon."""
        return f":{self.generator}"

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Generate distinct problems in a separate process."""
        from rljax.data.reasoning_gym import reasoning_gym  # noqa: PLC0415  --help need not wait for NumPy

        return reasoning_gym(self.generator, train=self.train_problems, heldout=heldout, seed=seed, options=self.options)

    def optimum(self, problems: Sequence[Problem]) -> None:
        """Return None, because the package does not state whether all problems of a generator can be solved."""
        del problems
