"""Replay of a batch that stopped a run: every term on the way from the reward to the update, and where it is not finite."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Shaped

from rljax.algorithms import Algorithm, Batch, Rollout
from rljax.algorithms.losses import term_inputs
from rljax.errors import InputError
from rljax.models.adapters import scored
from rljax.ops.divergence import k3
from rljax.parallel import fetch, mini_batches, row_shards
from rljax.parallel.mesh import path_names
from rljax.records import documented, required
from rljax.rollout import Groups, Sequences, lay_out, sequences_of
from rljax.tracking.run_folder import RunFolder
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.config import TrainConfig
from rljax.training.controller import under_control
from rljax.training.inference.trained_policy import fit_devices
from rljax.training.learner import comparison_of
from rljax.training.lesson import scored_rows
from rljax.training.lifecycle.initial_state import first_params, initial_state, state_of_phase
from rljax.training.monitoring.guard import LARGEST_UPDATE
from rljax.training.objective.algorithm import with_reward_weights
from rljax.training.objective.anchor import make_pull
from rljax.training.objective.auxiliary import make_auxiliary, make_draw
from rljax.training.parts.seams import BUILT_IN, Seams, refuse_missing, saved_settings
from rljax.training.reinforce import remedied_setup
from rljax.training.rollouts import make_prepare
from rljax.training.setup import Setup, make_setup
from rljax.training.state import TrainState, kl_coefficient_of
from rljax.training.stopped_batch import NAME, StoppedBatch, read_batch
from rljax.training.update import (
    make_gradient,
    make_score,
    make_supervised_score,
    on_sequences,
    put_layout,
    without_teacher,
)
from rljax.training.value_update import make_values, value_schedule

RESPONSES, TOKENS, LEAVES = "responses", "tokens", "numbers"
"""What a term has one number for."""


@documented
class Term(NamedTuple):
    """One quantity on the way from the reward to the update."""

    name: str
    """Its name; that of a gradient or an update has the path of the parameters."""
    kind: str
    """What it has one number for: "responses", "tokens", or "numbers" of parameters."""
    count: int
    """How many numbers."""
    unsound: int
    """How many of them are NaN or infinite."""
    largest: float
    """Largest absolute value of the others; 0 if there is none."""
    place: tuple[int, ...]
    """Row, and token, of the first number that is not finite, else of the largest one; for parameters the index."""

    def to_json(self) -> dict[str, Any]:
        """Values that JSON can hold."""
        return self._asdict() | {"place": list(self.place)}


@documented
class Diagnosis(NamedTuple):
    """Findings of a replay."""

    kept: StoppedBatch
    """The batch."""
    terms: tuple[Term, ...]
    """All terms, in the order in which they are computed."""
    update_norm: float
    """Norm of the update."""
    bound: float
    """Largest norm that the guard lets pass."""
    texts: Callable[[int, int | None], dict[str, str]]
    """(row, token or None) -> prompt, response and token in words."""

    @property
    def cause(self) -> Term | None:
        """The first term that is not finite; else the largest leaf of an update that is too large; None if all is sound."""
        unsound = next((term for term in self.terms if term.unsound), None)
        if unsound is not None or self.update_norm <= self.bound:
            return unsound
        return max((term for term in self.terms if term.name.startswith("update ")), key=lambda term: term.largest)


def measure_term(
    name: str, kind: str, values: Shaped[np.ndarray, "..."], used: Shaped[np.ndarray, "..."] | None = None
) -> Term:
    """Measure a term.

    Args:
        name: of the term.
        kind: what it has one number for.
        values: the numbers.
        used: which of them count; None: all.

    Example:
        >>> term = measure_term("ratio", TOKENS, np.array([[1.0, np.inf], [2.0, -3.0]]))
        >>> term.unsound, term.largest, term.place
        (1, 3.0, (0, 1))
    """
    values = np.asarray(values, np.float64)
    counts = np.ones(values.shape, bool) if used is None else np.asarray(used, bool)
    bad = ~np.isfinite(values) & counts
    sizes = np.where(counts & ~bad, np.abs(values), -1.0)
    first = np.argmax(bad) if bad.any() else np.argmax(sizes) if sizes.size else 0
    place = tuple(int(i) for i in np.unravel_index(first, values.shape)) if values.size else ()
    return Term(name, kind, int(counts.sum()), int(bad.sum()), float(max(sizes.max(initial=0.0), 0.0)), place)


def diagnose(target: Path, seams: Seams = BUILT_IN) -> Diagnosis:
    """Replay the batch that stopped a run, with the policy's parameters that it was learned with.

    All its updates were skipped, so the policy and its optimiser are those of the checkpoint. What else the batch was prepared
    from is in its file: the reference's and the teacher's scores, the critic's values, earlier rewards and the progress of the
    run. The critic alone may have learned from this batch: `value now` and `value_loss` are of the critic after it.

    Args:
        target: folder of the run, or the batch in it.
        seams: the parts that were passed to `train`; rewards, engines and environments are not needed.

    Raises:
        InputError: there is no batch, the run goes on since, or a part is missing.
    """
    file = target / NAME if target.is_dir() else target
    kept = read_batch(file)
    folder = RunFolder.open(file.parent)
    config, needed = saved_settings(folder.config)
    refuse_missing(set(needed) - {"reward", "engine", "environment"} - set(seams.names()))
    config = replace(config, devices=fit_devices(config.devices))
    if {"reward", "environment"} & set(needed):
        parts = kept.lesson.groups.rollout.reward_parts
        config, seams = without_judge(config, seams, rewards=1 if parts is None else len(parts))
    setup = make_setup(config, seams)
    setup = setup._replace(algorithm=with_reward_weights(setup.algorithm, kept.weights))
    last = folder.checkpoints / checkpoints.LAST
    number, _ = checkpoints.newest_whole(last)
    if number != kept.checkpoint:
        raise InputError(
            f"The batch belongs to checkpoint {kept.checkpoint} in {str(last)!r}, and the newest one is {number}: the run has gone "
            "on since. Only the batch of the last stop can be replayed."
        )
    state = initial_state(setup, first_params(setup))
    checkpoint = checkpoints.restore(last, partial(state_of_phase, setup, state)).checkpoint
    setup = remedied_setup(setup, checkpoint.remedies, own_optimizer=seams.optimizer is not None)
    return replay(setup, checkpoint.state, kept)


def without_judge(config: TrainConfig, seams: Seams, *, rewards: int) -> tuple[TrainConfig, Seams]:
    """Put rewards without opinion in the place of a reward of one's own, or of an environment.

    Args:
        config: the settings.
        seams: the parts of the run.
        rewards: number of rewards of each response, which some algorithms read one by one.
    """
    config = replace(config, reward=replace(config.reward, weights=None, combine="sum"))
    return config, seams._replace(reward=[_no_reward] * rewards, environment=None)


def _no_reward(completions: list[str]) -> list[None]:
    """A reward without opinion: the batch has its rewards."""
    return [None] * len(completions)


def replay(setup: Setup, state: TrainState, kept: StoppedBatch) -> Diagnosis:
    """Compute every term of a batch again, without changing anything."""
    groups, progress, past, _ = kept.lesson
    rollout, sequences = groups.rollout, sequences_of(groups)
    minibatches: dict[str, int] = {"minibatches": setup.config.optimization.minibatches}
    if setup.critic is not None:
        minibatches["value_minibatches"] = value_schedule(setup.algorithm, setup.config).minibatches
    prepare_batch = make_prepare(setup.algorithm, **minibatches)
    batch = prepare_batch(rollout, progress=progress, past=past, kl_coefficient=kl_coefficient_of(state))
    terms = [*rollout_terms(rollout, groups.present), *batch_terms(batch), *loss_terms(setup, state, sequences, batch)]
    if setup.critic is not None:
        terms += value_terms(setup, state, sequences, batch)
    leaves, update_norm, bound = update_terms(setup, state, sequences, batch, step=kept.step - 1)
    return Diagnosis(kept, (*terms, *leaves), update_norm, bound, partial(words, setup, groups))


def rollout_terms(rollout: Rollout[np.ndarray], present: Bool[np.ndarray, "P G"]) -> list[Term]:
    """The rewards and the log-probabilities of a rollout, in the places that hold a response."""
    mask = rollout.mask.reshape(-1, rollout.mask.shape[-1])
    judged = present if rollout.valid is None else present & rollout.valid
    found = [measure_term("reward", RESPONSES, rollout.rewards.reshape(-1), judged.reshape(-1))]
    for name in ("behaviour_logp", "policy_logp", "ref_logp", "teacher_logp", "behaviour_entropy", "square_sum", "values"):
        values = getattr(rollout, name)
        if values is not None:
            found.append(measure_term(name, TOKENS, values.reshape(mask.shape), mask))
    return found


def batch_terms(batch: Batch[np.ndarray]) -> list[Term]:
    """Advantages, weights and targets."""
    names = ("advantage", "weights", "old_logp", "value_target")
    found = {name: getattr(batch, name) for name in names}
    return [measure_term(name, TOKENS, values, batch.mask) for name, values in found.items() if values is not None]


def loss_terms(setup: Setup, state: TrainState, sequences: Sequences, batch: Batch[np.ndarray]) -> list[Term]:
    """The policy's scores, and every part of the loss at each token."""
    compare, teacher = _comparison(setup)
    score = on_sequences(lambda both, packed: compare(*both, packed), setup.mesh, scored_rows(setup))
    scores, distances = score((scored(setup.base, state.params), teacher), sequences)
    placed: Batch[Array] = jax.tree.map(jnp.asarray, batch)
    algorithm = under_control(setup.algorithm, state.opt_state)
    parts = token_terms(algorithm, jnp.asarray(scores.logp), jnp.asarray(scores.entropy), distances, placed)
    return [measure_term(name, TOKENS, np.asarray(values), batch.mask) for name, values in parts.items()]


