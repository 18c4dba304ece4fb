"""Reward-model training: the Bradley-Terry loss on the scores of pairs of responses."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.models import Model, Params, init_params
from rljax.models.huggingface import load_params, load_tensor, locate
from rljax.models.value_model import HEAD, ValueModel, init_value_params, value_model
from rljax.parallel import mesh_of, micro_batches, row_shards, shardings
from rljax.preference.config import RewardModelConfig
from rljax.preference.pair_update import Pairs, evaluate_on_pairs, make_pair_step
from rljax.preference.reward_model import RewardModel, load_reward_model, make_score, save_reward_model
from rljax.programs.pair_training import (
    PairData,
    PairTraining,
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
from rljax.training.parts.policy import make_transformer_config
from rljax.training.state import TrainState


class RewardSetup(NamedTuple):
    """Everything that reward-model training uses; nothing here changes during training."""

    config: RewardModelConfig
    """The settings."""
    mesh: Mesh
    """The devices."""
    model: ValueModel
    """The model that scores responses."""
    tokenizer: Tokenizer
    """Tokenizer of prompts and responses."""
    chat: bool
    """Whether prompts are formatted with the tokenizer's chat template."""
    data: PairData
    """The pairs to train on and the held-out pairs."""
    microbatch: int
    """Number of pairs whose activations are in memory at once."""
    steps: int
    """Number of optimizer updates."""


class RewardModelResult(NamedTuple):
    """The outcome of reward-model training."""

    folder: Path
    """Folder of the reward model."""
    accuracy_before: float
    """Fraction of the held-out pairs whose preferred response has the higher score, before training."""
    accuracy_after: float
    """The same fraction after training."""
    params: Params
    """Parameters of the reward model."""


def make_reward_model(config: RewardModelConfig) -> RewardModel:
    """Load a reward model, add a new head to a language model, or initialize a small transformer.

    Raises:
        InputError: the tokenizer does not fit the model, or the settings use the chat template, but the reward model does not.
    """
    folder = None if config.model is None else locate(config.model)
    tokenizer = make_tokenizer(config, folder)
    if folder is not None and load_tensor(folder, HEAD) is not None:
        found = load_reward_model(folder, tokenizer=tokenizer, chat=config.chat, dtype=config.dtype, remat=config.remat)
        if config.chat and not found.chat:
            raise InputError(
                f"The reward model {config.model!r} was trained without the chat template, so --chat does not apply; leave it out."
            )
        return found
    shape = make_transformer_config(model_config(config), tokenizer.vocab_size)
    if tokenizer.vocab_size > shape.vocab_size:
        raise InputError(
            f"The tokenizer has {tokenizer.vocab_size} tokens, but the model {config.model!r} has only {shape.vocab_size}; "
            "give the tokenizer that belongs to the model."
        )
    key = jax.random.key(config.seed)
    trunk = init_params(shape, key) if folder is None else load_params(folder, shape)
    model = value_model(Model(shape), 1)
    return RewardModel(model, init_value_params(model, jax.random.fold_in(key, 1), trunk), tokenizer, config.chat)


def make_reward_setup(config: RewardModelConfig, preferences: Split | None = None) -> tuple[RewardSetup, TrainState]:
    """Build everything that training uses, and the initial training state on the mesh.

    Args:
        config: the settings.
        preferences: training pairs and held-out pairs, instead of `config.dataset`.

    Raises:
        InputError: settings or data are invalid; the message explains what to change.
    """
    mesh = mesh_of(config)
    check_sizes(config, mesh)
    train, heldout, warnings = read_pairs(config) if preferences is None else (*preferences, [])
    start = make_reward_model(config)
    data = encode_split(config, start.tokenizer, chat=start.chat, pairs=(train, heldout), warnings=warnings)
    length = max(map(len, data.train.chosen + data.train.rejected))
    setup = RewardSetup(
        config=config,
        mesh=mesh,
        model=start.model,
        tokenizer=start.tokenizer,
        chat=start.chat,
        data=data,
        microbatch=microbatch_of(config, row_shards(mesh), length),
        steps=steps_of(config, len(data.train.margin)),
    )
    state = make_initial_state(config, start.params, setup.steps)
    return setup, jax.device_put(state, shardings(mesh, state))


