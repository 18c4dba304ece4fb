"""Replay the batch that stopped a run, to find the first term, from the reward to the update, that is not finite."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Shaped
from safetensors import SafetensorError, safe_open

from rljax.algorithms import Algorithm, Batch, EarlierRewards, Rollout
from rljax.algorithms.algorithm import ROLLOUT_FIELDS, RolloutField
from rljax.algorithms.losses import term_inputs
from rljax.errors import InputError
from rljax.importing import check_trusted
from rljax.ops.divergence import k3
from rljax.ops.unpublished.reward_history import RewardHistory
from rljax.options import INSTALLERS
from rljax.parallel import fetch, mini_batches, row_shards
from rljax.parallel.guarded_update import LARGEST_UPDATE
from rljax.parallel.mesh import path_names
from rljax.programs.trained_policy import fit_devices
from rljax.records import required
from rljax.rewards.reward_call import abstain
from rljax.rollout import Groups, Sequences, lay_out, sequences_of
from rljax.rollout.groups import from_dict
from rljax.tracking.run_folder import RunFolder
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.initial_state import state_like
from rljax.training.objective.algorithm import with_reward_weights
from rljax.training.parts.custom_parts import BUILT_IN, CustomParts, read_saved_settings, refuse_missing
from rljax.training.parts.reward import custom_part_names, custom_reward_names
from rljax.training.rl_phase import revise_setup
from rljax.training.rollout_data import ScoredRollout, make_prepare, scored_rows
from rljax.training.run import GROUPS, PAST, STOPPED_BATCH_FILE, STOPPED_BATCH_FORMAT, StoppedBatch
from rljax.training.scoring import compile_for_sequences, policy_params
from rljax.training.setup import Setup, make_setup
from rljax.training.state import TrainState, adjust_algorithm, adjustments, traced_parts
from rljax.training.update import make_gradient, put_layout
from rljax.training.value_update import make_values, value_schedule

RESPONSES, TOKENS, NUMBERS = "responses", "tokens", "numbers"
"""What each value of a term describes: a response, a token, or neither ("numbers": a loss, or the entries of a parameter)."""


class MeasuredTerm(NamedTuple):
    """One quantity in the computation from the reward to the update."""

    name: str
    """Name of the term; for a gradient or an update it includes the path of the parameters."""
    kind: str
    """What each value describes: "responses", "tokens", or "numbers" (a loss, or the entries of a parameter)."""
    count: int
    """Number of values."""
    unsound: int
    """Number of values that are NaN or infinite."""
    largest: float
    """Largest absolute value among the finite values; 0 if there are none."""
    place: tuple[int, ...]
    """Index of the first value that is not finite, otherwise of the largest: row and token, or the index within a parameter."""

    def to_json(self) -> dict[str, Any]:
        """Return the term as JSON values."""
        return self._asdict() | {"place": list(self.place)}


class Diagnosis(NamedTuple):
    """Result of a replay."""

    stopped_batch: StoppedBatch
    """The batch that stopped the run."""
    terms: tuple[MeasuredTerm, ...]
    """All terms, in the order of computation."""
    update_norm: float
    """Norm of the update."""
    bound: float
    """Largest norm that the guard accepts."""
    texts: Callable[[int, int | None], dict[str, str]]
    """(row, token or None) -> prompt, response and token as text."""

    @property
    def cause(self) -> MeasuredTerm | None:
        """The first term that is not finite; otherwise the largest leaf of an update that is too large; otherwise None."""
        unsound = next((term for term in self.terms if term.unsound), None)
        if unsound is not None or self.update_norm <= self.bound:
            return unsound
        return max((term for term in self.terms if term.name.startswith("update ")), key=lambda term: term.largest)


def measure_term(
    name: str, kind: str, values: Shaped[np.ndarray, "..."], used: Shaped[np.ndarray, "..."] | None = None
) -> MeasuredTerm:
    """Measure a term.

    Args:
        name: name of the term.
        kind: what each value describes.
        values: values of the term.
        used: mask of the values to measure; None means all.

    Example:
        >>> term = measure_term("ratio", TOKENS, np.array([[1.0, np.inf], [2.0, -3.0]]))
        >>> term.unsound, term.largest, term.place
        (1, 3.0, (0, 1))
    """
    values = np.asarray(values, np.float64)
    mask = np.ones(values.shape, bool) if used is None else np.asarray(used, bool)
    bad = ~np.isfinite(values) & mask
    magnitudes = np.where(mask & ~bad, np.abs(values), -1.0)
    first = np.argmax(bad) if bad.any() else np.argmax(magnitudes) if magnitudes.size else 0
    place = tuple(int(i) for i in np.unravel_index(first, values.shape)) if values.size else ()
    return MeasuredTerm(name, kind, int(mask.sum()), int(bad.sum()), float(max(magnitudes.max(initial=0.0), 0.0)), place)


def diagnose(target: str | Path, custom: CustomParts = BUILT_IN, *, trust: bool = False) -> Diagnosis:
    """Replay the batch that stopped a run, with the policy as it was before the batch.

    All updates on the batch were skipped, so the checkpoint still contains this policy and its optimizer state. The other inputs
    of the batch are in its file: the reference's and the teacher's scores, the critic's values, earlier rewards and the progress
    of the run. The critic is the only part that may have learned from this batch, so `value now` and `value_loss` are computed
    with the critic after its updates.

    Args:
        target: folder of the run, or the file of the batch in it.
        custom: the parts that were passed to `train`; rewards, engines and environments are not needed.
        trust: whether code that the run's config.json names (an algorithm or a step reward) may be executed.

    Raises:
        InputError: there is no batch, the run has continued since, or a part is missing.
    """
    target = Path(target)
    file = target / STOPPED_BATCH_FILE if target.is_dir() else target
    stopped_batch = read_batch(file)
    folder = RunFolder.open(file.parent)
    config, needed = read_saved_settings(folder.config)
    refuse_missing(set(needed) - {"reward", "engine", "environment"} - set(custom.names()))
    config = replace(config, devices=fit_devices(config.devices))
    check_trusted(
        folder.path, [name for name in custom_part_names(config) if name not in custom_reward_names(config)], trust=trust
    )
    if {"reward", "environment"} & set(needed) or custom_reward_names(config):
        parts = stopped_batch.scored_rollout.groups.rollout.reward_parts
        config, custom = with_abstaining_rewards(config, custom, rewards=1 if parts is None else len(parts))
    setup = make_setup(config, custom, INSTALLERS)
    setup = setup._replace(algorithm=with_reward_weights(setup.algorithm, stopped_batch.weights))
    last = folder.checkpoints / checkpoints.LAST
    number, _ = checkpoints.newest_complete(last)
    if number != stopped_batch.checkpoint:
        raise InputError(
            f"The batch belongs to checkpoint {stopped_batch.checkpoint} in {str(last)!r}, and the newest one is {number}: the run "
            "has continued since. Only the batch that stopped the run most recently can be replayed."
        )
    checkpoint = checkpoints.restore(last, partial(state_like, setup)).checkpoint
    setup = revise_setup(setup, checkpoint)
    return replay(setup, checkpoint.state, stopped_batch)


NO_REWARD_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {"weights": None, "combine": "sum", "environment": None, "environment_options": None}
)
"""Values that switch the reward settings off, for a batch that already has its rewards."""


def with_abstaining_rewards(config: TrainConfig, custom: CustomParts, *, rewards: int) -> tuple[TrainConfig, CustomParts]:
    """Replace a user's reward or environment with rewards that abstain, because the batch already has its rewards.

    Args:
        config: the settings.
        custom: the custom parts of the run.
        rewards: number of rewards per response, which some algorithms read separately.
    """
    config = replace(config, reward=replace(config.reward, **NO_REWARD_SETTINGS))
    return config, custom._replace(reward=[abstain] * rewards, environment=None)


def replay(setup: Setup, state: TrainState, stopped_batch: StoppedBatch) -> Diagnosis:
    """Measure every term of a batch, from the reward to the update; the update is not applied."""
    groups, progress, past, _ = stopped_batch.scored_rollout
    rollout, sequences = groups.rollout, sequences_of(groups)
    minibatches: dict[str, int] = {"minibatches": setup.config.optimization.minibatches}
    if setup.critic is not None:
        minibatches["value_minibatches"] = value_schedule(setup.algorithm, setup.config).minibatches
    prepare_batch = make_prepare(setup.algorithm, setup.options, **minibatches)
    batch = prepare_batch(rollout, progress=progress, past=past, adjustments=adjustments(setup.options, state))
    for option in setup.options:
        if option.before_updates is not None:
            state = option.before_updates(state, stopped_batch.scored_rollout)
    terms = [*rollout_terms(rollout, groups.present), *batch_terms(batch)]
    terms += loss_terms(setup, state, sequences, batch, step=stopped_batch.step - 1)
    if setup.critic is not None:
        terms += value_terms(setup, state, sequences, batch)
    leaves, update_norm, bound = update_terms(setup, state, sequences, batch, step=stopped_batch.step - 1)
    return Diagnosis(stopped_batch, (*terms, *leaves), update_norm, bound, partial(decode_row, setup, groups))


def rollout_terms(rollout: Rollout[np.ndarray], present: Bool[np.ndarray, "P G"]) -> list[MeasuredTerm]:
    """Measure the rewards and log-probabilities of a rollout, except for missing responses."""
    mask = rollout.mask.reshape(-1, rollout.mask.shape[-1])
    judged = present if rollout.valid is None else present & rollout.valid
    terms = [measure_term("reward", RESPONSES, rollout.rewards.reshape(-1), judged.reshape(-1))]
    for name, field in ROLLOUT_FIELDS.items():
        values = getattr(rollout, name)
        if values is not None and field == RolloutField("P G T", float):
            terms.append(measure_term(name, TOKENS, values.reshape(mask.shape), mask))
    return terms


BATCH_TERMS = ("advantage", "weights", "old_logp", "value_target")
"""Fields of a batch that are measured."""


def batch_terms(batch: Batch[np.ndarray]) -> list[MeasuredTerm]:
    """Measure advantages, weights and targets."""
    fields = {name: getattr(batch, name) for name in BATCH_TERMS}
    return [measure_term(name, TOKENS, values, batch.mask) for name, values in fields.items() if values is not None]


def loss_terms(
    setup: Setup, state: TrainState, sequences: Sequences, batch: Batch[np.ndarray], *, step: int
) -> list[MeasuredTerm]:
    """Measure the policy's scores, and every part of the loss at each token, before the updates of a step."""
    forward = lambda inputs, part: setup.forward(inputs[0], inputs[1], part)  # noqa: E731
    score = compile_for_sequences(forward, setup.mesh, scored_rows(setup))
    data = {each.name: each.data(step, 0) for each in setup.options if each.data is not None}
    scores, further = score((policy_params(setup.base, state.params), {**setup.frozen, **data}), sequences)
    distances = further.get("teacher_divergence")
    placed: Batch[Array] = jax.tree.map(jnp.asarray, batch)
    algorithm = adjust_algorithm(setup.algorithm, setup.options, state.options)
    parts = token_terms(algorithm, jnp.asarray(scores.logp), jnp.asarray(scores.entropy), distances, placed)
    return [measure_term(name, TOKENS, np.asarray(values), batch.mask) for name, values in parts.items()]


