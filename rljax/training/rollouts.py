"""One RL step's data: collect groups, score them under the reference, prepare the batch, lay it out in micro-batches."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, PyTree

from rljax.algorithms import Algorithm, Batch, Past, Rollout, prepare, response_rewards
from rljax.data.history import Choice, History, Window, choose, curriculum, mean_lengths, record
from rljax.data.length_batches import group_sizes
from rljax.data.prompts import Demonstrations, PromptStream
from rljax.models import Params, Scores
from rljax.ops.unpublished.reward_history import RewardHistory, push_history
from rljax.parallel import fetch, put, put_rows, shardings
from rljax.rollout import Collected, Engine, Groups, collect
from rljax.training.config import TrainConfig
from rljax.training.state import TrainState, draw_key
from rljax.training.update import Scorer, Sequences

Ask = Callable[[History, int, int, int], Choice]
"""(history, RL steps done, position among the prompts, count) -> the prompts to sample next."""


def make_ask(config: TrainConfig, stream: PromptStream) -> Ask:
    """Take prompts in the stream's order, or only those whose pass rate lies within the difficulty window."""
    if config.difficulty_window is None:
        return lambda history, step, position, count: Choice(
            np.asarray(stream.indices(position, count)), position + count, 0
        )
    begin = Window(*config.difficulty_window)
    end = begin if config.difficulty_window_end is None else Window(*config.difficulty_window_end)

    def ask(history: History, step: int, position: int, count: int) -> Choice:
        window = curriculum(begin, end, step=step, steps=max(config.steps, 1))
        return choose(history, stream, position, count, window=window, seed=config.seed)

    return ask


def sizes_of(config: TrainConfig, history: History, problems: Int[np.ndarray, "P"]) -> Int[np.ndarray, "P"] | None:
    """How many responses each of the problems gets under the token budget; None without one: all the same.

    A prompt that was never asked is expected to take as many tokens as the others did, the first ones the whole limit.
    """
    if config.token_budget is None:
        return None
    asked = history.attempts.sum()
    unknown = float(history.tokens.sum() / asked) if asked else float(config.max_response_tokens)
    lengths = mean_lengths(history, unknown)[problems]
    share = config.token_budget // config.prompts
    return group_sizes(lengths, budget=share * len(problems), most=config.group_size)


def next_rollout(
    state: TrainState,
    carried: Groups | None,
    history: History,
    *,
    config: TrainConfig,
    engine: Engine,
    algorithm: Algorithm,
    ask: Ask,
) -> tuple[TrainState, History, Collected]:
    """Sample until enough groups are kept; the state moves on by the prompts and keys that were used.

    Args:
        state: holds the policy, the position among the prompts and the number of draws.
        carried: groups left over by the rollout before.
        history: how often each prompt was solved.
        config: how much to sample.
        engine: samples and judges.
        algorithm: says which groups to keep.
        ask: says which prompts come next.

    Returns:
        The new state, the history with what was sampled, and the groups.
    """
    prompts = config.prompts if algorithm.keep_group is None else config.sampled_prompts

    def sample() -> Groups:
        nonlocal state, history
        choice = ask(history, int(state.step), int(state.position), prompts)
        problems, sizes = choice.problems, sizes_of(config, history, choice.problems)
        groups = engine.generate(state.params, problems.tolist(), config.group_size, draw_key(state), sizes=sizes)
        position = put(np.int32(choice.position), state.position.sharding)
        state = state._replace(draws=state.draws + 1, position=position)
        lengths = groups.mask.sum(-1)
        history = record(history, groups.problem, groups.rewards, lengths, valid=groups.valid, decay=config.history_decay)
        return groups

    def keep(groups: Groups) -> np.ndarray:
        given = {} if groups.valid.all() else {"valid": jnp.asarray(groups.valid)}
        return np.asarray(algorithm.keep_group(jnp.asarray(groups.rewards), **given))

    collected = collect(
        sample,
        None if algorithm.keep_group is None else keep,
        wanted=config.prompts,
        carried=carried,
        max_tries=config.max_tries,
    )
    return state, history, collected


