"""The main function of a run: open or resume the run's folder, build everything that the run uses, and execute its phases."""

import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

import jax

from rljax.data.history import no_history
from rljax.errors import InputError
from rljax.models import Params
from rljax.parallel import agree, any_host, is_first, run_on_first, run_together, watched_hosts
from rljax.rollout.judging import WAITS, Patience
from rljax.tracking.display import Display, ScreenStream, make_display
from rljax.tracking.phase_times import watch_compilation
from rljax.tracking.rows import is_evaluated, last_evaluation
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.start_records import Change, check_inputs, record_start
from rljax.tracking.trackers import JsonlTracker, TensorBoardTracker, Tracker, Trackers, check_trackers
from rljax.training.checkpoints.checkpoint import BEST, LAST, Checkpoint, Notes, notes_in
from rljax.training.checkpoints.manifest import Retention
from rljax.training.checkpoints.saver import DiskWriter
from rljax.training.config import TrainConfig
from rljax.training.interrupt import GracePeriod
from rljax.training.lifecycle.finish import accuracy_name
from rljax.training.lifecycle.initial_state import begin_options, check_models, load_initial_state, param_shapes, state_like
from rljax.training.lifecycle.resume import check_steps, inputs_of, summarize_run
from rljax.training.lifecycle.start import NO_CONSENT, Consent, continue_folder, new_folder, settings_of
from rljax.training.parts.adapter import base_entry, check_base
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.phase import RunResources, lock_folder, open_resources, reopen
from rljax.training.run import Run, advise_on_random_start, describe, resume_command
from rljax.training.setup import Install, Setup, make_setup
from rljax.training.state import TrainState

ABNORMAL_END_WARNING = (
    "The last process that trained here did not end normally: it was killed (by a person, for using too much memory, or with its "
    "machine), it crashed, or it lost contact with another host. The steps after its last checkpoint are repeated."
)


class Result(NamedTuple):
    """The outcome of a run."""

    run: Path
    """Folder of the run."""
    accuracy_before: float
    """Held-out greedy accuracy before RL, from 0 to 1; NaN if it was not measured."""
    accuracy_after: float
    """Held-out greedy accuracy after RL, from 0 to 1."""
    params: Params
    """Parameters of the policy."""


def run_training(
    config: TrainConfig | None,
    custom: CustomParts,
    execute: Callable[[Run, list[Checkpoint]], Result],
    *,
    installers: Sequence[Install] = (),
    trackers: Sequence[Tracker] = (),
    resume: str | Path | None = None,
    consent: Consent = NO_CONSENT,
    command: str = "train",
) -> Result:
    """Train from the settings, or resume a run; see `rljax.train`.

    Args:
        config: all settings; may be None when a run is resumed.
        custom: the user's parts that replace built-in ones.
        installers: functions that add the optional parts of the run.
        trackers: trackers in addition to the built-in ones.
        resume: folder of a run to continue, or "auto".
        consent: what the user allows when a run is resumed.
        execute: function that runs the remaining phases of a run, from a list with its checkpoint.
        command: name of the `rljax` command, and of the Python function, that resumes the run.
    """
    check_trackers(trackers)
    config, existing, changes = settings_of(config, resume, custom, consent)
    agree("settings", repr((config, custom.names())))
    with ExitStack() as stack:
        stream = ScreenStream(open_output(stack))
        display = screen = stack.enter_context(make_display(config.run.quiet, stream))
        stack.enter_context(watched_hosts(config.devices.host_timeout, lambda reason: report_lost_host(display, reason)))
        screen.activity("loading the model and the problems")
        setup = make_agreed_setup(config, custom, installers)
        base = run_together(lambda: base_entry(config, setup.base))
        inputs = run_together(lambda: inputs_of(setup, custom))
        changed_inputs: tuple[Change, ...] = ()
        if existing is None:
            owned = [Checkpoint(load_initial_state(setup, custom.names()), no_history(len(setup.train.prompts.tokens)))]
            folder = new_folder(config, custom, base)
            stack.enter_context(discard_on_error(folder))
        else:
            owned, folder = [], existing
            check_models(setup, param_shapes(setup), custom.names())
            check_base(folder, base)
            changed_inputs = run_together(lambda: check_inputs(existing, inputs, accepts=consent.changes))
        killed = lock_folder(folder, stack)
        losses: list[str] = []
        if changes is not None:
            folder, losses = continue_run(config, setup, owned, folder, changes)
        step = int(owned[0].state.step)
        run_on_first(lambda: record_start(folder, step, changes or (), inputs, changed_inputs))
        seconds = config.run.grace if jax.process_count() == 1 else None
        grace = None if seconds is None else GracePeriod(seconds)
        resources = open_resources(
            stack,
            folder,
            screen,
            partial(make_trackers, config, folder, trackers),
            keep={
                LAST: Retention(config.run.max_to_keep, config.run.keep_period),
                BEST: Retention(config.run.max_best_to_keep),
            },
            resume=resume_command(folder, config, command),
            **({} if grace is None else {"on_sigterm": grace.begin}),
        )
        display = resources.display
        stream.tell(display.warning)
        display.set_accuracy_label(accuracy_name(setup.heldout))
        stack.enter_context(watch_compilation(display.compiling))
        setup = with_reports(setup, resources)
        run = Run(**vars(resources), setup=setup, abandonable=nullcontext if grace is None else grace.within)
        introduce(run, owned[0].state, changes)
        for loss in (*([ABNORMAL_END_WARNING] if killed and existing is not None else []), *losses):
            display.warning(loss)
        if existing is None:
            owned[0] = owned[0]._replace(state=begin_options(setup, owned[0].state))
            run.save(LAST, owned[0])
        return execute(run, owned)


