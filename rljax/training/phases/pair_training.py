"""Training on preference pairs, of whatever kind: data, order, schedule, the loop with its evaluations, and the folder."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
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
from rljax.preference.metrics import PairUpdateMetrics
from rljax.preference.note import NOTES, folder_tokenizer
from rljax.preference.pair_update import EncodedPairs, PairState, encode_pairs
from rljax.records import documented
from rljax.tracking.compiling import watch_compilation
from rljax.tracking.display import Display, make_display
from rljax.tracking.display_text import IN_ORDER
from rljax.tracking.run_folder import default_run_path
from rljax.training.config import MICROBATCH_TOKENS, ModelConfig
from rljax.training.interrupt import Interrupted, StopRequest
from rljax.training.metrics import present
from rljax.training.monitoring.guard import MOST_SKIPPED, is_sound, skip_count, skipped_in_a_row, where_sound
from rljax.training.objective.optimizer import adamw, cosine_schedule

METRICS = "metrics.jsonl"
SETTINGS = "settings.json"

Split = tuple[Sequence[Preference], Sequence[Preference]]
"""Pairs to train on, and held-out ones."""


@documented
class PairData(NamedTuple):
    """Pairs within the token limit, as tokens."""

    train: EncodedPairs
    """Pairs to train on."""
    heldout: EncodedPairs
    """Pairs to evaluate on."""
    warnings: list[str]
    """Descriptions of the data that was left out."""


@documented
class PairTraining(NamedTuple):
    """One kind of training on pairs, as functions."""

    phase: str
    """Name of the phase in metrics.jsonl."""
    header: list[str]
    """Description of the training, for the display."""
    warnings: list[str]
    """Descriptions of the data that was left out."""
    steps: int
    """Number of updates."""
    heldout_pairs: int
    """Number of held-out pairs."""
    updates: Callable[[PairState], Iterator[tuple[PairState, dict[str, float]]]]
    """Initial state -> the new state and the metrics of each update; the buffers of the old state are donated."""
    judge: Callable[[Params], dict[str, float]]
    """Parameters -> metrics of the held-out pairs, among them accuracy and loss."""
    save: Callable[[Params, Path], None]
    """(parameters, folder) -> None; writes the model."""
    outcome: Callable[[dict[str, float], dict[str, float], Path], list[str]]
    """(metrics before, metrics after, folder) -> the last lines of the display."""
    commands: Callable[[str], list[str]]
    """Folder, quoted for a shell -> commands that use the model."""


@documented
class PairOutcome(NamedTuple):
    """The outcome of a training on pairs."""

    folder: Path
    """Folder of the model."""
    before: dict[str, float]
    """Metrics of the held-out pairs before training."""
    after: dict[str, float]
    """The same metrics after training."""
    params: Params
    """Parameters of the model."""


def make_pairs(config: PairConfig) -> tuple[list[Preference], list[Preference], list[str]]:
    """Read the pairs to train on and the held-out ones, which share no prompt, and describe the rows that were left out."""
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


def encode_split(
    config: PairConfig, tokenizer: Tokenizer, *, chat: bool, pairs: Split, warnings: Sequence[str]
) -> PairData:
    """Encode pairs as tokens, and describe how many are too long.

    Raises:
        InputError: no pair is within the token limit, or the tokenizer cannot encode a text.
    """
    train, heldout = (encode_pairs(part, tokenizer, max_tokens=config.max_tokens, chat=chat) for part in pairs)
    dropped = [
        f"{part.dropped} {name}pairs have a side of more than {config.max_tokens} tokens."
        for name, part in (("", train), ("held-out ", heldout))
        if part.dropped
    ]
    return PairData(train, heldout, [*warnings, *dropped])


def check_sizes(config: PairConfig, mesh: Mesh) -> None:
    """Refuse numbers of pairs that cannot be divided among the devices.

    Raises:
        InputError: names the setting.
    """
    check_rows(mesh, batch=config.batch)
    if config.microbatch_pairs is not None:
        check_rows(mesh, microbatch_pairs=config.microbatch_pairs)


def make_tokenizer(config: PairConfig, folder: Path | None) -> Tokenizer:
    """Load the tokenizer of the settings, else the one that the model's folder names or holds; bytes without a model."""
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
    step: Callable[[PairState, PyTree], tuple[PairState, PairUpdateMetrics]],
    state: PairState,
    pad_rows: Callable[[list[int]], PyTree],
    *,
    pairs: int,
    steps: int,
) -> Iterator[tuple[PairState, dict[str, float]]]:
    """Make the updates one by one; yield the new state and the metrics of each. The buffers of the old state are donated.

    Args:
        config: the settings.
        mesh: the devices.
        step: one update.
        state: the first state.
        pad_rows: indices of a batch's pairs -> what `step` reads, `[micro-batches, rows, ...]`.
        pairs: how many there are.
        steps: updates.
    """
    schedule, step = make_optimizer(config, steps)[1], with_guard(step)
    order = PromptStream(range(pairs), seed=config.seed)
    for done in range(steps):
        start = time.monotonic()
        part = pad_rows(order.indices(done * config.batch, config.batch))
        state, metrics = step(state, put_rows(mesh, part, leading=1))
        yield (
            state,
            present(metrics) | {"learning_rate": float(np.asarray(schedule(done))), "seconds": time.monotonic() - start},
        )


