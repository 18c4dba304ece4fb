"""The policy's jitted updates, `(state, data) -> (state, metrics)`, with an algorithm's loss or a supervised loss."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree

from rljax.algorithms import Algorithm, Batch, LossMetrics, loss
from rljax.caching import cache_results
from rljax.models import Params
from rljax.ops.regularization import SUPERVISED_LOSSES
from rljax.ops.weights import token_mean
from rljax.parallel import accumulate, put, put_rows, replicated
from rljax.parallel.guarded_update import guarded_update, skip_count
from rljax.rollout import Layout
from rljax.training.metrics import SupervisedMetrics, UpdateMetrics
from rljax.training.scoring import Copy, Forward, Score, policy_params
from rljax.training.setup import Setup
from rljax.training.state import Frozen, Shardings, TracedOption, TrainState, adjust_algorithm, shardings_of, traced_parts

Update = Callable[..., tuple[TrainState, UpdateMetrics]]
"""(state, layout, batch, the options' data) -> (state, metrics); the old state is donated."""
Loss = Callable[[Array, Array], Array]
"""(log-probabilities of demonstrations' tokens, mask) -> loss of each token."""


def has_responses(part: Layout) -> Bool[Array, ""]:
    """Return True if a micro-batch has at least one response."""
    return (jnp.asarray(part.responses) >= 0).any()


def rows_of(batch: PyTree, responses: Int[Array | np.ndarray, "C"]) -> PyTree:
    """Select a micro-batch's responses from the batch; empty slots get zeros."""
    responses = jnp.asarray(responses)
    response_mask = (responses >= 0)[:, None]

    def pick(array: Array) -> Array:
        rows = array[jnp.maximum(responses, 0)]
        return jnp.where(response_mask, rows, jnp.zeros_like(rows))

    return jax.tree.map(pick, batch)


def put_layout(mesh: Mesh, layout: Layout, batch: PyTree) -> tuple[Layout, PyTree]:
    """Place the data of an update on the mesh: rows are sharded, and the batch is replicated."""
    everywhere = replicated(mesh)
    packed = put_rows(mesh, layout.packed, leading=1)
    return Layout(packed, put(layout.responses, everywhere)), put(batch, everywhere)


def apply_gradient(
    state: TrainState, optimizer: optax.GradientTransformation, gradient: Params, loss: Float[Array, ""]
) -> tuple[TrainState, Float[Array, ""], Bool[Array, ""]]:
    """Return the state after an update (the old state if the update is unsafe), the gradient's norm, and whether it was safe.

    An optimizer that takes extra arguments receives `state.options` as `options`.
    """
    params, opt_state, norm, safe = guarded_update(
        optimizer, gradient, state.opt_state, state.params, loss, options=state.options
    )
    return state._replace(params=params, opt_state=opt_state), norm, safe


def jit_step(step: Callable, shardings: Shardings, mesh: Mesh) -> Any:
    """Compile a step for states with these shardings; the old state's buffers are donated."""
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings.tree(), replicated(mesh)))


def make_policy_update(setup: Setup, state: TrainState) -> Update:
    """Compile one optimizer update of the policy, for states with the shapes and shardings of `state`."""
    program = policy_program(setup, shardings_of(state))

    def update(
        state: TrainState, layout: Layout, batch: Batch[Array], data: dict[str, PyTree] | None = None
    ) -> tuple[TrainState, UpdateMetrics]:
        return program(state, setup.frozen, layout, batch, data or {})

    return update


def policy_program(setup: Setup, shardings: Shardings) -> Any:
    """Compile `(state, frozen, layout, batch, data) -> (state, metrics)` for a state with these shardings."""
    gradient_of = make_gradient(setup.algorithm, setup.forward, setup.policy.copies, traced_parts(setup.options))
    return _policy_program(gradient_of, setup.optimizer, shardings, setup.mesh)


@cache_results
def _policy_program(
    gradient_of: Callable, optimizer: optax.GradientTransformation, shardings: Shardings, mesh: Mesh
) -> Any:
    def step(
        state: TrainState, frozen: Frozen, layout: Layout, batch: Batch[Array], data: dict[str, PyTree]
    ) -> tuple[TrainState, UpdateMetrics]:
        gradient, metrics, measured = gradient_of(state, frozen, layout, batch, data)
        state, norm, safe = apply_gradient(state, optimizer, gradient, metrics.loss)
        return state, UpdateMetrics(metrics, norm, skip_count(safe), options=measured)

    return jit_step(step, shardings, mesh)