def update_of(setup: RewardSetup, state: TrainState) -> Update:
    """Build the update on the next batch of pairs; `state` is a template of the training state."""
    optimizer = make_optimizer(setup.config, setup.steps)[0]
    step = make_pair_step(setup.model, optimizer, pair_state(state), setup.mesh)
    pairs = setup.data.train.padded(setup.tokenizer.pad_token_id)

    def make_batch(rows: list[int]) -> Pairs:
        return micro_batches(Pairs(*(array[rows] for array in pairs)), setup.microbatch)

    return make_update(setup.config, setup.mesh, step, make_batch, pairs=len(pairs.margin), steps=setup.steps)


def train_reward_model(
    config: RewardModelConfig | None = None, *, preferences: Split | None = None, resume: str | Path | None = None
) -> RewardModelResult:
    """Train a reward model on preference pairs or labeled steps, and save it for use as a reward or as a run's initial critic.

    Args:
        config: all settings. Omit it on resume.
        preferences: training pairs and held-out pairs, instead of `config.dataset`.
        resume: folder of an interrupted run to continue; its optimizer state and data order are restored.

    Returns:
        The folder, the accuracy on held-out pairs (or steps, with `process`) before and after training, and the parameters.

    Raises:
        InputError: the settings or the data are invalid; nothing was overwritten.
        Interrupted: a signal stopped the training; it can be resumed.
    """

    def make_training(config: RewardModelConfig) -> tuple[PairTraining, TrainState]:
        if not config.process:
            return _make_training(config, preferences)
        if preferences is not None:
            raise InputError(
                "`preferences` contains pairs, but process=True trains on labeled steps; pass only one of the two."
            )
        from rljax.programs.process_model_training import make_process_training  # noqa: PLC0415  only process reward models need it

        return make_process_training(config)

    outcome = train_on_pairs(RewardModelConfig, config, resume, make_training)
    return RewardModelResult(outcome.folder, outcome.before["accuracy"], outcome.after["accuracy"], outcome.params)


def _make_training(config: RewardModelConfig, preferences: Split | None) -> tuple[PairTraining, TrainState]:
    setup, state = make_reward_setup(config, preferences)
    score = make_score(setup.model, setup.mesh)
    sizes = {"steps": setup.steps, "microbatch": setup.microbatch, "devices": setup.mesh.size}
    training = PairTraining(
        phase="reward_model",
        command="reward-model",
        call=None if preferences is None else "train_reward_model(preferences=preferences, resume={})",
        header=header("Reward model", setup.config, state.params, setup.data, **sizes),
        warnings=setup.data.warnings,
        judged_count=len(setup.data.heldout.margin),
        fingerprints={"the pairs": fingerprint_of(setup.data)},
        steps=setup.steps,
        make_update=partial(update_of, setup),
        judge=lambda params: evaluate_on_pairs(score, params, setup.data.heldout),
        save=partial(_save, setup),
        closing_lines=describe_outcome,
        commands=commands,
    )
    return training, state


def describe_outcome(before: dict[str, float], after: dict[str, float], folder: Path) -> list[str]:
    """Describe the outcome in a few lines."""
    return [
        f"Held-out pairs in the right order: {before['accuracy']:.1%} before, {after['accuracy']:.1%} after.",
        f"Held-out scores: mean {after['score']:.3f}, standard deviation {after['score_deviation']:.3f}.",
        f"Reward model: {folder}",
    ]


def commands(folder: str) -> list[str]:
    """Return commands that use the reward model, as a reward and as a critic."""
    return [f"rljax train --reward model:{folder} ...", f"rljax train --algorithm vapo --critic {folder} ..."]


def _save(setup: RewardSetup, params: Params, folder: Path) -> None:
    save_reward_model(folder, RewardModel(setup.model, jax.device_get(params), setup.tokenizer, setup.chat))
