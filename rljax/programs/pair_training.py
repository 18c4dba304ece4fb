"""Code shared by all kinds of training on preference pairs: data, order, schedule, loop, evaluations and output folder."""

import hashlib
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from rljax.data.bad_rows import Fault, describe_faults
from rljax.data.history import no_history
from rljax.data.preferences import Example, Preference, read_preferences, split_pairs
from rljax.data.prompts import PromptStream, list_prompt_omissions
from rljax.data.tokenizer import Tokenizer, load_tokenizer
from rljax.data.tokenizer_note import NOTES, folder_tokenizer
from rljax.errors import InputError
from rljax.evaluation.statistics import wilson_interval
from rljax.files import absolute_paths
from rljax.models import Params, count_parameters
from rljax.parallel import abstract_arrays, check_rows, put_rows
from rljax.preference.config import PairConfig
from rljax.preference.metrics import PairUpdateMetrics
from rljax.preference.pair_update import EncodedPairs, PairState, encode_pairs, problem_from_prompt
from rljax.settings.shared_groups import NetworkConfig, unused_sizes
from rljax.text import counted
from rljax.tracking.display import Display, ScreenStream, make_display
from rljax.tracking.display_text import IN_ORDER
from rljax.tracking.phase_times import watch_compilation
from rljax.tracking.rows import metrics_at_start, metrics_of, read_metrics
from rljax.tracking.run_folder import RunFolder, default_run_path
from rljax.tracking.trackers import JsonlTracker, Trackers
from rljax.training.checkpoints.checkpoint import LAST, Checkpoint
from rljax.training.checkpoints.manifest import Retention, fault_of
from rljax.training.config import MICROBATCH_TOKENS, ModelConfig
from rljax.training.metrics import present
from rljax.training.objective.optimizer import adamw, cosine_schedule
from rljax.training.phase import (
    Phase,
    RunResources,
    RunStep,
    StepOutcome,
    lock_folder,
    open_resources,
    reopen,
    run_phase,
)
from rljax.training.state import RL, TrainState, create

METRICS = "metrics.jsonl"
SETTINGS, CHECKPOINTS = "settings.json", "checkpoints"
FINGERPRINTS = "fingerprints"
"""Entry of settings.json with the hashes of the training's inputs."""
CHANGEABLE_ON_RESUME = (
    "quiet",
    "eval_every",
    "checkpoint_every",
    "microbatch_pairs",
    "remat",
    "replicas",
    "fsdp",
    "tensor",
    "context",
)
"""Settings that may change when training is resumed."""
Settings = TypeVar("Settings", bound=PairConfig)

Split = tuple[Sequence[Preference], Sequence[Preference]]
"""Pairs to train on, and held-out pairs."""


class PairData(NamedTuple):
    """Encoded pairs that are within the token limit."""

    train: EncodedPairs
    """Pairs to train on."""
    heldout: EncodedPairs
    """Pairs to evaluate on."""
    warnings: list[str]
    """Descriptions of the data that was dropped."""


Update = Callable[[TrainState], tuple[TrainState, dict[str, float]]]
"""State -> the next state and the metrics of the update; the arrays of the old state are donated."""


class PairTraining(NamedTuple):
    """The functions and texts that define one kind of training on pairs."""

    phase: str
    """Name of the phase in metrics.jsonl."""
    command: str
    """Training command, as typed after `rljax`."""
    call: str | None
    """Python call that continues interrupted training, if the pairs were passed in Python; `{}` stands for the folder."""
    header: list[str]
    """Description of the training, for the display."""
    warnings: list[str]
    """Descriptions of the data that was dropped."""
    judged_count: int
    """Number of held-out pairs, or of other examples over which the accuracy is averaged."""
    fingerprints: dict[str, str]
    """Name of a training input -> its hash; resumed training must read the same inputs."""
    steps: int
    """Number of updates."""
    make_update: Callable[[TrainState], Update]
    """Builds the update from the state at which training begins or continues."""
    judge: Callable[[Params], dict[str, float]]
    """Parameters -> metrics of the held-out pairs, including accuracy and loss."""
    save: Callable[[Params, Path], None]
    """(parameters, folder) -> None; writes the model."""
    closing_lines: Callable[[dict[str, float], dict[str, float], Path], list[str]]
    """(metrics before, metrics after, folder) -> the last lines of the display."""
    commands: Callable[[str], list[str]]
    """Folder, quoted for a shell -> commands that use the model."""
    accuracy_label: str = IN_ORDER
    """Label of the accuracy on the screen."""


