"""The data of an RL step: choose prompts, sample until enough groups are kept, score the rollout, prepare the batch.

`SCORES` maps each rollout field that is computed after sampling to the builder of the function that computes it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from rljax.algorithms import Algorithm, Batch, EarlierRewards, Rollout, prepare
from rljax.algorithms.algorithm import ROLLOUT_FIELDS, outcomes
from rljax.caching import cache_results
from rljax.data.history import Choice, History, Window, choose_prompts, curriculum, mean_lengths, record_responses
from rljax.data.length_batches import group_sizes
from rljax.data.prompts import PromptStream
from rljax.errors import InputError
from rljax.evaluation.problem_kinds import kind_indices
from rljax.models import Params, Scores
from rljax.models.distribution_scores import apply_over_vocabulary, square_sum
from rljax.models.packed import to_batch
from rljax.models.token_scores import choose_chunk
from rljax.ops.divergence import k3
from rljax.parallel import put
from rljax.records import required
from rljax.rollout import Collected, Groups, Layout, Sequences, collect, for_algorithm, pad, sequences_of
from rljax.rollout.groups import correctness_masks
from rljax.training.config import TrainConfig
from rljax.training.scoring import compile_for_sequences, make_score, make_scores, policy_params
from rljax.training.setup import Setup
from rljax.training.state import Option, TracedOption, TrainState, adjust_algorithm, sampling_key, traced_parts
from rljax.training.value_update import explained_outcome_variance, make_values

ChoosePrompts = Callable[[History, int, int, int], Choice]
"""(history, RL steps done, position in the prompt stream, count) -> the prompts to sample next."""


def make_prompt_chooser(config: TrainConfig, stream: PromptStream) -> ChoosePrompts:
    """Build the function that chooses prompts in the stream's order and, if it is set, within the difficulty window."""
    data, steps = config.data, max(config.optimization.steps, 1)
    if data.difficulty_window is None:
        return lambda history, step, position, count: Choice(
            np.asarray(stream.indices(position, count)), position + count, 0
        )
    begin = Window(*data.difficulty_window)
    end = begin if data.difficulty_window_end is None else Window(*data.difficulty_window_end)

    def within_window(history: History, step: int, position: int, count: int) -> Choice:
        window = curriculum(begin, end, step=step, steps=steps)
        return choose_prompts(history, stream, position, count, window=window, seed=config.run.seed)

    return within_window


def budgeted_group_sizes(
    config: TrainConfig, history: History, prompt_ids: Int[np.ndarray, "P"]
) -> Int[np.ndarray, "P"] | None:
    """Return the number of responses to each prompt under the token budget; None without a budget, for groups of equal size.

    The expected length of a response to a new prompt is the mean over all responses so far, or the limit if there are none yet.
    """
    sampling = config.sampling
    if sampling.token_budget is None:
        return None
    attempts = history.attempts.sum()
    unknown = float(history.tokens.sum() / attempts) if attempts else float(sampling.max_response_tokens)
    lengths = mean_lengths(history, unknown)[prompt_ids]
    prompt_budget = sampling.token_budget // sampling.prompts
    return group_sizes(lengths, budget=prompt_budget * len(prompt_ids), most=sampling.group_size)


def sampler_of(setup: Setup, state: TrainState) -> tuple[Params, int]:
    """Return the trainable parameters that sample the next rollout, and their RL step: from an option, or else from the state."""
    for option in setup.options:
        if option.sampler is not None:
            return option.sampler(state)
    return state.params, int(state.step)


