"""A run in progress: its setup, folder, display and trackers. Nothing here changes while it runs."""

import shlex
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import jax

from rljax.data.fault import describe as describe_faults
from rljax.errors import InputError
from rljax.evaluation.comparison import answer_rows
from rljax.evaluation.greedy import evaluate
from rljax.models import count_parameters
from rljax.models.quantization import matrix_shapes
from rljax.parallel import any_host, on_first
from rljax.records import documented, required
from rljax.tasks import task_name
from rljax.tracking.alarms import Event, Watch, watch_rows
from rljax.tracking.display import Display
from rljax.tracking.phase_times import Stopwatch
from rljax.tracking.rows import read_metrics
from rljax.tracking.run_folder import Mark, RunFolder
from rljax.tracking.trackers import Trackers
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.checkpoints.checkpoint import BEST, LAST, Checkpoint, Quality
from rljax.training.checkpoints.full_disk import DiskWriter
from rljax.training.checkpoints.saver import Saver
from rljax.training.config import TrainConfig
from rljax.training.interrupt import Interrupted, StopRequest
from rljax.training.lesson import Lesson
from rljax.training.metrics import Numbers
from rljax.training.monitoring.guard import MOST_SKIPPED, check_drawn, unsound_text
from rljax.training.objective.algorithm import reward_weights
from rljax.training.setup import Setup
from rljax.training.state import TrainState
from rljax.training.stopped_batch import StoppedBatch, write_batch

HELDOUT_KEPT = 1000
"""Number of held-out answers that are written down before and after RL."""


@documented
@dataclass(frozen=True)
class Run:
    """A run in progress."""

    setup: Setup
    """Everything that the run uses."""
    folder: RunFolder
    """Files of the run."""
    display: Display
    """Shows progress on the screen."""
    trackers: Trackers
    """Log metrics and samples."""
    stop: StopRequest
    """Whether a signal has asked the run to stop."""
    disk: DiskWriter
    """Repeats writes that meet a full disk."""
    saver: Saver
    """Writes the checkpoints beside the steps."""
    stopwatch: Stopwatch
    """Measures the phases of the RL steps."""

    @property
    def config(self) -> TrainConfig:
        """The settings."""
        return self.setup.config

    def save(self, which: str, checkpoint: Checkpoint) -> None:
        """Begin to write a checkpoint as `which`, the last or the best one; arrays of it may be donated afterwards.

        The best one is without the old parameters, which only a resumed run reads.
        """
        self.display.activity("saving")
        marks: dict[str, Mark] = {}
        with self.stopwatch.phase("save"):
            self.write("the metrics", lambda: marks.update(self.folder.marks()))
            self.saver.save(which, checkpoint if which == LAST else checkpoint._replace(ring=()), marks)

    def write(self, what: str, work: Callable[[], object]) -> None:
        """Have the first process write something, once there is room for it; all processes call it.

        Args:
            what: its name, for messages: "the metrics".
            work: writes it; a failure leaves nothing of it.
        """
        on_first(lambda: self.disk.attempt(what, work))

    def check_updates(self, checkpoint: Checkpoint, skipped: int, learning_rate: str, lesson: Lesson | None = None) -> None:
        """Save and stop after too many training steps in a row without a sound update.

        Args:
            checkpoint: as it was before these steps, but for its counters.
            skipped: number of these steps.
            learning_rate: the flag that sets their learning rate.
            lesson: what the last of them learned from; it is kept for `rljax debug`.

        Raises:
            InputError: there were too many.
        """
        if skipped < MOST_SKIPPED:
            return
        self.save(LAST, checkpoint)
        self.saver.wait()
        if lesson is not None:
            number, _ = checkpoints.newest_whole(self.folder.checkpoints / LAST)
            weights = reward_weights(self.setup.algorithm, self.setup.train)
            kept = StoppedBatch(lesson, int(checkpoint.state.step), number, weights)
            self.write("the batch", lambda: write_batch(self.folder, kept))
        path = shlex.quote(str(self.folder.path))
        debug = "" if lesson is None else f" `rljax debug {path}` names the term, the row and the token that caused it."
        raise InputError(unsound_text(skipped, learning_rate, path) + debug)

    def log(self, phase: str, step: int, numbers: Numbers) -> None:
        """Log and show the metrics of a training step; all processes call it."""
        self.record(phase, step, numbers)
        self.display.update(step, numbers)

    def record(self, phase: str, step: int, numbers: Numbers) -> None:
        """Log metrics; all processes call it, because the first one, which has the trackers, may stop while it waits for room."""
        on_first(lambda: self.trackers.log(phase, step, numbers))

    def report(self, events: Sequence[Event]) -> None:
        """Say which alarms were raised and cleared: on the screen, in the log and in `alarms.jsonl`; all processes call it.

        Args:
            events: those that the first process has found; what others pass is not written.
        """
        for event in events:
            say = self.display.warning if event.what == "raised" else self.display.message
            say(event.text())
        rows = [event.to_json() for event in events]
        on_first(lambda: self.disk.attempt("the alarms", lambda: self.folder.add_alarms(rows)) if rows else None)

    def stop_if_asked(self, checkpoint: Checkpoint) -> None:
        """If the run was asked to stop: save, show how to resume, and raise.

        Raises:
            Interrupted: after the save.
        """
        if any_host(self.stop.requested):
            self.save(LAST, checkpoint)
            self.saver.wait()
            say_stopped(self, "Stopped. Everything up to the last finished step is saved.")
            raise Interrupted


def say_stopped(run: Run, text: str) -> None:
    """Say that a run was stopped, and how to go on."""
    run.display.finish([text])
    run.display.commands("To go on:", [resume_command(run.folder)])


