"""The RL phase: sample, judge and learn at every step; evaluate, show samples and save at intervals."""

import time
from functools import partial
from typing import Any, NamedTuple

from rljax.algorithms import Batch
from rljax.models import Params
from rljax.models.adapters import scored
from rljax.parallel import is_first, on_first, return_freed_memory
from rljax.records import required
from rljax.rollout import Collected
from rljax.tracking.phase_times import Stopwatch
from rljax.training.checkpoints.checkpoint import Checkpoint
from rljax.training.guard import check_drawn
from rljax.training.interrupt import GracePeriod
from rljax.training.learner import Learn, make_learner
from rljax.training.lifecycle.initial_state import first_rl_state
from rljax.training.metrics import LearnMetrics, present, rollout_metrics
from rljax.training.phase import Phase, Step, StepOutcome, leave
from rljax.training.run import Run, begin_watch, evaluate_and_keep_best, stop_reason
from rljax.training.scored_rollout import (
    ChoosePrompts,
    RolloutScorer,
    ScoredRollout,
    make_choice,
    make_policy_scores,
    make_rollout_scorer,
    next_rollout,
    sampler_of,
)
from rljax.training.setup import Setup
from rljax.training.state import RL, TrainState


class Reinforcement:
    """The functions of the RL phase, with what changes between its steps: the current tools, and the alarms raised so far.

    Args:
        run: the run.
        grace: how long a step may continue after SIGTERM.
    """

    def __init__(self, run: Run, grace: GracePeriod):
        self._run = run
        self._grace = grace

    def make_step(self, checkpoint: Checkpoint) -> Step:
        """Build the step."""
        run = self._run
        self._tools, self._watch = tools_after(run, checkpoint), begin_watch(run, checkpoint)
        choose_prompts = make_choice(run.config, self._tools.setup.order)
        run.stopwatch.lap()  # the time until here belongs to no RL step

        own_step = next((option.step for option in run.setup.options if option.step is not None), one_step)

        def step(checkpoint: Checkpoint) -> StepOutcome:
            result = own_step(run, self._tools, checkpoint, choose_prompts, self._grace)
            return StepOutcome(result.checkpoint, result.numbers, result.numbers.get("skipped_updates"), result)

        return step

    def follow(self, outcome: StepOutcome) -> Checkpoint:
        """Report the alarms of a step, and let the options react to them."""
        self._watch_row("rl", int(outcome.checkpoint.state.step), outcome.metrics)
        checkpoint = outcome.checkpoint
        for option in self._run.setup.options:
            if option.react is not None:
                checkpoint = option.react(self._run, checkpoint, self._watch)
        if checkpoint.journal != outcome.checkpoint.journal:
            self._tools = tools_after(self._run, checkpoint)
        return checkpoint

    def evaluate(self, outcome: StepOutcome) -> tuple[Checkpoint, bool]:
        """Show samples and evaluate, at their intervals and after the last step."""
        run, checkpoint, step = self._run, outcome.checkpoint, int(outcome.checkpoint.state.step)
        settings = run.config.run
        if outcome.details is not None and settings.sample_every and (step % settings.sample_every == 0 or step == 1):
            show_samples(run, checkpoint.state, outcome.details)
        if step == run.config.optimization.steps or (settings.eval_every and step % settings.eval_every == 0):
            checkpoint = evaluate_and_keep_best(run, checkpoint, step)
            self._watch_row("eval", step, {"accuracy": required(checkpoint.notes.quality, "notes.quality").accuracy})
        return checkpoint, False

    def _watch_row(self, phase: str, step: int, metrics: dict[str, float]) -> None:
        self._watch, events = self._watch.followed_by({"phase": phase, "step": step, **metrics})
        self._run.report(events)


def reinforcement(run: Run, grace: GracePeriod) -> Phase:
    """Return the RL phase.

    Args:
        run: the run.
        grace: how long a step may continue after SIGTERM.
    """
    functions, config = Reinforcement(run, grace), run.config

    def give_up(skipped: int, outcome: StepOutcome) -> str:
        step = int(outcome.checkpoint.state.step)
        return stop_reason(run, "--learning-rate", skipped, step=step, scored_rollout=outcome.details.scored_rollout)

    return Phase(
        name="rl",
        steps=config.optimization.steps,
        done=lambda state: int(state.step),
        make_step=functions.make_step,
        give_up=give_up,
        is_due=lambda done: done == config.optimization.steps or done % config.run.checkpoint_every == 0,
        enter=partial(enter_rl, run.setup),
        follow=functions.follow,
        evaluate=functions.evaluate,
    )