@cache_results
def make_gradient(
    algorithm: Algorithm, forward: Forward, copy: Copy | None, options: tuple[TracedOption, ...]
) -> Callable[..., tuple[Params, LossMetrics, dict[str, Array]]]:
    """Build `(state, frozen, layout, batch, data) -> (gradient of the loss, its metrics, metrics of the options)`.

    Args:
        algorithm: the algorithm whose loss is differentiated.
        forward: scores the tokens of a micro-batch.
        copy: see `Policy.copies`. It is called once per update, except for an update on a single micro-batch, which casts the
            parameters as it reads them.
        options: options that may set the algorithm's coefficients and change the gradient.
    """

    def gradient_of(
        state: TrainState, frozen: Frozen, layout: Layout, batch: Batch[Array], data: dict[str, PyTree]
    ) -> tuple[Params, LossMetrics, dict[str, Array]]:
        current, base = adjust_algorithm(algorithm, options, state.options), frozen.get("base")
        is_single = layout.packed.tokens.shape[0] == 1
        copies = None if copy is None or is_single else copy(state.params if base is None else base.params)

        def objective(params: Params, part: Layout) -> tuple[Array, LossMetrics]:
            scores, further = forward(policy_params(base, params, copies), {**frozen, **data}, part)
            return loss(current, scores.logp, rows_of(batch, part.responses), entropy=scores.entropy, **further)

        gradient, metrics = accumulate(objective, state.params, layout, counts=has_responses)
        gradient, measured = change_gradient(options, state, frozen, gradient, data)
        return gradient, metrics, measured

    return gradient_of


def change_gradient(
    options: tuple[TracedOption, ...], state: TrainState, frozen: Frozen, gradient: Params, data: dict[str, PyTree]
) -> tuple[Params, dict[str, Array]]:
    """Let each option change the gradient; return the changed gradient and the options' metrics."""
    measured: dict[str, Array] = {}
    for option in options:
        if option.gradient is not None:
            gradient, found = option.gradient(state, frozen, gradient, data.get(option.name))
            measured |= found
    return gradient, measured


def make_supervised_step(
    setup: Setup, optimizer: optax.GradientTransformation, state: TrainState
) -> Callable[[TrainState, Layout, Array], tuple[TrainState, SupervisedMetrics]]:
    """Compile one supervised update, which minimizes the mean loss of demonstration tokens, including EOS.

    Args:
        setup: everything that the run uses.
        optimizer: turns the gradient into an update.
        state: a placed state, for its shapes and shardings.

    Returns:
        `(state, layout, mask of the response tokens) -> (state, metrics)`; the old state is donated. If the update is unsafe,
        only `warm_step` changes. The reference and the critic are not inputs of the program, so that the program and its results
        are the same for every algorithm.
    """
    active = tuple(option for option in setup.options if option.from_start)
    shardings = shardings_of(state._replace(reference=None, critic=None))
    cost = SUPERVISED_LOSSES[setup.config.warm_start.loss]
    program = _supervised_program(setup.supervised_score, cost, optimizer, traced_parts(active), shardings, setup.mesh)

    def step(state: TrainState, layout: Layout, mask: Array | np.ndarray) -> tuple[TrainState, SupervisedMetrics]:
        after, metrics = program(state._replace(reference=None, critic=None), setup.frozen, layout, mask)
        return after._replace(reference=state.reference, critic=state.critic), metrics

    return step


@cache_results
def _supervised_program(
    score: Score,
    cost: Loss,
    optimizer: optax.GradientTransformation,
    options: tuple[TracedOption, ...],
    shardings: Shardings,
    mesh: Mesh,
) -> Any:
    """Compile `(state, frozen, layout, mask) -> (state, metrics)`; see `make_supervised_step`."""

    def step(state: TrainState, frozen: Frozen, layout: Layout, mask: Array) -> tuple[TrainState, SupervisedMetrics]:
        def objective(params: Params, part: Layout) -> tuple[Array, tuple[Array, ...]]:
            scores = score(policy_params(frozen.get("base"), params), part.packed)
            weights, learned = rows_of((token_mean(mask), mask), part.responses)
            means = tuple((weights * jnp.where(learned, values, 0.0)).sum() for values in (-scores.logp, scores.entropy))
            return (weights * cost(scores.logp, learned)).sum(), means

        gradient, (value, entropy) = accumulate(objective, state.params, layout, counts=has_responses)
        gradient, measured = change_gradient(options, state, frozen, gradient, {})
        state, norm, safe = apply_gradient(state, optimizer, gradient, value)
        metrics = SupervisedMetrics(value, entropy, norm, skip_count(safe), measured)
        return state._replace(warm_step=state.warm_step + 1), metrics

    return jit_step(step, shardings, mesh)
