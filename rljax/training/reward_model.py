"""Training of a reward model: the Bradley-Terry loss on the scores of pairs of responses."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from rljax.data.fault import describe
from rljax.data.preferences import Preference, read_preferences, split_pairs
from rljax.data.prompts import PromptStream
from rljax.data.tokenizer import Tokenizer, load_tokenizer
from rljax.errors import InputError
from rljax.evaluation.statistics import wilson_interval
from rljax.models import Model, Params, count_parameters, init_params
from rljax.models.huggingface import load_params, load_tensor, locate
from rljax.models.value_model import HEAD, ValueModel, init_value_params, value_model
from rljax.parallel import check_rows, make_mesh, micro_batches, put_rows, shardings
from rljax.preference.config import RewardModelConfig
from rljax.preference.pair_update import EncodedPairs, Pairs, RewardState, encode_pairs, judge_pairs, make_pair_step
from rljax.preference.reward_model import (
    NOTE,
    RewardModel,
    folder_tokenizer,
    load_reward_model,
    make_score,
    save_reward_model,
)
from rljax.records import documented
from rljax.tracking.display import Display, make_display
from rljax.tracking.run_folder import default_run_path
from rljax.training.config import MICROBATCH_TOKENS, ModelConfig
from rljax.training.interrupt import Interrupted, StopRequest
from rljax.training.optimizer import adamw, cosine_schedule
from rljax.training.setup import make_shape

METRICS = "metrics.jsonl"
SETTINGS = "settings.json"


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
    train: EncodedPairs
    """Pairs to train on."""
    heldout: EncodedPairs
    """Pairs to evaluate on."""
    microbatch: int
    """Pairs whose activations are held at once."""
    steps: int
    """Number of optimiser updates."""
    warnings: list[str]
    """Descriptions of the data that was left out."""


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


def make_pairs(config: RewardModelConfig) -> tuple[list[Preference], list[Preference], list[str]]:
    """Read the training pairs and the held-out pairs, which share no prompt, and describe the rows that were left out."""
    options = {
        "prompt_column": config.prompt_column,
        "chosen_column": config.chosen_column,
        "rejected_column": config.rejected_column,
        "on_error": config.on_error,
    }
    loaded = read_preferences(config.dataset, **options)
    warnings = [describe(loaded.faults)] if loaded.faults else []
    if config.heldout_dataset is None:
        return *split_pairs(loaded.preferences, config.heldout_pairs, seed=config.seed), warnings
    separate = read_preferences(config.heldout_dataset, split="test", **options)
    heldout = separate.preferences[: config.heldout_pairs]
    heldout_prompts = {pair.prompt for pair in heldout if pair.prompt}
    train = [pair for pair in loaded.preferences if pair.prompt not in heldout_prompts]
    if not train:
        raise InputError(
            f"Every prompt of {config.dataset!r} is in {config.heldout_dataset!r} too; nothing is left to train on."
        )
    return train, heldout, warnings + ([describe(separate.faults)] if separate.faults else [])


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


def make_tokenizer(config: RewardModelConfig, folder: Path | None) -> Tokenizer:
    """Load the tokenizer of the settings, else the one that the model's folder names or holds; bytes without a model."""
    if config.tokenizer is not None:
        return load_tokenizer(config.tokenizer)
    return load_tokenizer("bytes") if folder is None else folder_tokenizer(folder)


def model_config(config: RewardModelConfig) -> ModelConfig:
    """The settings of the model alone."""
    return ModelConfig(
        path=config.model,
        dtype=config.dtype,
        remat=config.remat,
        layers=config.layers,
        width=config.width,
        heads=config.heads,
        kv_heads=config.kv_heads,
        hidden=config.hidden,
    )


def microbatch_of(config: RewardModelConfig, devices: int, length: int) -> int:
    """Pairs whose activations are held at once: a divisor of the batch that the devices can share."""
    if config.microbatch_pairs is not None:
        return config.microbatch_pairs
    shared = [n for n in range(devices, config.batch + 1, devices) if config.batch % n == 0]
    return max((n for n in shared if 2 * n * length <= MICROBATCH_TOKENS), default=min(shared))


