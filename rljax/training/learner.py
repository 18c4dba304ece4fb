"""From the groups of a rollout to updates of the run's state: the critic's, then the policy's."""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from rljax.algorithms import Algorithm, Batch, Past, Rollout
from rljax.ops.divergence import ema_update
from rljax.ops.masked import zero_outside
from rljax.ops.value import explained_variance
from rljax.parallel import fetch, put_rows
from rljax.rollout import Groups, pad
from rljax.training.critic import ValueSchedule, check_support, make_value_step, make_values, value_schedule
from rljax.training.optimizer import updates_done
from rljax.training.rollouts import (
    as_rollout,
    as_sequences,
    filled_first,
    make_prepare,
    make_remember,
    make_scores,
    micro_batches,
)
from rljax.training.run import Run, critic_optimizer, policy_optimizer
from rljax.training.update import Sequences, make_policy_step

Numbers = dict[str, float]


def mean_of(history: list[Mapping[str, float]]) -> Numbers:
    """Average of every number over the updates of a step; nothing when there was none."""
    return {name: float(np.mean([row[name] for row in history])) for name in history[0]} if history else {}


def outcome_explained(values: Float[Array, "P G T"], rewards: Float[Array, "P G"], mask: Array) -> Float[Array, ""]:
    """Explained variance of the outcome's reward, over all response tokens: what a critic knew before it learnt from them."""
    return explained_variance(values, jnp.broadcast_to(rewards[..., None], values.shape), mask)


@jax.jit
def credit_metrics(values: Array, rewards: Array, mask: Array, advantage: Array) -> dict[str, Float[Array, ""]]:
    """How well the critic knew the outcome of a rollout before it learnt from it, and how the credit it gave goes with it.

    Args:
        values: at sampling, `[P, G, T]`.
        rewards: unshaped, `[P, G]`.
        mask: response tokens, `[P, G, T]`.
        advantage: of each token, `[P, G, T]`.
    """
    values, outcome = zero_outside(values, mask), jnp.broadcast_to(rewards[..., None], values.shape)
    weight = mask / jnp.maximum(mask.sum(), 1)

    def centered(x: Array) -> Array:
        return jnp.where(mask, x - (weight * x).sum(), 0.0)

    a, r = centered(advantage), centered(outcome)
    spread = jnp.sqrt(jnp.square(a).sum() * jnp.square(r).sum())
    return {
        "explained_variance": outcome_explained(values, rewards, mask),
        "value": (weight * values).sum(),
        "outcome_loss": 0.5 * (weight * jnp.square(outcome - values)).sum(),
        "advantage_correlation": (a * r).sum() / jnp.where(spread > 0, spread, 1.0),
    }


def make_critic_learner(
    run: Run,
    algorithm: Algorithm,
    optimizer: optax.GradientTransformation,
    schedule: ValueSchedule,
    *,
    passes: int = 1,
) -> Callable[[Sequences, Batch], Numbers]:
    """Compile what teaches the critic a prepared rollout, in as many updates as its schedule has, times `passes`."""
    update = make_value_step(algorithm, run.valuer, optimizer, run.state, run.setup.mesh)

    def learn(sequences: Sequences, batch: Batch) -> Numbers:
        check_support(algorithm.critic.head, batch)
        history = []
        rows = filled_first((sequences, batch), batch.mask, schedule.minibatches)
        parts = micro_batches(rows, schedule.minibatches, schedule.rows)
        for part in parts * (schedule.passes * passes):
            if part[1].value_weights.any():
                run.state, metrics = update(run.state, *put_rows(run.setup.mesh, part, leading=1))
                history.append({name: float(value) for name, value in metrics.items()})
        return mean_of(history)

    return learn


def make_rollout_values(run: Run, algorithm: Algorithm) -> Callable[[Groups, Sequences], np.ndarray]:
    """Compile the values that credit and targets are made of, `[B, T]`: the critic's, with the pretrained one's where blended."""
    setup, config = run.setup, run.config
    values_of = make_values(run.valuer, setup.mesh, config.microbatch)
    blend = algorithm.critic.blend

    @jax.jit
    def blended(before: Array, now: Array, rewards: Array, mask: Array, done: Array) -> Array:
        return blend(before, now, done, outcome_explained(now.reshape(mask.shape), rewards, mask))

    def values(groups: Groups, sequences: Sequences) -> np.ndarray:
        now = values_of(run.state.critic.params, sequences)
        if blend is None:
            return now
        before = values_of(run.state.critic.pretrained, sequences)
        return np.asarray(blended(before, now, groups.rewards, groups.mask, np.float32(progress(run))))

    return values


