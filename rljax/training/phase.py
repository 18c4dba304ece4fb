"""One loop for every phase of training: it logs, checks for unsafe updates, evaluates, saves, stops, and resumes from a checkpoint.

A phase is a set of functions: a step from one in-memory `Checkpoint` to the next, and functions called at its beginning,
after its steps and at its end. Examples are warm start, value pretraining, reinforcement learning and training on pairs.
"""

import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from os import _exit as end_process  # imported here because `os._exit` is blocked while a reward is called
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float

from rljax.errors import InputError
from rljax.parallel import any_host, is_first, run_on_first, run_together
from rljax.tracking.alarms import Event
from rljax.tracking.display import Display
from rljax.tracking.phase_times import Stopwatch
from rljax.tracking.plain_display import LoggedDisplay
from rljax.tracking.run_folder import FileState, RunFolder
from rljax.tracking.trackers import Trackers
from rljax.training.checkpoints.checkpoint import (
    BEST,
    LAST,
    Checkpoint,
    Restoration,
    find_abandoned,
    find_damaged,
    restore,
    set_aside,
)
from rljax.training.checkpoints.manifest import Retention
from rljax.training.checkpoints.saver import DiskWriter, Saver
from rljax.training.interrupt import INTERRUPTED, Interrupted, StopRequest
from rljax.training.metrics import Numbers
from rljax.training.state import TrainState

MAX_CONSECUTIVE_SKIPS = 5
"""A run stops after this many consecutive training steps whose updates were all skipped."""


@dataclass(frozen=True)
class RunResources:
    """Files, screen, trackers, signals and checkpoint writer of a run. The fields do not change during the run."""

    folder: RunFolder
    """Files of the run."""
    display: Display
    """Shows progress on the screen."""
    trackers: Trackers
    """Trackers that log metrics and samples."""
    stop: StopRequest
    """Tells whether a signal has asked the run to stop."""
    disk: DiskWriter
    """Writes files, and retries writes that fail because the disk is full."""
    saver: Saver
    """Writes the checkpoints in the background."""
    stopwatch: Stopwatch
    """Measures the time of each part of a step."""
    resume: str
    """Shell command or Python call that resumes the run."""

    def save(self, which: str, checkpoint: Checkpoint) -> None:
        """Start writing a checkpoint as `which`, "last" or "best". When this returns, the checkpoint's arrays may be donated."""
        self.display.activity("saving")
        file_states: dict[str, FileState] = {}
        with self.stopwatch.phase("save"):
            self.write("the metrics", lambda: file_states.update(self.folder.file_states()))
            self.saver.save(which, checkpoint, file_states)

    def write(self, what: str, work: Callable[[], object]) -> None:
        """Have the first process write something, once the disk has room; every process must call this method.

        Args:
            what: name of the output in messages, such as "the metrics".
            work: writes the output; a failed call must leave nothing behind.
        """
        run_on_first(lambda: self.disk.attempt(what, work))

    def log(self, phase: str, step: int, metrics: Numbers) -> None:
        """Log and show the metrics of a training step; every process must call this method."""
        self.record(phase, step, metrics)
        self.display.update(step, metrics)

    def record(self, phase: str, step: int, metrics: Numbers) -> None:
        """Log metrics; every process must call this, so that all stop if the first is stopped while its disk is full."""
        run_on_first(lambda: self.trackers.log(phase, step, metrics))

    def report(self, events: Sequence[Event]) -> None:
        """Report raised and cleared alarms, on the screen, in the log and in `alarms.jsonl`; every process must call this method.

        Args:
            events: the alarms found by the first process; events from other processes are not written.
        """
        for event in events:
            say = self.display.warning if event.what == "raised" else self.display.message
            say(event.text())
        rows = [event.to_json() for event in events]
        run_on_first(lambda: self.disk.attempt("the alarms", lambda: self.folder.add_alarms(rows)) if rows else None)

    def stop_if_asked(self, checkpoint: Checkpoint) -> None:
        """If a signal has asked the run to stop, save, show how to resume, and raise `Interrupted`."""
        if any_host(self.stop.requested):
            self.save(LAST, checkpoint)
            self.saver.wait()
            self.say_stopped("Stopped. Everything up to the last finished step is saved.")
            raise Interrupted

    def say_stopped(self, text: str) -> None:
        """Show that the run was stopped, and how to continue it."""
        self.display.finish([text])
        self.display.commands("To continue:", [self.resume])


