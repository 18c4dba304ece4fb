"""The data of one RL step: choose prompts, sample until enough groups are kept, prepare the batch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from rljax.algorithms import Algorithm, Batch, Past, Rollout, prepare, response_rewards
from rljax.algorithms.algorithm import outcomes
from rljax.data.history import Choice, History, Window, choose, curriculum, mean_lengths, record
from rljax.data.length_batches import group_sizes
from rljax.data.prompts import PromptStream
from rljax.errors import InputError
from rljax.models import Params
from rljax.ops.unpublished.reward_history import RewardHistory, push_history
from rljax.parallel import put
from rljax.records import required
from rljax.rollout import Collected, Groups, RolloutWorker, collect
from rljax.rollout.groups import right_and_known
from rljax.sharing import shared
from rljax.training.config import TrainConfig
from rljax.training.objective.reference import at_strength
from rljax.training.state import Places, TrainState, draw_key, places

ChoosePrompts = Callable[[History, int, int, int], Choice]
"""(history, RL steps done, position among the prompts, count) -> the prompts to sample next."""


def make_choice(config: TrainConfig, stream: PromptStream) -> ChoosePrompts:
    """Build the function that chooses prompts: in the stream's order, and within the difficulty window if there is one."""
    data, steps = config.data, max(config.optimization.steps, 1)
    if data.difficulty_window is None:
        return lambda history, step, position, count: Choice(
            np.asarray(stream.indices(position, count)), position + count, 0
        )
    begin = Window(*data.difficulty_window)
    end = begin if data.difficulty_window_end is None else Window(*data.difficulty_window_end)

    def within_window(history: History, step: int, position: int, count: int) -> Choice:
        window = curriculum(begin, end, step=step, steps=steps)
        return choose(history, stream, position, count, window=window, seed=config.run.seed)

    return within_window


def sizes_of(config: TrainConfig, history: History, prompt_ids: Int[np.ndarray, "P"]) -> Int[np.ndarray, "P"] | None:
    """Number of responses to each prompt under the token budget; None without a budget, when all get the same number.

    The expected length of a response to a new prompt is the mean over all responses so far, or the maximum if there are none yet.
    """
    sampling = config.sampling
    if sampling.token_budget is None:
        return None
    attempts = history.attempts.sum()
    unknown = float(history.tokens.sum() / attempts) if attempts else float(sampling.max_response_tokens)
    lengths = mean_lengths(history, unknown)[prompt_ids]
    share = sampling.token_budget // sampling.prompts
    return group_sizes(lengths, budget=share * len(prompt_ids), most=sampling.group_size)


def next_rollout(
    state: TrainState,
    carried: Groups | None,
    history: History,
    *,
    config: TrainConfig,
    worker: RolloutWorker,
    algorithm: Algorithm,
    choose_prompts: ChoosePrompts,
    params: Params,
    version: int | None = None,
) -> tuple[TrainState, History, Collected]:
    """Sample until enough groups are kept, and advance the state past the prompts and keys that were used.

    Args:
        state: holds the position among the prompts and the number of draws.
        carried: surplus groups of the previous rollout.
        history: how often each prompt was solved so far.
        config: how much to sample.
        worker: samples and judges.
        algorithm: decides which groups to keep.
        choose_prompts: chooses the next prompts.
        params: the policy's parameters that sample, an adapter merged into its base.
        version: RL steps that these parameters have made; None: as many as the state.

    Returns:
        The new state, the history with the sampled responses added, and the groups.

    Raises:
        InputError: the carried groups were judged by another kind of reward.
    """
    if carried is not None and (carried.rollout.correct is not None) != worker.verifies:
        raise InputError(
            "When the run was saved, a verifier among the rewards decided what is correct, and now none does, or the "
            "other way round; resume with the same rewards, marked with rljax.rewards.verifier or not, as before."
        )
    sampling = config.sampling
    count = sampling.prompts if algorithm.keep_group is None else sampling.sampled_prompts

    def sample(place: tuple[TrainState, History]) -> tuple[tuple[TrainState, History], Groups]:
        state, history = place
        choice = choose_prompts(history, int(state.step), int(state.position), count)
        prompt_ids, sizes = choice.problems, sizes_of(config, history, choice.problems)
        groups = worker.generate(
            params,
            prompt_ids.tolist(),
            sampling.group_size,
            draw_key(state),
            sizes=sizes,
            version=int(state.step) if version is None else version,
        )
        position = put(np.asarray(choice.position, np.int32), state.position.sharding)
        (right, known), lengths = right_and_known(groups.rollout), groups.attention.sum(-1)
        passed, decay = right.astype(np.float32), config.data.history_decay
        history = record(history, groups.prompt_ids, passed, lengths, valid=known, decay=decay)
        return (state._replace(draws=state.draws + 1, position=position), history), groups

    (state, history), collected = collect(
        sample,
        (state, history),
        None if algorithm.keep_group is None else partial(groups_to_keep, algorithm.keep_group),
        wanted=sampling.prompts,
        carried=carried,
        max_tries=sampling.max_tries,
    )
    return state, history, collected