def progress(run: Run) -> float:
    """Share of RL that is done."""
    return int(run.state.step) / run.config.steps


def lambda_metrics(run: Run, mask: np.ndarray) -> Numbers:
    """Spread of the λ that responses of these lengths get, where λ goes by length."""
    policy_lambda = run.setup.algorithm.critic.policy_lambda
    if policy_lambda is None:
        return {}
    lambdas = np.asarray(policy_lambda(jnp.asarray(mask.sum(-1))))[mask.any(-1)]
    low, middle, high = np.quantile(lambdas, (0.1, 0.5, 0.9))
    return {"lambda_10": float(low), "lambda_50": float(middle), "lambda_90": float(high)}


def make_past(run: Run) -> Callable[[Groups, Rollout], Past | None]:
    """Compile what recalls the past of a rollout's prompts and then remembers the rollout too; None where nothing is remembered."""
    remember = make_remember(run.setup.algorithm, run.state, run.setup.mesh)

    def past_of(groups: Groups, rollout: Rollout) -> Past | None:
        memory = run.state.remembered
        if memory is None:
            return None
        past = Past(fetch(memory), groups.problem)
        run.state = run.state._replace(remembered=remember(memory, groups.problem, rollout))
        return past

    return past_of


def make_learner(run: Run) -> Callable[[Groups], Numbers]:
    """Compile what turns the groups of a rollout into updates of the run's state; it returns their mean metrics."""
    config, setup, algorithm = run.config, run.setup, run.setup.algorithm
    optimizer, schedule = policy_optimizer(config, "rl")
    update = make_policy_step(algorithm, run.scorer, optimizer, run.state, setup.mesh)
    scores = make_scores(run.scorer, setup.mesh, config.microbatch)
    follow = jax.jit(partial(ema_update, rate=algorithm.reference_rate), donate_argnums=0)
    past_of = make_past(run)
    cut = config.minibatches, config.microbatch
    has_critic = algorithm.critic is not None
    value_cut = value_schedule(algorithm, config, setup.mesh.size) if has_critic else None
    cuts = {"value_minibatches": value_cut.minibatches} if has_critic else {}
    prepared = make_prepare(algorithm, minibatches=config.minibatches, **cuts)
    values_of = make_rollout_values(run, algorithm) if has_critic else None
    teach = make_critic_learner(run, algorithm, critic_optimizer(setup), value_cut) if has_critic else None

    def inputs(groups: Groups, sequences: Sequences) -> dict[str, np.ndarray]:
        given = {}
        if algorithm.needs("ref_logp"):
            given["ref_logp"] = scores(run.state.reference, sequences).logp
        if algorithm.needs("behaviour_entropy"):
            given["behaviour_entropy"] = scores(run.state.params, sequences).entropy
        if has_critic:
            given["values"] = values_of(groups, sequences)
        return given

    def improve(sequences: Sequences, batch: Batch) -> Numbers:
        history = []
        for part in micro_batches(filled_first((sequences, batch), batch.mask, config.minibatches), *cut):
            if not part[1].weights.any():
                continue
            rate = float(schedule(updates_done(run.state.opt_state)))
            run.state, metrics = update(run.state, *put_rows(setup.mesh, part, leading=1))
            numbers = {name: float(value) for name, value in metrics.items()}
            history.append(numbers | {"learning_rate": rate})
        return mean_of(history)

    def learn(groups: Groups) -> Numbers:
        groups = pad(groups, config.prompts)
        sequences = as_sequences(groups)
        given = inputs(groups, sequences)
        rollout = as_rollout(groups, **given)
        batch = prepared(rollout, progress=progress(run), past=past_of(groups, rollout))
        numbers: Numbers = {}
        if has_critic:
            shape = groups.mask.shape
            mask = batch.mask.reshape(shape)
            measured = credit_metrics(given["values"].reshape(shape), groups.rewards, mask, batch.advantage.reshape(shape))
            numbers |= {name: float(value) for name, value in measured.items()} | lambda_metrics(run, mask)
            numbers |= teach(sequences, batch)
        numbers |= improve(sequences, batch)
        if algorithm.reference_rate > 0:
            run.state = run.state._replace(reference=follow(run.state.reference, run.state.params))
        run.state = run.state._replace(step=run.state.step + 1)
        return numbers

    return learn
