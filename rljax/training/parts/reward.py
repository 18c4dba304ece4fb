"""The reward that the settings choose, that of reasoning steps, and how many groups are judged at a time."""

from collections.abc import Callable, Sequence

import jax
from jax.sharding import Mesh

from rljax.algorithms import Algorithm
from rljax.errors import InputError
from rljax.preference.reward_model import PREFIX, reward_of_model
from rljax.rewards import resolve
from rljax.rewards.protocol import combine, needs_all_hosts
from rljax.rewards.steps import STEP_REWARDS
from rljax.rollout import RolloutWorker
from rljax.training.config import TrainConfig
from rljax.training.parts.problems import Problems


def make_reward(config: TrainConfig, mesh: Mesh, problems: Problems) -> Callable:
    """Find the rewards by their names, and combine them if there are several; `model:FOLDER` is a reward model.

    Raises:
        InputError: there is no such reward, or no such model, or the weights do not match the rewards.
    """
    everything = [*problems.train, *problems.heldout]
    chats = {problem.prompt: problem.messages for problem in everything if problem.messages is not None}

    def part(name: str) -> Callable:
        if name.startswith(PREFIX):
            folder = name.removeprefix(PREFIX)
            return reward_of_model(folder, mesh, chat=config.model.chat, chats=chats, dtype=config.model.dtype)
        return resolve(name)

    return combine([part(name) for name in config.reward.names], config.reward.weights, config.reward.combine)


def own_reward(reward: Callable | Sequence[Callable | str], config: TrainConfig) -> Callable:
    """Reward that was passed to `train`: a function, or several that are combined as the settings say.

    Raises:
        InputError: there is no such reward, or the weights do not match the rewards.
    """
    several = [reward] if callable(reward) or isinstance(reward, str) else list(reward)
    return combine([resolve(part) for part in several], config.reward.weights, config.reward.combine)


def reward_groups(config: TrainConfig, worker: RolloutWorker) -> int | None:
    """Groups in one call of the reward in training; None: all that are sampled together.

    Raises:
        InputError: the reward cannot be called with a part of them.
    """
    groups = config.reward.groups
    if groups is None:
        return None
    if worker.environment is not None:
        raise InputError(f"reward_groups={groups} applies to a reward; this run has an environment instead; leave it out.")
    if needs_all_hosts(worker.judge.reward):
        raise InputError(
            f"reward_groups={groups} cuts what is judged into several calls, and a reward with the attribute `on_all_hosts`, such "
            "as a reward model, has to see all of it; leave it out."
        )
    if jax.process_count() > 1:
        raise InputError(
            f"reward_groups={groups} works on one host only; here each of {jax.process_count()} judges its part; leave it out."
        )
    return groups


def make_step_reward(algorithm: Algorithm, config: TrainConfig) -> Callable | None:
    """Find the function that judges reasoning steps, if the algorithm learns from them.

    Raises:
        InputError: there is none, it cannot be found, or the algorithm has no use for one.
    """
    name, step_reward = config.algorithm.name, config.reward.step_reward
    if algorithm.step_advantage is None:
        if step_reward is not None:
            raise InputError(
                f"{name} does not learn from steps, so step_reward={step_reward!r} cannot apply to it; leave it "
                "out, or choose grpo_process."
            )
        return None
    if step_reward is None and config.generated_task is not None:
        step_reward = config.generated_task.step_reward
    if step_reward is None:
        raise InputError(
            f"{name} learns from the reward of each reasoning step; choose that reward with --step-reward "
            f"({', '.join(STEP_REWARDS)}, or your own as file.py:function)."
        )
    return STEP_REWARDS[step_reward] if step_reward in STEP_REWARDS else resolve(step_reward)
