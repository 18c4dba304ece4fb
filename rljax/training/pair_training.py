"""What every training on preference pairs has: its data, its order and schedule, its loop with evaluations, and its folder."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from rljax.data.fault import describe
from rljax.data.preferences import Preference, read_preferences, split_pairs
from rljax.data.prompts import PromptStream
from rljax.data.tokenizer import Tokenizer, load_tokenizer
from rljax.errors import InputError
from rljax.evaluation.statistics import wilson_interval
from rljax.models import Params
from rljax.parallel import check_rows, put_rows
from rljax.preference.config import PairConfig
from rljax.preference.note import NOTES, folder_tokenizer
from rljax.preference.pair_update import EncodedPairs, Metrics, PairState, encode_pairs
from rljax.tracking.display import Display, make_display
from rljax.tracking.run_folder import default_run_path
from rljax.training.config import MICROBATCH_TOKENS, ModelConfig
from rljax.training.interrupt import Interrupted, StopRequest
from rljax.training.optimizer import adamw, cosine_schedule

METRICS = "metrics.jsonl"
SETTINGS = "settings.json"

Split = tuple[Sequence[Preference], Sequence[Preference]]
"""Pairs to train on, and held-out ones."""


class PairData(NamedTuple):
    """Pairs that fit, as tokens."""

    train: EncodedPairs
    heldout: EncodedPairs
    warnings: list[str]
    """What was left out of the data."""


class PairTraining(NamedTuple):
    """One kind of training on pairs, as functions."""

    phase: str
    """Name of the phase in metrics.jsonl."""
    header: list[str]
    """What is about to be trained, for the display."""
    warnings: list[str]
    """What a person should know of the data."""
    steps: int
    """Updates."""
    heldout_pairs: int
    """Pairs of an evaluation."""
    updates: Callable[[PairState], Iterator[tuple[PairState, dict[str, float]]]]
    """First state -> state and numbers of each update; the old state is consumed."""
    judge: Callable[[Params], dict[str, float]]
    """Parameters -> numbers of the held-out pairs, among them accuracy and loss."""
    save: Callable[[Params, Path], None]
    """(parameters, folder) -> None; writes the model."""
    closing: Callable[[dict[str, float], dict[str, float], Path], list[str]]
    """(numbers before, numbers after, folder) -> the last lines."""


class PairOutcome(NamedTuple):
    """The outcome of a training on pairs."""

    folder: Path
    before: dict[str, float]
    """Numbers of the held-out pairs before training."""
    after: dict[str, float]
    params: Params


def make_pairs(config: PairConfig) -> tuple[list[Preference], list[Preference], list[str]]:
    """Read the pairs to train on and the held-out ones, which share no prompt, and say which rows were left out."""
    how = {
        "prompt_column": config.prompt_column,
        "chosen_column": config.chosen_column,
        "rejected_column": config.rejected_column,
        "on_error": config.on_error,
    }
    loaded = read_preferences(config.dataset, **how)
    warnings = [describe(loaded.faults)] if loaded.faults else []
    if config.heldout_dataset is None:
        return *split_pairs(loaded.preferences, config.heldout_pairs, seed=config.seed), warnings
    apart = read_preferences(config.heldout_dataset, split="test", **how)
    heldout = apart.preferences[: config.heldout_pairs]
    heldout_prompts = {pair.prompt for pair in heldout if pair.prompt}
    train = [pair for pair in loaded.preferences if pair.prompt not in heldout_prompts]
    if not train:
        raise InputError(
            f"Every prompt of {config.dataset!r} is in {config.heldout_dataset!r} too; nothing is left to train on."
        )
    return train, heldout, warnings + ([describe(apart.faults)] if apart.faults else [])


def encode_split(
    config: PairConfig, tokenizer: Tokenizer, *, chat: bool, pairs: Split, warnings: Sequence[str]
) -> PairData:
    """Turn pairs into tokens, and say how many are too long.

    Raises:
        InputError: no pair fits, or text that the tokenizer cannot write.
    """
    train, heldout = (encode_pairs(part, tokenizer, max_tokens=config.max_tokens, chat=chat) for part in pairs)
    dropped = [
        f"{part.dropped} {name}pairs have a side of more than {config.max_tokens} tokens."
        for name, part in (("", train), ("held-out ", heldout))
        if part.dropped
    ]
    return PairData(train, heldout, [*warnings, *dropped])


def check_sizes(config: PairConfig, mesh: Mesh) -> None:
    """Refuse numbers of pairs that the devices cannot share.

    Raises:
        InputError: names the setting.
    """
    check_rows(mesh, batch=config.batch)
    if config.microbatch_pairs is not None:
        check_rows(mesh, microbatch_pairs=config.microbatch_pairs)


def make_tokenizer(config: PairConfig, folder: Path | None) -> Tokenizer:
    """Load the tokenizer that was asked for, the one that the model's folder names or holds, or bytes without a model."""
    if config.tokenizer is not None:
        return load_tokenizer(config.tokenizer)
    return load_tokenizer("bytes") if folder is None else folder_tokenizer(folder)


def model_config(config: PairConfig) -> ModelConfig:
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


