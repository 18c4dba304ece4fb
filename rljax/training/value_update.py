"""Values of the critic, and its jitted update."""

from collections.abc import Callable
from math import gcd
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from rljax.algorithms import Algorithm, Batch, ValueMetrics, explained_variance_of, value_loss
from rljax.algorithms.value_head import ValueHead
from rljax.errors import InputError
from rljax.models import Packed, Params
from rljax.parallel import accumulate, replicated
from rljax.records import documented, required
from rljax.rollout import Sequences
from rljax.training.config import TrainConfig
from rljax.training.critic import Critic
from rljax.training.metrics import CriticMetrics
from rljax.training.state import TrainState, places
from rljax.training.update import has_tokens, in_chunks


@documented
class ValueSchedule(NamedTuple):
    """How a rollout is divided into critic updates."""

    minibatches: int
    """Number of updates in one pass, each on one mini-batch."""
    passes: int
    """Passes over the rollout; the number of updates is minibatches x passes."""
    rows: int
    """Responses whose activations are held at once."""


def value_schedule(algorithm: Algorithm, config: TrainConfig, devices: int) -> ValueSchedule:
    """Fit the algorithm's number of critic updates per rollout to the number of prompts.

    U updates are gcd(P, U) mini-batches in U / gcd(P, U) passes: 12 updates on 32 prompts are 3 passes over 4 mini-batches.

    Raises:
        InputError: the rows of an update cannot be divided among the devices.
    """
    prompts, group_size = config.sampling.prompts, config.sampling.group_size
    updates = config.optimization.minibatches * required(algorithm.critic, "algorithm.critic").updates
    minibatches = gcd(prompts, updates)
    rows = prompts // minibatches * group_size
    fitting = [n for n in range(1, rows + 1) if rows % n == 0 and n % devices == 0 and n <= config.microbatch_rows]
    if not fitting:
        raise InputError(
            f"{config.algorithm.name} updates its critic on {rows} responses at a time ({prompts} prompts / {minibatches} "
            f"mini-batches x {group_size}); {devices} devices cannot share them in parts of at most {config.microbatch_rows} "
            "rows. Take more prompts or larger groups."
        )
    return ValueSchedule(minibatches, updates // minibatches, max(fitting))


def make_values(critic: Critic, mesh: Mesh, rows: int) -> Callable[[Params, Sequences], Float[np.ndarray, "B T"]]:
    """Compile `(params, sequences) -> values [B, T]` without gradient, `rows` at a time; a host array."""
    compiled = in_chunks(critic.values, mesh, rows)

    def values(params: Params, sequences: Sequences) -> Float[np.ndarray, "B T"]:
        return np.asarray(compiled(params, sequences))

    return values


def make_value_step(
    algorithm: Algorithm, critic: Critic, optimizer: optax.GradientTransformation, state: TrainState, mesh: Mesh
) -> Callable[[TrainState, Packed, Batch[Array]], tuple[TrainState, CriticMetrics]]:
    """Compile one optimiser update of the critic.

    Args:
        algorithm: the algorithm whose value loss is minimised.
        critic: the critic's model and head.
        optimizer: turns the gradient into an update.
        state: an example of the placed state.
        mesh: the devices that hold the state.

    Returns:
        `(state, packed, batch) -> (state, metrics)`, rows laid out `[micro-batches, rows, ...]`; the old state is donated.
    """

    def step(state: TrainState, packed: Packed, batch: Batch[Array]) -> tuple[TrainState, CriticMetrics]:
        before = required(state.critic, "state.critic")

        def objective(learned: Params, part: tuple[Packed, Batch[Array]]) -> tuple[Array, ValueMetrics]:
            packed, batch = part
            outputs = critic.function.outputs({**before.params, **learned}, packed)
            return value_loss(algorithm, critic.head.value(outputs), batch, outputs=outputs)

        learned = critic.learned(before.params)
        gradient, sums = accumulate(objective, learned, (packed, batch), counts=has_tokens)
        updates, opt_state = optimizer.update(gradient, before.opt_state, learned)
        changed = optax.apply_updates(learned, updates)
        params = {**before.params, **changed}  # pyright: ignore[reportGeneralTypeIssues]  a critic's parameters are a dict
        metrics = CriticMetrics(sums.loss, explained_variance_of(sums), optax.tree.norm(gradient))
        return state._replace(critic=before._replace(params=params, opt_state=opt_state)), metrics

    return jax.jit(step, donate_argnums=0, out_shardings=(places(state), replicated(mesh)))


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
