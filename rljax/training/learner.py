"""Learn from a scored rollout: prepare the batch, update the critic if there is one, then update the policy."""

from collections.abc import Callable

import jax
import numpy as np

from rljax.algorithms import Batch
from rljax.algorithms.passed_updates import pass_over_updates
from rljax.parallel import mini_batches, row_shards
from rljax.rollout import Sequences, sequences_of
from rljax.rollout.layout import layout_for
from rljax.training.critic_learner import make_critic_learner
from rljax.training.metrics import LearnMetrics, UpdateMetrics, mean_update
from rljax.training.objective.algorithm import reward_weights, with_reward_weights
from rljax.training.objective.optimizer import learning_rate_of
from rljax.training.option import Option, Updates, adjustments
from rljax.training.scored_rollout import ScoredRollout, make_prepare
from rljax.training.setup import Setup
from rljax.training.state import TrainState
from rljax.training.update import make_policy_update, put_layout

Learn = Callable[[TrainState, ScoredRollout], tuple[TrainState, LearnMetrics, Batch[np.ndarray]]]
"""(state, scored rollout) -> (the state after all updates, metrics, the prepared batch); the old state is donated."""


def make_learner(setup: Setup, state: TrainState) -> Learn:
    """Build the function that makes all updates on a scored rollout, for a state with the shapes and shardings of `state`."""
    weights = reward_weights(setup.algorithm, setup.train)
    setup = setup._replace(algorithm=with_reward_weights(setup.algorithm, weights))
    critic = None if setup.critic is None else make_critic_learner(setup, state)
    parts = {} if critic is None else {"value_minibatches": critic.schedule.minibatches}
    prepare_batch = make_prepare(setup.algorithm, setup.options, minibatches=setup.config.optimization.minibatches, **parts)
    update_policy = make_policy_updates(setup, state)

    def learn(state: TrainState, scored: ScoredRollout) -> tuple[TrainState, LearnMetrics, Batch[np.ndarray]]:
        rollout, sequences = scored.groups.rollout, sequences_of(scored.groups)
        numbers = adjustments(setup.options, state)
        batch = prepare_batch(rollout, progress=scored.progress, past=scored.past, numbers=numbers)
        metrics = LearnMetrics(advantage_variance=advantage_variance(batch))
        for option in setup.options:
            if option.measure is not None:
                metrics = metrics.with_options(option.measure(rollout, batch))
            if option.before_updates is not None:
                state = option.before_updates(state, scored)
        if critic is not None:
            state, metrics = critic.learn(state, metrics, rollout, sequences, batch)
        state, updates = update_policy(state, sequences, batch)
        gap = sampler_gap(updates) if scored.sampler_gap is None else scored.sampler_gap
        metrics = metrics._replace(policy=mean_update(updates.metrics), sampler_gap=gap)
        return *after_updates(setup.options, state._replace(step=state.step + 1), metrics, updates), batch

    return learn


def make_policy_updates(
    setup: Setup, state: TrainState
) -> Callable[[TrainState, Sequences, Batch[np.ndarray]], tuple[TrainState, Updates]]:
    """Build the function that makes the policy updates on a prepared rollout: each mini-batch, in each pass."""
    update, optimization = make_policy_update(setup, state), setup.config.optimization
    minibatches, passes = optimization.minibatches, optimization.passes
    rows, devices = setup.rows_at_once(setup.config.minibatch_rows), row_shards(setup.mesh)
    arrange = layout_for(setup.policy.score, setup.teacher)

    def update_policy(state: TrainState, sequences: Sequences, batch: Batch[np.ndarray]) -> tuple[TrainState, Updates]:
        parts = {
            index: (arrange(responses, part.mask, rows=rows, devices=devices), part)
            for index, (responses, part) in enumerate(mini_batches((sequences, batch), minibatches))
            if part.weights.any()
        }
        order = update_order(minibatches, passes, seed=setup.config.run.seed, step=int(state.step))
        planned = [parts[index] for index in order if index in parts]
        made: list[UpdateMetrics] = []
        for layout, part in planned:
            if any(option.stop(made) for option in setup.options if option.stop is not None):
                break
            data = {each.name: each.data(int(state.step), len(made)) for each in setup.options if each.data is not None}
            state, metrics = update(state, *put_layout(setup.mesh, layout, part), data)
            rate = learning_rate_of(state.opt_state)
            made.append(jax.device_get(metrics)._replace(learning_rate=rate))
        left = minibatches * passes - sum(not metrics.skipped_updates for metrics in made)
        if left and optimization.schedule != "constant":  # a schedule ends with the run, however many updates were skipped
            state = state._replace(opt_state=pass_over_updates(state.opt_state, left))
        return state, Updates(len(planned), made)

    return update_policy


def after_updates(
    options: tuple[Option, ...], state: TrainState, metrics: LearnMetrics, updates: Updates
) -> tuple[TrainState, LearnMetrics]:
    """Let each option react to the updates of a step."""
    for option in options:
        if option.after_updates is not None:
            state, found = option.after_updates(state, metrics, updates)
            metrics = metrics.with_options(found)
    return state, metrics


def update_order(minibatches: int, passes: int, *, seed: int, step: int) -> list[int]:
    """Return the indices of a rollout's mini-batches in the order of their updates.

    The first pass takes them in order. Each later pass has a random order, which depends only on the seed and the step, so a
    resumed run repeats it.

    Args:
        minibatches: number of mini-batches.
        passes: number of passes over all mini-batches.
        seed: random seed of the run.
        step: number of RL steps done.

    Returns:
        The index of a mini-batch for each of the `minibatches * passes` updates.

    Example:
        >>> update_order(4, 3, seed=0, step=7)
        [0, 1, 2, 3, 1, 3, 2, 0, 3, 2, 0, 1]
    """
    later = [np.random.default_rng((seed, step, number)).permutation(minibatches) for number in range(1, passes)]
    return np.concatenate([np.arange(minibatches), *later]).tolist()


def sampler_gap(updates: Updates) -> float | None:
    """Return the divergence of the learner from the sampler, which the first update measures before it changes anything.

    None if there was no update, or if the first one was skipped.
    """
    first = updates.metrics[0] if updates.metrics else None
    if first is None or first.skipped_updates or first.loss is None or float(first.loss.share) == 0:
        return None
    return float(first.loss.kl)


def advantage_variance(batch: Batch[np.ndarray]) -> float | None:
    """Return the variance of the advantage over the trained tokens; None if there are none."""
    advantage = batch.advantage[batch.mask]
    with np.errstate(invalid="ignore", over="ignore"):  # the guard handles values that are not finite
        return float(advantage.var(dtype=np.float64)) if advantage.size else None
