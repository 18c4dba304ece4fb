"""Direct training of a language model on preference pairs: DPO and its relatives."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from rljax.data.preferences import Preference
from rljax.data.tokenizer import Tokenizer, check_vocab_size
from rljax.data.tokenizer_note import MODEL_NOTE, check_recordable, save_tokenizer
from rljax.errors import InputError
from rljax.models import Params, Policy, count_parameters
from rljax.models.huggingface import load_tensor, locate
from rljax.models.value_model import HEAD
from rljax.parallel import mesh_of, policy_shardings, put, row_shards
from rljax.parallel.memory import check_fits, device_bytes
from rljax.preference.config import PreferenceConfig
from rljax.preference.direct_losses import BY_NAME, DirectLoss, check_loss
from rljax.preference.direct_update import (
    DirectBatch,
    DirectPairs,
    Logps,
    arrange_direct_pairs,
    evaluate_direct,
    make_direct_step,
    make_expected_logps,
    make_logps,
    make_mismatched_pairs,
    split_into_micro_batches,
)
from rljax.preference.pair_update import EncodedPairs
from rljax.programs.pair_training import (
    PairData,
    PairTraining,
    PreferenceResult,
    Split,
    Update,
    check_sizes,
    encode_split,
    fingerprint_of,
    header,
    make_initial_state,
    make_optimizer,
    make_tokenizer,
    make_update,
    microbatch_of,
    model_config,
    pair_state,
    read_pairs,
    steps_of,
    train_on_pairs,
)
from rljax.records import required
from rljax.settings.checks import check_options
from rljax.text import counted, nearest_first
from rljax.training.checkpoints.checkpoint import content_hash
from rljax.training.parts.model_folder import Companions, save_model
from rljax.training.parts.policy import make_policy
from rljax.training.parts.tokenizer import all_end_tokens
from rljax.training.state import TrainState


class ReferencedPairs(NamedTuple):
    """The training pairs or the held-out pairs, with log-probabilities under the reference if the loss reads them."""

    pairs: DirectPairs
    """The pairs."""
    mismatched: DirectPairs | None
    """The same prompts with responses to other prompts, if the loss has a reference point; otherwise None."""


class PreferenceSetup(NamedTuple):
    """Everything that training uses; nothing here changes during training."""

    config: PreferenceConfig
    """The settings."""
    mesh: Mesh
    """The devices."""
    loss: DirectLoss
    """The loss with its hyper-parameters."""
    policy: Policy
    """The language model."""
    tokenizer: Tokenizer
    """Tokenizer of prompts and responses."""
    data: PairData
    """The pairs as tokens."""
    train: ReferencedPairs
    """Pairs to train on."""
    heldout: ReferencedPairs
    """Pairs to evaluate on."""
    logps: Logps
    """Computes the log-probabilities of responses, without gradient."""
    expected_logps: Logps | None
    """Computes the expected log-probabilities of responses, if the loss reads them; otherwise None."""
    microbatch: int
    """Number of pairs whose activations are in memory at once."""
    steps: int
    """Number of optimizer updates."""
    fingerprints: dict[str, str]
    """Hash of each training input, by the input's name."""


def make_loss(config: PreferenceConfig) -> DirectLoss:
    """Look up a loss and set its hyper-parameters.

    Raises:
        InputError: a name or an option is unknown, or the loss rejects a value.
    """
    name, options = config.loss, config.loss_options
    if name not in BY_NAME:
        advice = f"choose one of {', '.join(BY_NAME)}."
        raise InputError(f"The loss {name!r} is unknown{nearest_first(name, BY_NAME, advice)}")
    check_options(name, options, BY_NAME[name])
    loss = BY_NAME[name](**options)
    try:
        check_loss(loss)
    except ValueError as error:
        raise InputError(f"The options {options} do not fit {name}: {error}.") from error
    return loss


def make_language_model(config: PreferenceConfig, mesh: Mesh) -> tuple[Policy, Tokenizer]:
    """Load the policy and tokenizer from a folder or hub id, or make a small transformer and its tokenizer.

    Raises:
        InputError: the folder is a reward model, the tokenizer does not fit the model, or there is too little memory.
    """
    folder = None if config.model is None else locate(config.model)
    if folder is not None and load_tensor(folder, HEAD) is not None:
        raise InputError(f"The model in {str(folder)!r} is a reward model or a critic; give a language model.")
    tokenizer = make_tokenizer(config, folder)
    check_recordable(tokenizer)
    policy = make_policy(model_config(config), tokenizer, mesh)
    check_fits(count_parameters(required(policy.shapes, "policy.shapes")()), device_bytes(mesh))
    check_vocab_size(tokenizer, policy.vocab_size)
    return policy, tokenizer


