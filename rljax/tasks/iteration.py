"""The task `iteration`: long chains of steps, each of which depends on the one before."""

from dataclasses import dataclass
from typing import ClassVar

from rljax.data.heldout import Parts
from rljax.settings.checks import check_at_least, check_share
from rljax.tasks.task import TaskConfig


@dataclass(frozen=True)
class IterationConfig(TaskConfig):
    """The task `iteration`: long chains of steps, each of which depends on the one before."""

    step_reward: ClassVar[str | None] = "equations"

    iterations: tuple[int, int] = (6, 56)
    """Minimum and maximum number of steps in a problem."""
    lapse_share: float = 0.0
    """Fraction of the steps 11, 21, ... that have an error in demonstrations, and fraction of these errors that stay
    uncorrected."""
    train_problems: int = 2600
    """Number of training problems to generate."""

    def __post_init__(self):
        check_at_least(1, self, ["train_problems"])
        check_share(self, ["lapse_share"])

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Generate the problems of both splits; demonstrations of training problems may contain errors."""
        from rljax.data.iterated_addition import add_errors, sample_problems  # noqa: PLC0415  --help need not wait for NumPy

        train = sample_problems("train", self.train_problems, seed=seed, steps=self.iterations)
        return add_errors(train, share=self.lapse_share), sample_problems(
            "heldout", heldout, seed=seed, steps=self.iterations
        )
