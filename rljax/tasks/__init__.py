"""Generated tasks. Each task consists of one file, which defines its settings and behavior, and one line in `TASKS`."""

from rljax.errors import InputError
from rljax.lazy import LazyTable, lazy_names
from rljax.tasks.task import TaskConfig as TaskConfig
from rljax.text import did_you_mean

TASKS: LazyTable[type[TaskConfig]] = LazyTable(
    {
        "sums": "rljax.tasks.sums:SumsConfig",
        "iteration": "rljax.tasks.iteration:IterationConfig",
        "countdown": "rljax.tasks.countdown:CountdownConfig",
        "lengths": "rljax.tasks.lengths:LengthsConfig",
        "outliers": "rljax.tasks.outliers:OutliersConfig",
        "tight": "rljax.tasks.tight:TightConfig",
        "mixed": "rljax.tasks.mixed:MixedConfig",
        "drift": "rljax.tasks.drift:DriftConfig",
        "brackets": "rljax.tasks.brackets:BracketsConfig",
        "exploit": "rljax.tasks.exploit:ExploitConfig",
        "digits": "rljax.tasks.digits:DigitsConfig",
        "reasoning_gym": "rljax.tasks.puzzles:ReasoningGymConfig",
    }
)
"""Name of a generated task, as in `--task NAME`, without the variant after a colon -> the class of its settings."""

__getattr__, __dir__ = lazy_names(__name__)


def full_name(family: str) -> str:
    """Return the name of a task as users type it, with a placeholder for its variant.

    Example:
        >>> full_name("sums"), full_name("reasoning_gym")
        ('sums', 'reasoning_gym:NAME')
    """
    return f"{family}:NAME" if family == "reasoning_gym" else family


def task_name(task: TaskConfig) -> str:
    """Return the name of a task.

    Example:
        >>> task_name(TASKS["iteration"]()), task_name(default_task("reasoning_gym:gcd"))
        ('iteration', 'reasoning_gym:gcd')
    """
    names = {source: name for name, source in TASKS.sources.items()}
    sources = [f"{base.__module__}:{base.__name__}" for base in type(task).__mro__]
    return next(names[source] for source in sources if source in names) + task.variant


def default_task(name: str) -> TaskConfig:
    """Return a task with its default settings.

    Raises:
        InputError: there is no such task.

    Example:
        >>> default_task("reasoning_gym:gcd").generator
        'gcd'
    """
    family, colon, generator = name.partition(":")
    if family == "reasoning_gym":
        if not generator:
            raise InputError(f"task is {name!r}; name one of its generators, e.g. reasoning_gym:countdown.")
        from rljax.tasks.puzzles import ReasoningGymConfig  # noqa: PLC0415  other tasks do not need it

        return ReasoningGymConfig(generator)
    if colon or family not in TASKS:
        near, known = did_you_mean(name, TASKS), [full_name(task) for task in TASKS]
        choice = f"{', '.join(known[:-1])} or {known[-1]}."
        raise InputError(f"task is {name!r}" + (f"; choose {choice}" if near == "." else f"{near} Choose {choice}"))
    return TASKS[family]()