class PreferenceResult(NamedTuple):
    """The outcome of training on preference pairs."""

    folder: Path
    """Folder of the model."""
    before: dict[str, float]
    """Means over the held-out pairs before training, such as loss, accuracy and margin."""
    after: dict[str, float]
    """The same means after training."""
    params: Params
    """Parameters of the model."""


def read_pairs(config: PairConfig, *, gold: str | None = None) -> tuple[list[Preference], list[Preference], list[str]]:
    """Read the pairs to train on and the held-out pairs, which share no prompt, and describe the rows that were dropped.

    Args:
        config: the settings.
        gold: column with a third response to every prompt; None if there is none.
    """
    options = {
        "gold_column": gold,
        "prompt_column": config.prompt_column,
        "chosen_column": config.chosen_column,
        "rejected_column": config.rejected_column,
        "on_error": config.on_error,
    }

    def read(dataset: str, split: str) -> tuple[list[Preference], list[Fault]]:
        loaded = read_preferences(dataset, split=split, **options)
        return loaded.preferences, loaded.faults

    return make_split(config, read)


def make_split(
    config: PairConfig, read: Callable[[str, str], tuple[list[Example], list[Fault]]]
) -> tuple[list[Example], list[Example], list[str]]:
    """Read the rows to train on and the held-out rows, which share no prompt, and describe the rows that were dropped.

    Args:
        config: the settings.
        read: (dataset, split) -> the usable rows, each with a prompt, and the faults of the others.
    """
    if config.dataset is None:
        raise InputError("pass the pairs to train on (a file, a folder or a hub id), or --resume FOLDER.")
    rows, faults = read(config.dataset, "train")
    warnings = [describe_faults(faults)] if faults else []
    if config.heldout_dataset is None:
        return *split_pairs(rows, config.heldout_pairs, seed=config.seed), warnings
    separate, more_faults = read(config.heldout_dataset, "test")
    heldout = separate[: config.heldout_pairs]
    heldout_prompts = {row.prompt for row in heldout if row.prompt}
    train = [row for row in rows if row.prompt not in heldout_prompts]
    if not train:
        raise InputError(
            f"Every prompt of {config.dataset!r} is also in {config.heldout_dataset!r}; nothing is left to train on."
        )
    return train, heldout, warnings + ([describe_faults(more_faults)] if more_faults else [])


def encode_split(
    config: PairConfig, tokenizer: Tokenizer, *, chat: bool, pairs: Split, warnings: Sequence[str]
) -> PairData:
    """Encode pairs as tokens, and warn about chat content that is omitted and about pairs that are too long.

    Raises:
        InputError: no pair is within the token limit, or the tokenizer cannot encode a text.
    """
    train, heldout = (encode_pairs(part, tokenizer, max_tokens=config.max_tokens, chat=chat) for part in pairs)
    dropped = [
        f"Left out {counted(part.dropped, f'{name}pair')}: prompt and response have more than {config.max_tokens} tokens."
        for name, part in (("", train), ("held-out ", heldout))
        if part.dropped
    ]
    chats = [replace(problem_from_prompt(pair), turns=pair.turns[0] or pair.turns[1]) for part in pairs for pair in part]
    unused = [] if config.model is None else unused_sizes(config)
    return PairData(train, heldout, [*unused, *warnings, *list_prompt_omissions(chats, tokenizer, chat=chat), *dropped])


