"""The base class of generated tasks: everything that a run needs from a task."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rljax.data.heldout import Parts
from rljax.data.problem import Problem


class Stages(NamedTuple):
    """Training problems that are used in consecutive stages."""

    indices: tuple[list[int], ...]
    """Indices of the problems in each stage."""
    prompts: int
    """Number of prompts that are sampled from a stage before the next one begins; the last stage never ends."""


@dataclass(frozen=True)
class TaskConfig:
    """Base class of generated tasks: the fields of a subclass are the settings of the task."""

    reward: ClassVar[str] = "exact"
    """Default reward, in the form of `--reward`: `module:function` if it is in the task's file."""
    tokenizer: ClassVar[str] = "characters"
    """Tokenizer of a model with random weights, in the form of `--tokenizer`."""
    step_reward: ClassVar[str | None] = None
    """Reward of each reasoning step, for algorithms that learn from steps; None: there is no default step reward."""

    @property
    def variant(self) -> str:
        """The end of the task's name that selects a variant, with its colon, such as `:3`; empty for most tasks."""
        return ""

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Generate training problems and `heldout` held-out problems; no prompt is in both.

        Raises:
            InputError: the settings cannot produce that many problems.
        """
        raise NotImplementedError(f"{type(self).__name__} does not generate problems")

    def optimum(self, problems: Sequence[Problem]) -> float | None:
        """Return the highest mean accuracy that a policy can reach on these problems; None if it is unknown.

        The default is 1, which is right if the prompt determines the answer.
        """
        del problems
        return 1.0

    def stages(self, problems: Sequence[Problem]) -> Stages | None:
        """Return the stages of training on these problems; None (the default): any problem may be sampled at any time."""
        del problems