def make_reward_setup(
    config: RewardModelConfig, preferences: tuple[Sequence[Preference], Sequence[Preference]] | None = None
) -> tuple[RewardSetup, RewardState]:
    """Build everything that the training uses, and its initial state on the mesh.

    Args:
        config: the settings.
        preferences: pairs to train on and held-out ones, in place of `config.dataset`.

    Raises:
        InputError: settings or data cannot work; the message says what to change.
    """
    mesh = make_mesh(config.replicas, config.fsdp)
    check_rows(mesh, batch=config.batch)
    if config.microbatch_pairs is not None:
        check_rows(mesh, microbatch_pairs=config.microbatch_pairs)
    train, heldout, warnings = make_pairs(config) if preferences is None else (*preferences, [])
    start = make_reward_model(config)
    limit = {"max_tokens": config.max_tokens, "chat": start.chat}
    encoded = [encode_pairs(pairs, start.tokenizer, **limit) for pairs in (train, heldout)]
    for name, pairs in zip(("", "held-out "), encoded, strict=True):
        if pairs.dropped:
            warnings = [*warnings, f"{pairs.dropped} {name}pairs have a side of more than {config.max_tokens} tokens."]
    count, length = len(encoded[0].margin), max(map(len, encoded[0].chosen + encoded[0].rejected))
    steps = -(-count * config.epochs // config.batch) if config.steps is None else config.steps
    setup = RewardSetup(
        config=config,
        mesh=mesh,
        model=start.model,
        tokenizer=start.tokenizer,
        chat=start.chat,
        train=encoded[0],
        heldout=encoded[1],
        microbatch=microbatch_of(config, mesh.size, length),
        steps=steps,
        warnings=warnings,
    )
    state = RewardState(start.params, optimizer_of(setup)[0].init(start.params))
    return setup, jax.device_put(state, shardings(mesh, state))


def optimizer_of(setup: RewardSetup) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """The optimiser and its learning rate schedule."""
    config = setup.config
    schedule = cosine_schedule(config.learning_rate, config.learning_rate_warmup, setup.steps)
    optimizer = adamw(
        schedule,
        b1=config.adam_b1,
        b2=config.adam_b2,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
    )
    return optimizer, schedule


def updates(setup: RewardSetup, state: RewardState) -> Iterator[tuple[RewardState, dict[str, float]]]:
    """Make the updates one by one; yield the new state and the metrics of each. The buffers of the old state are donated."""
    optimizer, schedule = optimizer_of(setup)
    step = make_pair_step(setup.model, optimizer, state, setup.mesh)
    pairs = setup.train.padded(setup.tokenizer.pad_token_id)
    order = PromptStream(range(len(pairs.margin)), seed=setup.config.seed)
    batch = setup.config.batch
    for done in range(setup.steps):
        start = time.monotonic()
        rows = order.indices(done * batch, batch)
        part = micro_batches(Pairs(*(array[rows] for array in pairs)), setup.microbatch)
        state, metrics = step(state, put_rows(setup.mesh, part, leading=1))
        numbers = {name: float(value) for name, value in metrics.items()}
        yield state, numbers | {"learning_rate": float(np.asarray(schedule(done))), "seconds": time.monotonic() - start}


def train_reward_model(
    config: RewardModelConfig, *, preferences: tuple[Sequence[Preference], Sequence[Preference]] | None = None
) -> RewardModelResult:
    """Train a reward model on preference pairs, and write it to a folder that a reward or a critic can be loaded from.

    Args:
        config: all settings.
        preferences: pairs to train on and held-out ones, in place of `config.dataset`.

    Returns:
        The folder, the accuracy on held-out pairs before and after, and the parameters.

    Raises:
        InputError: something in the settings or the data cannot work; nothing was overwritten.
        Interrupted: Ctrl-C or SIGTERM; the folder holds the model as it was at that time.
    """
    setup, first = make_reward_setup(config, preferences)
    folder = make_folder(config)
    with make_display(config.quiet, sys.stdout) as display, StopRequest() as stop:
        display.header(header(setup, first.params, folder))
        for warning in setup.warnings:
            display.warning(warning)
        score = make_score(setup.model, setup.mesh)
        before = _evaluate(setup, score, first.params, 0, folder, display)
        display.phase("reward model", setup.steps)
        state = first
        for done, (state, numbers) in enumerate(updates(setup, first), start=1):
            write_row(folder, "reward_model", done, numbers)
            display.update(done, numbers)
            if stop.requested:
                _save(setup, state.params, folder)
                display.warning(f"Stopped. The model as it is now is in {folder}; continue from it with --model {folder}.")
                raise Interrupted
            if config.eval_every and done % config.eval_every == 0 and done < setup.steps:
                _evaluate(setup, score, state.params, done, folder, display)
        after = _evaluate(setup, score, state.params, setup.steps, folder, display)
        _save(setup, state.params, folder)
        display.finish(
            [
                f"Held-out pairs in the right order: {before['accuracy']:.1%} before, {after['accuracy']:.1%} after.",
                f"Held-out scores: mean {after['score']:.3f}, deviation {after['score_deviation']:.3f}.",
                f"Reward model: {folder} (as a reward: --reward model:{folder}, as a critic: --critic {folder})",
            ]
        )
    return RewardModelResult(folder, before["accuracy"], after["accuracy"], state.params)


def make_folder(config: RewardModelConfig) -> Path:
    """Make the folder of the reward model, and write the settings into it.

    Raises:
        InputError: the folder already holds a model or a run, or cannot be made.
    """
    folder = default_run_path(config.name, datetime.now()) if config.output is None else Path(config.output).expanduser()
    existing = [name for name in ("config.json", METRICS, SETTINGS, NOTE) if (folder / name).exists()]
    if existing:
        raise InputError(f"{str(folder)!r} already holds {', '.join(existing)}; choose another folder with --output.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SETTINGS).write_text(json.dumps(config.to_json(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"The folder {str(folder)!r} cannot be made ({error}); choose another with --output.") from error
    return folder


def header(setup: RewardSetup, params: Params, folder: Path) -> list[str]:
    """Describe the training in a few lines."""
    config = setup.config
    return [
        f"Reward model from {'random weights' if config.model is None else config.model}, "
        f"{count_parameters(params):,} parameters",
        f"{len(setup.train.margin):,} training pairs, {len(setup.heldout.margin):,} held out; {setup.steps} updates of "
        f"{config.batch} pairs, {setup.microbatch} at a time on {setup.mesh.size} device{'s' * (setup.mesh.size > 1)}",
        f"Folder: {folder}",
    ]


def write_row(folder: Path, phase: str, step: int, numbers: Mapping[str, float]) -> None:
    """Append one row to metrics.jsonl; a number that is not finite is null."""
    row = {"phase": phase, "step": step} | {name: value if np.isfinite(value) else None for name, value in numbers.items()}
    with (folder / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _evaluate(
    setup: RewardSetup, score: Callable, params: Params, step: int, folder: Path, display: Display
) -> dict[str, float]:
    """Evaluate on the held-out pairs; log and show the metrics."""
    numbers = judge_pairs(score, params, setup.heldout)
    count = len(setup.heldout.margin)
    low, high = wilson_interval(round(numbers["accuracy"] * count), count)
    write_row(folder, "eval", step, numbers)
    display.message(
        f"Step {step}: {numbers['accuracy']:.1%} of {count} held-out pairs in the right order (95 % interval {low:.1%} to "
        f"{high:.1%}), loss {numbers['loss']:.4f}."
    )
    return numbers


def _save(setup: RewardSetup, params: Params, folder: Path) -> None:
    save_reward_model(folder, RewardModel(setup.model, jax.device_get(params), setup.tokenizer, setup.chat))
