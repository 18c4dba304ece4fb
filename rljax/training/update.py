"""Scores of the policy, and its jitted updates: on demonstrations, and with an algorithm's loss.

An update is `(state, data) -> (state, metrics)`.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from rljax.algorithms import Algorithm, Batch, LossMetrics, loss
from rljax.errors import InputError
from rljax.models import Packed, Params, Policy, Scores
from rljax.models.adapters import Base, scored
from rljax.models.copies import Copies
from rljax.ops.weights import token_mean
from rljax.parallel import accumulate, fetch, put, put_rows, replicated, row_shards
from rljax.rollout import Layout, Sequences, lay_out, pack
from rljax.sharing import shared
from rljax.text import one_line
from rljax.training.controller import under_control
from rljax.training.metrics import SupervisedMetrics, UpdateMetrics
from rljax.training.monitoring.guard import is_sound, skip_count, where_sound
from rljax.training.objective.anchor import Pull, no_pull
from rljax.training.objective.auxiliary import Auxiliary, Examples, without_examples
from rljax.training.objective.reference import at_strength
from rljax.training.objective.teacher import Comparison
from rljax.training.state import Places, TrainState, places

Score = Callable[[Params, Packed], Scores]
"""(parameters, packed rows) -> scores of the response tokens."""

Copy = Callable[[Params], Copies | None]
"""Parameters -> their copies in the precision of the products: a `Policy.copies`."""

Output = TypeVar("Output")

NOTHING_FOR_RL = MappingProxyType(dict.fromkeys(("reference", "critic", "remembered", "kl_coefficient")))
"""Fields of a state that RL alone reads, each of them empty."""


def make_score(policy: Policy, temperature: float) -> Score:
    """Build the function that scores the response tokens of a batch at the sampling temperature.

    Returns:
        `(params, packed) -> scores`.

    Raises:
        InputError: when called, if the policy's scores are not of the batch's shape.
    """
    return _score(policy.score, "policy.score", temperature)


def make_supervised_score(policy: Policy, temperature: float) -> Score:
    """Build the function that scores demonstrations and examples, as `make_score` does responses.

    Returns:
        `(params, packed) -> scores`, of `policy.supervised_score` if it has one.

    Raises:
        InputError: when called, if the scores are not of the batch's shape.
    """
    if policy.supervised_score is None:
        return make_score(policy, temperature)
    return _score(policy.supervised_score, "policy.supervised_score", temperature)


@shared
def _score(score_at: Callable[[Params, Packed, float], Scores], name: str, temperature: float) -> Score:
    def score(params: Params, packed: Packed) -> Scores:
        scores = score_at(params, packed, temperature)
        expected = packed.place.shape
        found = [getattr(part, "shape", type(part).__name__) for part in scores]
        if not isinstance(scores, Scores) or found != [expected, expected]:
            raise InputError(
                f"{name}: rljax.models.Scores(logp, entropy) of the batch's shape [B, T] = {list(expected)} are needed; got "
                f"{type(scores).__name__} of the shapes {', '.join(map(str, found))}."
            )
        return scores

    return score


def check_policy(policy: Policy, params: Params, *, rows: int, prompt_length: int, response_length: int) -> None:
    """Refuse a policy that cannot score responses of these lengths, without computing anything.

    Raises:
        InputError: its scores have another shape, or `score` cannot be traced or differentiated.
    """
    prompts, responses = np.ones((rows, prompt_length), np.int32), np.ones((rows, response_length), np.int32)
    logp = np.zeros(responses.shape, np.float32)
    packed = pack(Sequences(prompts, prompts.astype(bool), responses, responses.astype(bool), logp))
    scores = {"policy.score": make_score(policy, 1.0)}
    if policy.supervised_score is not None:
        scores["policy.supervised_score"] = make_supervised_score(policy, 1.0)
    for name, score in scores.items():
        try:
            jax.eval_shape(_logp_gradient(score), params, packed)
        except InputError:
            raise
        except Exception as error:  # a policy is user code, and may raise anything
            raise InputError(
                f"{name}: a function of parameters, packed rows and a temperature is needed that JAX can trace and differentiate; "
                f"got {one_line(error):.200}"
            ) from error


@shared
def _logp_gradient(score: Score) -> Callable[[Params, Packed], Params]:
    return jax.grad(lambda params, packed: score(params, packed).logp.sum())


@shared
def compile_shared(function: Callable) -> Any:
    """Compile a function, once for all that call it."""
    return jax.jit(function)


def on_sequences(
    function: Callable[[Params, Packed], Output], mesh: Mesh, rows: int
) -> Callable[[Params, Sequences], Output]:
    """Compile a function of packed rows, and call it on all sequences, `rows` rows at a time, without gradient.

    Returns:
        `(params, sequences) -> output`: host arrays `[B, T, ...]`, 0 for sequences without a response token.
    """
    program = compile_shared(function)

    def call(params: Params, sequences: Sequences) -> Output:
        layout = lay_out(sequences, sequences.attention, rows=rows, devices=row_shards(mesh))
        used = [i for i, part in enumerate(layout.responses) if i == 0 or (part >= 0).any()]
        parts = [jax.tree.map(lambda array, i=i: array[i], layout.packed) for i in used]
        outputs = fetch([program(params, put_rows(mesh, part)) for part in parts])
        responses = np.concatenate([layout.responses[i] for i in used])

        def in_order(*arrays: np.ndarray) -> np.ndarray:
            joined = np.concatenate(arrays)
            ordered = np.zeros((len(sequences.tokens), *joined.shape[1:]), joined.dtype)
            ordered[responses[responses >= 0]] = joined[responses >= 0]
            return ordered

        return jax.tree.map(in_order, *outputs)

    return call


def make_scores(score: Score, mesh: Mesh, rows: int) -> Callable[[Params, Sequences], Scores]:
    """Compile `(params, sequences) -> Scores [B, T]` without gradient, `rows` at a time; host arrays."""
    return on_sequences(score, mesh, rows)


def has_responses(part: Layout) -> Bool[Array, ""]:
    """True if a micro-batch has any response."""
    return (jnp.asarray(part.responses) >= 0).any()


def rows_of(batch: Batch[Array], responses: Int[Array | np.ndarray, "C"]) -> Batch[Array]:
    """Pick the rows of a micro-batch; where there is no response, everything is 0."""
    responses = jnp.asarray(responses)
    response_mask = (responses >= 0)[:, None]

    def pick(array: Array) -> Array:
        rows = array[jnp.maximum(responses, 0)]
        return jnp.where(response_mask, rows, jnp.zeros_like(rows))

    return jax.tree.map(pick, batch)


def put_layout(mesh: Mesh, layout: Layout, batch: Batch[np.ndarray]) -> tuple[Layout, Batch[Array]]:
    """Place the data of an update on the mesh: rows are sharded, the batch is on every device."""
    everywhere = replicated(mesh)
    packed = put_rows(mesh, layout.packed, leading=1)
    return Layout(packed, put(layout.responses, everywhere)), put(batch, everywhere)


def _apply_update(
    state: TrainState, optimizer: optax.GradientTransformation, gradient: Params, loss: Float[Array, ""]
) -> tuple[TrainState, Float[Array, ""], Bool[Array, ""]]:
    """The state after an update of the policy, or as it was where the update is not sound; the gradient's norm; whether it is."""
    updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
    norm = optax.tree.norm(gradient)
    sound = is_sound(loss, norm, updates, state.params)
    after = state._replace(params=optax.apply_updates(state.params, updates), opt_state=opt_state)
    return where_sound(sound, after, state), norm, sound


