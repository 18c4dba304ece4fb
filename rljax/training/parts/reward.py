"""The reward and the step reward selected by the settings, and the number of groups per reward call."""

from collections.abc import Callable, Sequence

import jax
from jax.sharding import Mesh

from rljax.algorithms import Algorithm
from rljax.data.problem import Problem, chats_of
from rljax.data.tokenizer_note import MODEL_PREFIX
from rljax.errors import InputError
from rljax.importing import is_custom
from rljax.rewards import BY_NAME, REWARD_FAMILIES, RUN_PROGRAMS, resolve
from rljax.rewards.reward_scores import combine, needs_all_hosts
from rljax.rewards.steps import STEP_REWARDS
from rljax.rollout import Environment, RolloutWorker
from rljax.rollout.environment import functions_in
from rljax.tracking.start_records import digest_of_parts
from rljax.training.config import TrainConfig
from rljax.training.parts.problems import Problems

DATA_ONLY_PREFIXES = (*REWARD_FAMILIES, MODEL_PREFIX.removesuffix(":"))
"""Prefixes of rewards that are built from a file without executing code in it."""


def make_reward(config: TrainConfig, mesh: Mesh, problems: Problems) -> Callable:
    """Find the rewards by their names, and combine them if there are several; `model:FOLDER` is a reward model.

    Raises:
        InputError: there is no such reward or model, the weights do not match the rewards, or a reward that runs programs finds no
            tests.
    """
    all_problems = [*problems.train, *problems.heldout]

    def find_reward(name: str) -> Callable:
        if name.startswith(MODEL_PREFIX):
            from rljax.preference.reward_model import make_reward_function  # noqa: PLC0415  most runs have no reward model

            folder = name.removeprefix(MODEL_PREFIX)
            options = {"chat": config.model.chat, "chats": chats_of(all_problems), "dtype": config.model.dtype}
            return make_reward_function(folder, mesh, **options)
        return resolve(name)

    for name in {*config.reward.names} & {*RUN_PROGRAMS}:
        if all_problems and not any(map(has_tests, all_problems)):
            raise InputError(
                f"the reward {name} found no tests in any of {len(all_problems)} rows, so no program can be judged; it needs "
                "the columns `tests` (assertions), `test` with `entry_point`, or `stdin` with `stdout`. Rename your columns, or "
                "choose another --reward."
            )
    return combine([find_reward(name) for name in config.reward.names], config.reward.weights, config.reward.combine)


def has_tests(problem: Problem) -> bool:
    """Return True if a problem has tests for programs."""
    return any(problem.columns.get(name) for name in ("tests", "test", "stdin"))


def notes_on_reward(config: TrainConfig, problems: Sequence[Problem]) -> list[str]:
    """Report how many problems cannot be judged because they have no tests or because their reference answer is prose."""
    without, names = sum(not has_tests(problem) for problem in problems), {*config.reward.names}
    programs = sorted(names & {*RUN_PROGRAMS}) if without else []
    notes = [f"{without} of {len(problems)} problems have no tests, so {name} will not judge them" for name in programs]
    if names & {"math", "math_or_last_number"}:
        from rljax.rewards.math import notes_on_references  # noqa: PLC0415  most runs have another reward

        notes += notes_on_references([problem.answer for problem in problems])
    return notes


def digest_of_reward(config: TrainConfig, argument: Callable | Sequence[Callable | str] | None) -> str | None:
    """Return a digest of the source code of the rewards passed to `train`, or else of the rewards that the settings name."""
    several = [argument] if callable(argument) or isinstance(argument, str) else argument
    return digest_of_parts(config.reward.names if several is None else several, BY_NAME)


def custom_reward_names(config: TrainConfig) -> tuple[str, ...]:
    """Return the names of the custom rewards and environment: those loaded from a file or module when the run is opened.

    Example:
        >>> custom_reward_names(TrainConfig.flat(reward="exact,brier:mine.py:judge")), custom_reward_names(TrainConfig())
        (('mine.py:judge',), ())
    """
    names = (name.removeprefix("brier:") for name in config.reward.names)
    own = [
        name
        for name in names
        if name not in BY_NAME and name.partition(":")[0] not in DATA_ONLY_PREFIXES and is_custom(name)
    ]
    return (*own, *custom_environment_names(config))