def make_preference_setup(config: PreferenceConfig, preferences: Split | None = None) -> tuple[PreferenceSetup, TrainState]:
    """Build everything that training uses, and the initial training state on the mesh, whose model is also the reference.

    Args:
        config: the settings.
        preferences: training pairs and held-out pairs, instead of `config.dataset`.

    Raises:
        InputError: settings or data are invalid; the message explains what to change.
    """
    loss = make_loss(config)
    mesh = mesh_of(config)
    check_sizes(config, mesh)
    gold = config.gold_column if loss.reads_gold else None
    train, heldout, warnings = read_pairs(config, gold=gold) if preferences is None else (*preferences, [])
    check_gold(config.loss, loss, [*train, *heldout])
    policy, tokenizer = make_language_model(config, mesh)
    data = encode_split(config, tokenizer, chat=config.chat, pairs=(train, heldout), warnings=warnings)
    train_pairs, heldout_pairs = (arrange_direct_pairs(part, tokenizer.pad_token_id) for part in (data.train, data.heldout))
    rows = [pairs.sequences for pairs in (train_pairs, heldout_pairs)]
    longest = max(each.prompt_tokens.shape[-1] + each.tokens.shape[-1] for each in rows)
    microbatch = microbatch_of(config, row_shards(mesh), longest)
    params = policy.init(jax.random.key(config.seed))
    steps = steps_of(config, len(data.train.margin))
    state = make_initial_state(config, params, steps)
    state = put(state, policy_shardings(mesh, state, params, policy.partition))
    fingerprints = {"the pairs": fingerprint_of(data)}
    if loss.reads_reference and config.model is not None:
        fingerprints["the weights of the first model"] = content_hash(state.params)
    logps = make_logps(policy, mesh, microbatch)

    def with_reference(pairs: DirectPairs) -> DirectPairs:
        return pairs._replace(ref_logp=logps(state.params, pairs)) if loss.reads_reference else pairs

    def prepare(encoded: EncodedPairs, pairs: DirectPairs) -> ReferencedPairs:
        if loss.reads_margin:
            pairs = pairs._replace(margin=encoded.margin)
        if not loss.reads_reference_point:
            return ReferencedPairs(with_reference(pairs), None)
        return ReferencedPairs(
            with_reference(pairs), with_reference(make_mismatched_pairs(encoded, data.train, tokenizer.pad_token_id))
        )

    prepared = prepare(data.train, train_pairs), prepare(data.heldout, heldout_pairs)
    if loss.reads_margin and not data.train.margin.any():
        raise InputError(
            f"{config.loss} learns how much better a response is, but no pair has a margin; add a column `margin` with the "
            "preferred response's reward minus the other's."
        )
    if data.train.margin.any() and not loss.reads_margin:
        warning = f"The pairs have margins, which {config.loss} does not read."
        data = data._replace(warnings=[*data.warnings, warning])
    setup = PreferenceSetup(
        config=config,
        mesh=mesh,
        loss=loss,
        policy=policy,
        tokenizer=tokenizer,
        data=data,
        train=prepared[0],
        heldout=prepared[1],
        logps=logps,
        expected_logps=make_expected_logps(policy, mesh, microbatch) if loss.reads_expected_logp else None,
        microbatch=microbatch,
        steps=steps,
        fingerprints=fingerprints,
    )
    return setup, state


def check_gold(name: str, loss: DirectLoss, pairs: Sequence[Preference]) -> None:
    """Require a third (gold) response in every pair if the loss reads one, and in no pair otherwise.

    Raises:
        InputError: a pair lacks the response that the loss reads, or has one that it does not read.
    """
    wrong = sum((pair.gold is not None) != loss.reads_gold for pair in pairs)
    if wrong:
        use, number, remedy = (
            ("imitates", "none", "add one") if loss.reads_gold else ("does not use", "one", "leave it out")
        )
        have = "has" if wrong == 1 else "have"
        raise InputError(
            f"{name} {use} a third response, but {wrong} of {counted(len(pairs), 'pair')} {have} {number}; {remedy} (gold=...)."
        )


