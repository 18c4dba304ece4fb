"""The critic at work on a rollout: its values, and the jitted update that teaches it."""

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
from rljax.parallel import accumulate, fetch, micro_batches, put_rows, replicated
from rljax.records import documented, required
from rljax.rollout import Sequences, pack
from rljax.training.config import TrainConfig
from rljax.training.critic import Critic
from rljax.training.metrics import CriticMetrics
from rljax.training.state import TrainState, places
from rljax.training.update import has_tokens


@documented
class ValueSchedule(NamedTuple):
    """How a rollout is cut up for the critic's updates."""

    minibatches: int
    """Updates of one pass."""
    passes: int
    """Updates are minibatches x passes."""
    rows: int
    """Responses whose activations are held at once."""


def value_schedule(algorithm: Algorithm, config: TrainConfig, devices: int) -> ValueSchedule:
    """Fit the algorithm's number of critic updates a rollout to the number of prompts.

    U updates are gcd(P, U) mini-batches in U / gcd(P, U) passes: 12 updates on 32 prompts are 3 passes over 4 mini-batches.

    Raises:
        InputError: the devices cannot share the rows of an update.
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
    compiled = jax.jit(critic.values)

    def values(params: Params, sequences: Sequences) -> Float[np.ndarray, "B T"]:
        (parts,) = micro_batches(sequences, 1, rows)
        packed = pack(parts)
        count = parts.tokens.shape[0]
        pieces = [compiled(params, put_rows(mesh, jax.tree.map(lambda x, i=i: x[i], packed))) for i in range(count)]
        return np.concatenate(fetch(pieces))

    return values


def make_value_step(
    algorithm: Algorithm, critic: Critic, optimizer: optax.GradientTransformation, state: TrainState, mesh: Mesh
) -> Callable[[TrainState, Packed, Batch[Array]], tuple[TrainState, CriticMetrics]]:
    """Compile one optimiser update of the critic.

    Args:
        algorithm: its critic's loss is minimised.
        critic: the critic's model and head.
        optimizer: what turns a gradient into an update.
        state: an example of the placed state.
        mesh: where the state lies.

    Returns:
        `(state, packed, batch) -> (state, metrics)`, rows laid out `[micro-batches, rows, ...]`; the old state is consumed.
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
    """Refuse returns that a categorical head cannot express.

    Raises:
        InputError: some are outside the head's support; both are named.
    """
    if head.support is None or not batch.mask.any():
        return
    targets = required(batch.value_target, "batch.value_target")[batch.mask]
    low, high = head.support
    slack = 1e-4 * (high - low)  # targets are sums in float32, and may round past the end they stand on
    if targets.min() < low - slack or targets.max() > high + slack:
        raise InputError(
            f"The critic's head expresses values from {low:g} to {high:g} and the returns go from {targets.min():g} to "
            f"{targets.max():g}; widen it with --critic-head-options low=... high=...."
        )
