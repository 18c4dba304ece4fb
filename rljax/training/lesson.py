"""Inputs of the updates of a rollout: a study scores it, with the learner's parameters and with the sampler's."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rljax.algorithms import Algorithm, Past, Rollout
from rljax.evaluation.kinds import kind_numbers
from rljax.models import Packed, Params
from rljax.models.adapters import scored
from rljax.models.over_vocabulary import over_vocabulary, square_sum
from rljax.models.packed import batched
from rljax.models.token_scores import default_chunk
from rljax.ops.divergence import k3
from rljax.ops.value import explained_variance
from rljax.parallel import fetch
from rljax.records import documented, required
from rljax.rollout import Groups, Sequences, pad, sequences_of
from rljax.sharing import shared
from rljax.training.rollouts import for_algorithm
from rljax.training.setup import Setup
from rljax.training.state import TrainState
from rljax.training.update import make_score, make_scores, on_sequences
from rljax.training.value_update import make_values


@documented
class Lesson(NamedTuple):
    """All that the updates of one rollout are computed from, besides the training state."""

    groups: Groups
    """The groups, padded to the number of prompts; `groups.rollout` has the scores and the values before the updates."""
    progress: float
    """Share of the RL steps that were done before."""
    past: Past | None
    """Earlier rewards of the prompts, without those of this rollout; None if the state keeps none."""
    sampler_gap: float | None = None
    """Divergence of the learner from a sampler of old parameters, nats a token, where the learner has scored the tokens again; None
    elsewhere: the first update measures it."""


@runtime_checkable
class Study(Protocol):
    """Score a rollout before its updates."""

    def __call__(self, state: TrainState, groups: Groups, sampler: Params | None = None) -> Lesson:
        """Return what the updates of a rollout are computed from; the state stays as it is.

        Args:
            state: before the updates.
            groups: of the rollout.
            sampler: trained parameters that drew it, where they are older than the state's; None: the state's have drawn it.
        """
        ...


def make_study(setup: Setup) -> Study:
    """Build the function that scores a rollout, computes its values, and looks up the earlier rewards of its prompts.

    Where older parameters have drawn the rollout, their log-probabilities stay the denominator of the ratio, unless the algorithm
    has a correction: then `policy_logp` is what the state's parameters give the tokens, and the correction weighs the two.
    """
    observe = make_observe(setup)
    rescore = None if setup.algorithm.correction is None else make_rescore(setup)
    values_of = None if setup.critic is None else make_rollout_values(setup, setup.algorithm)
    kinds = kind_numbers(setup.train.prompts.problems) if setup.algorithm.needs("kinds") else None

    def study(state: TrainState, groups: Groups, sampler: Params | None = None) -> Lesson:
        groups, gap = pad(groups, setup.config.sampling.prompts), None
        if sampler is not None and rescore is not None:
            groups, gap = rescore(state, groups)
        sequences = sequences_of(groups)
        rollout = observe(state, for_algorithm(groups), sequences, sampler)
        if kinds is not None:
            rollout = rollout._replace(kinds=kinds[groups.prompt_ids])  # that of a group without responses does not matter
        if values_of is not None:
            rollout = rollout._replace(values=values_of(state, groups.rollout, sequences))
        past = None if state.remembered is None else Past(fetch(state.remembered), groups.prompt_ids)
        return Lesson(groups._replace(rollout=rollout), progress(setup, state), past, gap)

    return study


def make_rescore(setup: Setup) -> Callable[[TrainState, Groups], tuple[Groups, float | None]]:
    """Build the function that puts the log-probabilities under the state's parameters into `policy_logp`.

    Returns:
        `(state, groups) -> (groups, divergence of those parameters from the ones before, nats a token)`; None without a token.
    """
    scores = make_scores(make_score(setup.policy, setup.config.sampling.temperature), setup.mesh, scored_rows(setup))

    def rescore(state: TrainState, groups: Groups) -> tuple[Groups, float | None]:
        rollout, mask = groups.rollout, groups.rollout.mask
        drawn = required(rollout.policy_logp, "rollout.policy_logp")
        logp = scores(scored(setup.base, state.params), sequences_of(groups)).logp.reshape(mask.shape)
        logp = np.where(mask, logp, np.float32(0))
        gap = float(np.asarray(k3(jnp.asarray(drawn), jnp.asarray(logp)))[mask].mean()) if mask.any() else None
        return groups._replace(rollout=rollout._replace(policy_logp=logp)), gap

    return rescore


def progress(setup: Setup, state: TrainState) -> float:
    """Share of the RL steps that are done; 0 in a run of value pretraining alone."""
    return int(state.step) / max(1, setup.config.optimization.steps)


def scored_rows(setup: Setup) -> int:
    """Rows that are scored at once when a whole rollout is."""
    sampling = setup.config.sampling
    return setup.rows_at_once(sampling.prompts * sampling.group_size)


Observe = Callable[[TrainState, Rollout[np.ndarray], Sequences, Params | None], Rollout[np.ndarray]]
"""(state, rollout, its sequences, old parameters that drew it or None) -> the rollout with the scores that the algorithm needs."""


def make_observe(setup: Setup) -> Observe:
    """Build the function that adds the scores that the algorithm needs: those of the reference, of the teacher, the entropy.

    The entropy is that of the policy that sampled, and the sum of squares that of the policy of `policy_logp`.
    """
    algorithm, temperature = setup.algorithm, setup.config.sampling.temperature
    scores = make_scores(make_score(setup.policy, temperature), setup.mesh, scored_rows(setup))
    judge = None
    if setup.teacher is not None and algorithm.needs("teacher_logp"):
        teacher = make_scores(make_score(setup.teacher.policy, temperature), setup.mesh, scored_rows(setup))
        judge = partial(teacher, setup.teacher.params)
    certainty = None if not algorithm.needs("square_sum") else make_square_sums(setup)

    def observe(
        state: TrainState, rollout: Rollout[np.ndarray], sequences: Sequences, sampler: Params | None
    ) -> Rollout[np.ndarray]:
        drawer = state.params if sampler is None else sampler
        before = drawer if algorithm.correction is None else state.params
        shape = rollout.mask.shape
        if algorithm.needs("ref_logp"):
            rollout = rollout._replace(ref_logp=scores(scored(setup.base, state.reference), sequences).logp.reshape(shape))
        if judge is not None:
            rollout = rollout._replace(teacher_logp=judge(sequences).logp.reshape(shape))
        if certainty is not None:
            rollout = rollout._replace(
                square_sum=np.asarray(certainty(scored(setup.base, before), sequences)).reshape(shape)
            )
        if algorithm.needs("behaviour_entropy"):
            rollout = rollout._replace(
                behaviour_entropy=scores(scored(setup.base, drawer), sequences).entropy.reshape(shape)
            )
        return rollout

    return observe


def make_square_sums(setup: Setup) -> Callable[[Params, Sequences], Array]:
    """Build the function that computes the sum of the squared probabilities at each token, `[B, T]`, some tokens at a time."""
    features, chunk = required(setup.policy.features, "setup.policy.features"), setup.config.model.score_chunk
    chunk = default_chunk(setup.policy.vocab_size) if chunk is None else chunk
    numbers = {"temperature": setup.config.sampling.temperature, "chunk": chunk, "mesh": setup.mesh}

    def square_sums(params: Params, packed: Packed) -> Float[Array, "B T"]:
        return batched(over_vocabulary(square_sum, features(params, packed), **numbers), packed)

    return on_sequences(square_sums, setup.mesh, scored_rows(setup))


def make_rollout_values(
    setup: Setup, algorithm: Algorithm
) -> Callable[[TrainState, Rollout[np.ndarray], Sequences], Float[np.ndarray, "P G T"]]:
    """Build the function that computes the values of a rollout, blended with the pretrained critic's if the algorithm does so."""
    values_of = make_values(required(setup.critic, "setup.critic"), setup.mesh, scored_rows(setup))
    blend = required(algorithm.critic, "algorithm.critic").blend

    def values(state: TrainState, rollout: Rollout[np.ndarray], sequences: Sequences) -> Float[np.ndarray, "P G T"]:
        return values_of(required(state.critic, "state.critic").params, sequences).reshape(rollout.mask.shape)

    if blend is None:
        return values
    program = _blend_program(blend)

    def blended_values(state: TrainState, rollout: Rollout[np.ndarray], sequences: Sequences) -> Float[np.ndarray, "P G T"]:
        now = values(state, rollout, sequences)
        before = values_of(required(state.critic, "state.critic").pretrained, sequences).reshape(rollout.mask.shape)
        done = np.float32(progress(setup, state))
        return np.asarray(program(before, now, rollout.rewards, rollout.mask, done))

    return blended_values


@shared
def _blend_program(blend: Callable) -> Any:
    def blended(before: Array, now: Array, rewards: Array, mask: Array, done: Array) -> Array:
        return blend(before, now, done, outcome_explained(now, rewards, mask))

    return jax.jit(blended)


def outcome_explained(
    values: Float[Array, "P G T"], rewards: Float[Array, "P G"], mask: Bool[Array, "P G T"]
) -> Float[Array, ""]:
    """Share of the variance of the outcome reward that the values explain, over all response tokens."""
    return explained_variance(values, jnp.broadcast_to(rewards[..., None], values.shape), mask)
