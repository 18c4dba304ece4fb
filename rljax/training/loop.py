"""A whole run: warm start, value pretraining and reinforcement learning. Each phase passes a checkpoint to the next."""

import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import optax

from rljax.algorithms import Algorithm
from rljax.data.history import no_history
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models import Params, Policy
from rljax.parallel import agree, is_first, on_first, together, watched_hosts
from rljax.records import documented, required
from rljax.rollout import Engine, Environment
from rljax.tracking.compiling import watch_compilation
from rljax.tracking.display import Display, make_display
from rljax.tracking.log_file import LoggedDisplay
from rljax.tracking.phase_times import Stopwatch
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.starts import record_start
from rljax.tracking.trackers import JsonlTracker, TensorBoardTracker, Tracker, Trackers, WandbTracker
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.checkpoints.checkpoint import BEST, LAST, Checkpoint
from rljax.training.checkpoints.full_disk import DiskWriter
from rljax.training.checkpoints.retention import Retention
from rljax.training.checkpoints.saver import Saver
from rljax.training.config import TrainConfig
from rljax.training.grace_period import GracePeriod
from rljax.training.interrupt import StopRequest
from rljax.training.lifecycle.final_models import write_final_models
from rljax.training.lifecycle.initial_state import add_anchor, first_state, place_state, rl_state, state_of_phase
from rljax.training.lifecycle.outcome import accuracy_name, finish
from rljax.training.lifecycle.resume import Change, check_steps, last_evaluation, summary
from rljax.training.lifecycle.start import continue_folder, new_folder, settings_of
from rljax.training.parts.adapter import base_entry, check_base
from rljax.training.parts.seams import ROWS, Seams, check_trackers
from rljax.training.phases.value_pretraining import pretrain_value, pretraining_steps
from rljax.training.phases.warm_start_cache import cached_or_new_warm_start
from rljax.training.reinforce import reinforce
from rljax.training.run import Run, describe, evaluate_and_keep_best, nothing_to_learn, resume_command
from rljax.training.sampler_delay import cast_of, first_ring
from rljax.training.setup import Setup, make_setup
from rljax.training.state import RL, WARM_START, TrainState, begin_rl

ABANDONED = (
    "The process that trained here before did not end by itself: it was killed (by a person, for its memory, with its machine), "
    "it crashed, or it lost another host. What it did after its last checkpoint is done again."
)
"""What a resumed run says of such an end."""


@documented
class Result(NamedTuple):
    """The outcome of a run."""

    run: Path
    """Folder of the run."""
    accuracy_before: float
    """Held-out greedy accuracy before RL, a share."""
    accuracy_after: float
    """Held-out greedy accuracy after RL, a share."""
    params: Params
    """Parameters of the policy."""


