"""Learning from a rollout: `learn(state, lesson) -> (state, metrics)`, for algorithms with and without a critic.

A study (`rljax.training.lesson`) makes the lesson of a rollout.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from rljax.algorithms import Algorithm, Batch, Rollout
from rljax.ops.masked import zero_outside
from rljax.parallel import mini_batches, row_shards
from rljax.records import required
from rljax.rollout import Sequences, lay_out, sequences_of
from rljax.training.controller import make_steer
from rljax.training.lesson import Lesson, outcome_explained
from rljax.training.metrics import (
    CreditMetrics,
    CriticMetrics,
    LearnMetrics,
    UpdateMetrics,
    mean_critic_update,
    mean_update,
)
from rljax.training.monitoring.batch_statistics import measured_batch
from rljax.training.objective.algorithm import reward_weights, with_reward_weights
from rljax.training.objective.anchor import make_pull
from rljax.training.objective.auxiliary import make_auxiliary, make_draw
from rljax.training.objective.optimizer import critic_optimizer, learning_rate_of
from rljax.training.objective.reference import make_adapt, make_move
from rljax.training.objective.teacher import make_comparison
from rljax.training.passes import is_beyond, update_order
from rljax.training.rollouts import make_prepare, make_remember
from rljax.training.setup import Setup
from rljax.training.state import TrainState, kl_coefficient_of
from rljax.training.update import make_policy_step, make_score, make_supervised_score, put_layout
from rljax.training.value_update import ValueSchedule, check_support, make_value_step, value_schedule

Learn = Callable[[TrainState, Lesson], tuple[TrainState, LearnMetrics]]
"""(state, lesson) -> (the state after all updates, metrics); the old state is donated."""


def make_learner(setup: Setup, state: TrainState) -> Learn:
    """Build the function that prepares the batch of a lesson and makes its updates."""
    weights = reward_weights(setup.algorithm, setup.train)
    setup = setup._replace(algorithm=with_reward_weights(setup.algorithm, weights))
    return critic_free_learner(setup, state) if setup.critic is None else critic_learner(setup, state)


def critic_free_learner(setup: Setup, state: TrainState) -> Learn:
    """Build `learn` for algorithms without a critic: prepare the batch, update the policy."""
    remember = make_recorder(setup, state)
    prepare_batch = make_prepare(setup.algorithm, minibatches=setup.config.optimization.minibatches)
    improve, adapt = make_improve(setup, state), make_adapt(setup.config)

    def learn(state: TrainState, lesson: Lesson) -> tuple[TrainState, LearnMetrics]:
        rollout, sequences = lesson.groups.rollout, sequences_of(lesson.groups)
        state = remember(state, lesson.groups.prompt_ids, rollout)
        strength = kl_coefficient_of(state)
        batch = prepare_batch(rollout, progress=lesson.progress, past=lesson.past, kl_coefficient=strength)
        measured = measured_batch(rollout, batch, strength)
        state, metrics = improve(state, sequences, batch)
        metrics = with_gap(metrics._replace(**measured), lesson)
        return adapt(state, metrics), metrics

    return learn


def critic_learner(setup: Setup, state: TrainState) -> Learn:
    """Build `learn` for algorithms with a critic: prepare the batch, update both models."""
    config, algorithm = setup.config, setup.algorithm
    schedule = value_schedule(algorithm, config)
    remember = make_recorder(setup, state)
    prepare_batch = make_prepare(
        algorithm, minibatches=config.optimization.minibatches, value_minibatches=schedule.minibatches
    )
    optimizer, passes = critic_optimizer(config, algorithm), config.optimization.passes
    teach = make_teach(setup, algorithm, optimizer, schedule, state, passes=passes)
    improve, adapt = make_improve(setup, state), make_adapt(config)

    def learn(state: TrainState, lesson: Lesson) -> tuple[TrainState, LearnMetrics]:
        rollout, sequences = lesson.groups.rollout, sequences_of(lesson.groups)
        state = remember(state, lesson.groups.prompt_ids, rollout)
        strength = kl_coefficient_of(state)
        batch = prepare_batch(rollout, progress=lesson.progress, past=lesson.past, kl_coefficient=strength)
        credit, measured = measured_credit(algorithm, rollout, batch), measured_batch(rollout, batch, strength)
        state, critic = teach(state, sequences, batch)
        state, metrics = improve(state, sequences, batch)
        metrics = with_gap(metrics._replace(credit=credit, critic=critic, **measured), lesson)
        return adapt(state, metrics), metrics

    return learn


def sampler_gap(history: Sequence[UpdateMetrics]) -> float | None:
    """Divergence of the learner from the sampler: the first update measures it before anything has changed.

    None if there was no update, or the first one was skipped.
    """
    if not history or history[0].skipped_updates or history[0].loss is None or float(history[0].loss.share) == 0:
        return None
    return float(history[0].loss.kl)


def with_gap(metrics: LearnMetrics, lesson: Lesson) -> LearnMetrics:
    """The metrics with the divergence from the sampler that the lesson has measured, if it has."""
    return metrics if lesson.sampler_gap is None else metrics._replace(sampler_gap=lesson.sampler_gap)


def make_recorder(
    setup: Setup, state: TrainState
) -> Callable[[TrainState, Int[np.ndarray, "P"], Rollout[np.ndarray]], TrainState]:
    """Build the function that adds the rewards of a rollout to those that the state keeps, if it keeps any."""
    remember = make_remember(setup.algorithm, state)

    def record_rewards(state: TrainState, prompt_ids: Int[np.ndarray, "P"], rollout: Rollout[np.ndarray]) -> TrainState:
        if state.remembered is None:
            return state
        remembered = remember(state.remembered, prompt_ids, rollout, state.kl_coefficient)
        return state._replace(remembered=remembered)

    return record_rewards


def make_improve(
    setup: Setup, state: TrainState
) -> Callable[[TrainState, Sequences, Batch[np.ndarray]], tuple[TrainState, LearnMetrics]]:
    """Build the function that makes the policy updates of a rollout, then counts the step, and moves reference and control.

    Returns:
        `(state, sequences, batch) -> (state, metrics)`: averages over the updates, the gap between sampler and learner, and, with
        a limit of the divergence, the number of updates.
    """
    algorithm, config = setup.algorithm, setup.config
    score = make_score(setup.policy, config.sampling.temperature)
    supervised = make_supervised_score(setup.policy, config.sampling.temperature)
    parts = {
        "base": setup.base,
        "copy": setup.policy.copies,
        "pull": make_pull(config.algorithm.anchor),
        "auxiliary": make_auxiliary(supervised, config.optimization.auxiliary),
        **comparison_of(setup),
    }
    update = make_policy_step(algorithm, score, setup.optimizer, state, setup.mesh, **parts)
    optimization, rows = config.optimization, setup.rows_at_once(config.minibatch_rows)
    devices = row_shards(setup.mesh)
    minibatches, passes, limit = optimization.minibatches, optimization.passes, optimization.kl_limit
    draw = make_draw(setup.examples, setup.mesh, config)
    move, steer = make_move(algorithm, config, setup.optimizer, state), make_steer(algorithm)

    def improve(state: TrainState, sequences: Sequences, batch: Batch[np.ndarray]) -> tuple[TrainState, LearnMetrics]:
        parts = {
            index: (lay_out(responses, part.mask, rows=rows, devices=devices), part)
            for index, (responses, part) in enumerate(mini_batches((sequences, batch), minibatches))
            if part.weights.any()
        }
        order = update_order(minibatches, passes, seed=config.run.seed, step=int(state.step))
        planned = [parts[index] for index in order if index in parts]
        history: list[UpdateMetrics] = []
        for layout, part in planned:
            if is_beyond(limit, history):
                break
            examples = draw(int(state.step), len(history))
            state, metrics = update(state, *put_layout(setup.mesh, layout, part), examples)
            history.append(jax.device_get(metrics)._replace(learning_rate=learning_rate_of(state.opt_state)))
        learned = LearnMetrics(policy=mean_update(history), sampler_gap=sampler_gap(history))
        if limit is not None:
            learned = learned._replace(updates=len(history), planned_updates=len(planned))
        state = move(state._replace(step=state.step + 1), learned.policy)
        return steer(state, learned, sum(not made.skipped_updates for made in history))

    return improve


def comparison_of(setup: Setup) -> dict[str, Any]:
    """Arguments of `make_policy_step` for an algorithm with a divergence from the teacher; none for the others."""
    divergence = setup.algorithm.teacher_divergence
    if divergence is None:
        return {}
    teacher, config = required(setup.teacher, "setup.teacher"), setup.config
    compare = make_comparison(
        setup.policy,
        teacher.policy,
        divergence,
        temperature=config.sampling.temperature,
        chunk=config.model.score_chunk,
        mesh=setup.mesh,
    )
    return {"comparison": compare, "teacher": teacher.params}


def make_teach(
    setup: Setup,
    algorithm: Algorithm,
    optimizer: optax.GradientTransformation,
    schedule: ValueSchedule,
    state: TrainState,
    *,
    passes: int = 1,
) -> Callable[[TrainState, Sequences, Batch[np.ndarray]], tuple[TrainState, CriticMetrics | None]]:
    """Build the function that makes the critic updates of a prepared rollout: those of the schedule, `passes` times."""
    critic = required(setup.critic, "setup.critic")
    update = make_value_step(algorithm, critic, optimizer, state, setup.mesh)
    sampling = setup.config.sampling
    rows = setup.rows_at_once(sampling.prompts * sampling.group_size // schedule.minibatches)
    devices = row_shards(setup.mesh)

    def teach(state: TrainState, sequences: Sequences, batch: Batch[np.ndarray]) -> tuple[TrainState, CriticMetrics | None]:
        check_support(critic.head, batch)
        history: list[CriticMetrics] = []
        parts = [
            (lay_out(responses, part.mask, rows=rows, devices=devices), part)
            for responses, part in mini_batches((sequences, batch), schedule.minibatches)
        ]
        for layout, part in parts * (schedule.passes * passes):
            if required(part.value_weights, "batch.value_weights").any():
                state, metrics = update(state, *put_layout(setup.mesh, layout, part))
                history.append(jax.device_get(metrics))
        return state, mean_critic_update(history)

    return teach


def measured_credit(algorithm: Algorithm, rollout: Rollout[np.ndarray], batch: Batch[np.ndarray]) -> CreditMetrics:
    """Measure the values and advantages of a prepared rollout, over its trained tokens."""
    shape = rollout.mask.shape
    mask, advantage = batch.mask.reshape(shape), batch.advantage.reshape(shape)
    measured = jax.device_get(credit_metrics(rollout.values, rollout.rewards, mask, advantage))
    policy_lambda = required(algorithm.critic, "algorithm.critic").policy_lambda
    if policy_lambda is None or not mask.any():
        return measured
    lambdas = np.asarray(policy_lambda(jnp.asarray(mask.sum(-1, dtype=np.int32))))[mask.any(-1)]
    low, middle, high = np.quantile(lambdas, (0.1, 0.5, 0.9))
    return measured._replace(lambda_10=float(low), lambda_50=float(middle), lambda_90=float(high))


@jax.jit
def credit_metrics(
    values: Float[Array, "P G T"],
    rewards: Float[Array, "P G"],
    mask: Bool[Array, "P G T"],
    advantage: Float[Array, "P G T"],
) -> CreditMetrics:
    """Measure how well the critic predicts the outcome of a rollout, and how the advantages correlate with the outcome.

    Args:
        values: before the critic is updated, `[P, G, T]`.
        rewards: without reward shaping, `[P, G]`.
        mask: response tokens, `[P, G, T]`.
        advantage: of each token, `[P, G, T]`.
    """
    values, outcome = zero_outside(values, mask), jnp.broadcast_to(rewards[..., None], values.shape)
    weight = mask.astype(values.dtype) / jnp.maximum(mask.sum(), 1).astype(values.dtype)

    def centered(x: Array) -> Array:
        return jnp.where(mask, x - (weight * x).sum(), 0.0)

    a, r = centered(advantage), centered(outcome)
    spread = jnp.sqrt(jnp.square(a).sum() * jnp.square(r).sum())
    return CreditMetrics(
        explained_variance=outcome_explained(values, rewards, mask),
        value=(weight * values).sum(),
        outcome_loss=0.5 * (weight * jnp.square(outcome - values)).sum(),
        advantage_correlation=(a * r).sum() / jnp.where(spread > 0, spread, 1.0),
    )