def token_terms(
    algorithm: Algorithm,
    logp: Float[Array, "B T"],
    entropy: Float[Array, "B T"],
    distances: Shaped[Array | np.ndarray, "B T"] | None,
    batch: Batch[Array],
) -> Mapping[str, Float[Array, "B T"]]:
    """Every part of the policy's loss at each token, in the order of its computation."""
    log_ratio = algorithm.log_ratio(logp, batch.old_logp, batch.mask)
    inputs = term_inputs(logp, batch, entropy, None if distances is None else jnp.asarray(distances))
    parts = {
        "logp": logp,
        "log_ratio": log_ratio,
        "ratio": jnp.exp(log_ratio),
        "surrogate": algorithm.surrogate(log_ratio, batch.advantage),
        "kl": k3(inputs.policy_logp, inputs.logp),
    }
    return parts | {f"term {term.name}": term.per_token(inputs) for term in algorithm.terms}


def _comparison(setup: Setup) -> tuple[Callable, Any]:
    """The scores of the policy, beside the teacher's where the loss compares them; the teacher's parameters."""
    parts = comparison_of(setup)
    if parts:
        return parts["comparison"], parts["teacher"]
    return without_teacher(make_score(setup.policy, setup.config.sampling.temperature)), None


def value_terms(setup: Setup, state: TrainState, sequences: Sequences, batch: Batch[np.ndarray]) -> list[Term]:
    """The critic's loss at each token, of a head that has one."""
    critic = required(setup.critic, "setup.critic")
    values = make_values(critic, setup.mesh, scored_rows(setup))(required(state.critic, "state.critic").params, sequences)
    algorithm_critic = required(setup.algorithm.critic, "algorithm.critic")
    if critic.head.distribution is not None:
        return [measure_term("value now", TOKENS, values, batch.mask)]
    before, target = required(batch.old_values, "old_values"), required(batch.value_target, "value_target")
    now, before, target, mask = (jnp.asarray(array) for array in (values, before, target, batch.mask))
    per_token = np.asarray(algorithm_critic.loss(now, before, target, mask))
    return [
        measure_term("value now", TOKENS, values, batch.mask),
        measure_term("value_loss", TOKENS, np.asarray(per_token), batch.mask),
    ]


