"""Training of a reward model: the Bradley-Terry loss on the scores of pairs of responses."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.models import Model, Params, count_parameters, init_params
from rljax.models.huggingface import load_params, load_tensor, locate
from rljax.models.value_model import HEAD, ValueModel, init_value_params, value_model
from rljax.parallel import make_mesh, micro_batches, row_shards, shardings
from rljax.preference.config import RewardModelConfig
from rljax.preference.pair_update import Pairs, PairState, judge_pairs, make_pair_step
from rljax.preference.reward_model import RewardModel, load_reward_model, make_score, save_reward_model
from rljax.records import documented
from rljax.training.parts.policy import make_shape
from rljax.training.phases.pair_training import (
    PairData,
    PairTraining,
    Split,
    check_sizes,
    encode_split,
    make_optimizer,
    make_pairs,
    make_tokenizer,
    make_updates,
    microbatch_of,
    model_config,
    open_display,
    sizes_line,
    steps_of,
    train_on_pairs,
)


@documented
class RewardSetup(NamedTuple):
    """Everything that the training of a reward model uses; nothing here changes while it runs."""

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
    """Pairs whose activations are held at once."""
    steps: int
    """Number of optimiser updates."""


@documented
class RewardModelResult(NamedTuple):
    """The outcome of the training of a reward model."""

    folder: Path
    """Folder of the reward model."""
    accuracy_before: float
    """Share of the held-out pairs whose preferred response has the higher score, before training."""
    accuracy_after: float
    """The same share after training."""
    params: Params
    """Parameters of the reward model."""


def make_reward_model(config: RewardModelConfig) -> RewardModel:
    """Load a reward model, put a new head on a language model, or initialise a small transformer."""
    folder = None if config.model is None else locate(config.model)
    tokenizer = make_tokenizer(config, folder)
    if folder is not None and load_tensor(folder, HEAD) is not None:
        return load_reward_model(folder, tokenizer=tokenizer, chat=config.chat, dtype=config.dtype, remat=config.remat)
    shape = make_shape(model_config(config), tokenizer.vocab_size)
    if tokenizer.vocab_size > shape.vocab_size:
        raise InputError(
            f"The tokenizer has {tokenizer.vocab_size} tokens and the model {config.model!r} only {shape.vocab_size}; "
            "give the tokenizer that belongs to the model."
        )
    key = jax.random.key(config.seed)
    trunk = init_params(shape, key) if folder is None else load_params(folder, shape)
    model = value_model(Model(shape), 1)
    return RewardModel(model, init_value_params(model, jax.random.fold_in(key, 1), trunk), tokenizer, config.chat)


def make_reward_setup(config: RewardModelConfig, preferences: Split | None = None) -> tuple[RewardSetup, PairState]:
    """Build everything that the training uses, and its initial state on the mesh.

    Args:
        config: the settings.
        preferences: pairs to train on and held-out ones, in place of `config.dataset`.

    Raises:
        InputError: settings or data cannot work; the message says what to change.
    """
    mesh = make_mesh(config.replicas, config.fsdp, config.tensor)
    check_sizes(config, mesh)
    train, heldout, warnings = make_pairs(config) if preferences is None else (*preferences, [])
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
    state = PairState(start.params, make_optimizer(config, setup.steps)[0].init(start.params))
    return setup, jax.device_put(state, shardings(mesh, state))


def updates(setup: RewardSetup, state: PairState) -> Iterator[tuple[PairState, dict[str, float]]]:
    """Make the updates one by one; yield the new state and the metrics of each. The buffers of the old state are donated."""
    optimizer = make_optimizer(setup.config, setup.steps)[0]
    step = make_pair_step(setup.model, optimizer, state, setup.mesh)
    pairs = setup.data.train.padded(setup.tokenizer.pad_token_id)

    def pad_rows(rows: list[int]) -> Pairs:
        return micro_batches(Pairs(*(array[rows] for array in pairs)), setup.microbatch)

    count = len(pairs.margin)
    yield from make_updates(setup.config, setup.mesh, step, state, pad_rows, pairs=count, steps=setup.steps)


def train_reward_model(config: RewardModelConfig, *, preferences: Split | None = None) -> RewardModelResult:
    """Train a reward model on preference pairs, and write it as a folder that rewards and critics start from.

    Args:
        config: all settings.
        preferences: pairs to train on and held-out ones, in place of `config.dataset`.

    Returns:
        The folder, the accuracy on held-out pairs before and after, and the parameters.

    Raises:
        InputError: something in the settings or the data cannot work; nothing was overwritten.
        Interrupted: Ctrl-C or SIGTERM; the folder holds the model as it was at that time.
    """
    with open_display(config) as display:
        setup, first = make_reward_setup(config, preferences)
        score = make_score(setup.model, setup.mesh)
        training = PairTraining(
            phase="reward_model",
            header=header(setup, first.params),
            warnings=setup.data.warnings,
            steps=setup.steps,
            heldout_pairs=len(setup.data.heldout.margin),
            updates=lambda state: updates(setup, state),
            judge=lambda params: judge_pairs(score, params, setup.data.heldout),
            save=lambda params, folder: _save(setup, params, folder),
            outcome=describe_outcome,
            commands=commands,
        )
        outcome = train_on_pairs(config, training, first, display)
        return RewardModelResult(outcome.folder, outcome.before["accuracy"], outcome.after["accuracy"], outcome.params)


def header(setup: RewardSetup, params: Params) -> list[str]:
    """Say what is about to be trained."""
    config, sizes = setup.config, {"steps": setup.steps, "microbatch": setup.microbatch}
    return [
        f"Reward model from {'random weights' if config.model is None else config.model}, "
        f"{count_parameters(params):,} parameters",
        sizes_line(config, setup.data, **sizes, devices=setup.mesh.size),
    ]


def describe_outcome(before: dict[str, float], after: dict[str, float], folder: Path) -> list[str]:
    """Describe the outcome in a few lines."""
    return [
        f"Held-out pairs in the right order: {before['accuracy']:.1%} before, {after['accuracy']:.1%} after.",
        f"Held-out scores: mean {after['score']:.3f}, deviation {after['score_deviation']:.3f}.",
        f"Reward model: {folder}",
    ]


def commands(folder: str) -> list[str]:
    """Commands that use the reward model, as a reward and as a critic."""
    return [f"rljax train --reward model:{folder} ...", f"rljax train --algorithm vapo --critic {folder} ..."]


def _save(setup: RewardSetup, params: Params, folder: Path) -> None:
    save_reward_model(folder, RewardModel(setup.model, jax.device_get(params), setup.tokenizer, setup.chat))
