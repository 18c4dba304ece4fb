"""The generated tasks: each is a record of what a run needs of it, found by the name of its settings."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rljax.data.arithmetic import arithmetic, unfinished
from rljax.data.iteration import iteration, lapses
from rljax.data.problem import Problem
from rljax.data.reasoning_gym import reasoning_gym
from rljax.records import documented
from rljax.training.config import IterationConfig, ReasoningGymConfig, SumsConfig, TaskConfig

Parts = tuple[list[Problem], list[Problem]]
"""Problems to train on, and held-out ones."""


@documented
class Task(NamedTuple):
    """What a run needs of a generated task; the name of its reward stands in its settings."""

    problems: Callable[[Any, int, int], Parts]
    """(settings, number of held-out problems, seed) -> problems to train on, and held-out ones; the two share no prompt."""
    tokenizer: str
    """Tokenizer of a model from random weights."""
    step_reward: str | None
    """Reward of each reasoning step, for algorithms that learn from steps; None: there is none by default."""


def _sums(task: SumsConfig, heldout: int, seed: int) -> Parts:
    difficulty = {
        "operands": task.operands,
        "digits": task.digits,
        "operators": task.operators,
        "nesting": task.nesting,
    }
    train = arithmetic("train", task.train_problems, seed=seed, **difficulty)
    cut = {"share": task.unfinished_share, "operands": task.unfinished_operands, "never": task.unanswered_operands}
    train = unfinished(train, **cut)
    return train, arithmetic("heldout", heldout, seed=seed, **difficulty)


def _iteration(task: IterationConfig, heldout: int, seed: int) -> Parts:
    options = {"seed": seed, "steps": task.iterations}
    train = lapses(iteration("train", task.train_problems, **options), share=task.lapse_share)
    return train, iteration("heldout", heldout, **options)


def _reasoning_gym(task: ReasoningGymConfig, heldout: int, seed: int) -> Parts:
    return reasoning_gym(task.generator, train=task.train_problems, heldout=heldout, seed=seed, options=task.options)


BY_SETTINGS: Mapping[type, Task] = MappingProxyType(
    {
        SumsConfig: Task(_sums, tokenizer="characters", step_reward="equations"),
        IterationConfig: Task(_iteration, tokenizer="characters", step_reward="equations"),
        ReasoningGymConfig: Task(_reasoning_gym, tokenizer="bytes", step_reward=None),
    }
)
"""Class of a task's settings -> the task."""


def task_of(settings: TaskConfig) -> Task:
    """The task that has these settings.

    Example:
        >>> task_of(SumsConfig()).tokenizer
        'characters'
    """
    return BY_SETTINGS[type(settings)]