def check_sizes(config: PairConfig, mesh: Mesh) -> None:
    """Reject a batch or micro-batch that cannot be divided evenly among the devices.

    Raises:
        InputError: a size cannot be divided evenly; the message names the setting.
    """
    check_rows(mesh, batch=config.batch)
    if config.microbatch_pairs is not None:
        check_rows(mesh, microbatch_pairs=config.microbatch_pairs)


def make_tokenizer(config: PairConfig, folder: Path | None) -> Tokenizer:
    """Load the tokenizer named in the settings, else the one in the model's folder, else the byte tokenizer."""
    if config.tokenizer is not None:
        return load_tokenizer(config.tokenizer)
    return load_tokenizer("bytes") if folder is None else folder_tokenizer(folder)


def model_config(config: PairConfig) -> ModelConfig:
    """Extract the settings of the model."""
    shared = {field.name: getattr(config, field.name) for field in fields(NetworkConfig)}
    return ModelConfig(path=config.model, **shared)


def microbatch_of(config: PairConfig, devices: int, length: int) -> int:
    """Number of pairs whose activations are in memory at once: a divisor of the batch that can be divided among the devices."""
    if config.microbatch_pairs is not None:
        return config.microbatch_pairs
    divisors = [n for n in range(devices, config.batch + 1, devices) if config.batch % n == 0]
    return max((n for n in divisors if 2 * n * length <= MICROBATCH_TOKENS), default=min(divisors))