def open_resources(
    stack: ExitStack,
    folder: RunFolder,
    screen: Display,
    make_trackers: Callable[[DiskWriter], Trackers],
    *,
    keep: Mapping[str, Retention],
    resume: str,
    on_sigterm: Callable[[], None] = lambda: None,
) -> RunResources:
    """Open the log, install the signal handlers, and start the checkpoint writer; the stack undoes all of this.

    Args:
        stack: undoes everything that is set up.
        folder: files of the run, which this process has locked.
        screen: shows progress.
        make_trackers: builds the trackers, which write files through the `DiskWriter`.
        keep: kind of checkpoint ("last" or "best") -> which checkpoints to keep.
        resume: shell command or Python call that resumes the run.
        on_sigterm: called on SIGTERM.
    """
    logged = LoggedDisplay(screen, folder.log) if is_first() else nullcontext(screen)  # other hosts write no log
    display = run_together(lambda: stack.enter_context(logged))
    stop = stack.enter_context(StopRequest(display.stopping, on_sigterm))
    disk = DiskWriter(str(folder.path), display.warning, lambda: stop.requested, resume)
    trackers = run_together(lambda: make_trackers(disk))
    stack.callback(trackers.close)
    stopwatch = Stopwatch()
    waiting = partial(stopwatch.phase, "wait")
    saver = stack.enter_context(Saver(folder.checkpoints, keep, disk, display.warning, waiting))
    return RunResources(folder, display, trackers, stop, disk, saver, stopwatch, resume)


def lock_folder(folder: RunFolder, stack: ExitStack) -> bool:
    """Lock the folder until the run ends, and remove files that a killed process left half-written.

    The first host does this for all hosts.

    Returns:
        Whether the process that had the lock before was killed or crashed; False on all hosts but the first.

    Raises:
        InputError: another process is training in the folder.
    """
    crashed: list[bool] = []
    run_on_first(lambda: crashed.append(stack.enter_context(folder.lock())))
    run_on_first(folder.remove_unfinished)
    return any(crashed)


def reopen(
    folder: RunFolder, like: Callable[[int], TrainState], check: Callable[[Restoration], object] = lambda restored: None
) -> tuple[Checkpoint, list[str]]:
    """Read the newest complete checkpoint of a run, and truncate the run's files to their lengths when it was saved.

    Args:
        folder: files of the run, which this process has locked.
        like: number of the phase, as in `TrainState.phase` -> shapes and shardings of the state.
        check: may reject the restored checkpoint before any file changes.

    Returns:
        The checkpoint, and messages about what was lost since it was saved; only the first host has messages.

    Raises:
        InputError: no checkpoint is complete, or the checkpoint or the files do not belong to this run.
    """
    losses: list[str] = []
    restored = restore(folder.checkpoints / LAST, like)
    check(restored)
    run_on_first(lambda: losses.extend(folder.rewind(restored.file_states)))
    best, best_step = folder.checkpoints / BEST, restored.checkpoint.notes.best_step
    run_on_first(lambda: losses.extend(set_aside([*restored.damaged, *find_damaged(best)])))
    run_on_first(lambda: losses.extend(set_aside(find_abandoned(best, best_step))))
    return restored.checkpoint, losses


class StepOutcome(NamedTuple):
    """The outcome of a step of a phase."""

    checkpoint: Checkpoint
    """The checkpoint after the step."""
    metrics: dict[str, float]
    """Metrics of the step."""
    skipped: float | None
    """Fraction of the step's updates that were skipped; None if it had no updates."""
    details: Any = None
    """Further results for the phase's own functions."""


RunStep = Callable[[Checkpoint], StepOutcome | None]
"""Checkpoint -> outcome of the next step; the checkpoint's arrays are donated. None means that there is nothing left to do, or that
the run was asked to stop while the step waited for data; the checkpoint is then unchanged."""


