"""The RL phase: sample, judge and learn at every step; evaluate, show samples and save at intervals."""

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from rljax.parallel import is_first, of_first, on_first
from rljax.records import documented, required
from rljax.rollout import Groups
from rljax.tracking.alarms import Watch
from rljax.training.checkpoints.checkpoint import LAST, Checkpoint
from rljax.training.grace_period import GracePeriod, leave
from rljax.training.learner import Learn, make_learner
from rljax.training.lesson import Lesson, Study, make_study
from rljax.training.metrics import present, rollout_metrics
from rljax.training.monitoring.guard import check_drawn, skipped_in_a_row
from rljax.training.monitoring.remedies import CURES, OF_OPTIMIZER, Remedied, apply_remedies, changes, curable
from rljax.training.objective.optimizer import policy_optimizer
from rljax.training.rollouts import ChoosePrompts, make_choice, next_rollout
from rljax.training.run import Run, begin_watch, evaluate_and_keep_best
from rljax.training.sampler_delay import cast_of, sampler_version, with_newest
from rljax.training.setup import Setup


def reinforce(run: Run, checkpoint: Checkpoint, grace: GracePeriod) -> Checkpoint:
    """Run the remaining RL steps and return the final checkpoint.

    Args:
        run: the run.
        checkpoint: where they begin.
        grace: how long a step may go on after SIGTERM.
    """
    tools = tools_after(run, checkpoint)
    steps, settings = run.config.optimization.steps, run.config.run
    choose_prompts = make_choice(run.config, tools.setup.order)
    run.display.phase("rl", steps, done=int(checkpoint.state.step))
    unsound, watch = 0, begin_watch(run, checkpoint)
    run.stopwatch.lap()  # the time before belongs to no RL step
    while int(checkpoint.state.step) < steps:
        result = one_step(run, tools, checkpoint, choose_prompts, grace)
        checkpoint, step = result.checkpoint, int(result.checkpoint.state.step)
        run.log("rl", step, result.numbers)
        watch, events = watch.followed_by({"phase": "rl", "step": step, **result.numbers})
        run.report(events)
        before, checkpoint = checkpoint, with_remedies(run, checkpoint, watch)
        if checkpoint.remedies != before.remedies:
            tools = tools_after(run, checkpoint)
        unsound = skipped_in_a_row(unsound, result.numbers.get("skipped_updates"))
        run.check_updates(checkpoint, unsound, "--learning-rate", result.lesson)
        if settings.sample_every and (step % settings.sample_every == 0 or step == 1):
            show_samples(run, step, result.sampled)
        if step == steps or (settings.eval_every and step % settings.eval_every == 0):
            checkpoint = evaluate_and_keep_best(run, checkpoint, step)
            accuracy = required(checkpoint.notes.quality, "notes.quality").accuracy
            watch, events = watch.followed_by({"phase": "eval", "step": step, "accuracy": accuracy})
            run.report(events)
        if step == steps or step % settings.checkpoint_every == 0 or run.saver.has_failed:
            run.save(LAST, checkpoint)
        run.stop_if_asked(checkpoint)
    return checkpoint


@documented
class Tools(NamedTuple):
    """Setup and functions with which a step is made."""

    setup: Setup
    """What the run uses, with the settings in force."""
    study: Study
    """Scores a rollout."""
    learn: Learn
    """Makes the updates."""


@documented
class StepResult(NamedTuple):
    """The outcome of a step."""

    checkpoint: Checkpoint
    """The state after it."""
    sampled: Groups
    """All groups that were sampled."""
    lesson: Lesson
    """What the updates were computed from."""
    numbers: dict[str, float]
    """Its metrics."""


