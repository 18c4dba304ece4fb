"""Generated tasks: the record of all that a run needs of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rljax.data.heldout import Parts
from rljax.data.problem import Problem
from rljax.records import documented


@documented
class Stages(NamedTuple):
    """Training problems that are drawn one part after another."""

    places: tuple[list[int], ...]
    """Places of the problems of each stage."""
    prompts: int
    """Number of prompts that are drawn from a stage before the next begins; the last one never ends."""


@documented
@dataclass(frozen=True)
class TaskConfig:
    """Base of the settings of a generated task: the fields of a record are its settings, and what a run needs of it is here."""

    reward: ClassVar[str] = "exact"
    """Reward that judges unless another one is chosen, as `--reward` takes it: `module:function` if it is in the task's file."""
    tokenizer: ClassVar[str] = "characters"
    """Tokenizer of a model from random weights, as `--tokenizer` takes it."""
    step_reward: ClassVar[str | None] = None
    """Reward of each reasoning step, for algorithms that learn from steps; None: there is none by default."""

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Problems to train on, and `heldout` others; the two share no prompt.

        Raises:
            InputError: the settings cannot make so many.
        """
        raise NotImplementedError(f"{type(self).__name__} does not draw problems")

    def optimum(self, problems: Sequence[Problem]) -> float | None:
        """The highest mean accuracy that a policy can reach on these problems; None where it is not known.

        By default 1: the prompt decides the answer.
        """
        del problems
        return 1.0

    def stages(self, problems: Sequence[Problem]) -> Stages | None:
        """The stages of training on these problems; None, as by default: all of them are drawn at any time."""
        del problems
