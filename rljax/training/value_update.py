"""Compute the critic's values, compile one critic update, and run all critic updates on a rollout."""

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from rljax.algorithms import Algorithm, Batch, Rollout, ValueMetrics, explained_variance_of, value_loss
from rljax.algorithms.value_head import ValueHead
from rljax.caching import cache_results
from rljax.errors import InputError
from rljax.models import Params
from rljax.ops.masked import masked_centered, zero_outside
from rljax.ops.value import explained_variance
from rljax.parallel import accumulate, mini_batches, row_shards
from rljax.parallel.guarded_update import guarded_update, skip_count
from rljax.records import required
from rljax.rollout import Layout, Sequences, lay_out
from rljax.training.config import TrainConfig
from rljax.training.metrics import CreditMetrics, CriticMetrics, average_critic_updates
from rljax.training.objective.critic import CriticModel
from rljax.training.scoring import compile_for_sequences
from rljax.training.setup import Setup
from rljax.training.state import Shardings, TrainState, shardings_of
from rljax.training.update import has_responses, jit_step, put_layout, rows_of


class ValueSchedule(NamedTuple):
    """How a rollout is divided into critic updates."""

    minibatches: int
    """Number of updates in one pass, each on one mini-batch."""
    passes: int
    """Number of passes over the rollout; the number of updates is minibatches x passes."""


def value_schedule(algorithm: Algorithm, config: TrainConfig) -> ValueSchedule:
    """Divide the algorithm's critic updates per rollout into passes over mini-batches of equal size.

    U updates on P prompts are U / gcd(P, U) passes over gcd(P, U) mini-batches: 12 updates on 32 prompts
    are 3 passes over 4 mini-batches.
    """
    prompts = config.sampling.prompts
    updates = config.optimization.minibatches * required(algorithm.critic, "algorithm.critic").updates
    minibatches = gcd(prompts, updates)
    return ValueSchedule(minibatches, updates // minibatches)


@cache_results
def _values_of_part(critic: CriticModel) -> Callable[[Params, Layout], Float[Array, "B T"]]:
    return lambda params, part: critic.values(params, part.packed)


def make_values(critic: CriticModel, mesh: Mesh, rows: int) -> Callable[[Params, Sequences], Float[np.ndarray, "B T"]]:
    """Return a compiled `(params, sequences) -> values [B, T]`, a host array, computed without gradients `rows` rows at a time."""
    return compile_for_sequences(_values_of_part(critic.without_builders()), mesh, rows)  # pyright: ignore[reportReturnType]  host arrays


def make_value_step(
    algorithm: Algorithm, critic: CriticModel, optimizer: optax.GradientTransformation, state: TrainState, mesh: Mesh
) -> Callable[[TrainState, Layout, Batch[Array]], tuple[TrainState, CriticMetrics]]:
    """Compile one optimizer update of the critic.

    Args:
        algorithm: the algorithm whose value loss is minimized.
        critic: the critic's model and head.
        optimizer: turns the gradient into an update.
        state: a placed state, for its shapes and shardings.
        mesh: the devices that the state is placed on.

    Returns:
        `(state, layout, batch) -> (state, metrics)`; the old state is donated. If the update is unsafe, the new
        state equals the old one.
    """
    return _value_program(algorithm, critic.without_builders(), optimizer, shardings_of(state), mesh)


@cache_results
def _value_program(
    algorithm: Algorithm, critic: CriticModel, optimizer: optax.GradientTransformation, shardings: Shardings, mesh: Mesh
) -> Any:
    """Compile `(state, layout, batch) -> (state, metrics)`; see `make_value_step`."""

    def step(state: TrainState, layout: Layout, batch: Batch[Array]) -> tuple[TrainState, CriticMetrics]:
        before = required(state.critic, "state.critic")

        def objective(learned: Params, part: Layout) -> tuple[Array, ValueMetrics]:
            outputs = critic.function.outputs({**before.params, **learned}, part.packed)
            return value_loss(algorithm, critic.head.value(outputs), rows_of(batch, part.responses), outputs=outputs)

        learned = critic.trained_params(before.params)
        gradient, sums = accumulate(objective, learned, layout, counts=has_responses)
        changed, opt_state, norm, safe = guarded_update(optimizer, gradient, before.opt_state, learned, sums.loss)
        params = {**before.params, **changed}  # pyright: ignore[reportGeneralTypeIssues]  a critic's parameters are a dict
        after = before._replace(params=params, opt_state=opt_state)
        return state._replace(critic=after), CriticMetrics(sums.loss, explained_variance_of(sums), norm, skip_count(safe))

    return jit_step(step, shardings, mesh)


def check_support(head: ValueHead, batch: Batch[np.ndarray]) -> None:
    """Reject returns that a categorical head cannot represent.

    Raises:
        InputError: some returns are outside the head's support; the message names both ranges.
    """
    if head.support is None or not batch.mask.any():
        return
    targets = required(batch.value_target, "batch.value_target")[batch.mask]
    low, high = head.support
    slack = 1e-4 * (high - low)  # float32 rounding may put a target just outside
    if targets.min() < low - slack or targets.max() > high + slack:
        raise InputError(
            f"The critic's head represents values from {low:g} to {high:g}, but the returns range from {targets.min():g} to "
            f"{targets.max():g}; widen the head's range with --critic-head-options low=... high=...."
        )


def make_critic_updates(
    setup: Setup, optimizer: optax.GradientTransformation, schedule: ValueSchedule, state: TrainState, *, repeats: int = 1
) -> Callable[[TrainState, Sequences, Batch[np.ndarray]], tuple[TrainState, CriticMetrics | None]]:
    """Build the function that runs a rollout's critic updates: all updates of the schedule, repeated `repeats` times."""
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
        for layout, part in parts * (schedule.passes * repeats):
            if required(part.value_weights, "batch.value_weights").any():
                state, metrics = update(state, *put_layout(setup.mesh, layout, part))
                history.append(jax.device_get(metrics))
        return state, average_critic_updates(history)

    return update_critic


def measure_credit(algorithm: Algorithm, rollout: Rollout[np.ndarray], batch: Batch[np.ndarray]) -> CreditMetrics:
    """Measure the values and advantages of a prepared rollout, over the tokens that it trains on."""
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
    a, r = (masked_centered(x.reshape(-1), mask.reshape(-1)) for x in (advantage, outcome))
    spread = jnp.sqrt(jnp.square(a).sum() * jnp.square(r).sum())
    return CreditMetrics(
        explained_variance=explained_outcome_variance(values, rewards, mask),
        value=(weight * values).sum(),
        outcome_loss=0.5 * (weight * jnp.square(outcome - values)).sum(),
        advantage_correlation=(a * r).sum() / jnp.where(spread > 0, spread, 1.0),
    )


def explained_outcome_variance(
    values: Float[Array, "P G T"], rewards: Float[Array, "P G"], mask: Bool[Array, "P G T"]
) -> Float[Array, ""]:
    """Return the fraction of the outcome reward's variance that the values explain, over all response tokens."""
    return explained_variance(values, jnp.broadcast_to(rewards[..., None], values.shape), mask)