def steps_of(config: PairConfig, count: int) -> int:
    """Number of updates for training on `count` pairs."""
    return -(-count * config.epochs // config.batch) if config.steps is None else config.steps


def make_optimizer(config: PairConfig, steps: int) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Make the optimizer and its learning-rate schedule."""
    schedule = cosine_schedule(config.learning_rate, config.learning_rate_warmup, steps)
    optimizer = adamw(
        schedule,
        b1=config.adam_b1,
        b2=config.adam_b2,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
    )
    return optimizer, schedule


def make_initial_state(config: PairConfig, params: Params, steps: int) -> TrainState:
    """Make the initial training state, not yet on the devices."""
    return create(params, make_optimizer(config, steps)[0], config.seed, with_reference=False)


def pair_state(state: TrainState) -> PairState:
    """Extract the part of the state that an update reads and changes."""
    return PairState(state.params, state.opt_state)


def make_update(
    config: PairConfig,
    mesh: Mesh,
    step: Callable[[PairState, PyTree], tuple[PairState, PairUpdateMetrics]],
    pad_rows: Callable[[list[int]], PyTree],
    *,
    pairs: int,
    steps: int,
) -> Update:
    """Build an update on the next batch of pairs.

    Args:
        config: the settings.
        mesh: the devices.
        step: computes one update.
        pad_rows: indices of a batch's pairs -> inputs of `step`, `[micro-batches, rows, ...]`.
        pairs: number of pairs.
        steps: total number of updates.
    """
    schedule = make_optimizer(config, steps)[1]
    order = PromptStream(range(pairs), seed=config.seed)

    def update(state: TrainState) -> tuple[TrainState, dict[str, float]]:
        start, done = time.monotonic(), int(state.step)
        batch = pad_rows(order.indices(done * config.batch, config.batch))
        after, measured = step(pair_state(state), put_rows(mesh, batch, leading=1))
        state = state._replace(params=after.params, opt_state=after.opt_state, step=state.step + 1)
        rate = {"learning_rate": float(np.asarray(schedule(done)))}
        return state, present(measured) | rate | {"seconds": time.monotonic() - start}

    return update


@contextmanager
def open_display(config: PairConfig) -> Generator[Display]:
    """Make the display for training; it first shows that the model and the pairs are being loaded."""
    with make_display(config.quiet, ScreenStream(sys.stdout)) as display, watch_compilation(display.compiling):
        display.activity("loading the model and the pairs")
        yield display


def train_on_pairs(
    kind: type[Settings],
    config: Settings | None,
    resume: str | Path | None,
    make_training: Callable[[Settings], tuple[PairTraining, TrainState]],
) -> PreferenceResult:
    """Train a model, evaluate it, and write it to its own folder.

    Args:
        kind: class of the settings.
        config: the settings; see `settings_to_run`.
        resume: folder of the interrupted run to continue; None starts a new run.
        make_training: settings -> the functions that define the training, and its initial state.

    Raises:
        InputError: the settings or the data are invalid, or differ from those of the run being resumed; the folder already
            contains a model or a run, or cannot be created; or too many updates in a row were skipped, in which case the folder
            contains the model as it was before those updates.
        Interrupted: a signal stopped the training; the state after the last update is saved.
    """
    config, existing = settings_to_run(kind, config, resume)
    with ExitStack() as stack:
        display = stack.enter_context(open_display(config))
        training, *owned = make_training(config)  # popped below, so that nothing else keeps the state's arrays alive
        display.set_accuracy_label(training.accuracy_label)
        if existing is not None:
            check_fingerprints(existing, training.fingerprints)
        folder = make_folder(config, training.fingerprints) if existing is None else existing
        lock_folder(folder, stack)
        checkpoint, losses = Checkpoint(owned.pop(), no_history(1)), []
        if existing is not None:
            like = abstract_arrays(checkpoint.state)
            del checkpoint
            checkpoint, losses = reopen(folder, lambda phase: like)
        checkpoints = [checkpoint]
        del checkpoint
        run = open_resources(
            stack,
            folder,
            display,
            lambda disk: Trackers([JsonlTracker(folder)], disk.attempt),
            keep={LAST: Retention()},
            resume=resume_command(training, folder),
        )
        run.display.header([*training.header, f"Folder: {folder.path}"])
        for warning in (*training.warnings, *losses):
            run.display.warning(warning)
        run_phase(run, checkpoints, pair_phase(config, training, run))
        params = checkpoints.pop().state.params
        return finish(training, run, params)


def resume_command(training: PairTraining, folder: RunFolder) -> str:
    """Return the command or Python call that continues interrupted training."""
    if training.call is not None:
        return training.call.format(repr(str(folder.path)))
    return f"rljax {training.command} --resume {shlex.quote(str(folder.path))}"


def pair_phase(config: PairConfig, training: PairTraining, run: RunResources) -> Phase:
    """Make the phase of training on pairs, including its evaluations."""

    def evaluate_at(checkpoint: Checkpoint, step: int) -> Checkpoint:
        run.display.activity("judging held-out pairs", compiles=True)
        metrics, count = training.judge(checkpoint.state.params), training.judged_count
        low, high = wilson_interval(round(metrics["accuracy"] * count), count)
        run.record("eval", step, metrics)
        detail = f" of {count} (95 % interval {low:.1%} to {high:.1%}), loss {metrics['loss']:.4f}"
        run.display.evaluated(step, metrics, detail=detail)
        return checkpoint

    def enter(checkpoint: Checkpoint) -> Checkpoint:
        if int(checkpoint.state.phase) == RL:  # the main phase, here the training on pairs
            return checkpoint
        return checkpoint._replace(state=checkpoint.state._replace(phase=jnp.int32(RL)))

    def make_step(checkpoint: Checkpoint) -> RunStep:
        update = training.make_update(checkpoint.state)

        def step(checkpoint: Checkpoint) -> StepOutcome:
            run.display.activity("learning", compiles=True)
            state, metrics = update(checkpoint.state)
            return StepOutcome(checkpoint._replace(state=state), metrics, metrics["skipped_updates"])

        return step

    def evaluate(outcome: StepOutcome) -> tuple[Checkpoint, bool]:
        done = int(outcome.checkpoint.state.step)
        if done == training.steps or (config.eval_every and done % config.eval_every == 0):
            evaluate_at(outcome.checkpoint, done)
        return outcome.checkpoint, False

    def explain_stop(skipped: int, outcome: StepOutcome) -> str:
        training.save(outcome.checkpoint.state.params, run.folder.path)
        remove_checkpoints(run.folder)
        return skipped_pairs_text(skipped, run.folder.path)

    return Phase(
        name=training.phase,
        steps=training.steps,
        steps_done=lambda state: int(state.step),
        make_step=make_step,
        explain_stop=explain_stop,
        saves_after=lambda done: done == training.steps or done % config.checkpoint_every == 0,
        enter=enter,
        evaluate_start=lambda checkpoint: evaluate_at(checkpoint, 0),
        evaluate=evaluate,
    )


def finish(training: PairTraining, run: RunResources, params: Params) -> PreferenceResult:
    """Write the model, show the outcome, and remove the checkpoints, which are only needed during training."""
    folder = run.folder.path
    run.saver.wait()
    rows = [row for row in read_metrics(run.folder.metrics) if row["phase"] == "eval"]
    before, after = metrics_at_start(rows), metrics_of(rows[-1])
    run.disk.attempt_together("the model", lambda: training.save(params, folder))
    remove_checkpoints(run.folder)
    run.display.finish(training.closing_lines(before, after, folder))
    run.display.commands("What to type next:", training.commands(shlex.quote(str(folder))))
    return PreferenceResult(folder, before, after, params)


def skipped_pairs_text(count: int, folder: Path) -> str:
    """Explain that training on pairs stopped after too many skipped updates, why they were skipped, and what to do."""
    return (
        f"The loss or gradient was not finite, or the update was far too large, in {count} updates in a row, so nothing was "
        f"learned from them. The model before them is in {folder}: start again from it, or from the "
        "initial model, with a lower --learning-rate."
    )


def header(
    trained: str, config: PairConfig, params: Params, data: PairData, *, steps: int, microbatch: int, devices: int
) -> list[str]:
    """Describe the model that is about to be trained, and the numbers of pairs, updates and devices, in two lines."""
    start = "random weights" if config.model is None else config.model
    return [
        f"{trained} from {start}, {count_parameters(params):,} parameters",
        f"Training pairs: {len(data.train.margin):,}, held out: {len(data.heldout.margin):,}; {counted(steps, 'update')} of "
        f"{counted(config.batch, 'pair')}, {microbatch} at a time on {counted(devices, 'device')}",
    ]


class PairFolder(RunFolder):
    """The folder of training on pairs. It becomes the model's folder, so the settings are in settings.json."""

    @property
    def config_file(self) -> Path:
        """`settings.json`; `config.json` is the model's."""
        return self.path / SETTINGS

    @property
    def died_before_saving(self) -> bool:
        """True if the training was killed before its first save.

        Raises:
            InputError: another process is training in the folder, and has perhaps not saved anything yet.
        """
        if self.is_locked:
            raise InputError(f"another process is training in {self.path}; wait until it ends, or stop it.")
        has_ended = (self.path / "config.json").exists()
        return not (has_ended or self.has_saved or fault_of(self.checkpoints / LAST / "0") is None)


def remove_checkpoints(folder: RunFolder) -> None:
    """Atomically remove the checkpoints of finished training, so that a killed process leaves no partial ones."""
    part = folder.path / f".unfinished-{secrets.token_hex(4)}"
    folder.checkpoints.rename(part)
    shutil.rmtree(part)


def make_folder(config: PairConfig, fingerprints: Mapping[str, str]) -> PairFolder:
    """Create the folder of the model, and write the settings into it.

    Raises:
        InputError: the folder already contains a model or a run, or cannot be created.
    """
    path = default_run_path(config.name, datetime.now()) if config.output is None else Path(config.output).expanduser()
    if (path / SETTINGS).is_file() and (earlier := PairFolder.open(path)).died_before_saving:
        earlier.discard(even_with_rows=True)
    existing = [name for name in ("config.json", METRICS, SETTINGS, CHECKPOINTS, *NOTES) if (path / name).exists()]
    if existing:
        raise InputError(f"{str(path)!r} already contains {', '.join(existing)}; choose another folder with --output.")
    settings = config.to_json() | {FINGERPRINTS: dict(fingerprints)}
    try:
        path.mkdir(parents=True, exist_ok=True)
        PairFolder(path.absolute(), {}).write_config(settings)
    except OSError as error:
        raise InputError(f"The folder {str(path)!r} cannot be created ({error}); choose another with --output.") from error
    return PairFolder(path.absolute(), settings)


def settings_to_run(
    kind: type[Settings], config: Settings | None, resume: str | Path | None
) -> tuple[Settings, PairFolder | None]:
    """Return the settings, and the folder of the run to continue, or None for a new run.

    Args:
        kind: class of the settings.
        config: the settings. With `resume`, they must equal the saved ones, except those in `CHANGEABLE_ON_RESUME`.
        resume: folder of an interrupted run; if the run was killed before its first save, it starts again from the beginning.

    Raises:
        InputError: neither settings nor `resume` is passed, the folder has no interrupted run, or a setting differs that
            must not change.
    """
    if resume is None:
        if config is None:
            raise InputError("training on pairs needs settings, or resume=FOLDER; pass at least one of them.")
        return replace(config, **absolute_paths(config.to_json())), None
    settings, folder = read_saved_settings(kind, resume)
    starts_over = folder.died_before_saving
    if not (starts_over or folder.checkpoints.is_dir()):
        raise InputError(
            f"The run in {str(folder.path)!r} has no checkpoint: it is complete, or an older version of rljax created it."
        )
    passed = settings if config is None else replace(config, **absolute_paths(config.to_json()))
    names = [field.name for field in fields(kind)]
    changed = [name for name in names if getattr(passed, name) != getattr(settings, name)]
    if fixed := [name for name in changed if name not in CHANGEABLE_ON_RESUME]:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in fixed)
        raise InputError(
            f"Resumed training cannot change {flags}; leave these flags out. Only these may change: "
            f"{', '.join(CHANGEABLE_ON_RESUME)}."
        )
    settings = replace(settings, **{name: getattr(passed, name) for name in changed})
    return (replace(settings, output=str(folder.path)), None) if starts_over else (settings, folder)


