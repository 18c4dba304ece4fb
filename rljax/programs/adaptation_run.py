"""Adapt a trained model to a queue of feedback, batch by batch, in a run folder that other commands can open."""

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from rljax.data.bad_rows import BadRowError
from rljax.data.feedback import LineLocation, list_unfinished
from rljax.data.history import no_history
from rljax.errors import InputError
from rljax.evaluation.heldout import evaluate
from rljax.evaluation.paired_change import format_points, paired_change
from rljax.evaluation.statistics import over_problems
from rljax.files import atomic_write
from rljax.programs.adaptation import (
    KEPT,
    TOO_FAR,
    UNSOUND,
    WORSE,
    Attempt,
    BatchLearner,
    find_wrong_logp,
    make_batch_learner,
    try_batch,
)
from rljax.programs.adaptation_config import AdaptationConfig
from rljax.programs.adaptation_folder import (
    FEEDBACK,
    REJECTS,
    UPDATES,
    AdaptationFolder,
    HeldoutEvaluation,
    begin_adaptation,
    best_evaluation,
    better_evaluation,
    check_log,
    make_served_setup,
    new_folder,
    prepare_to_continue,
    settings_of,
    update_row,
)
from rljax.programs.feedback_log import Log, NewLines, line_numbers, read_log, read_next_lines
from rljax.rollout.groups import correctness_masks
from rljax.text import counted, json_lines, printable
from rljax.tracking.plain_display import PlainDisplay
from rljax.tracking.run_folder import RunFolder, append_rows
from rljax.tracking.start_records import record_start
from rljax.tracking.trackers import JsonlTracker, Trackers
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.checkpoints.checkpoint import BEST, LAST, Checkpoint
from rljax.training.checkpoints.manifest import Retention
from rljax.training.interrupt import Interrupted
from rljax.training.lifecycle.initial_state import place_state, template
from rljax.training.parts.adapter import base_entry, check_base
from rljax.training.phase import Phase, RunResources, StepOutcome, lock_folder, open_resources, reopen, run_phase
from rljax.training.setup import Setup
from rljax.training.state import TrainState

BASELINE_REWARDS = 1024
"""Number of the most recent earlier rewards that are part of the baseline for a batch's rewards."""
REASONS = {
    UNSOUND: "an update was non-finite or far too large, and was skipped",
    TOO_FAR: "an update went beyond --max-kl, and was undone",
    WORSE: "the accuracy is lower, so the earlier model is kept",
}
"""Outcome of the updates on a batch -> its description."""
PrintLine = Callable[[str], None]


