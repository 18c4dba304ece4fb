"""The task `sums`: arithmetic with written-out steps."""

from dataclasses import dataclass
from typing import ClassVar

from rljax.data.heldout import Parts
from rljax.errors import InputError
from rljax.settings.checks import check_at_least, check_share
from rljax.tasks.task import TaskConfig


@dataclass(frozen=True)
class SumsConfig(TaskConfig):
    """The task `sums`: arithmetic with written-out steps."""

    step_reward: ClassVar[str | None] = "equations"

    operands: tuple[int, int] = (3, 6)
    """Minimum and maximum number of operands in a problem."""
    digits: int = 1
    """Maximum number of digits in a number."""
    operators: str = "+"
    """Operators in the problems, any of + - *."""
    nesting: int = 0
    """Maximum depth of nested parentheses."""
    unfinished_share: float = 0.0
    """Fraction of longer problems whose demonstration stops before it states the answer."""
    unfinished_operands: int = 4
    """Problems with at least this many operands count as longer."""
    unanswered_operands: int | None = None
    """With at least this many operands, no demonstration states the answer; by default there is no such limit."""
    train_problems: int = 8192
    """Number of training problems to generate."""

    def __post_init__(self):
        check_at_least(1, self, ["digits", "train_problems"])
        check_at_least(0, self, ["nesting"])
        check_at_least(2, self, ["unanswered_operands"])
        check_share(self, ["unfinished_share"])
        low, high = self.operands
        if not 2 <= low <= high:
            raise InputError(
                f"operands is {self.operands}; give the minimum (2 or more) and the maximum number of operands."
            )

    def problems(self, heldout: int, *, seed: int) -> Parts:
        """Generate the problems of both splits; demonstrations of longer training problems may be unfinished."""
        from rljax.data.arithmetic import arithmetic, unfinished  # noqa: PLC0415  --help need not wait for NumPy

        difficulty = {
            "operands": self.operands,
            "digits": self.digits,
            "operators": self.operators,
            "nesting": self.nesting,
        }
        train = arithmetic("train", self.train_problems, seed=seed, **difficulty)
        cut = {"share": self.unfinished_share, "operands": self.unfinished_operands, "never": self.unanswered_operands}
        return unfinished(train, **cut), arithmetic("heldout", heldout, seed=seed, **difficulty)