def enter_rl(setup: Setup, checkpoint: Checkpoint) -> Checkpoint:
    """Turn a checkpoint from before RL into the checkpoint at its beginning."""
    if int(checkpoint.state.phase) == RL:
        return checkpoint
    return checkpoint._replace(state=first_rl_state(setup, checkpoint.state))


class Tools(NamedTuple):
    """The setup and the functions that make a step."""

    setup: Setup
    """Everything that the run uses, with the current settings."""
    score_rollout: RolloutScorer
    """Scores a rollout."""
    learn: Learn
    """Makes the updates."""


class StepResult(NamedTuple):
    """The outcome of a step."""

    checkpoint: Checkpoint
    """The checkpoint after the step."""
    collected: Collected
    """The groups that were sampled, and those that the step trained on."""
    scored_rollout: ScoredRollout
    """The rollout that the updates were computed from."""
    batch: Batch[Any]
    """The prepared batch of the updates."""
    numbers: dict[str, float]
    """Metrics of the step."""


def one_step(
    run: Run, tools: Tools, checkpoint: Checkpoint, choose_prompts: ChoosePrompts, grace: GracePeriod
) -> StepResult:
    """Sample, judge and learn once; only sampling and judging may be abandoned after SIGTERM."""
    start, setup = time.monotonic(), tools.setup
    run.display.activity("sampling", compiles=True)
    with grace.within(partial(leave, run, checkpoint)), run.stopwatch.phase("sample"):
        state, history, collected = next_rollout(
            setup, checkpoint.state, checkpoint.history, checkpoint.carried, choose_prompts
        )
    check_drawn(collected.sampled)
    return_freed_memory()
    run.display.activity("learning", compiles=True)
    sampler, _ = sampler_of(setup, state)
    state, scored_rollout, batch, learned = learn_from(tools, state, sampler, collected, run.stopwatch)
    after = checkpoint._replace(state=state, history=history, carried=collected.surplus)
    return step_result(run, after, collected, scored_rollout, batch, learned, start=start)


def learn_from(
    tools: Tools, state: TrainState, sampler: Params, collected: Collected, stopwatch: Stopwatch
) -> tuple[TrainState, ScoredRollout, Batch[Any], LearnMetrics]:
    """Score a rollout that these trained parameters sampled, and make all updates on it; the old state is donated."""
    with stopwatch.phase("score"):
        scored_rollout = tools.score_rollout(state, collected.groups, None if sampler is state.params else sampler)
    return_freed_memory()
    with stopwatch.phase("update"):
        state, metrics, batch = tools.learn(state, scored_rollout)
    return_freed_memory()
    return state, scored_rollout, batch, metrics


def step_result(
    run: Run,
    after: Checkpoint,
    collected: Collected,
    scored_rollout: ScoredRollout,
    batch: Batch[Any],
    learned: LearnMetrics,
    *,
    start: float,
) -> StepResult:
    """Return the outcome of a step that began at `start`, on the monotonic clock."""
    seconds, wanted, version = time.monotonic() - start, run.config.sampling.prompts, int(after.state.step) - 1
    sampled = rollout_metrics(collected, wanted=wanted, version=version, seconds=seconds)
    numbers = present(learned) | present(sampled) | present(run.stopwatch.lap())
    return StepResult(after, collected, scored_rollout, batch, numbers)


def tools_after(run: Run, checkpoint: Checkpoint) -> Tools:
    """Build the tools for the steps after a checkpoint, until an option changes a setting."""
    setup = revised(run.setup, checkpoint)
    return Tools(setup, make_rollout_scorer(setup), make_learner(setup, checkpoint.state))


def revised(setup: Setup, checkpoint: Checkpoint) -> Setup:
    """Return the setup after a checkpoint, with the settings that options have changed so far."""
    for option in setup.options:
        if option.revise is not None:
            setup = option.revise(setup, checkpoint)
    return setup


def show_samples(run: Run, state: TrainState, result: StepResult) -> None:
    """Show and log a few decoded responses; write some with their tokens, scored after the step's updates."""
    setup, step, settings = run.setup, int(state.step), run.config.run
    rows = setup.train.shown(result.collected.sampled, settings.shown_samples)
    on_first(lambda: run.trackers.samples(step, rows))
    if is_first():
        run.display.samples(step, rows)
    if settings.logged_rollouts != 0:
        from rljax.rollout.transcripts import LOGGED, rollout_rows  # noqa: PLC0415  a step does not need it

        score = partial(make_policy_scores(setup), scored(setup.base, state.params))
        count = LOGGED if settings.logged_rollouts is None else settings.logged_rollouts
        logged = rollout_rows(setup.train, result.collected, result.batch, score, step=step, count=count)
        run.write("the rollouts", lambda: run.folder.add_rollouts(logged))