def jit_step(step: Callable, where: Places, mesh: Mesh) -> Any:
    """Compile a step whose state lies in these places; it donates the buffers of the old one."""
    return jax.jit(step, donate_argnums=0, out_shardings=(where.tree(), replicated(mesh)))


@shared
def without_teacher(score: Score) -> Comparison:
    """Scores of a policy that has no teacher, in the form of a comparison with one."""

    def compare(params: Params, teacher: Params | None, packed: Packed) -> tuple[Scores, None]:
        del teacher
        return score(params, packed), None

    return compare


def make_gradient(
    algorithm: Algorithm, compare: Comparison, copy: Copy | None
) -> Callable[[TrainState, Base | None, Params | None, Layout, Batch[Array]], tuple[Params, LossMetrics]]:
    """Build `(state, base, teacher's params, layout, batch) -> (gradient of the loss in the state's params, metrics)`.

    Args:
        algorithm: its loss is differentiated.
        compare: scores the tokens, beside the teacher's.
        copy: a `Policy.copies`. It is called once, before the first of several micro-batches; a single one casts where it reads.
    """

    def gradient_of(
        state: TrainState, base: Base | None, teacher: Params | None, layout: Layout, batch: Batch[Array]
    ) -> tuple[Params, LossMetrics]:
        penalized = under_control(at_strength(algorithm, state.kl_coefficient), state.opt_state)
        is_single = layout.packed.tokens.shape[0] == 1
        copies = None if copy is None or is_single else copy(state.params if base is None else base.params)

        def objective(params: Params, part: Layout) -> tuple[Array, LossMetrics]:
            scores, distances = compare(scored(base, params, copies), teacher, part.packed)
            rows = rows_of(batch, part.responses)
            return loss(penalized, scores.logp, rows, entropy=scores.entropy, teacher_divergence=distances)

        return accumulate(objective, state.params, layout, counts=has_responses)

    return gradient_of