def begin_watch(run: Run, checkpoint: Checkpoint) -> Watch:
    """Watch of the rows that are written already, and the files of alarms and remedies that belong to them.

    Only the first host has one; the others get an empty one.
    """
    watches: list[Watch] = []

    def begin() -> None:
        path = run.folder.metrics
        watch, events = watch_rows(read_metrics(path) if path.is_file() and path.stat().st_size else [])
        run.disk.attempt("the alarms", lambda: run.folder.write_alarms([event.to_json() for event in events]))
        remedies = [change._asdict() for change in checkpoint.remedies]
        run.disk.attempt("the remedies", lambda: run.folder.write_remedies(remedies))
        watches.append(watch)

    on_first(begin)
    return watches[0] if watches else Watch()


def resume_command(folder: RunFolder) -> str:
    """Command that resumes a run, or a call if the run needs arguments that only a call can pass."""
    needed = folder.config.get("seams", ())
    if not needed:
        return f"rljax train --resume {shlex.quote(str(folder.path))}"
    arguments = "".join(f", {name}={name}" for name in needed)
    return f"rljax.train(resume={str(folder.path)!r}{arguments})"


def evaluate_and_keep_best(run: Run, checkpoint: Checkpoint, step: int) -> Checkpoint:
    """Evaluate, log the result, and save the checkpoint if its mean reward is the best so far.

    The answers before RL and after its last step are kept in `heldout.jsonl`.

    Returns:
        The checkpoint with the result in its notes.

    Raises:
        InputError: the parameters are broken.
    """
    run.display.activity("answering held-out problems", compiles=True)
    start = time.monotonic()
    evaluation = evaluate(run.setup.heldout, run.setup.whole(checkpoint.state.params))
    check_drawn(evaluation.groups)
    metrics = evaluation.metrics() | {"seconds": time.monotonic() - start}
    run.record("eval", step, metrics)
    run.display.evaluated(step, metrics)
    if step in (0, run.config.optimization.steps):
        valid = required(evaluation.groups.rollout.valid, "rollout.valid")[:HELDOUT_KEPT, 0]
        answers = run.setup.heldout.shown(evaluation.groups, HELDOUT_KEPT)
        run.write("the held-out answers", lambda: run.folder.add_heldout(answer_rows(answers, valid.tolist(), step)))
    quality = Quality(metrics["accuracy"], metrics["reward"])
    after = checkpoint._replace(notes=checkpoint.notes.evaluated(quality, step))
    if after.notes.best_step == step and after.notes.best_quality == quality:
        run.save(BEST, after)
    return after


def nothing_to_learn(config: TrainConfig, own_parts: Collection[str]) -> str | None:
    """Advice for a run that can hardly learn: set a model, or a warm start for the random weights; None if it lacks nothing."""
    if config.model.path is not None or config.warm_start.steps or set(own_parts) & {"policy", "reward", "environment"}:
        return None
    return (
        "The model starts from random weights without a warm start, so hardly any response earns a reward, and nothing is "
        "learned. Set model=FOLDER_OR_HUB_ID, or warm_start_steps=340 on data with demonstrations; "
        "rljax.load_config('arithmetic_dapo') has the settings with which `rljax train` learns."
    )


def describe(setup: Setup, state: TrainState, folder: RunFolder) -> list[str]:
    """Describe the run in a few lines."""
    config, task = setup.config, setup.config.generated_task
    mesh = " x ".join(f"{name}={size}" for name, size in setup.mesh.shape.items())
    over = f", mesh {mesh}" if jax.device_count() > 1 else ""
    kind = setup.mesh.devices.flat[0].device_kind
    train, heldout = setup.train.prompts, setup.heldout.prompts
    hosts = f" on {jax.process_count()} hosts" if jax.process_count() > 1 else ""
    own_parts = folder.config.get("seams", ())
    source = config.data.dataset if task is None else f"the generated task {task_name(task)}"
    source = "problems of your own" if "problems" in own_parts else source
    model = "from random weights" if config.model.path is None else config.model.path
    model = "of your own" if "policy" in own_parts else model
    algorithm = "of your own" if "algorithm" in own_parts else config.algorithm.name
    all_params = state.params if setup.base is None else matrix_shapes(setup.base.params)
    lines = [
        f"algorithm {algorithm} on {source}",
        f"problems {len(train.tokens)} to train on, {len(heldout.tokens)} held out",
        f"model {model}: {count_parameters(all_params):,} parameters, {config.model.dtype}",
        f"devices {jax.device_count()} x {kind}{hosts}{over}",
        f"run folder {folder.path}",
        "what a number means: rljax explain NUMBER",
    ]
    if setup.base is not None:
        below = "" if config.adapter.quantize is None else f", on a model in {config.adapter.quantize}"
        learns = f"{count_parameters(state.params):,} parameters that learn"
        lines.insert(3, f"adapter of rank {config.adapter.rank}: {learns}{below}")
    if setup.critic is not None:
        trained = count_parameters(setup.critic.learned(required(state.critic, "state.critic").params))
        start = "the policy" if config.critic.start is None else config.critic.start
        lines.insert(3, f"critic from {start}: {trained:,} parameters that learn")
    dropped = train.dropped + heldout.dropped
    if dropped:
        limit = config.data.max_prompt_tokens
        lines.append(f"{dropped} prompts are longer than max_prompt_tokens={limit} and were left out")
    lines.extend(f"data: {reason}" for reason in setup.omissions)
    if setup.faults:
        lines.append(f"data: {describe_faults(setup.faults)}")
    return lines
