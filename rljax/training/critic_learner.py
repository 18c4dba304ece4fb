"""The critic's part in learning from a rollout: update it, and measure how well it predicts the outcomes."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from rljax.algorithms import Algorithm, Batch, Rollout
from rljax.ops.masked import zero_outside
from rljax.parallel import mini_batches, row_shards
from rljax.records import required
from rljax.rollout import Sequences, lay_out
from rljax.training.metrics import CreditMetrics, CriticMetrics, LearnMetrics, mean_critic_update
from rljax.training.objective.optimizer import critic_optimizer
from rljax.training.scored_rollout import outcome_explained
from rljax.training.setup import Setup
from rljax.training.state import TrainState
from rljax.training.update import put_layout
from rljax.training.value_update import ValueSchedule, check_support, make_value_step, value_schedule


class CriticLearner(NamedTuple):
    """The critic's part in learning from a rollout."""

    schedule: ValueSchedule
    """How a rollout is divided into updates."""
    learn: Callable[..., tuple[TrainState, LearnMetrics]]
    """(state, metrics, rollout, sequences, batch) -> (state, metrics that include the critic's)."""


def make_critic_learner(setup: Setup, state: TrainState) -> CriticLearner:
    """Build the critic's updates in RL."""
    config, algorithm = setup.config, setup.algorithm
    schedule = value_schedule(algorithm, config)
    optimizer = critic_optimizer(config, algorithm)
    update = make_critic_updates(setup, optimizer, schedule, state, passes=config.optimization.passes)

    def learn(
        state: TrainState,
        metrics: LearnMetrics,
        rollout: Rollout[np.ndarray],
        sequences: Sequences,
        batch: Batch[np.ndarray],
    ) -> tuple[TrainState, LearnMetrics]:
        credit = measured_credit(algorithm, rollout, batch)
        state, critic = update(state, sequences, batch)
        return state, metrics._replace(credit=credit, critic=critic)

    return CriticLearner(schedule, learn)


def make_critic_updates(
    setup: Setup,
    optimizer: optax.GradientTransformation,
    schedule: ValueSchedule,
    state: TrainState,
    *,
    passes: int = 1,
) -> Callable[[TrainState, Sequences, Batch[np.ndarray]], tuple[TrainState, CriticMetrics | None]]:
    """Build the function that makes a rollout's critic updates: those of the schedule, `passes` times."""
    critic = required(setup.critic, "setup.critic")
    update = make_value_step(setup.algorithm, critic, optimizer, state, setup.mesh)
    sampling = setup.config.sampling
    rows = setup.rows_at_once(sampling.prompts * sampling.group_size // schedule.minibatches)
    devices = row_shards(setup.mesh)

    def update_critic(
        state: TrainState, sequences: Sequences, batch: Batch[np.ndarray]
    ) -> tuple[TrainState, CriticMetrics | None]:
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

    return update_critic


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
        values: values before the critic is updated, `[P, G, T]`.
        rewards: rewards without reward shaping, `[P, G]`.
        mask: mask of the response tokens, `[P, G, T]`.
        advantage: advantage of each token, `[P, G, T]`.
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