def token_terms(
    algorithm: Algorithm,
    logp: Float[Array, "B T"],
    entropy: Float[Array, "B T"],
    distances: Shaped[Array | np.ndarray, "B T"] | None,
    batch: Batch[Array],
) -> Mapping[str, Float[Array, "B T"]]:
    """Compute every part of the policy's loss at each token, in the order of computation."""
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


def value_terms(setup: Setup, state: TrainState, sequences: Sequences, batch: Batch[np.ndarray]) -> list[MeasuredTerm]:
    """Measure the critic's values and, unless its head predicts a distribution, the value loss at each token."""
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
) -> tuple[list[MeasuredTerm], float, float]:
    """Measure the gradient and update of each parameter in the first mini-batch that the guard skips, otherwise in the last one.

    Args:
        setup: setup of the run.
        state: state with the parameters before the updates.
        sequences: prompts and responses.
        batch: inputs of the loss.
        step: number of RL steps before these updates; the examples of the auxiliary loss depend on it.

    Returns:
        The terms, the norm of the update, and the largest norm that the guard accepts.
    """
    config = setup.config
    gradient_of = jax.jit(make_gradient(setup.algorithm, setup.forward, setup.policy.copies, traced_parts(setup.options)))
    optimizer = optax.with_extra_args_support(setup.optimizer)
    rows = setup.rows_at_once(config.minibatch_rows)
    bound = LARGEST_UPDATE * max(float(optax.tree.norm(state.params)), 1.0)
    terms: list[MeasuredTerm] = []
    norm = 0.0
    parts = mini_batches((sequences, batch), config.optimization.minibatches)
    for number, (responses, part) in enumerate(each for each in parts if each[1].weights.any()):
        layout = lay_out(responses, part.mask, rows=rows, devices=row_shards(setup.mesh))
        data = {each.name: each.data(step, number) for each in setup.options if each.data is not None}
        placed = put_layout(setup.mesh, layout, part)
        gradient, metrics, measured = gradient_of(state, setup.frozen, *placed, data)
        updates, _ = optimizer.update(gradient, state.opt_state, state.params, options=state.options)
        norm = float(optax.tree.norm(updates))
        losses = {"loss": metrics.loss, **measured}
        terms = [measure_term(name, NUMBERS, np.asarray(loss)) for name, loss in losses.items()]
        terms += [*_leaf_terms("gradient", gradient), *_leaf_terms("update", updates)]
        if any(term.unsound for term in terms) or not norm <= bound:
            break
    return terms, norm, bound


