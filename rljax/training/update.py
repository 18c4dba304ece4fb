"""The two jitted steps: imitate demonstrations, and ascend an algorithm's objective.

Both are `(state, data) -> (state, metrics)`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree

from rljax.algorithms import Algorithm, Batch, loss
from rljax.models import Model, Params, Scores, score_tokens
from rljax.ops.weights import token_mean
from rljax.parallel import replicated, shardings
from rljax.training.state import TrainState

Metrics = dict[str, Float[Array, ""]]


class Sequences(NamedTuple):
    """Prompts and responses side by side, `[B, L + T]`."""

    tokens: Int[Array, "B S"]
    valid: Bool[Array, "B S"]
    logp: Float[Array, "B T"] | None = None
    """Of each response token under the policy that sampled it, nats; for critics that read it."""


class Scorer(NamedTuple):
    """How response tokens are scored; the same for every policy of a run."""

    model: Model
    start: int
    """Slot of the first response token."""
    temperature: float
    chunk: int

    def __call__(self, params: Params, sequences: Sequences) -> Scores:
        """Log-probability and entropy of each response token, `[B, T]`."""
        return score_tokens(
            self.model,
            params,
            sequences.tokens,
            sequences.valid,
            start=self.start,
            temperature=self.temperature,
            chunk=self.chunk,
        )


def accumulate(
    objective: Callable[[Params, PyTree], tuple[Array, Metrics]],
    params: Params,
    parts: PyTree,
    *,
    counts: Callable[[PyTree], Array] = lambda part: jnp.bool_(True),
):
    """Sum gradient and metrics of an objective over the leading axis of `parts`, one micro-batch at a time.

    Micro-batches of which `counts` says that nothing in them weighs anything are not computed.
    """
    differentiate = jax.grad(objective, has_aux=True)
    count = jax.tree.leaves(parts)[0].shape[0]
    if count == 1:
        return differentiate(params, jax.tree.map(lambda x: x[0], parts))

    def add(total, part):
        def added() -> PyTree:
            return jax.tree.map(jnp.add, total, differentiate(params, part))

        return jax.lax.cond(counts(part), added, lambda: total), None

    zero = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(differentiate, params, jax.tree.map(lambda x: x[0], parts))
    )
    return jax.lax.scan(add, zero, parts)[0]


def has_tokens(part: tuple[Sequences, Batch]) -> Bool[Array, ""]:
    """Whether any token of these rows is trained on."""
    return part[1].mask.any()


def _apply(state: TrainState, optimizer: optax.GradientTransformation, gradient: Params, metrics: Metrics):
    updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
    state = state._replace(params=optax.apply_updates(state.params, updates), opt_state=opt_state)
    return state, {**metrics, "grad_norm": optax.tree.norm(gradient)}


def _jitted(step: Callable, state: TrainState, mesh: Mesh) -> Callable:
    """Compile a step that writes the new state over the old one."""
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings(mesh, state), replicated(mesh)))


def make_policy_step(
    algorithm: Algorithm, scorer: Scorer, optimizer: optax.GradientTransformation, state: TrainState, mesh: Mesh
) -> Callable[[TrainState, Sequences, Batch], tuple[TrainState, Metrics]]:
    """Compile one optimiser update of the policy.

    Args:
        algorithm: its loss is descended.
        scorer: how tokens are scored.
        optimizer: what turns a gradient into an update.
        state: an example of the state, for its shapes.
        mesh: where the state lives.

    Returns:
        `(state, sequences, batch) -> (state, metrics)`, rows laid out `[micro-batches, rows, ...]`; the old state is consumed.
    """

    def step(state: TrainState, sequences: Sequences, batch: Batch):
        def objective(params: Params, part: tuple[Sequences, Batch]) -> tuple[Array, Metrics]:
            sequences, batch = part
            scores = scorer(params, sequences)
            return loss(algorithm, scores.logp, batch, entropy=scores.entropy)

        gradient, metrics = accumulate(objective, state.params, (sequences, batch), counts=has_tokens)
        return _apply(state, optimizer, gradient, metrics)

    return _jitted(step, state, mesh)


def make_supervised_step(
    scorer: Scorer, optimizer: optax.GradientTransformation, state: TrainState, mesh: Mesh
) -> Callable[[TrainState, Sequences], tuple[TrainState, Metrics]]:
    """Compile one update towards demonstrations: the mean negative log-likelihood of their tokens, EOS included.

    Returns:
        `(state, sequences) -> (state, metrics)`, rows laid out `[rows, ...]`; the old state is consumed.
    """

    def step(state: TrainState, sequences: Sequences):
        def objective(params: Params) -> tuple[Array, Metrics]:
            scores = scorer(params, sequences)
            weights = token_mean(sequences.valid[:, scorer.start :])
            value = -(weights * scores.logp).sum()
            return value, {"loss": value, "entropy": (weights * scores.entropy).sum()}

        gradient, metrics = jax.grad(objective, has_aux=True)(state.params)
        state, metrics = _apply(state, optimizer, gradient, metrics)
        return state._replace(warm_step=state.warm_step + 1), metrics

    return _jitted(step, state, mesh)