def microbatch_of(config: PairConfig, devices: int, length: int) -> int:
    """Pairs whose activations are held at once: a divisor of the batch that the devices can share."""
    if config.microbatch_pairs is not None:
        return config.microbatch_pairs
    shared = [n for n in range(devices, config.batch + 1, devices) if config.batch % n == 0]
    return max((n for n in shared if 2 * n * length <= MICROBATCH_TOKENS), default=min(shared))


def steps_of(config: PairConfig, count: int) -> int:
    """Updates of a training on `count` pairs."""
    return -(-count * config.epochs // config.batch) if config.steps is None else config.steps


def make_optimizer(config: PairConfig, steps: int) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """The optimiser of a training and its learning rate."""
    schedule = cosine_schedule(config.learning_rate, config.learning_rate_warmup, steps)
    optimizer = adamw(
        schedule,
        b1=config.adam_b1,
        b2=config.adam_b2,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
    )
    return optimizer, schedule


def make_updates(
    config: PairConfig,
    mesh: Mesh,
    step: Callable[[PairState, PyTree], tuple[PairState, Metrics]],
    state: PairState,
    laid_out: Callable[[list[int]], PyTree],
    *,
    pairs: int,
    steps: int,
) -> Iterator[tuple[PairState, dict[str, float]]]:
    """Make the updates of a training one by one; each gives the new state and its numbers. The old state is consumed.

    Args:
        config: the settings.
        mesh: the devices.
        step: one update.
        state: the first state.
        laid_out: indices of a batch's pairs -> what `step` reads, `[micro-batches, rows, ...]`.
        pairs: how many there are.
        steps: updates.
    """
    schedule = make_optimizer(config, steps)[1]
    order = PromptStream(range(pairs), seed=config.seed)
    for done in range(steps):
        begun = time.monotonic()
        part = laid_out(order.indices(done * config.batch, config.batch))
        state, metrics = step(state, put_rows(mesh, part, leading=1))
        numbers = {name: float(value) for name, value in metrics.items()}
        yield state, numbers | {"learning_rate": float(np.asarray(schedule(done))), "seconds": time.monotonic() - begun}


def train_on_pairs(config: PairConfig, training: PairTraining, first: PairState) -> PairOutcome:
    """Train, evaluate and write the model, in a folder of its own.

    Raises:
        InputError: the folder holds a model already, or cannot be made.
        Interrupted: Ctrl-C; the model as it was then is in the folder.
    """
    folder = make_folder(config)
    with make_display(config.quiet, sys.stdout) as display, StopRequest() as stop:
        display.header([*training.header, f"Folder: {folder}"])
        for warning in training.warnings:
            display.warning(warning)
        before = _evaluate(training, first.params, 0, folder, display)
        display.phase(training.phase.replace("_", " "), training.steps)
        state = first
        for done, (state, numbers) in enumerate(training.updates(first), start=1):
            write_row(folder, training.phase, done, numbers)
            display.update(done, numbers)
            if stop.requested:
                training.save(state.params, folder)
                display.warning(f"Stopped. The model as it is now is in {folder}; go on from it with --model {folder}.")
                raise Interrupted
            if config.eval_every and done % config.eval_every == 0 and done < training.steps:
                _evaluate(training, state.params, done, folder, display)
        after = _evaluate(training, state.params, training.steps, folder, display)
        training.save(state.params, folder)
        display.finish(training.closing(before, after, folder))
    return PairOutcome(folder, before, after, state.params)


def sizes_line(config: PairConfig, data: PairData, *, steps: int, microbatch: int, devices: int) -> str:
    """Say how much is about to be trained on."""
    return (
        f"{len(data.train.margin):,} pairs to learn from, {len(data.heldout.margin):,} held out; {steps} updates of "
        f"{config.batch} pairs, {microbatch} at a time on {devices} device{'s' * (devices > 1)}"
    )


def make_folder(config: PairConfig) -> Path:
    """Make the folder of a training, with its settings.

    Raises:
        InputError: it holds a model or a run already, or cannot be made.
    """
    folder = default_run_path(config.name, datetime.now()) if config.output is None else Path(config.output).expanduser()
    held = [name for name in ("config.json", METRICS, SETTINGS, *NOTES) if (folder / name).exists()]
    if held:
        raise InputError(f"{str(folder)!r} already holds {', '.join(held)}; choose another folder with --output.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SETTINGS).write_text(json.dumps(config.to_json(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"The folder {str(folder)!r} cannot be made ({error}); choose another with --output.") from error
    return folder


def write_row(folder: Path, phase: str, step: int, numbers: Mapping[str, float]) -> None:
    """Append one row to metrics.jsonl; a number that is not finite is null."""
    row = {"phase": phase, "step": step} | {name: value if np.isfinite(value) else None for name, value in numbers.items()}
    with (folder / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _evaluate(training: PairTraining, params: Params, step: int, folder: Path, display: Display) -> dict[str, float]:
    """Judge the held-out pairs; keep and show what came of it."""
    numbers, count = training.judge(params), training.heldout_pairs
    low, high = wilson_interval(round(numbers["accuracy"] * count), count)
    write_row(folder, "eval", step, numbers)
    display.message(
        f"Step {step}: {numbers['accuracy']:.1%} of {count} held-out pairs in the right order (95 % interval {low:.1%} to "
        f"{high:.1%}), loss {numbers['loss']:.4f}."
    )
    return numbers
