"""Settings of the generated tasks. Each task has a record of its own; a dataset needs none of them."""

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
    """Least and most numbers in a problem."""
    digits: int = 1
    """Most digits of a number."""
    operators: str = "+"
    """Which of + - * occur."""
    nesting: int = 0
    """Depth of parentheses."""
    unfinished_share: float = 0.0
    """Share of the longer problems whose demonstration stops before it states the answer."""
    unfinished_operands: int = 4
    """From how many numbers on a problem counts as longer."""
    train_problems: int = 8192
    """How many problems are generated to train on."""

    def __post_init__(self):
        """Refuse problems that cannot be generated."""
        check_at_least(1, self, ["digits", "train_problems"])
        check_at_least(0, self, ["nesting"])
        check_share(self, ["unfinished_share"])
        low, high = self.operands
        if not 2 <= low <= high:
            raise InputError(f"operands is {self.operands}; give the least (2 or more) and the most numbers of a problem.")


@documented
@dataclass(frozen=True)
class IterationConfig:
    """The task `iteration`: long chains of steps that each depend on the one before."""

    iterations: tuple[int, int] = (6, 56)
    """Least and most steps of a problem."""
    lapse_share: float = 0.0
    """Share of the steps 11, 21, ... at which demonstrations lapse, and of the lapses that they leave open."""
    train_problems: int = 2600
    """How many problems are generated to train on."""

    def __post_init__(self):
        """Refuse problems that cannot be generated."""
        check_at_least(1, self, ["train_problems"])
        check_share(self, ["lapse_share"])


TaskConfig = SumsConfig | IterationConfig

TASKS = MappingProxyType({"sums": SumsConfig, "iteration": IterationConfig})
"""Name of a generated task, as after `--task` -> its settings."""


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
