"""The RL phase: sample, judge and learn at every step; evaluate, show samples and save at intervals."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.algorithms import Batch
from rljax.algorithms.advance_schedules import advance_schedules
from rljax.models import Params
from rljax.parallel import is_first, mini_batches, return_freed_memory, row_shards, run_on_first
from rljax.records import required
from rljax.rollout import Collected, Sequences, sequences_of
from rljax.rollout.layout import layout_for
from rljax.tracking.alarms import AlarmState
from rljax.tracking.phase_times import Stopwatch
from rljax.training.checkpoints.checkpoint import Checkpoint
from rljax.training.lifecycle.initial_state import first_rl_state
from rljax.training.metrics import LearnMetrics, UpdateMetrics, average_updates, present, rollout_metrics
from rljax.training.objective.optimizer import critic_optimizer, learning_rate_of
from rljax.training.phase import Phase, RunStep, StepOutcome, save_and_exit
from rljax.training.rollout_data import (
    ChoosePrompts,
    RolloutScorer,
    ScoredRollout,
    make_policy_scores,
    make_prepare,
    make_prompt_chooser,
    make_rollout_scorer,
    next_rollout,
    sampler_of,
)
from rljax.training.run import Run, begin_watch, evaluate_and_keep_best, stop_reason
from rljax.training.scoring import policy_params
from rljax.training.setup import Setup
from rljax.training.state import RL, TrainState, Updates, adjustments
from rljax.training.update import make_policy_update, put_layout
from rljax.training.value_update import make_critic_updates, measure_credit, value_schedule

Learn = Callable[[TrainState, ScoredRollout], tuple[TrainState, LearnMetrics, Batch[np.ndarray]]]
"""(state, scored rollout) -> (the state after all updates, metrics, the prepared batch); the old state is donated."""


def make_learner(setup: Setup, state: TrainState) -> Learn:
    """Build the function that makes all updates on a scored rollout, for a state with the shapes and shardings of `state`."""
    algorithm, optimization = setup.algorithm, setup.config.optimization
    update_critic, minibatches = None, {"minibatches": optimization.minibatches}
    if setup.critic is not None:
        schedule, optimizer = value_schedule(algorithm, setup.config), critic_optimizer(setup.config, algorithm)
        update_critic = make_critic_updates(setup, optimizer, schedule, state, repeats=optimization.passes)
        minibatches["value_minibatches"] = schedule.minibatches
    prepare_batch = make_prepare(algorithm, setup.options, **minibatches)
    update_policy = make_policy_updates(setup, state)

    def learn(state: TrainState, scored: ScoredRollout) -> tuple[TrainState, LearnMetrics, Batch[np.ndarray]]:
        rollout, sequences = scored.groups.rollout, sequences_of(scored.groups)
        changed = adjustments(setup.options, state)
        batch = prepare_batch(rollout, progress=scored.progress, past=scored.past, adjustments=changed)
        metrics = LearnMetrics(advantage_variance=advantage_variance(batch))
        for option in setup.options:
            if option.measure is not None:
                metrics = metrics.with_options(option.measure(rollout, batch))
            if option.before_updates is not None:
                state = option.before_updates(state, scored)
        if update_critic is not None:
            credit = measure_credit(algorithm, rollout, batch)
            state, critic = update_critic(state, sequences, batch)
            metrics = metrics._replace(credit=credit, critic=critic)
        state, updates = update_policy(state, sequences, batch)
        gap = sampler_gap(updates) if scored.sampler_gap is None else scored.sampler_gap
        metrics = metrics._replace(policy=average_updates(updates.metrics), sampler_gap=gap)
        state = state._replace(step=state.step + 1)
        for option in setup.options:
            if option.after_updates is not None:
                state, found = option.after_updates(state, metrics, updates)
                metrics = metrics.with_options(found)
        return state, metrics, batch

    return learn


def make_policy_updates(
    setup: Setup, state: TrainState
) -> Callable[[TrainState, Sequences, Batch[np.ndarray]], tuple[TrainState, Updates]]:
    """Build the function that makes the policy updates on a prepared rollout: one per mini-batch and pass."""
    update, optimization = make_policy_update(setup, state), setup.config.optimization
    minibatches, passes = optimization.minibatches, optimization.passes
    rows, devices = setup.rows_at_once(setup.config.minibatch_rows), row_shards(setup.mesh)
    arrange = layout_for(setup.policy.score, setup.teacher)

    def update_policy(state: TrainState, sequences: Sequences, batch: Batch[np.ndarray]) -> tuple[TrainState, Updates]:
        parts = {
            index: (arrange(responses, part.mask, rows=rows, devices=devices), part)
            for index, (responses, part) in enumerate(mini_batches((sequences, batch), minibatches))
            if any(weights.any() for weights in (part.weights, *part.term_weights))
        }
        order = update_order(minibatches, passes, seed=setup.config.run.seed, step=int(state.step))
        planned = [parts[index] for index in order if index in parts]
        history: list[UpdateMetrics] = []
        for layout, part in planned:
            if any(option.stop(history) for option in setup.options if option.stop is not None):
                break
            data = {each.name: each.data(int(state.step), len(history)) for each in setup.options if each.data is not None}
            state, metrics = update(state, *put_layout(setup.mesh, layout, part), data)
            rate = learning_rate_of(state.opt_state)
            history.append(jax.device_get(metrics)._replace(learning_rate=rate))
        remaining = minibatches * passes - sum(not metrics.skipped_updates for metrics in history)
        if remaining and optimization.schedule != "constant":  # skipped updates must not delay the end of the schedule
            state = state._replace(opt_state=advance_schedules(state.opt_state, remaining))
        return state, Updates(len(planned), history)

    return update_policy


def update_order(minibatches: int, passes: int, *, seed: int, step: int) -> list[int]:
    """Return the indices of a rollout's mini-batches in the order of their updates.

    The first pass takes them in order. Each later pass has a random order, which depends only on the seed and the step, so a
    resumed run repeats it.

    Args:
        minibatches: number of mini-batches.
        passes: number of passes over all mini-batches.
        seed: random seed of the run.
        step: number of RL steps done.

    Example:
        >>> update_order(4, 3, seed=0, step=7)
        [0, 1, 2, 3, 1, 3, 2, 0, 3, 2, 0, 1]
    """
    later = [np.random.default_rng((seed, step, number)).permutation(minibatches) for number in range(1, passes)]
    return np.concatenate([np.arange(minibatches), *later]).tolist()


def sampler_gap(updates: Updates) -> float | None:
    """Return the divergence of the learner from the sampler, which the first update measures before it changes the parameters.

    None if there was no update, or if the first update was skipped.
    """
    first = updates.metrics[0] if updates.metrics else None
    if first is None or first.skipped_updates or first.loss is None or float(first.loss.share) == 0:
        return None
    return float(first.loss.kl)


def advantage_variance(batch: Batch[np.ndarray]) -> float | None:
    """Return the variance of the advantage over the trained tokens; None if there are none."""
    advantage = batch.advantage[batch.mask]
    with np.errstate(invalid="ignore", over="ignore"):  # the guard handles values that are not finite
        return float(advantage.var(dtype=np.float64)) if advantage.size else None


class StepFunctions(NamedTuple):
    """The setup and the functions that make a step."""

    setup: Setup
    """Everything that the run uses, with the current settings."""
    score_rollout: RolloutScorer
    """Scores a rollout."""
    learn: Learn
    """Makes the updates."""


class StepDetails(NamedTuple):
    """What an RL step learned from; a `StepOutcome` contains it."""

    collected: Collected
    """The groups that were sampled, and the groups that the step trained on."""
    scored_rollout: ScoredRollout
    """The rollout that the updates were computed from."""
    batch: Batch[Any]
    """The prepared batch of the updates."""


class RLPhase:
    """The RL phase: its functions share the compiled functions of the next step and the watch over alarms."""

    _functions: StepFunctions
    _watch: AlarmState

    def __init__(self, run: Run):
        self._run = run

    def make_step(self, checkpoint: Checkpoint) -> RunStep:
        """Build the function that makes one RL step."""
        run = self._run
        self._functions, self._watch = make_step_functions(run, checkpoint), begin_watch(run, checkpoint)
        choose_prompts = make_prompt_chooser(run.config, self._functions.setup.order)
        run.stopwatch.lap()  # the time before this is not part of an RL step
        own_step = next((option.step for option in run.setup.options if option.step is not None), one_step)
        return lambda checkpoint: own_step(run, self._functions, checkpoint, choose_prompts)

    def react_to_metrics(self, outcome: StepOutcome) -> Checkpoint:
        """Report the alarms of a step, and let the options react to them."""
        self._watch_row("rl", int(outcome.checkpoint.state.step), outcome.metrics)
        checkpoint = outcome.checkpoint
        for option in self._run.setup.options:
            if option.react is not None:
                checkpoint = option.react(self._run, checkpoint, self._watch)
        if checkpoint.journal != outcome.checkpoint.journal:
            self._functions = make_step_functions(self._run, checkpoint)
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
        self._watch, events = self._watch.after_row({"phase": phase, "step": step, **metrics})
        self._run.report(events)


def make_rl_phase(run: Run) -> Phase:
    """Build the RL phase of a run."""
    phase, config = RLPhase(run), run.config

    def explain_stop(skipped: int, outcome: StepOutcome) -> str:
        step = int(outcome.checkpoint.state.step)
        rate = "learning rate in your optimizer" if run.setup.own_optimizer else "--learning-rate"
        return stop_reason(run, rate, skipped, step=step, scored_rollout=outcome.details.scored_rollout)

    return Phase(
        name="rl",
        steps=config.optimization.steps,
        steps_done=lambda state: int(state.step),
        make_step=phase.make_step,
        explain_stop=explain_stop,
        saves_after=lambda done: done == config.optimization.steps or done % config.run.checkpoint_every == 0,
        enter=partial(enter_rl, run.setup),
        react_to_metrics=phase.react_to_metrics,
        evaluate=phase.evaluate,
    )


def enter_rl(setup: Setup, checkpoint: Checkpoint) -> Checkpoint:
    """Turn a checkpoint from before RL into one at the beginning of RL; return a checkpoint within RL unchanged."""
    if int(checkpoint.state.phase) == RL:
        return checkpoint
    return checkpoint._replace(state=first_rl_state(setup, checkpoint.state))


def one_step(run: Run, functions: StepFunctions, checkpoint: Checkpoint, choose_prompts: ChoosePrompts) -> StepOutcome:
    """Sample, judge and learn once; only sampling and judging may be abandoned after SIGTERM."""
    start, setup = time.monotonic(), functions.setup
    run.display.activity("sampling", compiles=True)
    with run.abandonable(partial(save_and_exit, run, checkpoint)), run.stopwatch.phase("sample"):
        state, history, collected = next_rollout(
            setup, checkpoint.state, checkpoint.history, checkpoint.carried, choose_prompts
        )
    return_freed_memory()
    run.display.activity("learning", compiles=True)
    sampler, _ = sampler_of(setup, state)
    state, scored_rollout, batch, learned = learn_from(functions, state, sampler, collected, run.stopwatch)
    after = checkpoint._replace(state=state, history=history, carried=collected.surplus)
    return step_outcome(run, after, StepDetails(collected, scored_rollout, batch), learned, start=start)


def learn_from(
    functions: StepFunctions, state: TrainState, sampler: Params, collected: Collected, stopwatch: Stopwatch
) -> tuple[TrainState, ScoredRollout, Batch[Any], LearnMetrics]:
    """Score a rollout sampled with the trained parameters `sampler`, and make all updates on it; the old state is donated."""
    with stopwatch.phase("score"):
        scored_rollout = functions.score_rollout(state, collected.groups, None if sampler is state.params else sampler)
    return_freed_memory()
    with stopwatch.phase("update"):
        state, metrics, batch = functions.learn(state, scored_rollout)
    return_freed_memory()
    return state, scored_rollout, batch, metrics


def step_outcome(run: Run, after: Checkpoint, details: StepDetails, learned: LearnMetrics, *, start: float) -> StepOutcome:
    """Return the outcome of a step that began at the monotonic time `start`."""
    seconds, wanted, version = time.monotonic() - start, run.config.sampling.prompts, int(after.state.step) - 1
    sampled = rollout_metrics(details.collected, wanted=wanted, version=version, seconds=seconds)
    metrics = present(learned) | present(sampled) | present(run.stopwatch.lap())
    return StepOutcome(after, metrics, metrics.get("skipped_updates"), details)


def make_step_functions(run: Run, checkpoint: Checkpoint) -> StepFunctions:
    """Build the functions for the steps after a checkpoint, until an option changes a setting."""
    setup = revise_setup(run.setup, checkpoint)
    return StepFunctions(setup, make_rollout_scorer(setup), make_learner(setup, checkpoint.state))


def revise_setup(setup: Setup, checkpoint: Checkpoint) -> Setup:
    """Return the setup after a checkpoint, with the settings that options have changed so far."""
    for option in setup.options:
        if option.revise is not None:
            setup = option.revise(setup, checkpoint)
    return setup


def show_samples(run: Run, state: TrainState, details: StepDetails) -> None:
    """Show and log a few decoded responses, and write some to rollouts.jsonl with their tokens, scored after the updates."""
    setup, step, settings = run.setup, int(state.step), run.config.run
    rows = setup.train.sample_rows(details.collected.sampled, settings.shown_samples)
    run_on_first(lambda: run.trackers.samples(step, rows))
    if is_first():
        run.display.samples(step, rows)
    if settings.logged_rollouts != 0:
        from rljax.rollout.transcripts import LOGGED_RESPONSES, rollout_rows  # noqa: PLC0415  not every run logs rollouts

        score = partial(make_policy_scores(setup), policy_params(setup.base, state.params))
        count = LOGGED_RESPONSES if settings.logged_rollouts is None else settings.logged_rollouts
        logged = rollout_rows(setup.train, details.collected, details.batch, score, step=step, count=count)
        run.write("the rollouts", lambda: run.folder.add_rollouts(logged))
