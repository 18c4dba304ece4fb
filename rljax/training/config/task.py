"""Settings of the generated tasks. Each task has its own record; a run on a dataset uses none of them."""

from dataclasses import dataclass
from types import MappingProxyType

from rljax.errors import InputError
from rljax.records import documented
from rljax.training.config.checks import check_at_least, check_share


@documented
@dataclass(frozen=True)
class SumsConfig:
    """The task `sums`: arithmetic with written-out steps."""

    operands: tuple[int, int] = (3, 6)
    """Minimum and maximum count of numbers in a problem."""
    digits: int = 1
    """Maximum number of digits in a number."""
    operators: str = "+"
    """Operators that occur, any of + - *."""
    nesting: int = 0
    """Maximum depth of nested parentheses."""
    unfinished_share: float = 0.0
    """Share of the longer problems whose demonstration stops before it states the answer."""
    unfinished_operands: int = 4
    """Count of numbers from which a problem is longer."""
    unanswered_operands: int | None = None
    """Count of numbers from which no demonstration states the answer; by default it is left to the share."""
    train_problems: int = 8192
    """Number of training problems to generate."""

    def __post_init__(self):
        """Refuse problems that cannot be generated."""
        check_at_least(1, self, ["digits", "train_problems"])
        check_at_least(0, self, ["nesting"])
        check_at_least(2, self, ["unanswered_operands"])
        check_share(self, ["unfinished_share"])
        low, high = self.operands
        if not 2 <= low <= high:
            raise InputError(f"operands is {self.operands}; give the minimum (2 or more) and the maximum count of numbers.")


@documented
@dataclass(frozen=True)
class IterationConfig:
    """The task `iteration`: long chains of steps that each depend on the one before."""

    iterations: tuple[int, int] = (6, 56)
    """Minimum and maximum number of steps in a problem."""
    lapse_share: float = 0.0
    """Share of the steps 11, 21, ... at which a demonstration lapses, and share of the lapses that it does not correct."""
    train_problems: int = 2600
    """Number of training problems to generate."""

    def __post_init__(self):
        """Refuse problems that cannot be generated."""
        check_at_least(1, self, ["train_problems"])
        check_share(self, ["lapse_share"])


TaskConfig = SumsConfig | IterationConfig

TASKS = MappingProxyType({"sums": SumsConfig, "iteration": IterationConfig})
"""Map of a generated task's name, as in `--task NAME`, to the class of its settings."""


def task_name(task: TaskConfig) -> str:
    """Name of a task.

    Example:
        >>> task_name(IterationConfig())
        'iteration'
    """
    return next(name for name, record in TASKS.items() if isinstance(task, record))


def task_named(name: str) -> type[TaskConfig]:
    """Settings of a task by its name.

    Raises:
        InputError: there is no such task.
    """
    if name not in TASKS:
        raise InputError(f"task is {name!r}; choose {' or '.join(TASKS)}.")
    return TASKS[name]