def train(
    config: TrainConfig | None = None,
    reward: Callable | Sequence[Callable | str] | None = None,
    *,
    dataset: str | Path | Iterable[Mapping[str, object]] | None = None,
    policy: Policy | None = None,
    engine: Engine | None = None,
    environment: Environment | None = None,
    optimizer: optax.GradientTransformation | None = None,
    algorithm: Algorithm | None = None,
    problems: tuple[Sequence[Problem], Sequence[Problem]] | None = None,
    trackers: Sequence[Tracker] = (),
    resume: str | Path | None = None,
) -> Result:
    """Train a language model with reinforcement learning.

    On several hosts (after `jax.distributed.initialize()`), every process makes the same call. All hosts must be able to reach the
    run folder, and the returned parameters lie on the devices of all hosts. Compiled programs are kept for the next process only if
    JAX is told to: `rljax.use_compilation_cache()` does it as the commands do.

    Args:
        config: all settings. Leave it out on resume, when the settings are read from the run's config.json.
        reward: `f(prompts, completions, **columns) -> list[float | None]`, in place of `config.reward`. The columns are
            those of the dataset, with one entry per completion; a function gets the columns that it names, or all of them if it
            takes `**kwargs`. Several rewards are summed with the weights `config.reward.weights`.
        dataset: rows (dicts, or a `datasets.Dataset`), or the name of a file, folder or hub id; in place of `config.data.dataset`.
        policy: a model of your own, in place of `config.model`; see `rljax.models.Policy`.
        engine: draws the responses, in place of the built-in engine; see `rljax.rollout.Engine`.
        environment: answers the policy turn by turn, in place of a reward; see `rljax.rollout.Environment`.
        optimizer: any Optax transformation for the policy in RL, in place of AdamW. Warm start and critic keep AdamW.
        algorithm: an algorithm of your own, in place of `config.algorithm`.
        problems: training and held-out problems, in place of the dataset or the generated task.
        trackers: trackers to use beside JSON lines and TensorBoard; see `rljax.tracking.trackers.Tracker`.
        resume: folder of a run to continue. Every argument besides the configuration must be passed again. With a configuration,
            the settings in which it differs from the run's are changed; see `rljax.training.lifecycle.resume`. "auto" continues
            the run in the folder that the configuration names, and begins it if there is none.

    Returns:
        The run folder, held-out accuracy before and after RL, and the parameters.

    Raises:
        InputError: something in the configuration, the data, the reward or another argument cannot work; nothing was overwritten.
        Interrupted: Ctrl-C or SIGTERM; the run can be resumed. It is saved up to its last step, or up to its last checkpoint if it
            was stopped while it waited for room on the disk.
    """
    check_trackers(trackers)
    config, rows = with_dataset(config, dataset)
    seams = Seams(policy, engine, environment, reward, optimizer, algorithm, problems, rows)
    config, existing, changes = settings_of(config, resume, seams)
    agree("settings", repr((config, seams.names())))
    with ExitStack() as stack:
        display = screen = stack.enter_context(make_screen(config, stack))
        stack.enter_context(watched_hosts(config.devices.host_timeout, lambda reason: say_lost(display, reason)))
        screen.activity("loading the model and the problems")
        setup = together(lambda: make_setup(config, seams))
        texts = [*setup.train.prompts.problems, *setup.heldout.prompts.problems]
        agree("problems", repr([(problem.prompt, problem.answer) for problem in texts]))
        state = first_state(setup, seams.names())
        base = together(lambda: base_entry(config, setup.base))
        if existing is None:
            folder = new_folder(config, seams, base)
            stack.enter_context(discard_on_error(folder))
        else:
            folder = existing
            check_base(folder, base)
        killed = hold(folder, stack)
        folder, checkpoint, losses = open_run(config, setup, state, folder, changes)
        display = together(lambda: stack.enter_context(with_log(screen, folder)))
        display.measuring(accuracy_name(setup.heldout))
        grace = GracePeriod(config.run.grace if jax.process_count() == 1 else None)
        stop = stack.enter_context(StopRequest(display.stopping, grace.begin))
        disk = DiskWriter(str(folder.path), display.warning, lambda: stop.requested, resume_command(folder))
        run_trackers = together(lambda: make_trackers(config, folder, trackers, disk))
        stack.callback(run_trackers.close)
        stack.enter_context(watch_compilation(display.compiling))
        stopwatch = Stopwatch()
        waiting = partial(stopwatch.phase, "wait")
        saver = stack.enter_context(Saver(folder.checkpoints, retentions(config), disk, display.warning, waiting))
        setup = setup.watched(display.judging)
        setup = setup._replace(train=setup.train.timed(partial(stopwatch.phase, "judge")))
        run = Run(setup, folder, display, run_trackers, stop, disk, saver, stopwatch)
        introduce(run, checkpoint, changes)
        abandoned = [ABANDONED] if killed and existing is not None else []
        for loss in (*abandoned, *losses):
            display.warning(loss)
        if existing is None:
            checkpoint = checkpoint._replace(state=add_anchor(setup, checkpoint.state))
            run.save(LAST, checkpoint)
        return execute(run, checkpoint, grace)


@documented
class Opening(NamedTuple):
    """Folder and state with which a run begins or goes on."""

    folder: RunFolder
    """Files of the run."""
    checkpoint: Checkpoint
    """The state to continue from."""
    losses: tuple[str, ...]
    """Damaged checkpoints that were passed over, and rows that are lost, in words; known to the first host alone."""


def say_lost(display: Display, reason: str) -> None:
    """Say that another host was lost: on the screen and in the log of the first host, on the errors' stream of the others."""
    text = (
        f"{reason} The rows of every finished step and the last checkpoint are saved; the same command on all hosts, with "
        "--resume, goes on from there."
    )
    if is_first():
        display.warning(text)
        display.finish(["Ended: another host was lost."])
    else:
        print(f"rljax: {text}", file=sys.stderr, flush=True)


def hold(folder: RunFolder, stack: ExitStack) -> bool:
    """Keep other processes out of the folder until the run ends, and remove what a killed one left half-written.

    The first host does it for all.

    Returns:
        Whether the process that held it before did not end by itself; known to the first host alone.

    Raises:
        InputError: another process trains in it.
    """
    found: list[bool] = []
    on_first(lambda: found.append(stack.enter_context(folder.alone())))
    on_first(folder.remove_unfinished)
    return any(found)


def with_log(screen: Display, folder: RunFolder) -> AbstractContextManager[Display]:
    """The display of the first host, which also writes the log file; that of the other hosts as it is."""
    return LoggedDisplay(screen, folder.log) if is_first() else nullcontext(screen)


