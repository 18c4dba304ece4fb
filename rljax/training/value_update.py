"""Values of the critic, and its jitted update."""

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from rljax.algorithms import Algorithm, Batch, ValueMetrics, explained_variance_of, value_loss
from rljax.algorithms.value_head import ValueHead
from rljax.errors import InputError
from rljax.models import Packed, Params
from rljax.parallel import accumulate
from rljax.records import required
from rljax.rollout import Layout, Sequences
from rljax.sharing import shared
from rljax.training.config import TrainConfig
from rljax.training.guard import is_sound, skip_count, where_sound
from rljax.training.metrics import CriticMetrics
from rljax.training.objective.critic import Critic
from rljax.training.scoring import on_sequences
from rljax.training.state import Places, TrainState, places
from rljax.training.update import has_responses, jit_step, rows_of


class ValueSchedule(NamedTuple):
    """How a rollout is divided into critic updates."""

    minibatches: int
    """Number of updates in one pass, each on one mini-batch."""
    passes: int
    """Number of passes over the rollout; the number of updates is minibatches x passes."""


def value_schedule(algorithm: Algorithm, config: TrainConfig) -> ValueSchedule:
    """Fit the algorithm's number of critic updates per rollout to the number of prompts.

    U updates on P prompts are U / gcd(P, U) passes over gcd(P, U) mini-batches: 12 updates on 32 prompts are 3 passes over 4.
    """
    prompts = config.sampling.prompts
    updates = config.optimization.minibatches * required(algorithm.critic, "algorithm.critic").updates
    minibatches = gcd(prompts, updates)
    return ValueSchedule(minibatches, updates // minibatches)


@shared
def _values(critic: Critic) -> Callable[[Params, Packed], Float[Array, "B T"]]:
    return critic.values


def make_values(critic: Critic, mesh: Mesh, rows: int) -> Callable[[Params, Sequences], Float[np.ndarray, "B T"]]:
    """Compile `(params, sequences) -> values [B, T]` without gradients, `rows` rows at a time; the values are a host array."""
    compiled = on_sequences(_values(critic.stripped()), mesh, rows)

    def values(params: Params, sequences: Sequences) -> Float[np.ndarray, "B T"]:
        return np.asarray(compiled(params, sequences))

    return values


def make_value_step(
    algorithm: Algorithm, critic: Critic, optimizer: optax.GradientTransformation, state: TrainState, mesh: Mesh
) -> Callable[[TrainState, Layout, Batch[Array]], tuple[TrainState, CriticMetrics]]:
    """Compile one optimizer update of the critic.

    Args:
        algorithm: the algorithm whose value loss is minimized.
        critic: the critic's model and head.
        optimizer: turns the gradient into an update.
        state: a placed state, for its shapes and shardings.
        mesh: the devices that hold the state.

    Returns:
        `(state, layout, batch) -> (state, metrics)`; the old state is donated. If the update is not sound, the new
        state equals the old one.
    """
    return _value_program(algorithm, critic.stripped(), optimizer, places(state), mesh)


@shared
def _value_program(
    algorithm: Algorithm, critic: Critic, optimizer: optax.GradientTransformation, where: Places, mesh: Mesh
) -> Any:
    """Compile `(state, layout, batch) -> (state, metrics)`; see `make_value_step`."""

    def step(state: TrainState, layout: Layout, batch: Batch[Array]) -> tuple[TrainState, CriticMetrics]:
        before = required(state.critic, "state.critic")

        def objective(learned: Params, part: Layout) -> tuple[Array, ValueMetrics]:
            outputs = critic.function.outputs({**before.params, **learned}, part.packed)
            return value_loss(algorithm, critic.head.value(outputs), rows_of(batch, part.responses), outputs=outputs)

        learned = critic.learned(before.params)
        gradient, sums = accumulate(objective, learned, layout, counts=has_responses)
        updates, opt_state = optimizer.update(gradient, before.opt_state, learned)
        changed = optax.apply_updates(learned, updates)
        params = {**before.params, **changed}  # pyright: ignore[reportGeneralTypeIssues]  a critic's parameters are a dict
        norm = optax.tree.norm(gradient)
        sound = is_sound(sums.loss, norm, updates, learned)
        after = where_sound(sound, before._replace(params=params, opt_state=opt_state), before)
        return state._replace(critic=after), CriticMetrics(sums.loss, explained_variance_of(sums), norm, skip_count(sound))

    return jit_step(step, where, mesh)


def check_support(head: ValueHead, batch: Batch[np.ndarray]) -> None:
    """Refuse returns that a categorical head cannot represent.

    Raises:
        InputError: some returns are outside the head's support; the message names both ranges.
    """
    if head.support is None or not batch.mask.any():
        return
    targets = required(batch.value_target, "batch.value_target")[batch.mask]
    low, high = head.support
    slack = 1e-4 * (high - low)  # targets are float32 sums, and rounding may put them just outside
    if targets.min() < low - slack or targets.max() > high + slack:
        raise InputError(
            f"The critic's head represents values from {low:g} to {high:g}, but the returns go from {targets.min():g} to "
            f"{targets.max():g}; widen its range with --critic-head-options low=... high=...."
        )