@dataclass(frozen=True)
class Phase:
    """A phase of training, as functions."""

    name: str
    """Name of the phase in metrics.jsonl and on the screen."""
    steps: int | None
    """Maximum number of steps. If 0, the phase is entered, but takes no step and does not call `leave`. If None, it continues
    until a step finds nothing to do, and displays its own progress."""
    steps_done: Callable[[TrainState], int]
    """State -> number of steps of the phase that are done."""
    make_step: Callable[[Checkpoint], RunStep]
    """Builds the step, from the checkpoint at which the phase begins or resumes."""
    explain_stop: Callable[[int, StepOutcome], str]
    """(number of consecutive steps without a safe update, outcome of the last step) -> why the run stops, and what to do."""
    saves_after: Callable[[int], bool]
    """Number of steps done -> whether to save a checkpoint then."""
    enter: Callable[[Checkpoint], Checkpoint] = lambda checkpoint: checkpoint
    """Turns a checkpoint from before the phase into one at its beginning; returns a checkpoint within the phase unchanged."""
    evaluate_start: Callable[[Checkpoint], Checkpoint] = lambda checkpoint: checkpoint
    """Evaluates the policy at the beginning of the phase, after the phase was entered."""
    saves_start: bool = True
    """Whether a checkpoint is saved at the beginning, after the phase was entered."""
    react_to_metrics: Callable[[StepOutcome], Checkpoint] = lambda outcome: outcome.checkpoint
    """Reacts to the metrics of a step, before its updates are checked."""
    evaluate: Callable[[StepOutcome], tuple[Checkpoint, bool]] = lambda outcome: (outcome.checkpoint, False)
    """Shows samples and evaluates, each at its interval; returns the checkpoint, and whether the phase has reached its goal."""
    leave: Callable[[Checkpoint], object] = lambda checkpoint: checkpoint
    """Called at the end of the phase, for example to write a file."""


def run_phase(run: RunResources, owned: list[Checkpoint], phase: Phase) -> None:
    """Run the remaining steps of a phase.

    When a phase reaches its goal, no checkpoint is saved, because a resumed run repeats the last step and reaches the goal again.

    Args:
        run: files, screen, trackers and signals of the run.
        owned: the checkpoint to continue from. It is removed from the list, so that nothing else refers to its arrays; the
            checkpoint at the end of the phase is appended to the list.
        phase: the phase.

    Raises:
        InputError: too many consecutive steps made no safe update; the checkpoint after them is saved.
        Interrupted: a signal asked the run to stop; the last finished step is saved.
    """
    checkpoint = _begin(run, owned, phase)
    if phase.steps != 0:
        step, done, skipped = phase.make_step(checkpoint), phase.steps_done(checkpoint.state), 0
        checkpoint, has_reached_goal = _evaluate_again(run, checkpoint, phase)
        if phase.steps is not None:
            run.display.phase(phase.name, phase.steps, done=done)
        log, saved = run.record if phase.steps is None else run.log, done
        while (phase.steps is None or done < phase.steps) and not has_reached_goal:
            with save_on_error(run, checkpoint, done - saved):
                outcome = step(checkpoint)
            if outcome is None:
                run.stop_if_asked(checkpoint)
                break
            done = phase.steps_done(outcome.checkpoint.state)
            log(phase.name, done, outcome.metrics)
            outcome = outcome._replace(checkpoint=phase.react_to_metrics(outcome))
            skipped = count_consecutive_skips(skipped, outcome.skipped)
            if skipped >= MAX_CONSECUTIVE_SKIPS:
                run.save(LAST, outcome.checkpoint)
                run.saver.wait()
                raise InputError(phase.explain_stop(skipped, outcome))
            with save_on_error(run, mark_unevaluated(outcome.checkpoint), done - saved):
                checkpoint, has_reached_goal = phase.evaluate(outcome)
            del outcome  # its rollout need not stay in memory while the next one is sampled
            if not has_reached_goal and (phase.saves_after(done) or run.saver.has_failed):
                run.save(LAST, checkpoint)
                saved = done
            if not has_reached_goal:
                run.stop_if_asked(checkpoint)
        phase.leave(checkpoint)
    owned.append(checkpoint)


def count_consecutive_skips(count: int, share: Float[Array, ""] | float | None) -> int:
    """Count consecutive training steps whose updates were all skipped; a step that attempted no update leaves the count unchanged.

    Args:
        count: the number of such steps before this step.
        share: fraction of this step's updates that were skipped; None if it attempted none.

    Example:
        >>> count_consecutive_skips(2, 1.0), count_consecutive_skips(2, 0.75), count_consecutive_skips(2, None)
        (3, 0, 2)
    """
    if share is None:
        return count
    return count + 1 if float(share) == 1 else 0