def next_rollout(
    setup: Setup, state: TrainState, history: History, carried: Groups | None, choose_prompts: ChoosePrompts
) -> tuple[TrainState, History, Collected]:
    """Sample until enough groups are kept, and advance the state past the prompts and keys that were used.

    Args:
        setup: everything that the run uses.
        state: contains the position in the prompt stream and the number of sampling calls.
        history: how often each prompt was solved so far.
        carried: surplus groups of the previous rollout.
        choose_prompts: chooses the next prompts.

    Returns:
        The new state, the history with the sampled responses added, and the groups.

    Raises:
        InputError: the carried groups were judged by another kind of reward.
    """
    config, keep_group, worker = setup.config, setup.algorithm.keep_group, setup.train
    correctness_is_optional = worker.environment is not None  # not every environment reports it
    if carried is not None and not correctness_is_optional and (carried.rollout.correct is not None) != worker.verifies:
        raise InputError(
            "The run was saved with a verifier among its rewards, and now has none, or the reverse; resume with the same rewards, "
            "and mark the same ones with rljax.rewards.verifier."
        )
    sampling = config.sampling
    count = round(sampling.prompts * (1.0 if keep_group is None else sampling.oversample))
    trainable, version = sampler_of(setup, state)
    params = trainable if setup.base is None else setup.full_params(trainable)

    def sample(before: tuple[TrainState, History]) -> tuple[tuple[TrainState, History], Groups]:
        state, history = before
        choice = choose_prompts(history, int(state.step), int(state.position), count)
        prompt_ids, sizes = choice.problems, budgeted_group_sizes(config, history, choice.problems)
        key = sampling_key(state)
        groups = worker.generate(params, prompt_ids.tolist(), sampling.group_size, key, sizes=sizes, version=version)
        position = put(np.asarray(choice.position, np.int32), state.position.sharding)
        (right, known), lengths = correctness_masks(groups.rollout), groups.attention.sum(-1)
        passed, decay = right.astype(np.float32), config.data.history_decay
        history = record_responses(history, groups.prompt_ids, passed, lengths, valid=known, decay=decay)
        return (state._replace(draws=state.draws + 1, position=position), history), groups

    (state, history), collected = collect(
        sample,
        (state, history),
        None if keep_group is None else partial(groups_to_keep, keep_group),
        wanted=sampling.prompts,
        carried=carried,
        max_tries=sampling.max_tries,
    )
    return state, history, collected


def groups_to_keep(keep_group: Callable[..., Bool[Array, "P"]], groups: Groups) -> Bool[np.ndarray, "P"]:
    """Return the mask of the groups that an algorithm's `keep_group` keeps."""
    rollout = for_algorithm(groups)
    validity = {} if rollout.valid is None else {"valid": jnp.asarray(rollout.valid)}
    return np.asarray(keep_group(jnp.asarray(outcomes(rollout)), **validity))


@cache_results
def _prepare_program(algorithm: Algorithm, options: tuple[TracedOption, ...], **minibatches: int) -> Any:
    def program(rollout: Rollout[Array], progress: Array | None, past: EarlierRewards | None, arrays: dict) -> Batch[Array]:
        return prepare(adjust_algorithm(algorithm, options, arrays), rollout, progress=progress, past=past, **minibatches)

    return jax.jit(program)


def make_prepare(
    algorithm: Algorithm, options: Sequence[Option] = (), **minibatches: int
) -> Callable[..., Batch[np.ndarray]]:
    """Return a compiled `(rollout, *, progress=None, past=None, adjustments={}) -> Batch`; the batch consists of host arrays.

    Args:
        algorithm: prepares the batch.
        options: options that set coefficients; `rljax.training.state.adjustments` returns the `adjustments` to pass.
        **minibatches: as in `rljax.algorithms.prepare`.
    """
    adjusting = [option for option in options if option.adjust is not None]
    program = _prepare_program(algorithm, traced_parts(adjusting), **minibatches)

    def prepare_batch(
        rollout: Rollout[np.ndarray],
        *,
        progress: float | None = None,
        past: EarlierRewards | None = None,
        adjustments: Mapping[str, PyTree] = MappingProxyType({}),
    ) -> Batch[np.ndarray]:
        return jax.device_get(program(rollout, None if progress is None else np.float32(progress), past, dict(adjustments)))

    return prepare_batch


