"""Adapt a trained model to a queue of feedback, batch by batch, in a run folder that other commands open."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from rljax.data.fault import BadRowError
from rljax.data.feedback import Place, unfinished
from rljax.data.history import no_history
from rljax.errors import InputError
from rljax.evaluation.greedy import evaluate
from rljax.evaluation.paired import paired_change, points
from rljax.evaluation.statistics import over_problems
from rljax.files import atomic_write
from rljax.records import documented
from rljax.rollout.groups import right_and_known
from rljax.tracking.run_folder import RunFolder
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.checkpoints.checkpoint import BEST, LAST, Checkpoint
from rljax.training.checkpoints.retention import Retention, prune
from rljax.training.config.adaptation import AdaptationConfig
from rljax.training.interrupt import Interrupted, StopRequest
from rljax.training.monitoring.guard import MOST_SKIPPED
from rljax.training.parts.adapter import base_entry, check_base
from rljax.training.phases.adaptation import (
    KEPT,
    TOO_FAR,
    UNSOUND,
    WORSE,
    Attempt,
    Tools,
    make_tools,
    try_batch,
    wrong_logp,
)
from rljax.training.phases.adaptation_folder import (
    FEEDBACK,
    REJECTS,
    UPDATES,
    Heldout,
    abstract,
    append,
    best_of,
    better,
    check_log,
    continues,
    log_metrics,
    marks_of,
    new_folder,
    served_setup,
    settings_of,
    state_like,
    state_of,
    update_row,
)
from rljax.training.phases.feedback_log import Example, Log, NewLines, as_lines, gather, line_numbers, read_log
from rljax.training.setup import Setup
from rljax.training.state import TrainState

BASELINE = 1024
"""Number of earlier rewards, the newest ones, that new ones are compared with."""
REASONS = {
    UNSOUND: "an update was not sound, and was left out",
    TOO_FAR: "an update went beyond --max-kl, and was undone",
    WORSE: "the accuracy is lower, so the earlier model is kept",
}
"""What became of the updates of a batch, in words."""
Say = Callable[[str], None]


@documented
class Progress(NamedTuple):
    """State that changes from batch to batch."""

    checkpoint: Checkpoint
    """State and results of the evaluations."""
    log: Log
    """The lines that were used up."""
    best: Float[np.ndarray, "P"] | None = None
    """`Heldout.right` of the best evaluation; None before the first one."""
    unsound: int = 0
    """Batches in a row whose updates were not sound."""
    too_far: int = 0
    """Batches in a row whose first update went beyond `max_kl`."""

    @property
    def step(self) -> int:
        """Batches that were used up."""
        return int(self.checkpoint.state.step)


@documented
class AdaptationRun(NamedTuple):
    """An adaptation in progress; nothing here changes while it runs."""

    config: AdaptationConfig
    """The settings."""
    tools: Tools
    """What a batch is learned with."""
    folder: RunFolder
    """Files of the adapted run."""
    say: Say
    """Shows a line."""

    @property
    def setup(self) -> Setup:
        """Setup of the run."""
        return self.tools.setup


def adapt(config: AdaptationConfig, say: Say = print) -> Path:
    """Follow a queue of feedback and adapt the served model to it, until the queue is used up or a signal stops it.

    Args:
        config: the settings.
        say: shows a line.

    Returns:
        Folder of the adapted run. `rljax eval` and `rljax sample` open it, and `rljax export` writes its model.

    Raises:
        InputError: the run, the queue or the folder cannot be used, or too many batches in a row gave no update.
        Interrupted: Ctrl-C or SIGTERM; what was learned is saved.
    """
    check_queue(config)
    with StopRequest(lambda: say("Stopping after this batch.")) as stop:
        path = config.place
        exists = continues(path)
        setup, served = served_setup(config, path if exists else None)
        folder = RunFolder.open(path) if exists else new_folder(config, setup, served, path)
        with folder.alone():
            folder.remove_unfinished()
            run, progress = open_run(config, setup, served, folder, say, exists=exists)
            progress = follow(run, progress, stop)
        say(
            f"Lines learned from: {len(progress.log.rewards(len(progress.log.rows)))}, rejected: {len(progress.log.rejected())}."
        )
        place = shlex.quote(str(path))
        say(f"Adapted run: {place}; `rljax eval {place}` and `rljax sample {place}` open it.")
        if setup.policy.contents is not None:
            say(f"`rljax export {place} my-model` writes its model as a folder.")
        if stop.requested:
            say("Stopped. The same command goes on.")
            raise Interrupted
    return path


def check_queue(config: AdaptationConfig) -> None:
    """Refuse a queue that can never have a line.

    Raises:
        InputError: there is neither the file nor its folder, or, with `once`, no file.
    """
    source = config.feedback
    if not source.exists() and (config.once or not source.parent.is_dir()):
        raise InputError(
            f"there is no file or folder {str(source)!r} with feedback; name the queue that lines are written to."
        )


def open_run(
    config: AdaptationConfig, setup: Setup, served: tuple[RunFolder, str], folder: RunFolder, say: Say, *, exists: bool
) -> tuple[AdaptationRun, Progress]:
    """Begin an adaptation, or go on with one at its last checkpoint."""
    state, run = state_like(setup), served[0]
    check_base(folder, base_entry(setup.config, setup.base))
    run_of = AdaptationRun(config, make_tools(config, setup, state), folder, say)
    if not exists:
        check_base(run, base_entry(setup.config, setup.base))
        params = checkpoints.restore_params(run.checkpoints / served[1], abstract(state.params))
        progress = Progress(Checkpoint(state_of(setup, params), no_history(len(setup.train.prompts.tokens))), Log())
        save(run_of, progress, [LAST])
    else:
        folder.write_config(settings_of(setup))
        restored = checkpoints.restore(folder.checkpoints / LAST, lambda phase: state)
        check_log(folder, restored.marks)
        losses, best = folder.rewind(restored.marks), folder.checkpoints / BEST
        losses += checkpoints.set_aside([*restored.damaged, *checkpoints.damaged_in(best)])
        if restored.checkpoint.notes.best_step is not None:
            losses += checkpoints.set_aside(checkpoints.abandoned_in(best, restored.checkpoint.notes.best_step))
        for loss in losses:
            say(f"note: {loss}")
        log = read_log(folder.path / FEEDBACK)
        progress = Progress(restored.checkpoint, log, best_of(folder.path / UPDATES))
        say(f"Going on after batch {progress.step}, with {len(log.rows)} lines of the queue used up.")
    return run_of, evaluate_first(run_of, progress)


def evaluate_heldout(run: AdaptationRun, state: TrainState) -> Heldout | None:
    """Answer the held-out problems greedily; None if none are wanted."""
    setup, wanted = run.setup, run.config.heldout
    if wanted == 0:
        return None
    worker = setup.heldout if wanted is None else setup.heldout.first(wanted)
    start = time.monotonic()
    evaluation = evaluate(worker, setup.whole(state.params))
    right, known = right_and_known(evaluation.groups.rollout)
    metrics = evaluation.metrics() | {"seconds": time.monotonic() - start}
    return Heldout(np.where(known, right, np.nan)[:, 0].astype(float), metrics)


def evaluate_first(run: AdaptationRun, progress: Progress) -> Progress:
    """Evaluate the served model, unless that was done."""
    if progress.step or progress.checkpoint.notes.quality is not None:
        return progress
    found = evaluate_heldout(run, progress.checkpoint.state)
    if found is None:
        save(run, progress, [BEST, LAST])
        return progress
    run.say(f"Served model: held-out accuracy {over_problems(found.right).text()} on {len(found.right)} problems.")
    log_metrics(run.folder, [("eval", 0, found.metrics)])
    append(run.folder.path / UPDATES, [update_row(0, KEPT, found)])
    notes = progress.checkpoint.notes.evaluated(found.quality, 0)
    progress = progress._replace(checkpoint=progress.checkpoint._replace(notes=notes), best=found.right)
    save(run, progress, [BEST, LAST])
    return progress


def follow(run: AdaptationRun, progress: Progress, stop: StopRequest) -> Progress:
    """Learn from one batch after the other, until the queue is used up or a signal asks to stop."""
    config, shown = run.config, set()
    bad: dict[Place, BadRowError] = {}
    while not stop.requested:
        found = next_batch(run, progress, bad)
        tell(run, progress.log, found, shown)
        if len(found.examples) == config.batch:
            progress = learn_batch(run, progress, found)
            continue
        if config.once:
            queue_left(run, len(found.examples))
            return progress
        end = time.monotonic() + config.poll
        while not stop.requested and time.monotonic() < end:
            time.sleep(min(0.1, config.poll))
    return progress


def next_batch(run: AdaptationRun, progress: Progress, bad: dict[Place, BadRowError]) -> NewLines:
    """Read the next lines; those whose `logp` cannot be right are added to `bad`, and others read in their place."""
    config, setup = run.config, run.setup
    while True:
        found = gather(config.feedback, progress.log, setup.config, setup.tokenizer, config.batch, bad)
        if len(found.examples) < config.batch:
            return found
        wrong = wrong_logp(run.tools, progress.checkpoint.state, found.examples)
        if not wrong:
            return found
        bad |= wrong


def queue_left(run: AdaptationRun, lines: int) -> None:
    """Say what of the queue is left for the next time."""
    if lines:
        run.say(f"{lines} lines are too few for a batch of {run.config.batch}; they wait for more.")
    for file in unfinished(run.config.feedback):
        run.say(f"The last line of {file} has no line end, so it may be incomplete; it waits.")


def tell(run: AdaptationRun, log: Log, found: NewLines, shown: set[str]) -> None:
    """Name new rejected lines and what happened to the files, each once, and write the rejected lines."""
    notes = [*found.notes, *(f"rejected: {line.fault}" for line in found.rejected)]
    for note in notes:
        if note not in shown:
            run.say(note)
    if set(notes) - shown or (log.rejected() and not (run.folder.path / REJECTS).exists()):
        rows = [*log.rejected(), *(line.row(0) for line in found.rejected)]
        kept = ("file", "line", "reason", "text")
        atomic_write(run.folder.path / REJECTS, as_lines([{name: row[name] for name in kept} for row in rows]))
    shown.update(notes)


def learn_batch(run: AdaptationRun, progress: Progress, found: NewLines) -> Progress:
    """Learn from a batch, evaluate, write everything down, and save.

    Raises:
        InputError: the updates of too many batches in a row were not sound, or went beyond `max_kl`.
    """
    start, before, step = time.monotonic(), progress.checkpoint, progress.step + 1
    attempt = try_batch(run.tools, before.state, found.examples, progress.log.rewards(BASELINE))
    heldout = evaluate_heldout(run, attempt.state) if attempt.made else None
    outcome = attempt.outcome
    if run.config.guard and is_worse(progress.best, heldout):
        outcome = WORSE
    stays = attempt.made > 0 and outcome != WORSE
    state = (attempt.state if stays else before.state)._replace(step=before.state.step + 1)
    notes = before.notes.evaluated(heldout.quality, step) if stays and heldout is not None else before.notes
    is_best = stays and (heldout is None or notes.best_step == step)
    best = better(progress.best, heldout.right) if stays and heldout is not None else progress.best
    rows = [line.row(step) for line in found.lines]
    log_metrics(run.folder, metrics_of(step, attempt, heldout if stays else None, time.monotonic() - start))
    append(run.folder.path / FEEDBACK, rows)
    append(run.folder.path / UPDATES, [update_row(step, outcome, heldout, made=attempt.made)])
    run.say(describe(step, attempt, outcome, found.examples, progress.best, heldout))
    unsound = progress.unsound + 1 if attempt.outcome == UNSOUND and not attempt.made else 0
    too_far = progress.too_far + 1 if attempt.outcome == TOO_FAR and not attempt.made else 0
    after = Progress(before._replace(state=state, notes=notes), Log((*progress.log.rows, *rows)), best, unsound, too_far)
    save(run, after, [BEST, LAST] if is_best else [LAST])
    if unsound >= MOST_SKIPPED:
        raise InputError(
            f"loss or gradient was not finite, or the update far too large, in {unsound} batches in a row, so nothing was learned "
            "from them; start again in another folder (--run) with a lower --learning-rate."
        )
    if too_far >= MOST_SKIPPED:
        raise InputError(
            f"an update went beyond --max-kl {run.config.max_kl} and was undone in {too_far} batches in a row, so nothing was "
            "learned from them; give a lower --learning-rate or a larger --max-kl. Another folder (--run) learns from their lines "
            "again."
        )
    return after


def is_worse(best: Float[np.ndarray, "P"] | None, heldout: Heldout | None) -> bool:
    """True if the whole interval of the change of the accuracy lies below 0; the same problems count before and after."""
    if best is None or heldout is None or len(best) != len(heldout.right):
        return False
    return paired_change(best, heldout.right).high < 0


def describe(
    step: int,
    attempt: Attempt,
    outcome: str,
    examples: Sequence[Example],
    best: Float[np.ndarray, "P"] | None,
    heldout: Heldout | None,
) -> str:
    """A batch in a line."""
    text = f"Batch {step} ({line_numbers(examples)}): mean reward {attempt.numbers['reward']:.3f}"
    text += f", KL to the served model {attempt.numbers['kl_to_reference']:.4f}"
    if heldout is not None:
        text += f", held-out accuracy {heldout.metrics['accuracy']:.1%}"
        if best is not None and len(best) == len(heldout.right):
            text += f" ({points(paired_change(best, heldout.right))} compared with the best)"
    return f"{text}; {REASONS[outcome]}." if outcome in REASONS else f"{text}."


def metrics_of(
    step: int, attempt: Attempt, heldout: Heldout | None, seconds: float
) -> list[tuple[str, int, Mapping[str, float]]]:
    """Rows of metrics.jsonl of a batch: the held-out numbers are those of the model that is kept, if it is a new one."""
    rows: list[tuple[str, int, Mapping[str, float]]] = [("rl", step, attempt.numbers | {"seconds": seconds})]
    return rows if heldout is None else [*rows, ("eval", step, heldout.metrics)]


def save(run: AdaptationRun, progress: Progress, kinds: Sequence[str]) -> None:
    """Write checkpoints, each with the places where the growing files end; the last kind is the one that a start goes on from."""
    folder = run.folder
    marks = marks_of(folder)
    limits = {LAST: run.setup.config.run.max_to_keep, BEST: run.setup.config.run.max_best_to_keep}
    for kind in kinds:
        checkpoints.save(folder.checkpoints / kind, progress.checkpoint, marks)
        prune(folder.checkpoints / kind, progress.step, Retention(limits[kind]))
