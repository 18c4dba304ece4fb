"""Floor 3: generated tasks. A task is one file, its settings with all that a run needs of it, and one line in `TASKS`."""

from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import TYPE_CHECKING

from rljax.errors import InputError
from rljax.lazy import lazy_names
from rljax.tasks.brackets import BracketsConfig
from rljax.tasks.countdown import CountdownConfig
from rljax.tasks.digits import DigitsConfig
from rljax.tasks.drift import DriftConfig
from rljax.tasks.exploit import ExploitConfig
from rljax.tasks.iteration import IterationConfig
from rljax.tasks.lengths import LengthsConfig
from rljax.tasks.mixed import MixedConfig
from rljax.tasks.outliers import OutliersConfig
from rljax.tasks.puzzles import ReasoningGymConfig
from rljax.tasks.sums import SumsConfig
from rljax.tasks.task import TaskConfig as TaskConfig
from rljax.tasks.tight import TightConfig
from rljax.text import did_you_mean

TASKS: MappingProxyType[str, type[TaskConfig]] = MappingProxyType(
    {
        "sums": SumsConfig,
        "iteration": IterationConfig,
        "countdown": CountdownConfig,
        "lengths": LengthsConfig,
        "outliers": OutliersConfig,
        "tight": TightConfig,
        "mixed": MixedConfig,
        "drift": DriftConfig,
        "brackets": BracketsConfig,
        "exploit": ExploitConfig,
        "digits": DigitsConfig,
        "reasoning_gym": ReasoningGymConfig,
    }
)
"""Map of a generated task's name, as in `--task NAME`, to the class of its settings. After a colon stands the part of the name that
is a setting of its own."""

if TYPE_CHECKING:
    AnyTask = TaskConfig
else:
    AnyTask = reduce(or_, TASKS.values())  # the command line needs the classes whose fields it shows
"""Type of the settings of some task."""

__getattr__, __dir__ = lazy_names(__name__)


def full_name(family: str) -> str:
    """Name of a task as it is typed.

    Example:
        >>> full_name("sums"), full_name("reasoning_gym")
        ('sums', 'reasoning_gym:NAME')
    """
    return f"{family}:NAME" if TASKS[family] is ReasoningGymConfig else family


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
        near, known = did_you_mean(name, TASKS), [full_name(task) for task in TASKS]
        choice = f"{', '.join(known[:-1])} or {known[-1]}."
        raise InputError(f"task is {name!r}" + (f"; choose {choice}" if near == "." else f"{near} Choose {choice}"))
    return TASKS[family]()