def groups_to_keep(keep_group: Callable[..., Bool[Array, "P"]], groups: Groups) -> Bool[np.ndarray, "P"]:
    """Mask of the groups that an algorithm's `keep_group` keeps."""
    rollout = for_algorithm(groups)
    validity = {} if rollout.valid is None else {"valid": jnp.asarray(rollout.valid)}
    return np.asarray(keep_group(jnp.asarray(outcomes(rollout)), **validity))


def for_algorithm(groups: Groups) -> Rollout[np.ndarray]:
    """The rollout as algorithms see it: `valid` is None if every response has a reward, and one reward is its only part."""
    rollout = groups.rollout
    if rollout.reward_parts is None:
        rollout = rollout._replace(reward_parts={"reward": rollout.rewards})
    return rollout._replace(valid=None) if required(rollout.valid, "rollout.valid").all() else rollout


@shared
def _prepare_program(algorithm: Algorithm, **minibatches: int) -> Any:
    def prepared(
        rollout: Rollout[Array], progress: Array | None, past: Past | None, kl_coefficient: Array | None
    ) -> Batch[Array]:
        return prepare(at_strength(algorithm, kl_coefficient), rollout, progress=progress, past=past, **minibatches)

    return jax.jit(prepared)


def make_prepare(algorithm: Algorithm, **minibatches: int) -> Callable[..., Batch[np.ndarray]]:
    """Compile `(rollout, progress=None, past=None, kl_coefficient=None) -> Batch` of host arrays."""
    program = _prepare_program(algorithm, **minibatches)

    def prepare_batch(
        rollout: Rollout[np.ndarray],
        *,
        progress: float | None = None,
        past: Past | None = None,
        kl_coefficient: float | None = None,
    ) -> Batch[np.ndarray]:
        numbers = [None if number is None else np.float32(number) for number in (progress, kl_coefficient)]
        return jax.device_get(program(rollout, numbers[0], past, numbers[1]))

    return prepare_batch


def make_remember(algorithm: Algorithm, state: TrainState) -> Callable[..., RewardHistory]:
    """Compile `(memory, prompt ids, rollout, KL coefficient) -> memory`: it adds the rewards, and donates the old memory."""
    return _remember_program(algorithm, places(state.remembered))


@shared
def _remember_program(algorithm: Algorithm, where: Places) -> Any:
    @partial(jax.jit, donate_argnums=0, out_shardings=where.tree())
    def remember(
        memory: RewardHistory, prompt_ids: Array, rollout: Rollout[Array], kl_coefficient: Array | None
    ) -> RewardHistory:
        rewards = response_rewards(at_strength(algorithm, kl_coefficient), rollout)
        return push_history(memory, prompt_ids, rewards, valid=rollout.valid)

    return remember