def with_guard(
    step: Callable[[PairState, PyTree], tuple[PairState, PairUpdateMetrics]],
) -> Callable[[PairState, PyTree], tuple[PairState, PairUpdateMetrics]]:
    """Compile an update that leaves the state as it was where it is not sound, and counts that as `skipped_updates`."""

    @partial(jax.jit, donate_argnums=0)
    def guarded_step(state: PairState, part: PyTree) -> tuple[PairState, PairUpdateMetrics]:
        after, metrics = step(state, part)
        updates = jax.tree.map(jnp.subtract, after.params, state.params)
        sound = is_sound(metrics.pairs.loss, metrics.grad_norm, updates, state.params)
        return where_sound(sound, after, state), metrics._replace(skipped_updates=skip_count(sound))

    return guarded_step


@contextmanager
def open_display(config: PairConfig) -> Generator[Display]:
    """Make the display of a training, which first shows that the model and the pairs are loaded."""
    with make_display(config.quiet, sys.stdout) as display, watch_compilation(display.compiling):
        display.measuring(IN_ORDER)
        display.activity("loading the model and the pairs")
        yield display


def train_on_pairs(config: PairConfig, training: PairTraining, first: PairState, display: Display) -> PairOutcome:
    """Train, evaluate and write the model, in a folder of its own.

    Raises:
        InputError: the folder already holds a model or a run, or cannot be made; or too many updates in a row were not sound, and
            the folder holds the model as it was before them.
        Interrupted: Ctrl-C or SIGTERM; the folder holds the model as it was at that time.
    """
    folder, unsound = make_folder(config), 0
    with StopRequest(display.stopping) as stop:
        display.header([*training.header, f"Folder: {folder}"])
        for warning in training.warnings:
            display.warning(warning)
        before = _evaluate(training, first.params, 0, folder, display)
        display.phase(training.phase, training.steps)
        display.activity("learning", compiles=True)
        state = first
        for done, (state, numbers) in enumerate(training.updates(first), start=1):
            write_row(folder, training.phase, done, numbers)
            display.update(done, numbers)
            unsound = skipped_in_a_row(unsound, numbers["skipped_updates"])
            if unsound >= MOST_SKIPPED:
                training.save(state.params, folder)
                raise InputError(unsound_pairs_text(unsound, folder))
            if stop.requested:
                training.save(state.params, folder)
                display.finish([f"Stopped after step {done} of {training.steps}. The model as it is now is in {folder}."])
                another = f"--model {shlex.quote(str(folder))} --output ANOTHER_FOLDER"
                display.commands("To go on from it, the same command with:", [another])
                raise Interrupted
            if config.eval_every and done % config.eval_every == 0 and done < training.steps:
                _evaluate(training, state.params, done, folder, display)
                display.activity("learning", compiles=True)
        after = _evaluate(training, state.params, training.steps, folder, display)
        training.save(state.params, folder)
        display.finish(training.outcome(before, after, folder))
        display.commands("What to type next:", training.commands(shlex.quote(str(folder))))
    return PairOutcome(folder, before, after, state.params)


def unsound_pairs_text(count: int, folder: Path) -> str:
    """Why a training on pairs stops that could not make a sound update, and what to do."""
    return (
        f"Loss or gradient was not finite, or the update far too large, in {count} updates in a row, so nothing was learned from "
        f"them. The model before them is in {folder}: start again with a lower --learning-rate, from it or from the first model."
    )


def sizes_line(config: PairConfig, data: PairData, *, steps: int, microbatch: int, devices: int) -> str:
    """Describe the amount of data and of training."""
    return (
        f"{len(data.train.margin):,} training pairs, {len(data.heldout.margin):,} held out; {steps} updates of "
        f"{config.batch} pairs, {microbatch} at a time on {devices} device{'s' * (devices > 1)}"
    )


def make_folder(config: PairConfig) -> Path:
    """Make the folder of the model, and write the settings into it.

    Raises:
        InputError: the folder already holds a model or a run, or cannot be made.
    """
    folder = default_run_path(config.name, datetime.now()) if config.output is None else Path(config.output).expanduser()
    existing = [name for name in ("config.json", METRICS, SETTINGS, *NOTES) if (folder / name).exists()]
    if existing:
        raise InputError(f"{str(folder)!r} already holds {', '.join(existing)}; choose another folder with --output.")
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
    """Evaluate on the held-out pairs; log and show the metrics."""
    display.activity("judging held-out pairs", compiles=True)
    numbers, count = training.judge(params), training.heldout_pairs
    low, high = wilson_interval(round(numbers["accuracy"] * count), count)
    write_row(folder, "eval", step, numbers)
    detail = f" of {count} (95 % interval {low:.1%} to {high:.1%}), loss {numbers['loss']:.4f}"
    display.evaluated(step, numbers, detail=detail)
    return numbers