def make_agreed_setup(config: TrainConfig, custom: CustomParts, installers: Sequence[Install]) -> Setup:
    """Build everything that the run uses, and check that all hosts have the same problems."""
    setup = run_together(lambda: make_setup(config, custom, installers))
    problems = [*setup.train.prompts.problems, *setup.heldout.all_problems]
    agree("problems", repr([(problem.prompt, problem.answer) for problem in problems]))
    return setup


def with_reports(setup: Setup, resources: RunResources) -> Setup:
    """Return a setup that displays the progress and failures of judging, and measures the time of judging in training."""
    patience = Patience(WAITS, resources.display.warning, lambda: resources.stop.requested)
    train, heldout = (worker.with_reports(resources.display.judging, patience) for worker in (setup.train, setup.heldout))
    return setup._replace(train=replace(train, judging=partial(resources.stopwatch.phase, "judge")), heldout=heldout)


def report_lost_host(display: Display, reason: str) -> None:
    """Report that a host was lost: the first host reports on its screen and in the log, any other host on its stderr."""
    text = (
        f"{reason} The rows of every finished step and the last checkpoint are saved; the same command with --resume, on all "
        "hosts, continues from there."
    )
    if is_first():
        display.warning(text)
        display.finish(["Ended: another host was lost."])
    else:
        print(f"rljax: {text}", file=sys.stderr, flush=True)


def continue_run(
    config: TrainConfig, setup: Setup, owned: list[Checkpoint], folder: RunFolder, changes: Sequence[Change]
) -> tuple[RunFolder, list[str]]:
    """Append the checkpoint of a resumed run to `owned`, and write changed settings to its config.json.

    Returns:
        The folder, and messages about skipped damaged checkpoints and lost rows, which only the first host has.
    """
    checkpoint, losses = reopen(
        folder, partial(state_like, setup), lambda restored: check_steps(changes, setup, restored.checkpoint.state)
    )
    checkpoint, lost = replace_missing_best(folder, checkpoint)
    step = int(checkpoint.state.step)
    if step and (lost or (step == config.optimization.steps and not any_host(is_evaluated(folder.metrics, step)))):
        checkpoint = checkpoint._replace(notes=checkpoint.notes._replace(awaits_evaluation=True))
    owned.append(checkpoint)
    return continue_folder(folder, config, changes), [*losses, *lost]


def replace_missing_best(folder: RunFolder, checkpoint: Checkpoint) -> tuple[Checkpoint, list[str]]:
    """If a resumed run's best checkpoint no longer exists, name the newest remaining one in the notes, and return a message too."""
    remaining = run_together(lambda: notes_in(folder.checkpoints / BEST))
    notes, newest = checkpoint.notes, remaining[max(remaining)] if remaining else Notes()
    has_best = notes.best_step is None or (newest.best_step is not None and newest.best_step >= notes.best_step)
    if has_best or not int(checkpoint.state.step):
        return checkpoint, []
    now = (
        "no other is left"
        if newest.best_step is None
        else f"the checkpoint of step {newest.best_step} now counts as the best"
    )
    text = f"{folder.checkpoints / BEST} no longer has the checkpoint of the best step, {notes.best_step}; {now}."
    return checkpoint._replace(notes=notes._replace(best_quality=newest.best_quality, best_step=newest.best_step)), [text]


def introduce(run: Run, state: TrainState, changes: Sequence[Change] | None) -> None:
    """Describe a new run (`changes` is None), or a resumed run and its past, on the screen."""
    run.display.header(describe(run.setup, state, run.folder))
    for reason in run.setup.omissions:
        run.display.warning(reason)
    if changes is not None:
        for line in summarize_run(run.setup, state, run.folder, changes):
            run.display.message(line)
        last = last_evaluation(run.folder.metrics)
        if last is not None:
            run.display.evaluated(last["step"], {"accuracy": last["accuracy"]})
        return
    if (advice := advise_on_random_start(run.config, run.folder.config["seams"])) is not None:
        run.display.warning(advice)


def open_output(stack: ExitStack) -> TextIO:
    """Return the first host's stdout; on other hosts, or if stdout is closed, a stream that discards everything."""
    screen: TextIO | None = sys.stdout  # None if it was closed before the start
    return screen if is_first() and screen is not None else stack.enter_context(Path(os.devnull).open("w"))


@contextmanager
def discard_on_error(folder: RunFolder) -> Generator[None]:
    """Remove the folder of a new run if an `InputError` ends it before any progress, unless another process has locked it."""
    try:
        yield
    except InputError:
        if is_first() and not folder.is_locked:  # `run_on_first` would wait for the other hosts, which perhaps had no error
            folder.discard()
        raise


def make_trackers(config: TrainConfig, folder: RunFolder, further: Sequence[Tracker], disk: DiskWriter) -> Trackers:
    """Make the first host's trackers: JSON lines, TensorBoard, the services that the settings enable, and the `further` ones."""
    if not is_first():
        return Trackers([])
    trackers: list[Tracker] = [JsonlTracker(folder), TensorBoardTracker(folder)]
    if config.run.wandb or config.run.mlflow:
        from rljax.tracking.service_trackers import service_trackers  # noqa: PLC0415  other runs need no service

        trackers += service_trackers(folder, config.run.name, wandb=config.run.wandb, mlflow=config.run.mlflow)
    return Trackers([*trackers, *further], disk.attempt)
