"""Settings of the generated tasks. Each task has its own record; a run on a dataset uses none of them."""

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, ClassVar

import tyro

from rljax.errors import InputError
from rljax.records import documented
from rljax.text import did_you_mean
from rljax.training.config.checks import check_at_least, check_share
from rljax.training.config.options import Words


@documented
@dataclass(frozen=True)
class SumsConfig:
    """The task `sums`: arithmetic with written-out steps."""

    reward: ClassVar[str] = "exact"

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

    reward: ClassVar[str] = "exact"

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


@documented
@dataclass(frozen=True)
class ReasoningGymConfig:
    """The task `reasoning_gym:NAME`: puzzles that a generator of the package reasoning-gym draws and scores."""

    reward: ClassVar[str] = "reasoning_gym"

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


TaskConfig = SumsConfig | IterationConfig | ReasoningGymConfig

TASKS = MappingProxyType({"sums": SumsConfig, "iteration": IterationConfig, "reasoning_gym": ReasoningGymConfig})
"""Map of a generated task's name, as in `--task NAME`, to the class of its settings. After a colon stands the part of the name that
is a setting of its own."""


def task_name(task: TaskConfig) -> str:
    """Name of a task.

    Example:
        >>> task_name(IterationConfig()), task_name(ReasoningGymConfig("gcd"))
        ('iteration', 'reasoning_gym:gcd')
    """
    name = next(name for name, record in TASKS.items() if isinstance(task, record))
    return f"{name}:{task.generator}" if isinstance(task, ReasoningGymConfig) else name


def task_named(name: str) -> TaskConfig:
    """Default settings of a task by its name.

    Raises:
        InputError: there is no such task.

    Example:
        >>> task_named("reasoning_gym:gcd").generator
        'gcd'
    """
    family, colon, generator = name.partition(":")
    if family == "reasoning_gym":
        if not generator:
            raise InputError(f"task is {name!r}; name one of its generators, as in reasoning_gym:countdown.")
        return ReasoningGymConfig(generator)
    if colon or family not in TASKS:
        near = did_you_mean(name, TASKS)
        raise InputError(f"task is {name!r}{'; choose sums, iteration or reasoning_gym:NAME.' if near == '.' else near}")
    return TASKS[family]()