def custom_environment_names(config: TrainConfig) -> tuple[str, ...]:
    """Return the names of the environment and of the functions in its options, if they are loaded from a file or module."""
    options = config.reward.environment_options
    names = (config.reward.environment or "", *(functions_in(options) if options else ()))
    return tuple(name for name in names if name.partition(":")[0] not in DATA_ONLY_PREFIXES and is_custom(name))


def custom_part_names(config: TrainConfig) -> tuple[str, ...]:
    """Return the names of all custom parts of a run, including the step reward and the algorithm.

    Example:
        >>> custom_part_names(TrainConfig.flat(reward="mine.py:judge", algorithm="mine.py:algorithm"))
        ('mine.py:judge', 'mine.py:algorithm')
    """
    others = (config.reward.step_reward or "", config.algorithm.name)
    return (
        *custom_reward_names(config),
        *(name for name in others if is_custom(name) and not name.startswith(MODEL_PREFIX)),
    )


def reward_from_argument(reward: Callable | Sequence[Callable | str], config: TrainConfig) -> Callable:
    """Build the reward from what was passed to `train`: one reward, or several that are combined as the settings specify.

    Raises:
        InputError: there is no such reward, or the weights do not match the rewards.
    """
    several = [reward] if callable(reward) or isinstance(reward, str) else list(reward)
    return combine([resolve(part) for part in several], config.reward.weights, config.reward.combine)


def groups_per_reward_call(config: TrainConfig, worker: RolloutWorker) -> int | None:
    """Return the number of groups per call of the reward in training; None for all groups that are sampled together.

    Raises:
        InputError: the reward cannot be called with only some of the groups.
    """
    groups = config.reward.groups
    if groups is None:
        return None
    if worker.environment is not None:
        raise InputError(f"reward_groups={groups} needs a reward, not an environment; leave reward_groups out.")
    if needs_all_hosts(worker.judge.reward):
        raise InputError(
            f"reward_groups={groups} splits the groups into several calls, but a reward with the attribute `on_all_hosts`, "
            "such as a reward model, must receive all groups at once; leave reward_groups out."
        )
    if jax.process_count() > 1:
        raise InputError(
            f"reward_groups={groups} works on one host, not on {jax.process_count()}; leave reward_groups out."
        )
    return groups


def make_step_reward(
    algorithm: Algorithm, config: TrainConfig, environment: Environment | None, problems: Sequence[Problem]
) -> Callable | None:
    """Find the function that judges reasoning steps, if the algorithm learns from them; an environment judges its turns instead.

    Raises:
        InputError: the function is missing, cannot be found, or is not used by the algorithm.
    """
    name, step_reward = config.algorithm.name, config.reward.step_reward
    if not algorithm.needs("step_rewards"):
        if step_reward is not None:
            raise InputError(
                f"{name} does not learn from rewards of steps; leave step_reward={step_reward!r} out, or choose grpo_process or "
                "mt_grpo."
            )
        return None
    if environment is not None:
        if step_reward is not None:
            raise InputError(f"step_reward={step_reward!r}: the environment rewards its own turns; leave step_reward out.")
        return None
    if step_reward is None and config.generated_task is not None:
        step_reward = config.generated_task.step_reward
    if step_reward is None:
        raise InputError(
            f"{name} learns from the reward of each reasoning step; choose that reward with --step-reward "
            f"({', '.join(STEP_REWARDS)}, model:FOLDER, or your own file.py:function), or an environment, whose turns are steps."
        )
    from rljax.preference.step_reward import find_step_reward  # noqa: PLC0415  most runs have none

    return find_step_reward(step_reward, problems, devices=config.devices, dtype=config.model.dtype)