class LineDisplay(PlainDisplay):
    """The display of an adaptation, which passes each line to a function."""

    def __init__(self, say: PrintLine):
        super().__init__(sys.stdout)
        self._say = say

    def stopping(self) -> None:
        """Report that the run stops after the current batch."""
        self._say("Stopping after this batch.")

    def _write(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._say(printable(line))


def adapt(config: AdaptationConfig, say: PrintLine = print) -> Path:
    """Adapt the served model to a queue of feedback, until the queue is exhausted (with `once`) or a signal arrives.

    Args:
        config: the settings.
        say: function that prints one line.

    Returns:
        Folder of the adapted run. `rljax eval` and `rljax sample` open it, and `rljax export` writes its model.

    Raises:
        InputError: the run, the queue or the folder cannot be used, or too many batches in a row gave no update.
        Interrupted: Ctrl-C or SIGTERM stopped the adaptation; its state is saved.
    """
    check_queue(config)
    path = config.output_folder
    exists = prepare_to_continue(path)
    setup, served = make_served_setup(config, path if exists else None)
    folder = AdaptationFolder.open(path) if exists else new_folder(setup, served, path)
    with ExitStack() as stack:
        lock_folder(folder, stack)
        learner = make_batch_learner(config, setup, _state_template(setup))
        checkpoint, warnings = open_checkpoint(setup, served, folder, exists=exists)
        record_start(folder, int(checkpoint.state.step))
        owned = [checkpoint]
        del checkpoint
        run = open_resources(
            stack,
            folder,
            LineDisplay(say),
            lambda disk: Trackers([JsonlTracker(folder)], disk.attempt),
            keep={LAST: Retention(setup.config.run.max_to_keep), BEST: Retention(setup.config.run.max_best_to_keep)},
            resume="the same command again",
        )
        for warning in warnings:
            run.display.warning(warning)
        adaptation = Adaptation(learner, run)
        if exists:
            adaptation.say_resumed(owned[0])
        else:
            run.save(LAST, owned[0])
            run.saver.wait()  # a folder with rows but no checkpoint could be neither continued nor restarted
        try:
            run_phase(run, owned, adaptation.phase())
        except Interrupted:
            adaptation.say_outcome()
            raise
        run.saver.wait()
        adaptation.say_outcome()
    return path


def check_queue(config: AdaptationConfig) -> None:
    """Reject a queue that can never receive a line.

    Raises:
        InputError: neither the file nor its folder exists, or, with `once`, the file does not exist.
    """
    source = config.feedback
    if not source.exists() and (config.once or not source.parent.is_dir()):
        raise InputError(
            f"the feedback queue {str(source)!r} does not exist; pass the file or folder that feedback is written to."
        )


def _state_template(setup: Setup) -> TrainState:
    return template(setup, lambda params, _: begin_adaptation(setup, params))


def open_checkpoint(
    setup: Setup, served: tuple[RunFolder, str], folder: RunFolder, *, exists: bool
) -> tuple[Checkpoint, list[str]]:
    """Return the checkpoint from which an adaptation begins or continues, and warnings about lost data that is newer than it."""
    like, run = _state_template(setup), served[0]
    check_base(folder, base_entry(setup.config, setup.base))
    if exists:
        folder.write_config(settings_of(setup))
        return reopen(folder, lambda phase: like, lambda restored: check_log(folder, restored.file_states))
    check_base(run, base_entry(setup.config, setup.base))
    state = begin_adaptation(setup, checkpoints.restore_params(run.checkpoints / served[1], like.params))
    return Checkpoint(place_state(setup, state), no_history(len(setup.train.prompts.tokens))), []


def evaluate_heldout(learner: BatchLearner, state: TrainState) -> HeldoutEvaluation | None:
    """Answer the held-out problems greedily; None if no evaluation is requested."""
    setup, wanted = learner.setup, learner.config.heldout
    if wanted == 0:
        return None
    worker = setup.heldout if wanted is None else setup.heldout.with_first_prompts(wanted)
    start = time.monotonic()
    evaluation = evaluate(worker, setup.full_params(state.params))
    right, known = correctness_masks(evaluation.groups.rollout)
    metrics = evaluation.metrics() | {"seconds": time.monotonic() - start}
    return HeldoutEvaluation(np.where(known, right, np.nan)[:, 0].astype(float), metrics)


class BatchOutcome(NamedTuple):
    """The result of learning from a batch."""

    batch: NewLines
    """The batch."""
    attempt: Attempt
    """The updates on the batch."""
    outcome: str
    """KEPT, UNSOUND, TOO_FAR or WORSE."""
    heldout: HeldoutEvaluation | None
    """Evaluation of the model after the updates."""
    is_kept: bool
    """Whether the model after the updates is kept."""
    is_best: bool
    """Whether the model after the updates is the best so far."""


class Adaptation:
    """The functions of the adaptation phase. Their state is rebuilt from the folder's files when a run is resumed.

    Args:
        learner: settings, setup, and functions for learning.
        run: the run's files, display, trackers and stop signal.
    """

    def __init__(self, learner: BatchLearner, run: RunResources):
        self._learner, self._config, self._run = learner, learner.config, run
        self._log = read_log(run.folder.path / FEEDBACK)
        self._best = best_evaluation(run.folder.path / UPDATES)
        self._shown: set[str] = set()
        self._rejected = 0
        """Number of lines that were rejected since the last batch and are not in the log yet."""
        self._wrong_logp: dict[LineLocation, BadRowError] = {}

    def phase(self) -> Phase:
        """Make the phase. Each of its steps learns from a batch and saves a checkpoint."""
        return Phase(
            name="rl",
            steps=None,
            steps_done=lambda state: int(state.step),
            make_step=lambda checkpoint: self._step,
            explain_stop=self._explain_stop,
            saves_after=lambda done: True,
            # A copy tells `run_phase` that the phase begins with this checkpoint.
            enter=lambda checkpoint: checkpoint if self._was_entered(checkpoint) else checkpoint._replace(),
            evaluate_start=self._evaluate_start,
            react_to_metrics=self._record,
            evaluate=self._keep_best,
        )

    def say_resumed(self, checkpoint: Checkpoint) -> None:
        """Report where a resumed adaptation continues."""
        step, count = int(checkpoint.state.step), len(self._log.rows)
        self._run.display.message(
            f"Continuing after batch {step}; the earlier batches used {counted(count, 'line')} of the queue."
        )

    def say_outcome(self) -> None:
        """Report how many lines were learned from or rejected, and what to type next."""
        folder, log = shlex.quote(str(self._run.folder.path)), self._log
        rejected = len(log.rejected()) + self._rejected
        lines = [f"Lines learned from: {len(log.rewards(len(log.rows)))}, rejected: {rejected}."]
        lines.append(f"Adapted run: {folder}; `rljax eval {folder}` and `rljax sample {folder}` open it.")
        if self._learner.setup.policy.contents is not None:
            lines.append(f"`rljax export {folder} my-model` writes its model as a folder.")
        self._run.display.finish(lines)

    @staticmethod
    def _was_entered(checkpoint: Checkpoint) -> bool:
        return bool(int(checkpoint.state.step)) or checkpoint.notes.quality is not None

    def _evaluate_start(self, checkpoint: Checkpoint) -> Checkpoint:
        """Evaluate the served model, which is the best one so far."""
        evaluation = evaluate_heldout(self._learner, checkpoint.state)
        if evaluation is not None:
            accuracy = over_problems(evaluation.right).text()
            problems = counted(len(evaluation.right), "problem")
            self._run.display.message(f"Served model: held-out accuracy {accuracy} on {problems}.")
            self._run.record("eval", 0, evaluation.metrics)
            self._append(UPDATES, [update_row(0, KEPT, evaluation)])
            self._best = evaluation.right
            checkpoint = checkpoint._replace(notes=checkpoint.notes.with_result(evaluation.quality, 0))
        self._run.save(BEST, checkpoint)
        return checkpoint

    def _step(self, checkpoint: Checkpoint) -> StepOutcome | None:
        """Wait for a batch and learn from it; None if the queue is exhausted, or a signal requests a stop."""
        while not self._run.stop.requested:
            batch = self._next_batch(checkpoint.state)
            self._report_rejections(batch)
            if len(batch.examples) == self._config.batch:
                return self._learn(checkpoint, batch)
            if self._config.once:
                self._report_leftover(len(batch.examples))
                return None
            end = time.monotonic() + self._config.poll
            while not self._run.stop.requested and time.monotonic() < end:
                time.sleep(min(0.1, self._config.poll))
        return None

    def _next_batch(self, state: TrainState) -> NewLines:
        """Read the next lines, up to a batch; reject lines whose `logp` cannot be right and read others in their place."""
        config, setup = self._config, self._learner.setup
        while True:
            batch = read_next_lines(
                config.feedback, self._log, setup.config, setup.tokenizer, config.batch, self._wrong_logp
            )
            wrong = find_wrong_logp(self._learner, state, batch.examples) if len(batch.examples) == config.batch else {}
            if not wrong:
                return batch
            self._wrong_logp |= wrong

    def _report_rejections(self, batch: NewLines) -> None:
        """Show each rejected line and each remark about the files once, and write rejects.jsonl."""
        notes = [*batch.notes, *(f"rejected: {line.fault}" for line in batch.rejected)]
        new = [note for note in dict.fromkeys(notes) if note not in self._shown]
        for note in new:
            self._run.display.message(note)
        file, rejected = self._run.folder.path / REJECTS, self._log.rejected()
        if new or (rejected and not file.exists()):
            rows = [*rejected, *(line.row(0) for line in batch.rejected)]
            names = ("file", "line", "reason", "text")
            content = json_lines([{name: row[name] for name in names} for row in rows])
            self._run.write("the rejected lines", lambda: atomic_write(file, content))
        self._shown.update(notes)
        self._rejected = len(batch.rejected) if len(batch.examples) < self._config.batch else 0

    def _report_leftover(self, lines: int) -> None:
        """Report the lines at the end of the queue that are not learned from yet."""
        if lines:
            text = (
                f"{counted(lines, 'line')} left over: too few for a batch of {self._config.batch} until more lines arrive."
            )
            self._run.display.message(text)
        for file in list_unfinished(self._config.feedback):
            text = f"The last line of {file} does not end in a newline, so it may be incomplete; it is not read yet."
            self._run.display.message(text)

    def _learn(self, before: Checkpoint, batch: NewLines) -> StepOutcome:
        """Learn from a batch, and evaluate the model. The batch is consumed even if its updates are skipped."""
        start, step = time.monotonic(), int(before.state.step) + 1
        attempt = try_batch(self._learner, before.state, batch.examples, self._log.rewards(BASELINE_REWARDS))
        heldout = evaluate_heldout(self._learner, attempt.state) if attempt.accepted else None
        is_rejected = self._config.guard and is_worse(self._best, heldout)
        is_kept = attempt.accepted > 0 and not is_rejected
        state = (attempt.state if is_kept else before.state)._replace(step=before.state.step + 1)
        notes = before.notes
        if is_kept and heldout is not None:
            has_other_problems = self._best is not None and len(self._best) != len(heldout.right)
            notes = notes._replace(best_quality=None) if has_other_problems else notes
            notes = notes.with_result(heldout.quality, step)
        is_best = is_kept and (heldout is None or notes.best_step == step)
        learned = BatchOutcome(batch, attempt, WORSE if is_rejected else attempt.outcome, heldout, is_kept, is_best)
        metrics = attempt.metrics | {"seconds": time.monotonic() - start}
        skipped = float(not attempt.accepted and attempt.outcome != KEPT)
        return StepOutcome(before._replace(state=state, notes=notes), metrics, skipped, learned)

    def _record(self, outcome: StepOutcome) -> Checkpoint:
        """Record and show the outcome of a batch; held-out metrics are recorded only for models that are kept."""
        learned, step = outcome.details, int(outcome.checkpoint.state.step)
        heldout, best = learned.heldout, self._best
        rows = [line.row(step) for line in learned.batch.lines]
        if learned.is_kept and heldout is not None:
            self._run.record("eval", step, heldout.metrics)
            self._best = better_evaluation(best, heldout.right)
        self._append(FEEDBACK, rows)
        self._append(UPDATES, [update_row(step, learned.outcome, heldout, updates=learned.attempt.accepted)])
        self._log = Log((*self._log.rows, *rows))
        self._run.display.message(describe_batch(step, learned, best))
        return outcome.checkpoint

    def _keep_best(self, outcome: StepOutcome) -> tuple[Checkpoint, bool]:
        if outcome.details.is_best:
            self._run.save(BEST, outcome.checkpoint)
        return outcome.checkpoint, False

    def _append(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._run.write(name, lambda: append_rows(self._run.folder.path / name, rows))

    def _explain_stop(self, skipped: int, outcome: StepOutcome) -> str:
        """Explain, from the last batch, why too many batches in a row gave no update, and what to do."""
        if outcome.details.attempt.outcome == UNSOUND:
            return (
                f"the loss or gradient was not finite, or the update was far too large, in {skipped} batches in a row, so nothing "
                "was learned from them; start again in another folder (--run) with a lower --learning-rate."
            )
        return (
            f"an update went beyond --max-kl {self._config.max_kl} and was undone in {skipped} batches in a row, so nothing was "
            "learned from them; give a lower --learning-rate or a larger --max-kl. To learn from those "
            "lines again, start in another folder (--run)."
        )


def is_worse(best: Float[np.ndarray, "P"] | None, heldout: HeldoutEvaluation | None) -> bool:
    """Return True if the accuracy is lower: the 95 % interval of its change, paired by problem, is entirely below 0."""
    if best is None or heldout is None or len(best) != len(heldout.right):
        return False
    return paired_change(best, heldout.right).high < 0


def describe_batch(step: int, learned: BatchOutcome, best: Float[np.ndarray, "P"] | None) -> str:
    """Describe a batch in one line."""
    metrics, heldout = learned.attempt.metrics, learned.heldout
    text = f"Batch {step} ({line_numbers(learned.batch.examples)}): mean reward {metrics['reward']:.3f}"
    text += f", KL to the served model {metrics['kl_to_reference']:.4f}"
    if heldout is not None:
        text += f", held-out accuracy {heldout.metrics['accuracy']:.1%}"
        if best is not None and len(best) == len(heldout.right):
            text += f" ({format_points(paired_change(best, heldout.right))} compared with the best)"
    return f"{text}; {REASONS[learned.outcome]}." if learned.outcome in REASONS else f"{text}."