def mark_unevaluated(checkpoint: Checkpoint) -> Checkpoint:
    """Mark a checkpoint whose step has not been evaluated yet, so that a resumed run evaluates it first."""
    return checkpoint._replace(notes=checkpoint.notes._replace(awaits_evaluation=True))


def _evaluate_again(run: RunResources, checkpoint: Checkpoint, phase: Phase) -> tuple[Checkpoint, bool]:
    """Evaluate a checkpoint whose step still lacks its evaluation; return any other checkpoint unchanged."""
    if not checkpoint.notes.awaits_evaluation:
        return checkpoint, False
    evaluated, has_reached_goal = phase.evaluate(
        StepOutcome(checkpoint._replace(notes=checkpoint.notes._replace(awaits_evaluation=False)), {}, None)
    )
    if not has_reached_goal:
        run.save(LAST, evaluated)
    return evaluated, has_reached_goal


@contextmanager
def save_on_error(run: RunResources, checkpoint: Checkpoint, unsaved: int) -> Generator[None]:
    """If a step or its evaluation fails or is interrupted, save all finished steps, and report what is lost and how to continue.

    A step that fails while it samples or judges has not changed the state. A step that fails within an update may have donated the
    arrays, so nothing new is saved. With several hosts, nothing is saved either, because only one host may have failed.

    Args:
        run: files, screen, trackers and signals of the run.
        checkpoint: the checkpoint to save.
        unsaved: number of steps since the last checkpoint.
    """
    try:
        yield
    except Interrupted:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if jax.process_count() == 1 and not any(leaf.is_deleted() for leaf in jax.tree.leaves(checkpoint.state)):
            if unsaved or checkpoint.notes.awaits_evaluation:
                run.save(LAST, checkpoint)
            run.saver.wait()
            unsaved = 0
        if not run.folder.has_progress:
            raise  # nothing has been computed yet, and the folder of a new run is removed
        steps = "The last step is" if unsaved == 1 else f"The last {unsaved} steps are"
        lost = f"{steps} not saved and will be repeated" if unsaved else "No step is lost"
        if isinstance(error, KeyboardInterrupt):  # the second Ctrl-C or SIGTERM
            run.say_stopped(f"Stopped in the middle of a step. {lost}.")
            raise Interrupted from error
        text = f"{lost}. To continue: {run.resume}"
        if isinstance(error, InputError):
            error.args = (f"{error} {text}",)
            raise
        run.display.warning(f"The run failed. {text}")
        raise


def _begin(run: RunResources, owned: list[Checkpoint], phase: Phase) -> Checkpoint:
    """Take the checkpoint out of the list, and enter the phase unless the checkpoint is already within the phase."""
    before = owned.pop()
    checkpoint = phase.enter(before)
    is_new = checkpoint is not before
    del before
    if is_new:
        with save_on_error(run, checkpoint, 0):
            checkpoint = phase.evaluate_start(checkpoint)
        if phase.saves_start:
            run.save(LAST, checkpoint)
        run.stop_if_asked(checkpoint)
    return checkpoint


def save_and_exit(run: RunResources, checkpoint: Checkpoint) -> None:
    """Save a checkpoint, close the trackers, and end the process."""
    code = 1
    try:
        save_and_close(run, checkpoint)
        code = INTERRUPTED
    except Interrupted:  # the disk was full, which has been reported
        code = INTERRUPTED
    except BaseException:
        traceback.print_exc()
    finally:
        end_process(code)


def save_and_close(run: RunResources, checkpoint: Checkpoint) -> None:
    """Save a checkpoint, then close the trackers; the folder's lock is released only if the checkpoint has been written."""
    is_saved = False
    try:
        run.save(LAST, checkpoint)
        run.saver.wait()
        is_saved = True
        run.say_stopped("Stopped in the middle of a step, which is abandoned. Everything up to the previous step is saved.")
    finally:
        try:
            run.trackers.close()
        finally:
            if is_saved:
                run.folder.mark_normal_end()
            sys.stdout.flush()