class ScoredRollout(NamedTuple):
    """Inputs of the updates on one rollout, other than the training state."""

    groups: Groups
    """The groups, padded to the number of prompts; `groups.rollout` has the scores and the values before the updates."""
    progress: float
    """Fraction of the RL steps that were completed before this step."""
    past: EarlierRewards | None
    """Earlier rewards of the prompts, excluding this rollout; None if the state keeps none."""
    sampler_gap: float | None = None
    """If the learner has rescored the tokens, its divergence from the sampler, whose parameters are older, in nats per token.
    Otherwise None; then the first update measures the divergence."""


RolloutScorer = Callable[..., ScoredRollout]
"""(state, groups, sampler=None) -> inputs of the updates on the rollout; `sampler` are the trainable parameters that sampled the
rollout, if they are older than the state's."""


def make_rollout_scorer(setup: Setup) -> RolloutScorer:
    """Build the function that scores a rollout, computes its values, and looks up the earlier rewards of its prompts.

    If older parameters sampled the rollout, their log-probabilities remain the denominator of the policy ratio. But if the
    algorithm has a correction, `policy_logp` uses the state's parameters, and the correction accounts for the difference.
    """
    scores = {name: make(setup) for name, make in SCORES.items() if setup.algorithm.needs(name)}
    rescore = None if setup.algorithm.correction is None else make_rescore(setup)

    def score_rollout(state: TrainState, groups: Groups, sampler: Params | None = None) -> ScoredRollout:
        groups, gap = pad(groups, setup.config.sampling.prompts), None
        if sampler is not None and rescore is not None:
            groups, gap = rescore(state, groups)
        rollout, behavior = for_algorithm(groups), state.params if sampler is None else sampler
        policy = behavior if rescore is None else state.params
        inputs = ScoreInputs(state, groups._replace(rollout=rollout), sequences_of(groups), behavior, policy)
        found = {name: np.asarray(score(inputs)) for name, score in scores.items()}
        shapes = {name: ROLLOUT_FIELDS[name].shape(rollout.mask.shape) for name in found}
        rollout = rollout._replace(**{name: array.reshape(shapes[name]) for name, array in found.items()})
        past = next((option.past(state, groups) for option in setup.options if option.past is not None), None)
        return ScoredRollout(groups._replace(rollout=rollout), completed_fraction(setup, state), past, gap)

    return score_rollout


def make_rescore(setup: Setup) -> Callable[[TrainState, Groups], tuple[Groups, float | None]]:
    """Build the function that replaces `policy_logp` with the log-probabilities under the state's parameters.

    Returns:
        `(state, groups) -> (groups, divergence of the state's policy from the sampler, in nats per token; None without tokens)`.
    """
    score_sequences = make_policy_scores(setup)

    def rescore(state: TrainState, groups: Groups) -> tuple[Groups, float | None]:
        rollout, mask = groups.rollout, groups.rollout.mask
        sampled = required(rollout.policy_logp, "rollout.policy_logp")
        logp = score_sequences(policy_params(setup.base, state.params), sequences_of(groups)).logp.reshape(mask.shape)
        logp = np.where(mask, logp, np.float32(0))
        gap = float(np.asarray(k3(jnp.asarray(sampled), jnp.asarray(logp)))[mask].mean()) if mask.any() else None
        return groups._replace(rollout=rollout._replace(policy_logp=logp)), gap

    return rescore


def completed_fraction(setup: Setup, state: TrainState) -> float:
    """Return the fraction of RL steps that are done; 0 in a run without RL steps."""
    return int(state.step) / max(1, setup.config.optimization.steps)


def scored_rows(setup: Setup) -> int:
    """Return the number of rows per micro-batch when a full rollout is scored."""
    sampling = setup.config.sampling
    return setup.rows_at_once(sampling.prompts * sampling.group_size)


class ScoreInputs(NamedTuple):
    """Inputs of a `FieldScore` function."""

    state: TrainState
    """The training state before the updates."""
    groups: Groups
    """The groups of the rollout, padded."""
    sequences: Sequences
    """The prompts and responses of the groups, one response per row."""
    sampler: Params
    """Trainable parameters that sampled the rollout."""
    policy: Params
    """Trainable parameters that give `policy_logp`: the state's if the algorithm has a correction, else the sampler's."""