def update_terms(
    setup: Setup, state: TrainState, sequences: Sequences, batch: Batch[np.ndarray], *, step: int
) -> tuple[list[Term], float, float]:
    """Gradient and update of each parameter, in the first mini-batch that the guard skips, else in the last one.

    Args:
        setup: what the run uses.
        state: with the parameters before the updates.
        sequences: prompts and responses.
        batch: what the loss reads.
        step: RL steps done before these updates; the examples of the auxiliary loss depend on it.

    Returns:
        The terms, the norm of the update, and the largest norm that the guard lets pass.
    """
    config = setup.config
    compare, teacher = _comparison(setup)
    gradient_of = jax.jit(make_gradient(setup.algorithm, compare, setup.policy.copies))
    pull = jax.jit(make_pull(config.algorithm.anchor))
    score = make_supervised_score(setup.policy, config.sampling.temperature)
    auxiliary = jax.jit(make_auxiliary(score, config.optimization.auxiliary))
    draw = make_draw(setup.examples, setup.mesh, config)
    rows = setup.rows_at_once(config.minibatch_rows)
    bound = LARGEST_UPDATE * max(float(optax.tree.norm(state.params)), 1.0)
    terms: list[Term] = []
    norm = 0.0
    parts = mini_batches((sequences, batch), config.optimization.minibatches)
    for number, (responses, part) in enumerate(each for each in parts if each[1].weights.any()):
        layout = lay_out(responses, part.mask, rows=rows, devices=row_shards(setup.mesh))
        gradient, metrics = gradient_of(state, setup.base, teacher, *put_layout(setup.mesh, layout, part))
        gradient, _ = pull(state, gradient)
        gradient, supervised = auxiliary(state, setup.base, gradient, draw(step, number))
        updates, _ = setup.optimizer.update(gradient, state.opt_state, state.params)
        norm = float(optax.tree.norm(updates))
        losses = {"loss": metrics.loss, "auxiliary_loss": supervised}
        terms = [measure_term(name, LEAVES, np.asarray(loss)) for name, loss in losses.items() if loss is not None]
        terms += [*_leaves("gradient", gradient), *_leaves("update", updates)]
        if any(term.unsound for term in terms) or not norm <= bound:
            break
    return terms, norm, bound


def _leaves(what: str, tree: Any) -> list[Term]:
    """Terms of the leaves of a tree."""
    leaves = jax.tree_util.tree_leaves_with_path(fetch(tree))
    return [
        measure_term(f"{what} of {'/'.join(path_names(path))}", LEAVES, np.asarray(leaf, np.float64))
        for path, leaf in leaves
    ]


def words(setup: Setup, groups: Groups, row: int, token: int | None) -> dict[str, str]:
    """Prompt and response of a row, and one of its tokens, as text."""
    size = groups.rollout.rewards.shape[1]
    group, place = divmod(row, size)
    decode = setup.tokenizer.decode
    found = {
        "prompt": decode(groups.prompt_tokens[group][groups.prompt_attention[group]].tolist()),
        "response": decode(groups.tokens[group, place][groups.attention[group, place]].tolist()),
        "group": str(group),
        "place": str(place),
    }
    return found if token is None else found | {"token": decode([int(groups.tokens[group, place, token])])}
