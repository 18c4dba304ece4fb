"""The RL phase: sample, judge, learn; evaluate, show and save on the way."""

import time

import numpy as np

from rljax.rewards.failure import Failures
from rljax.rollout import Collected, Groups
from rljax.training.checkpoint import LAST
from rljax.training.learner import make_learner
from rljax.training.rollouts import make_ask, next_rollout
from rljax.training.run import Run, evaluate_and_keep_best


def rollout_metrics(collected: Collected, seconds: float) -> dict[str, float]:
    """Averages over everything that was sampled in a step, kept or not."""
    sampled = collected.sampled
    there = sampled.mask.any(-1)
    lengths = sampled.mask.sum(-1)[there]
    rewards = sampled.rewards[sampled.valid]
    return {
        "reward": float(rewards.mean()) if rewards.size else float("nan"),
        "accuracy": float((rewards > 0).mean()) if rewards.size else float("nan"),
        "response_length": float(lengths.mean()),
        "truncated_share": float(sampled.truncated[there].mean()),
        "group_size": float(there.sum(-1).mean()),
        "filtered_ratio": collected.filtered_ratio,
        "tries": float(collected.tries),
        "trained_groups": float(collected.groups.count),
        "tokens_per_second": float(lengths.sum()) / seconds,
        "seconds": seconds,
        **reward_metrics(sampled),
    }


def reward_metrics(groups: Groups) -> dict[str, float]:
    """What each part of a reward said, where it has several, and how many responses each kind of failure left unjudged."""
    parts = {} if groups.parts is None else groups.parts
    means = {f"reward_{name}": array[np.isfinite(array)] for name, array in parts.items()}
    counts = {f"reward_{kind}": float((groups.failed == place).sum()) for place, kind in enumerate(Failures._fields, 1)}
    return {name: float(said.mean()) for name, said in means.items() if said.size} | {
        name: count for name, count in counts.items() if count
    }


def reinforce(run: Run) -> None:
    """Sample, judge, learn; evaluate, show and save on the way."""
    config, setup = run.config, run.setup
    ask = make_ask(config, setup.order)
    learn = make_learner(run)
    run.display.phase("rl", config.steps)
    while int(run.state.step) < config.steps:
        begun = time.monotonic()
        run.state, run.history, collected = next_rollout(
            run.state, run.carried, run.history, config=config, engine=setup.train, algorithm=setup.algorithm, ask=ask
        )
        run.carried = collected.surplus
        step = int(run.state.step) + 1
        if not collected.complete:
            run.display.warning(
                f"Step {step}: {collected.groups.count} of {config.prompts} groups after {collected.tries} tries; "
                f"{collected.filtered_ratio:.0%} were all right or all wrong. Training on those there are."
            )
        unjudged = int((collected.sampled.failed > 0).sum())
        if unjudged:
            run.display.warning(f"Step {step}: the reward failed on {unjudged} responses; they take no part.")
        learned = learn(collected.groups)
        numbers = learned | rollout_metrics(collected, time.monotonic() - begun)
        run.trackers.log("rl", step, numbers)
        run.display.update(step, numbers)
        if config.sample_every and (step % config.sample_every == 0 or step == 1):
            show_samples(run, step, collected.sampled)
        if step == config.steps or (config.eval_every and step % config.eval_every == 0):
            evaluate_and_keep_best(run, step)
        if step == config.steps or step % config.checkpoint_every == 0:
            run.save(LAST)
        run.stop_if_asked()


def show_samples(run: Run, step: int, groups: Groups) -> None:
    """Show a few decoded responses, and keep them."""
    rows = run.setup.train.shown(groups, run.config.shown_samples)
    run.trackers.samples(step, rows)
    run.display.samples(step, rows)