def update_of(setup: PreferenceSetup, state: TrainState) -> Update:
    """Build the update on the next batch of pairs; `state` is a template of the training state."""
    optimizer, pair = make_optimizer(setup.config, setup.steps)[0], pair_state(state)
    state_shardings = policy_shardings(setup.mesh, pair, pair.params, setup.policy.partition)
    step = make_direct_step(setup.policy, setup.loss, optimizer, state_shardings, setup.mesh)
    pairs, mismatched = setup.train

    def make_batch(rows: list[int]) -> DirectBatch:
        mismatched_batch = None if mismatched is None else split_into_micro_batches(mismatched.take(rows), setup.microbatch)
        return DirectBatch(split_into_micro_batches(pairs.take(rows), setup.microbatch), mismatched_batch)

    count = len(setup.data.train.margin)
    return make_update(setup.config, setup.mesh, step, make_batch, pairs=count, steps=setup.steps)


def train_preference(
    config: PreferenceConfig | None = None, *, preferences: Split | None = None, resume: str | Path | None = None
) -> PreferenceResult:
    """Train a language model directly on preference pairs, and write it as a model folder.

    Args:
        config: all settings. Omit it on resume.
        preferences: training pairs and held-out pairs, instead of `config.dataset`.
        resume: folder of an interrupted run to continue; its optimizer state, data order and reference are restored.

    Returns:
        The folder, the means over the held-out pairs before and after training, and the parameters.

    Raises:
        InputError: the settings or the data are invalid; nothing was overwritten.
        Interrupted: a signal stopped the training; it can be resumed.
    """
    make_training = partial(_make_training, preferences=preferences)
    return train_on_pairs(PreferenceConfig, config, resume, make_training)


def _make_training(config: PreferenceConfig, preferences: Split | None) -> tuple[PairTraining, TrainState]:
    setup, state = make_preference_setup(config, preferences)
    sizes = {"steps": setup.steps, "microbatch": setup.microbatch, "devices": setup.mesh.size}
    start = (
        "The reference is the model before training, so every implicit reward is 0 at first and no pair is in order yet."
    )
    training = PairTraining(
        phase="preference",
        command="preference",
        call=None if preferences is None else "train_preference(preferences=preferences, resume={})",
        header=[
            *header(config.loss, config, state.params, setup.data, **sizes),
            *([start] if setup.loss.reads_reference else []),
        ],
        warnings=setup.data.warnings,
        judged_count=len(setup.data.heldout.margin),
        fingerprints=setup.fingerprints,
        steps=setup.steps,
        make_update=partial(update_of, setup),
        judge=lambda params: evaluate_direct(setup.loss, setup.logps, params, *setup.heldout, setup.expected_logps),
        save=partial(_save, setup),
        closing_lines=describe_outcome,
        commands=commands,
    )
    return training, state


def describe_outcome(before: dict[str, float], after: dict[str, float], folder: Path) -> list[str]:
    """Describe the outcome in a few lines."""
    return [
        f"Held-out pairs in the right order: {before['accuracy']:.1%} before, {after['accuracy']:.1%} after; "
        f"margin {before['margin']:.3f} before, {after['margin']:.3f} after.",
        f"Held-out log-probabilities: preferred {before['chosen_logp']:.2f} before, {after['chosen_logp']:.2f} after; others "
        f"{before['rejected_logp']:.2f} before, {after['rejected_logp']:.2f} after.",
        f"Model: {folder}",
    ]


def commands(folder: str) -> list[str]:
    """Return commands that use the model."""
    return [
        f"rljax sample {folder} --prompt ...",
        f"rljax eval {folder} --dataset ...",
        f"rljax train --model {folder} --dataset ...",
    ]


def _save(setup: PreferenceSetup, params: Params, folder: Path) -> None:
    source = None if setup.config.model is None else locate(setup.config.model)
    ends = all_end_tokens(replace(model_config(setup.config), tokenizer=setup.config.tokenizer), setup.tokenizer)
    save_model(folder, setup.policy, params, Companions(setup.tokenizer, source, sampling=None, ends=ends))
    save_tokenizer(folder, MODEL_NOTE, setup.tokenizer, chat=setup.config.chat)
