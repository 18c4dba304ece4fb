"""The parts that a person can bring in place of the built-in ones, and their refusal before anything is built of them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import optax

from rljax.algorithms import Algorithm
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models import Policy
from rljax.records import documented
from rljax.rollout import Engine, Environment
from rljax.rollout.environment import check_environment
from rljax.rollout.request import check_engine
from rljax.training.config import TrainConfig


@documented
class Seams(NamedTuple):
    """What a person brings in place of the built-in parts; None takes the built-in one."""

    policy: Policy | None = None
    """The model."""
    engine: Engine | None = None
    """What draws responses."""
    environment: Environment | None = None
    """What answers the policy's turns, in place of a reward."""
    reward: Callable | None = None
    """What judges completions."""
    optimizer: optax.GradientTransformation | None = None
    """The policy's optimiser in RL."""
    algorithm: Algorithm | None = None
    """The record of equations."""
    problems: tuple[Sequence[Problem], Sequence[Problem]] | None = None
    """Training and held-out problems."""

    def names(self) -> tuple[str, ...]:
        """Those that are there."""
        return tuple(name for name, part in self._asdict().items() if part is not None)


BUILT_IN = Seams()
"""Every part the built-in one."""


def saved_settings(raw: Mapping[str, Any]) -> tuple[TrainConfig, tuple[str, ...]]:
    """Read a run's config.json: the settings, and which arguments were passed to `train` beside them.

    Raises:
        InputError: settings that this version does not know.
    """
    settings = dict(raw)
    names = tuple(settings.pop("seams", ()))
    return TrainConfig.from_json(settings), names


def check_seams(needed: Sequence[str], seams: Seams) -> None:
    """Refuse to go on with a run without what was passed to `train` when it was started, or with more.

    Raises:
        InputError: names the arguments.
    """
    refuse_missing(set(needed) - set(seams.names()))
    extra = sorted(set(seams.names()) - set(needed))
    if extra:
        raise InputError(f"The run was started without {', '.join(extra)}; leave that out, or start a new run.")


def refuse_missing(missing: Collection[str]) -> None:
    """Refuse to go on without arguments that were passed to `train` when the run was started.

    Raises:
        InputError: names them.
    """
    if missing:
        raise InputError(f"The run was started with {', '.join(sorted(missing))} passed to train(); pass the same again.")


def check_parts(seams: Seams) -> None:
    """Refuse what is no such part at all, and parts that exclude each other, before anything is built of them.

    Raises:
        InputError: names the part.
    """
    for name, kind in (("policy", Policy), ("algorithm", Algorithm)):
        part = seams._asdict()[name]
        if part is not None and not isinstance(part, kind):
            raise InputError(f"{name}: a record {kind.__module__}.{kind.__qualname__} is needed; got {part!r:.80}.")
    if seams.engine is not None:
        check_engine(seams.engine)
    if seams.environment is not None:
        check_environment(seams.environment)
        if seams.reward is not None:
            raise InputError(
                "environment: the rewards come from its steps, so a reward cannot apply as well; got both. Leave one of them out."
            )
    if seams.problems is not None:
        check_problems(seams.problems)


def check_problems(problems: tuple[Sequence[Problem], Sequence[Problem]]) -> None:
    """Refuse what is no pair of lists of problems.

    Raises:
        InputError: it is something else.
    """
    parts = list(problems) if isinstance(problems, Sequence) else []
    listed = len(parts) == 2 and all(isinstance(part, Sequence) and not isinstance(part, str) for part in parts)
    if not (listed and all(isinstance(problem, Problem) for part in parts for problem in part)):
        raise InputError(
            "problems: a pair (training problems, held-out problems) of lists of rljax.data.problem.Problem is needed; got "
            f"{problems!r:.80}."
        )