def one_step(
    run: Run, tools: Tools, checkpoint: Checkpoint, choose_prompts: ChoosePrompts, grace: GracePeriod
) -> StepResult:
    """Sample, judge and learn once; only the sampling may be given up."""
    start, version = time.monotonic(), int(checkpoint.state.step)
    setup, ring = tools.setup, checkpoint.ring
    sampler = ring[0] if ring else None
    run.display.activity("sampling", compiles=True)
    with grace.within(partial(leave, run, checkpoint)), run.stopwatch.phase("sample"):
        state, history, collected = next_rollout(
            checkpoint.state,
            checkpoint.carried,
            checkpoint.history,
            config=setup.config,
            worker=setup.train,
            algorithm=setup.algorithm,
            choose_prompts=choose_prompts,
            params=setup.whole(checkpoint.state.params if sampler is None else sampler),
            version=sampler_version(version, ring),
        )
    check_drawn(collected.sampled)
    run.display.activity("learning", compiles=True)
    with run.stopwatch.phase("score"):
        lesson = tools.study(state, collected.groups, sampler)
    with run.stopwatch.phase("update"):
        ring = with_newest(ring, state.params, cast_of(setup.policy, setup.base))
        state, learned = tools.learn(state, lesson)
    seconds, wanted = time.monotonic() - start, run.config.sampling.prompts
    sampled = rollout_metrics(collected, wanted=wanted, version=version, seconds=seconds)
    numbers = present(learned) | present(sampled) | present(run.stopwatch.lap())
    after = checkpoint._replace(state=state, history=history, carried=collected.surplus, ring=ring)
    return StepResult(after, collected.sampled, lesson, numbers)


def tools_after(run: Run, checkpoint: Checkpoint) -> Tools:
    """Tools for the steps after a checkpoint, until the next remedy."""
    setup = remedied_setup(run.setup, checkpoint.remedies, own_optimizer=has_own_optimizer(run))
    return Tools(setup, make_study(setup), make_learner(setup, checkpoint.state))


def remedied_setup(setup: Setup, made: Sequence[Remedied], *, own_optimizer: bool) -> Setup:
    """Setup of a run after alarms have changed settings.

    Args:
        setup: what it began with.
        made: changes so far, the oldest first.
        own_optimizer: whether the optimiser was passed to `train`; it stays as it is.
    """
    if not made:
        return setup
    config = apply_remedies(setup.config, made)
    return setup._replace(config=config, optimizer=setup.optimizer if own_optimizer else policy_optimizer(config))


def has_own_optimizer(run: Run) -> bool:
    """True if the optimiser was passed to `train`."""
    return "optimizer" in run.folder.config["seams"]


def with_remedies(run: Run, checkpoint: Checkpoint, watch: Watch) -> Checkpoint:
    """The checkpoint with the changes that the alarms of its step call for, which are said and written; all processes call it.

    Args:
        run: the run.
        checkpoint: after the step.
        watch: after the row of the step; that of the first process counts.
    """
    if run.config.optimization.remedy != "auto":
        return checkpoint
    flags = of_first(np.asarray([alarm in watch.seen for alarm in CURES]))
    raised = {alarm for alarm, is_raised in zip(CURES, flags, strict=True) if is_raised}
    raised = curable(raised, own_optimizer=has_own_optimizer(run))
    step = int(checkpoint.state.step)
    new = changes(run.config, checkpoint.remedies, raised, step)
    if not new:
        return checkpoint
    remedies = (*checkpoint.remedies, *new)
    for change in new:
        compiles = change.setting in OF_OPTIMIZER and step < run.config.optimization.steps
        run.display.warning(f"remedy: {change}.{' The next step is compiled again.' if compiles else ''}")
    run.write("the remedies", lambda: run.folder.write_remedies([each._asdict() for each in remedies]))
    return checkpoint._replace(remedies=remedies)


def show_samples(run: Run, step: int, groups: Groups) -> None:
    """Show and log a few decoded responses."""
    rows = run.setup.train.shown(groups, run.config.run.shown_samples)
    on_first(lambda: run.trackers.samples(step, rows))
    if is_first():
        run.display.samples(step, rows)