FieldScore = Callable[[ScoreInputs], Array | np.ndarray]
"""Inputs -> a field of the rollout, flat or in the field's shape."""


def make_ref_logp(setup: Setup) -> FieldScore:
    """Build the function that scores a rollout with the reference policy."""
    score_sequences = make_policy_scores(setup)
    return lambda inputs: score_sequences(policy_params(setup.base, inputs.state.reference), inputs.sequences).logp


def make_behaviour_entropy(setup: Setup) -> FieldScore:
    """Build the function that computes the entropy of the policy that sampled the rollout."""
    score_sequences = make_policy_scores(setup)
    return lambda inputs: score_sequences(policy_params(setup.base, inputs.sampler), inputs.sequences).entropy


def make_teacher_logp(setup: Setup) -> FieldScore:
    """Build the function that scores a rollout with the teacher."""
    return required(setup.teacher, "setup.teacher").make_logp(setup)


def make_square_sum(setup: Setup) -> FieldScore:
    """Build the function that computes Σ_v π(v)² of the policy at each token, in chunks of tokens."""
    features, chunk = required(setup.policy.features, "setup.policy.features"), setup.config.model.score_chunk
    chunk = choose_chunk(chunk, setup.policy.vocab_size, setup.mesh)
    settings = {"temperature": setup.config.sampling.temperature, "chunk": chunk, "mesh": setup.mesh}

    def square_sums(params: Params, part: Layout) -> Float[Array, "B T"]:
        return to_batch(apply_over_vocabulary(square_sum, features(params, part.packed), **settings), part.packed)

    compute_sums = compile_for_sequences(square_sums, setup.mesh, scored_rows(setup))
    return lambda inputs: compute_sums(policy_params(setup.base, inputs.policy), inputs.sequences)


def make_kinds(setup: Setup) -> FieldScore:
    """Build the function that looks up the kind of each problem; a padding group gets an arbitrary kind."""
    kinds = required(kind_indices(setup.train.prompts.problems), "kinds of the problems")
    return lambda inputs: kinds[inputs.groups.prompt_ids]


def make_value_scores(setup: Setup) -> FieldScore:
    """Build the function that computes the critic's values, blended with the pretrained critic's if the algorithm does so."""
    compute_values = make_values(required(setup.critic, "setup.critic"), setup.mesh, scored_rows(setup))
    blend = required(setup.algorithm.critic, "algorithm.critic").blend
    if blend is None:
        return lambda inputs: compute_values(required(inputs.state.critic, "state.critic").params, inputs.sequences)
    program = _blend_program(blend)

    def blended_values(inputs: ScoreInputs) -> Float[Array, "P G T"]:
        critic, rollout = required(inputs.state.critic, "state.critic"), inputs.groups.rollout
        current, pretrained = (
            compute_values(params, inputs.sequences).reshape(rollout.mask.shape)
            for params in (critic.params, critic.pretrained)
        )
        done = np.float32(completed_fraction(setup, inputs.state))
        return program(pretrained, current, rollout.rewards, rollout.mask, done)

    return blended_values


@cache_results
def _blend_program(blend: Callable) -> Any:
    def blended(pretrained: Array, current: Array, rewards: Array, mask: Array, done: Array) -> Array:
        return blend(pretrained, current, done, explained_outcome_variance(current, rewards, mask))

    return jax.jit(blended)


SCORES: Mapping[str, Callable[[Setup], FieldScore]] = MappingProxyType(
    {
        "ref_logp": make_ref_logp,
        "behaviour_entropy": make_behaviour_entropy,
        "teacher_logp": make_teacher_logp,
        "square_sum": make_square_sum,
        "kinds": make_kinds,
        "values": make_value_scores,
    }
)
"""Field of a rollout -> builder of the function that computes it; the builder is called only if the algorithm needs the field."""


def make_policy_scores(setup: Setup) -> Callable[[Params, Sequences], Scores]:
    """Build the function that computes log-probabilities and entropies of rollouts under any parameters of the policy."""
    return make_scores(make_score(setup.policy, setup.config.sampling.temperature), setup.mesh, scored_rows(setup))