def _leaf_terms(what: str, tree: Any) -> list[MeasuredTerm]:
    """Measure each leaf of a tree; `what` begins the names of the terms."""
    leaves = jax.tree_util.tree_leaves_with_path(fetch(tree))
    return [
        measure_term(f"{what} of {'/'.join(path_names(path))}", NUMBERS, np.asarray(leaf, np.float64))
        for path, leaf in leaves
    ]


def decode_row(setup: Setup, groups: Groups, row: int, token: int | None) -> dict[str, str]:
    """Return a row's prompt, its response and one of its tokens as text, and the row's group and place in the group."""
    size = groups.rollout.rewards.shape[1]
    group, index = divmod(row, size)
    decode = setup.tokenizer.decode
    texts = {
        "prompt": decode(groups.prompt_tokens[group][groups.prompt_attention[group]].tolist()),
        "response": decode(groups.tokens[group, index][groups.attention[group, index]].tolist()),
        "group": str(group),
        "place": str(index),
    }
    return texts if token is None else texts | {"token": decode([int(groups.tokens[group, index, token])])}


def read_batch(path: Path) -> StoppedBatch:
    """Read the batch that a run was learning from when it was stopped; `rljax.training.run.write_batch` wrote it.

    Raises:
        InputError: the file is missing, or is not a batch.
    """
    if not path.is_file():
        raise InputError(
            f"There is no batch file {str(path)!r}. A run writes one when it stops because the loss or gradient was not finite, or "
            "an update was far too large."
        )
    try:
        with safe_open(path, framework="numpy") as file:
            notes = {} if file.metadata() is None else file.metadata()
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
        if notes.get("format") != STOPPED_BATCH_FORMAT:
            raise InputError(
                f"{str(path)!r} is not a batch of a stopped run that this version can read: its format is {notes.get('format')!r}, "
                f"but must be {STOPPED_BATCH_FORMAT!r}."
            )
        return _batch_from(nest(arrays), {name: json.loads(text) for name, text in notes.items() if name != "format"})
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{str(path)!r} cannot be read as the batch of a stopped run ({error}).") from error


def _batch_from(tree: Mapping[str, Any], notes: Mapping[str, Any]) -> StoppedBatch:
    """Build the batch from the arrays and the metadata of its file."""
    groups = from_dict(tree[GROUPS])
    past = EarlierRewards(RewardHistory(**tree[PAST]), groups.prompt_ids) if PAST in tree else None
    scored_rollout = ScoredRollout(groups, float(notes["progress"]), past)
    return StoppedBatch(scored_rollout, int(notes["step"]), int(notes["checkpoint"]), notes["weights"])


def nest(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Build nested dicts from the result of `flatten`.

    Example:
        >>> from rljax.training.run import flatten
        >>> list(nest(flatten({"a": {"b/c": np.ones(1)}}))["a"])
        ['b/c']
    """
    tree: dict[str, Any] = {}
    for path, array in arrays.items():
        *parents, name = (json.loads(f'"{part}"') for part in path.split("/"))
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
        node[name] = array
    return tree