def open_run(
    config: TrainConfig, setup: Setup, state: TrainState, folder: RunFolder, changes: Sequence[Change] | None
) -> Opening:
    """Folder and checkpoint at which a run begins (`changes` is None) or is resumed; the folder gets a row about this start."""
    losses: list[str] = []
    checkpoint = Checkpoint(state, no_history(len(setup.train.prompts.tokens)))
    if changes is not None:
        checkpoint, marks, damaged = checkpoints.restore(folder.checkpoints / LAST, partial(state_of_phase, setup, state))
        check_steps(changes, setup, checkpoint.state)
        on_first(lambda: losses.extend(folder.rewind(marks)))
        best = folder.checkpoints / BEST
        on_first(lambda: losses.extend(checkpoints.set_aside([*damaged, *checkpoints.damaged_in(best)])))
        on_first(lambda: losses.extend(checkpoints.set_aside(checkpoints.abandoned_in(best, checkpoint.notes.best_step))))
        folder = continue_folder(folder, config, changes)
    step, when = int(checkpoint.state.step), datetime.now()
    made = [change._asdict() for change in changes or ()]
    on_first(lambda: record_start(folder, when, step=step, changes=made))
    return Opening(folder, checkpoint, tuple(losses))


def introduce(run: Run, checkpoint: Checkpoint, changes: Sequence[Change] | None) -> None:
    """Describe the run on the screen: a new one (`changes` is None), or a resumed one with its past."""
    run.display.header(describe(run.setup, checkpoint.state, run.folder))
    if changes is not None:
        for line in summary(run.setup, checkpoint.state, run.folder, changes):
            run.display.message(line)
        last = last_evaluation(run.folder)
        if last is not None:
            run.display.evaluated(last["step"], {"accuracy": last["accuracy"]})
        return
    missing = nothing_to_learn(run.config, run.folder.config["seams"])
    if missing is not None:
        run.display.warning(missing)


def with_dataset(
    config: TrainConfig | None, dataset: str | Path | Iterable[Mapping[str, object]] | None
) -> tuple[TrainConfig | None, Iterable[Mapping[str, object]] | None]:
    """The settings with the name of the dataset, and its rows if they were passed.

    Raises:
        InputError: a run that is resumed without a configuration gets the name of a dataset.
    """
    is_name = isinstance(dataset, str | Path)
    if dataset is None or (config is None and not is_name):
        return config, dataset
    if config is None:
        raise InputError(f"The run has the name of its dataset in config.json; leave dataset={str(dataset)!r} out.")
    return config.replace(dataset=str(dataset) if is_name else ROWS, task=None), None if is_name else dataset


def make_screen(config: TrainConfig, stack: ExitStack) -> Display:
    """Make the display of the first host; other hosts show nothing."""
    if is_first():
        return make_display(config.run.quiet, sys.stdout)
    return make_display(config.run.quiet, stack.enter_context(Path(os.devnull).open("w")))


@contextmanager
def discard_on_error(folder: RunFolder) -> Generator[None]:
    """Remove the folder of a new run that ends with an `InputError` before it saved anything but its beginning."""
    try:
        yield
    except InputError:
        if is_first():  # not together: the other hosts may not get here
            folder.discard()
        raise


def retentions(config: TrainConfig) -> dict[str, Retention]:
    """Rules for the checkpoints that stay, by the name of their kind."""
    run = config.run
    return {LAST: Retention(run.max_to_keep, run.keep_period), BEST: Retention(run.max_best_to_keep)}


def make_trackers(config: TrainConfig, folder: RunFolder, further: Sequence[Tracker], disk: DiskWriter) -> Trackers:
    """Make the trackers: JSON lines, TensorBoard, Weights & Biases if set, and `further` ones; none except on the first host."""
    if not is_first():
        return Trackers([])
    trackers: list[Tracker] = [JsonlTracker(folder), TensorBoardTracker(folder)]
    if config.run.wandb:
        trackers.append(WandbTracker(folder, project=config.run.name))
    return Trackers([*trackers, *further], disk.attempt)


def execute(run: Run, checkpoint: Checkpoint, grace: GracePeriod) -> Result:
    """Run the remaining phases and return the result; `grace` is how long a step of RL may go on after SIGTERM."""
    setup = run.setup
    if int(checkpoint.state.phase) == WARM_START:
        if run.config.warm_start.steps:
            checkpoint = cached_or_new_warm_start(run, checkpoint)
        checkpoint = checkpoint._replace(state=rl_state(setup, checkpoint.state))
        checkpoint = evaluate_and_keep_best(run, checkpoint, 0)
        if pretraining_steps(setup.algorithm, run.config):  # without, the save at the beginning of RL follows at once
            run.save(LAST, checkpoint)
        run.stop_if_asked(checkpoint)
    if int(checkpoint.state.phase) != RL:
        checkpoint = pretrain_value(run, checkpoint)
        state = place_state(setup, begin_rl(checkpoint.state))
        ring = first_ring(state.params, run.config.sampling.delay, cast_of(setup.policy, setup.base))
        checkpoint = checkpoint._replace(state=state, ring=ring)
        run.save(LAST, checkpoint)
    checkpoint = reinforce(run, checkpoint, grace)
    finish(run, checkpoint, write_final_models(run, checkpoint))
    notes = checkpoint.notes
    before, after = required(notes.quality_before, "notes.quality_before"), required(notes.quality, "notes.quality")
    return Result(run.folder.path, before.accuracy, after.accuracy, setup.whole(checkpoint.state.params))
