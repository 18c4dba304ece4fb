"""Direct preference losses on a table of logits: a policy learns from pairs of responses of the initial policy.

The losses are from `rljax.ops`; the initial policy is the reference, and samples all pairs once, before training.

Axes: N pairs, S states, V tokens of the vocabulary, R rows of logits, T tokens of a response.
"""

# pyright: reportCallIssue=false
# A type checker does not know the length of a starred list of scores.

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from lab.tabular_training import _quick_compilation, sample_states
from lab.worlds import Key, Table, World, exact, log_probabilities


class Responses(NamedTuple):
    """One sampled response of each pair."""

    states: Int[Array, "N T"]
    """State before each token."""
    tokens: Int[Array, "N T"]
    """The tokens."""
    mask: Bool[Array, "N T"]
    """True for tokens of the response, False for padding."""
    reward: Float[Array, "N"]
    """The true reward of each response."""

    @property
    def length(self) -> Int[Array, "N"]:
        """Number of tokens of each response."""
        return self.mask.sum(-1)


class PairLogProbs(NamedTuple):
    """Log-probabilities of each pair's responses in nats, summed over their tokens, and their lengths."""

    chosen: Float[Array, "N"]
    """Log-probability of the preferred response under the policy."""
    rejected: Float[Array, "N"]
    """Log-probability of the rejected response under the policy."""
    ref_chosen: Float[Array, "N"]
    """Log-probability of the preferred response under the reference."""
    ref_rejected: Float[Array, "N"]
    """Log-probability of the rejected response under the reference."""
    chosen_length: Int[Array, "N"]
    """Number of tokens of the preferred response."""
    rejected_length: Int[Array, "N"]
    """Number of tokens of the rejected response."""

    @property
    def lead(self) -> Float[Array, "N"]:
        """The preferred response's log-ratio to the reference minus the rejected response's, in nats."""
        return (self.chosen - self.ref_chosen) - (self.rejected - self.ref_rejected)


class PairSetting(NamedTuple):
    """A training run on pairs."""

    world: World
    """The task."""
    initial: Callable[[Key], Table]
    """Key of a seed -> the initial table of logits, which is the reference."""
    loss: Callable[[PairLogProbs], Float[Array, "N"]]
    """Loss of each pair; training minimizes the mean."""
    prefer: Callable[[Key, Responses, Responses], Bool[Array, "N"]]
    """(key, first response of each pair, second response) -> True if the first is preferred."""
    pairs: int = 256
    """N, the number of pairs, with about equally many for each context."""
    steps: int = 1000
    """Number of updates, each on all pairs."""
    learning_rate: float = 0.05
    """Learning rate of Adam for the logits."""
    points: int = 10
    """Number of points on a curve, not counting the one before training."""


def sample_pairs(setting: PairSetting, table: Table, key: Key) -> tuple[Responses, Responses]:
    """Sample two responses to each prompt from a table, and put the preferred one of each pair first."""
    world = setting.world
    for_tokens, for_labels = jax.random.split(key)
    start = jnp.asarray(world.start)[jnp.arange(setting.pairs) % len(world.start)]
    first = jnp.broadcast_to(start[:, None], (setting.pairs, 2))
    uniform = jax.random.uniform(for_tokens, (world.horizon, setting.pairs, 2))
    states, tokens, mask, last = sample_states(world, log_probabilities(world, table), first, uniform)
    rewards = jnp.asarray(world.reward, jnp.float32)[last]
    one, other = (Responses(states[:, i], tokens[:, i], mask[:, i], rewards[:, i]) for i in (0, 1))
    better = setting.prefer(for_labels, one, other)

    def pick(first: Array, second: Array) -> Array:
        return jnp.where(better.reshape(-1, *[1] * (first.ndim - 1)), first, second)

    return jax.tree.map(pick, one, other), jax.tree.map(pick, other, one)


def score_pairs(world: World, table: Table, reference: Table, pairs: tuple[Responses, Responses]) -> PairLogProbs:
    """Compute the log-probabilities of pairs, with the preferred response first, under a policy and its reference."""

    def total(logits: Table, responses: Responses) -> Float[Array, "N"]:
        logp = log_probabilities(world, logits)[responses.states, responses.tokens]
        return jnp.where(responses.mask, logp, 0.0).sum(-1)

    chosen, rejected = pairs
    scores = [total(logits, responses) for logits in (table, reference) for responses in pairs]
    return PairLogProbs(*scores, chosen.length, rejected.length)


def measure_pairs(setting: PairSetting, seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """Train with several seeds, and compute the metrics that experiments compare.

    Returns:
        For each seed, at the end of training: `success` (mean pass rate of the contexts), `length` (tokens), `chosen` and
        `rejected` (mean log-ratio of the pairs' responses to the reference, nats), `lead` (`chosen` minus `rejected`) and
        `lowest_rejected` (the lowest log-ratio of a rejected response); before training: `first_success` and `first_length`; and
        `curve`, the pass rate at `points` + 1 points of training.

    Raises:
        ValueError: `steps` is not a multiple of `points`.
    """
    if setting.steps % setting.points:
        raise ValueError(f"steps must be a multiple of points, got {setting.steps} and {setting.points}")

    def train_seed(key: Key) -> dict[str, Array]:
        for_table, for_pairs = jax.random.split(key)
        return _train(setting, setting.initial(for_table), for_pairs)

    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    with jax.numpy_dtype_promotion("standard"):  # Optax raises its decays to the power of an integer count
        metrics = jax.jit(jax.vmap(train_seed), compiler_options=_quick_compilation())(keys)
    return {name: np.asarray(metric) for name, metric in metrics.items()}


def _train(setting: PairSetting, reference: Table, key: Key) -> dict[str, Array]:
    """Train with one seed and compute its metrics."""
    world, pairs = setting.world, sample_pairs(setting, reference, key)
    optimizer = optax.adam(setting.learning_rate)

    def objective(table: Table) -> Float[Array, ""]:
        return setting.loss(score_pairs(world, table, reference, pairs)).mean()

    def update(carry: tuple[Table, optax.OptState], _: None):
        change, state = optimizer.update(jax.grad(objective)(carry[0]), carry[1])
        return (jnp.asarray(optax.apply_updates(carry[0], change)), state), None

    def train_interval(carry: tuple[Table, optax.OptState], _: None):
        carry, _ = jax.lax.scan(update, carry, length=setting.steps // setting.points)
        return carry, exact(world, carry[0])

    (table, _), after = jax.lax.scan(train_interval, (reference, optimizer.init(reference)), length=setting.points)
    before, scores = exact(world, reference), score_pairs(world, table, reference, pairs)
    rejected = scores.rejected - scores.ref_rejected
    return {
        "success": after.success[-1].mean(),
        "first_success": before.success.mean(),
        "length": after.length[-1],
        "first_length": before.length,
        "chosen": (scores.chosen - scores.ref_chosen).mean(),
        "rejected": rejected.mean(),
        "lowest_rejected": rejected.min(),
        "lead": scores.lead.mean(),
        "curve": jnp.concatenate([before.success.mean()[None], after.success.mean(-1)]),
    }
