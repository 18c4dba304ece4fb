"""Parts that a user can pass to `train` in place of the built-in ones, and their checks, which run before anything is built."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import optax

from rljax.algorithms import Algorithm
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models import Policy
from rljax.models.policy import check_policy
from rljax.rollout import Engine, Environment
from rljax.rollout.engine_protocols import check_engine
from rljax.rollout.environment import check_environment
from rljax.training.config import TrainConfig


class CustomParts(NamedTuple):
    """Parts that a user passes in place of the built-in ones; None means the built-in one."""

    policy: Policy | None = None
    """The model."""
    engine: Engine | None = None
    """Samples responses."""
    environment: Environment | None = None
    """Answers the policy's turns, in place of a reward."""
    reward: Callable | Sequence[Callable | str] | None = None
    """Judges completions; several rewards are combined as the settings specify."""
    optimizer: optax.GradientTransformation | None = None
    """The policy's optimizer in RL."""
    algorithm: Algorithm | None = None
    """The algorithm, a record of functions."""
    problems: tuple[Sequence[Problem], Sequence[Problem]] | None = None
    """Training and held-out problems."""
    dataset: Iterable[Mapping[str, object]] | None = None
    """Rows of a dataset."""
    options: Sequence[Callable[[Any], Any]] | None = None
    """Functions that add options to the setup, after the built-in ones."""

    def names(self) -> tuple[str, ...]:
        """Return the names of the parts that are not None."""
        return tuple(name for name, part in self._asdict().items() if part is not None)


ROWS_PLACEHOLDER = "rows passed to train()"
"""Name of the dataset in the settings of a run whose rows were passed to `train`."""

BUILT_IN = CustomParts()


def read_saved_settings(raw: Mapping[str, Any]) -> tuple[TrainConfig, tuple[str, ...]]:
    """Read a run's config.json: the settings, and the names of the other arguments that were passed to `train`.

    Raises:
        InputError: the file has a setting that this version does not know, or a name is not an argument of `train`.
    """
    settings = dict(raw)
    names = settings.pop("seams", ())  # an old name, which the entry keeps so that older runs can be read
    settings.pop("base_fingerprint", None)
    if not isinstance(names, list | tuple) or not set(map(str, names)) <= set(CustomParts._fields):
        raise InputError(
            f"The run's config.json has {names!r:.80} as 'seams'; expected a list of {', '.join(CustomParts._fields)}."
        )
    return TrainConfig.from_json(settings), tuple(names)


def check_same_parts(needed: Sequence[str], custom: CustomParts) -> None:
    """Raise an `InputError` unless the parts passed to resume a run are the parts with which it was started."""
    refuse_missing(set(needed) - set(custom.names()))
    if extra := sorted(set(custom.names()) - set(needed)):
        raise InputError(f"The run was started without {', '.join(extra)}; omit these arguments, or start a new run.")


def refuse_missing(missing: Collection[str]) -> None:
    """Raise an `InputError` that names arguments that were passed to `train` when the run was started, but are now missing."""
    if missing:
        raise InputError(
            f"The run was started with {', '.join(sorted(missing))} passed to train(); pass the same arguments."
        )


def check_parts(custom: CustomParts) -> None:
    """Reject parts of the wrong type, and parts that exclude each other.

    Raises:
        InputError: a part is not valid; the message names it.
    """
    for name, kind, needed in (
        ("policy", Policy, "an rljax.Policy"),
        ("algorithm", Algorithm, "an rljax.algorithms.Algorithm"),
        ("optimizer", optax.GradientTransformation, "an optax.GradientTransformation, such as optax.adam(1e-5)"),
    ):
        if (part := custom._asdict()[name]) is not None and not isinstance(part, kind):
            raise InputError(f"{name}: expected {needed}; got {part!r:.80}.")
    if not all(map(callable, custom.options or ())):
        raise InputError(
            f"options: expected functions of the setup that return it with an option; got {custom.options!r:.80}."
        )
    if custom.policy is not None:
        check_policy(custom.policy)
    if custom.engine is not None:
        check_engine(custom.engine)
    if custom.environment is not None:
        check_environment(custom.environment)
        if custom.reward is not None:
            raise InputError(
                "environment: its steps return the rewards, so a reward must not be passed too; leave one of the two out."
            )
    if custom.problems is not None:
        check_problems(custom.problems)
        if custom.dataset is not None:
            raise InputError("problems and dataset are two ways to pass problems; leave one of the two out.")


def check_problems(problems: tuple[Sequence[Problem], Sequence[Problem]]) -> None:
    """Raise an `InputError` for anything but a pair of lists of problems."""
    parts = list(problems) if isinstance(problems, Sequence) else []
    listed = len(parts) == 2 and all(isinstance(part, Sequence) and not isinstance(part, str) for part in parts)
    if not (listed and all(isinstance(problem, Problem) for part in parts for problem in part)):
        raise InputError(f"problems: expected a pair of lists of rljax.Problem (training, held-out); got {problems!r:.80}.")