def as_sequences(groups: Groups) -> Sequences:
    """Prompts and responses side by side, one row a response."""
    size = groups.tokens.shape[1]
    rows = groups.tokens.reshape(-1, groups.tokens.shape[-1]), groups.mask.reshape(-1, groups.mask.shape[-1])
    tokens = np.concatenate([groups.prompt_tokens.repeat(size, axis=0), rows[0]], axis=1)
    valid = np.concatenate([groups.prompt_mask.repeat(size, axis=0), rows[1]], axis=1)
    return Sequences(tokens, valid, groups.policy_logp.reshape(rows[1].shape))


def demonstrated(demonstrations: Demonstrations) -> Sequences:
    """Prompts and worked responses side by side, one row a demonstration."""
    tokens = np.concatenate([demonstrations.prompt_tokens, demonstrations.response_tokens], axis=1)
    return Sequences(tokens, np.concatenate([demonstrations.prompt_mask, demonstrations.response_mask], axis=1))


def micro_batches(tree: PyTree, count: int, rows: int) -> list[PyTree]:
    """Cut rows into `count` mini-batches, each laid out `[micro-batches, rows, ...]`."""

    def cut(array: np.ndarray) -> np.ndarray:
        return np.asarray(array).reshape(count, -1, rows, *array.shape[1:])

    laid_out = jax.tree.map(cut, tree)
    return [jax.tree.map(lambda array, index=index: array[index], laid_out) for index in range(count)]


def filled_first(tree: PyTree, mask: Bool[np.ndarray, "B T"], count: int) -> PyTree:
    """Move rows without a token to the end of their mini-batch, of `count`, so that they fill micro-batches of their own."""
    empty = ~mask.any(-1).reshape(count, -1)
    order = empty.argsort(axis=-1, stable=True) + np.arange(count)[:, None] * empty.shape[1]
    return jax.tree.map(lambda array: np.asarray(array)[order.reshape(-1)], tree)


def make_scores(scorer: Scorer, mesh: Mesh, rows: int) -> Callable[[Params, Sequences], Scores]:
    """Compile `(params, sequences) -> Scores [B, T]` without gradient, `rows` at a time; host arrays."""
    score = jax.jit(partial(Scorer.__call__, scorer))

    def scores(params: Params, sequences: Sequences) -> Scores:
        (parts,) = micro_batches(sequences, 1, rows)
        count = parts.tokens.shape[0]
        pieces = [score(params, put_rows(mesh, jax.tree.map(lambda x, i=i: x[i], parts))) for i in range(count)]
        return jax.tree.map(lambda *arrays: np.concatenate(arrays), *fetch(pieces))

    return scores


def as_rollout(groups: Groups, **per_token: np.ndarray) -> Rollout:
    """What the algorithms read of groups; `per_token` are further fields of `Rollout`, `[B, T]`."""
    return Rollout(
        mask=groups.mask,
        behaviour_logp=groups.behaviour_logp,
        rewards=groups.rewards,
        policy_logp=groups.policy_logp,
        truncated=groups.truncated,
        valid=None if groups.valid.all() else groups.valid,
        step_rewards=groups.step_rewards,
        step_end=groups.step_end,
        **{name: array.reshape(groups.mask.shape) for name, array in per_token.items()},
    )


def make_prepare(algorithm: Algorithm, **minibatches: int) -> Callable[..., Batch]:
    """Compile `(rollout, progress=None, past=None) -> Batch` of host arrays."""

    @jax.jit
    def compiled(rollout: Rollout, progress: Array | None, past: Past | None) -> Batch:
        return prepare(algorithm, rollout, progress=progress, past=past, **minibatches)

    def prepared(rollout: Rollout, *, progress: float | None = None, past: Past | None = None) -> Batch:
        return jax.device_get(compiled(rollout, None if progress is None else np.float32(progress), past))

    return prepared


def make_remember(algorithm: Algorithm, state: TrainState, mesh: Mesh) -> Callable[..., RewardHistory]:
    """Compile `(memory, prompt ids, rollout) -> memory` with the rollout's rewards in it; the old memory is consumed."""

    @partial(jax.jit, donate_argnums=0, out_shardings=shardings(mesh, state.remembered))
    def remember(memory: RewardHistory, prompt_ids: Array, rollout: Rollout) -> RewardHistory:
        return push_history(memory, prompt_ids, response_rewards(algorithm, rollout), valid=rollout.valid)

    return remember