def make_policy_step(
    algorithm: Algorithm,
    score: Score,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    mesh: Mesh,
    *,
    comparison: Comparison | None = None,
    teacher: Params | None = None,
    base: Base | None = None,
    copy: Copy | None = None,
    pull: Pull = no_pull,
    auxiliary: Auxiliary = without_examples,
) -> Callable[[TrainState, Layout, Batch[Array], Examples | None], tuple[TrainState, UpdateMetrics]]:
    """Compile one optimiser update of the policy.

    Args:
        algorithm: the algorithm whose loss is minimised.
        score: scores the response tokens.
        optimizer: turns the gradient into an update.
        state: an example of the placed state.
        mesh: the devices that hold the state.
        comparison: scores the tokens beside the teacher's, in place of `score`; for algorithms with a divergence from the teacher.
        teacher: the teacher's parameters, for the comparison.
        base: the model below the adapter, if the state's parameters are an adapter.
        copy: the `copies` of the policy; None: it has none.
        pull: adds the gradient of a penalty on the parameters.
        auxiliary: adds the gradient of a loss on examples.

    Returns:
        `(state, layout, batch, examples or None) -> (state, metrics)`; the old state is donated. Where the update is not sound,
        the new state is the old one.
    """
    compare = without_teacher(score) if comparison is None else comparison
    program = compile_policy_step(algorithm, compare, optimizer, places(state), mesh, copy, pull, auxiliary)
    return lambda state, layout, batch, examples=None: program(state, layout, batch, teacher, base, examples)


@shared
def compile_policy_step(
    algorithm: Algorithm,
    compare: Comparison,
    optimizer: optax.GradientTransformation,
    where: Places,
    mesh: Mesh,
    copy: Copy | None = None,
    pull: Pull = no_pull,
    auxiliary: Auxiliary = without_examples,
) -> Any:
    """Compile `(state, layout, batch, teacher, base, examples) -> (state, metrics)`; see `make_policy_step`."""
    gradient_of = make_gradient(algorithm, compare, copy)

    def step(
        state: TrainState,
        layout: Layout,
        batch: Batch[Array],
        teacher: Params | None,
        base: Base | None,
        examples: Examples | None = None,
    ) -> tuple[TrainState, UpdateMetrics]:
        gradient, metrics = gradient_of(state, base, teacher, layout, batch)
        gradient, penalty = pull(state, gradient)
        gradient, supervised = auxiliary(state, base, gradient, examples)
        state, norm, sound = _apply_update(state, optimizer, gradient, metrics.loss)
        return state, UpdateMetrics(metrics, norm, skip_count(sound), anchor_penalty=penalty, auxiliary_loss=supervised)

    return jit_step(step, where, mesh)


def make_supervised_step(
    score: Score,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    mesh: Mesh,
    *,
    base: Base | None = None,
    pull: Pull = no_pull,
) -> Callable[[TrainState, Packed, Array], tuple[TrainState, SupervisedMetrics]]:
    """Compile one supervised update: it minimises the mean negative log-likelihood of demonstration tokens, EOS included.

    Args:
        score: scores the response tokens.
        optimizer: turns the gradient into an update.
        state: an example of the placed state.
        mesh: the devices that hold the state.
        base: the model below the adapter, if the state's parameters are an adapter.
        pull: adds the gradient of a penalty on the parameters.

    Returns:
        `(state, packed, mask of the response tokens) -> (state, metrics)`; the old state is donated. Where the update is not
        sound, only the counter changes. What the state holds for RL alone does not enter the program, so that the program and
        its numbers are the same for every algorithm.
    """
    program = _supervised_program(score, optimizer, places(state._replace(**NOTHING_FOR_RL)), mesh, pull)

    def step(state: TrainState, packed: Packed, mask: Array | np.ndarray) -> tuple[TrainState, SupervisedMetrics]:
        after, metrics = program(state._replace(**NOTHING_FOR_RL), packed, mask, base)
        return after._replace(**{name: getattr(state, name) for name in NOTHING_FOR_RL}), metrics

    return step


@shared
def _supervised_program(
    score: Score, optimizer: optax.GradientTransformation, where: Places, mesh: Mesh, pull: Pull
) -> Any:
    """Compile `(state, packed, mask, base) -> (state, metrics)`; see `make_supervised_step`."""

    def step(state: TrainState, packed: Packed, mask: Array, base: Base | None) -> tuple[TrainState, SupervisedMetrics]:
        def objective(params: Params) -> tuple[Array, tuple[Array, Array]]:
            scores = score(scored(base, params), packed)
            weights = token_mean(mask)
            value = -(weights * jnp.where(mask, scores.logp, 0.0)).sum()
            return value, (value, (weights * jnp.where(mask, scores.entropy, 0.0)).sum())

        gradient, (value, entropy) = jax.grad(objective, has_aux=True)(state.params)
        gradient, penalty = pull(state, gradient)
        state, norm, sound = _apply_update(state, optimizer, gradient, value)
        metrics = SupervisedMetrics(value, entropy, norm, skip_count(sound), penalty)
        return state._replace(warm_step=state.warm_step + 1), metrics

    return jit_step(step, where, mesh)
