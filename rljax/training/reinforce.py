"""The RL phase: sample, judge and learn at every step; evaluate, show samples and save at intervals."""

import time

from rljax.parallel import is_first, on_first
from rljax.records import required
from rljax.rollout import Groups
from rljax.training.checkpoint import LAST, Checkpoint
from rljax.training.guard import check_drawn, skipped_in_a_row
from rljax.training.learner import make_lesson_learner, make_study
from rljax.training.metrics import present, rollout_metrics
from rljax.training.rollouts import make_choice, next_rollout
from rljax.training.run import Run, begin_watch, evaluate_and_keep_best


def reinforce(run: Run, checkpoint: Checkpoint) -> Checkpoint:
    """Run the remaining RL steps and return the final checkpoint."""
    config, setup = run.config, run.setup
    steps, settings = config.optimization.steps, config.run
    choose_prompts = make_choice(config, setup.order)
    study, learn = make_study(setup), make_lesson_learner(setup, checkpoint.state)
    run.display.phase("rl", steps, done=int(checkpoint.state.step))
    unsound, watch = 0, begin_watch(run)
    run.stopwatch.lap()  # what came before is of no RL step
    while int(checkpoint.state.step) < steps:
        start, version = time.monotonic(), int(checkpoint.state.step)
        run.display.activity("sampling", compiles=True)
        with run.stopwatch.phase("sample"):
            state, history, collected = next_rollout(
                checkpoint.state,
                checkpoint.carried,
                checkpoint.history,
                config=config,
                worker=setup.train,
                algorithm=setup.algorithm,
                choose_prompts=choose_prompts,
                params=setup.whole(checkpoint.state.params),
            )
        check_drawn(collected.sampled)
        run.display.activity("learning", compiles=True)
        with run.stopwatch.phase("score"):
            lesson = study(state, collected.groups)
        with run.stopwatch.phase("update"):
            state, learned = learn(state, lesson)
        checkpoint = checkpoint._replace(state=state, history=history, carried=collected.surplus)
        step = int(state.step)
        sampled = rollout_metrics(
            collected, wanted=config.sampling.prompts, version=version, seconds=time.monotonic() - start
        )
        numbers = present(learned) | present(sampled) | present(run.stopwatch.lap())
        run.log("rl", step, numbers)
        watch, events = watch.followed_by({"phase": "rl", "step": step, **numbers})
        run.report(events)
        unsound = skipped_in_a_row(unsound, None if learned.policy is None else learned.policy.skipped_updates)
        run.check_updates(checkpoint, unsound, "--learning-rate", lesson)
        if settings.sample_every and (step % settings.sample_every == 0 or step == 1):
            show_samples(run, step, collected.sampled)
        if step == steps or (settings.eval_every and step % settings.eval_every == 0):
            checkpoint = evaluate_and_keep_best(run, checkpoint, step)
            accuracy = required(checkpoint.notes.quality, "notes.quality").accuracy
            watch, events = watch.followed_by({"phase": "eval", "step": step, "accuracy": accuracy})
            run.report(events)
        if step == steps or step % settings.checkpoint_every == 0 or run.saver.has_failed:
            run.save(LAST, checkpoint)
        run.stop_if_asked(checkpoint)
    return checkpoint


def show_samples(run: Run, step: int, groups: Groups) -> None:
    """Show and log a few decoded responses."""
    rows = run.setup.train.shown(groups, run.config.run.shown_samples)
    on_first(lambda: run.trackers.samples(step, rows))
    if is_first():
        run.display.samples(step, rows)