def read_saved_settings(kind: type[Settings], path: str | Path) -> tuple[Settings, PairFolder]:
    """Read the settings of a run, with absolute paths; return them with the run's folder.

    Raises:
        InputError: the folder has no run, or the run has a setting that `kind` does not have.
    """
    path = Path(path).expanduser()
    if not (path / SETTINGS).is_file():
        raise InputError(
            f"{str(path)!r} is not the folder of training on pairs (there is no {SETTINGS} in it); omit --resume."
        )
    folder = PairFolder.open(path)
    saved = {name: value for name, value in folder.config.items() if name != FINGERPRINTS}
    if unknown := sorted(set(saved) - {field.name for field in fields(kind)}):
        raise InputError(
            f"{folder.config_file} has the setting {unknown[0]}, which {kind.__name__} does not have; restore the file."
        )
    settings = kind(**saved)
    return replace(settings, **absolute_paths(settings.to_json())), folder


def check_fingerprints(folder: PairFolder, fingerprints: Mapping[str, str]) -> None:
    """Refuse to continue training with different inputs.

    Raises:
        InputError: an input has changed; the message names it.
    """
    saved = folder.config.get(FINGERPRINTS, {})
    changed = [name for name, value in fingerprints.items() if saved.get(name) != value]
    if changed:
        raise InputError(
            f"{' and '.join(changed).capitalize()} of the run in {str(folder.path)!r} have changed since it began, so it "
            "cannot continue: restore them, or start again in a new folder."
        )


def fingerprint_of(data: PairData) -> str:
    """Compute a hash of the encoded pairs, in order, including which tokens are excluded from training."""
    parts = [
        [part.chosen, part.rejected, part.margin.tolist(), part.prompt_lengths]
        + [part.assistant_masks] * (not all(all(mask) for both in part.assistant_masks for mask in both))
        + [part.gold] * (part.gold is not None)
        for part in (data.train, data.heldout)
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()
