"""The whole run: warm start, reinforcement learning, evaluation, and everything that is kept of it."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from rljax.algorithms import Algorithm
from rljax.data.problem import Problem
from rljax.data.prompts import PromptStream
from rljax.errors import InputError
from rljax.models import Params, count_parameters
from rljax.ops.divergence import ema_update
from rljax.parallel import put_rows
from rljax.rollout import Collected, Groups, pad
from rljax.training import checkpoint as checkpoints
from rljax.training.checkpoint import BEST, LAST, Checkpoint
from rljax.training.config import TrainConfig
from rljax.training.display import Display, make_display
from rljax.training.evaluation import evaluate
from rljax.training.interrupt import Interrupted, StopRequest
from rljax.training.optimizer import constant_schedule, cosine_schedule, make_optimizer
from rljax.training.plots import plot_curves
from rljax.training.rollouts import (
    as_sequences,
    demonstrated,
    make_prepare,
    make_scores,
    micro_batches,
    next_rollout,
)
from rljax.training.run_folder import RunFolder, default_run_path
from rljax.training.setup import Setup, make_setup
from rljax.training.state import RL, TrainState, begin_rl, create, place
from rljax.training.trackers import JsonlTracker, TensorBoardTracker, Trackers, WandbTracker
from rljax.training.update import Scorer, Sequences, make_policy_step, make_supervised_step


class Result(NamedTuple):
    """What came of a run."""

    run: Path
    accuracy_before: float
    """Held-out greedy accuracy before RL, a share."""
    accuracy_after: float
    """Held-out greedy accuracy after RL, a share."""
    params: Params


@dataclass
class Run:
    """A run in progress: the immutable setup, and the few things that move."""

    setup: Setup
    folder: RunFolder
    display: Display
    trackers: Trackers
    stop: StopRequest
    state: TrainState
    carried: Groups | None = None
    notes: dict = field(default_factory=dict)

    @property
    def config(self) -> TrainConfig:
        """The settings."""
        return self.setup.config

    @property
    def scorer(self) -> Scorer:
        """How response tokens are scored."""
        config = self.config
        return Scorer(self.setup.model, self.setup.prompt_length, config.temperature, config.score_chunk)

    def save(self, which: str) -> None:
        """Write a checkpoint, the last or the best."""
        checkpoints.save(self.folder.checkpoints / which, Checkpoint(self.state, self.carried, self.notes))

    def stop_if_asked(self) -> None:
        """After Ctrl-C: save, say how to go on, and leave."""
        if self.stop.requested:
            self.save(LAST)
            self.display.warning(f"Stopped. Everything is saved; go on with: rljax train --resume {self.folder.path}")
            raise Interrupted


def optimizer_of(config: TrainConfig, phase: str):
    """Optimiser and learning-rate schedule of "warm_start" or "rl"."""
    if phase == "warm_start":
        schedule = cosine_schedule(config.warm_start_learning_rate, config.learning_rate_warmup, config.warm_start_steps)
    else:
        schedule = constant_schedule(config.learning_rate, config.learning_rate_warmup)
    return make_optimizer(config, schedule), schedule


def warm_start(run: Run) -> None:
    """Imitate demonstrations until the step limit, or until held-out accuracy reaches its threshold."""
    config, setup = run.config, run.setup
    optimizer, schedule = optimizer_of(config, "warm_start")
    if setup.demonstrations.dropped:
        run.display.warning(f"{setup.demonstrations.dropped} demonstrations are longer than their limit and were left out.")
    demonstrations = demonstrated(setup.demonstrations)
    order = PromptStream(range(len(demonstrations.tokens)), seed=config.seed)
    step = make_supervised_step(run.scorer, optimizer, run.state, setup.mesh)
    run.display.phase("warm_start", config.warm_start_steps)
    while int(run.state.warm_step) < config.warm_start_steps:
        begun, done = time.monotonic(), int(run.state.warm_step)
        rows = order.indices(done * config.warm_start_batch, config.warm_start_batch)
        run.state, metrics = step(run.state, put_rows(setup.mesh, Sequences(*(array[rows] for array in demonstrations))))
        numbers = {name: float(value) for name, value in metrics.items()}
        numbers |= {"learning_rate": float(schedule(done)), "seconds": time.monotonic() - begun}
        run.trackers.log("warm_start", done + 1, numbers)
        run.display.update(done + 1, numbers)
        wanted = config.warm_start_accuracy
        if wanted is not None and (done + 1) % config.warm_start_eval_every == 0:
            accuracy = evaluate(setup.heldout, run.state.params).metrics()["accuracy"]
            run.trackers.log("eval", 0, {"accuracy": accuracy})
            run.display.message(f"Warm start step {done + 1}: held-out greedy accuracy {accuracy:.1%}.")
            if accuracy >= wanted:
                break
        run.stop_if_asked()


def rollout_metrics(collected: Collected, seconds: float) -> dict[str, float]:
    """Averages over everything that was sampled in a step, kept or not."""
    sampled = collected.sampled
    lengths = sampled.mask.sum(-1)
    rewards = sampled.rewards[sampled.valid]
    return {
        "reward": float(rewards.mean()) if rewards.size else float("nan"),
        "accuracy": float((rewards > 0).mean()) if rewards.size else float("nan"),
        "response_length": float(lengths.mean()),
        "truncated_share": float(sampled.truncated.mean()),
        "filtered_ratio": collected.filtered_ratio,
        "tries": float(collected.tries),
        "trained_groups": float(collected.groups.count),
        "tokens_per_second": float(lengths.sum()) / seconds,
        "seconds": seconds,
    }


def make_learner(run: Run) -> Callable[[Groups], dict[str, float]]:
    """Compile what turns the groups of a rollout into updates of the run's state; it returns their mean metrics."""
    config, setup, algorithm = run.config, run.setup, run.setup.algorithm
    optimizer, schedule = optimizer_of(config, "rl")
    update = make_policy_step(algorithm, run.scorer, optimizer, run.state, setup.mesh)
    scores = make_scores(run.scorer, setup.mesh, config.microbatch)
    follow = jax.jit(partial(ema_update, rate=algorithm.reference_rate), donate_argnums=0)
    prepared = make_prepare(algorithm, config.minibatches)

    def learn(groups: Groups) -> dict[str, float]:
        groups = pad(groups, config.prompts)
        sequences = as_sequences(groups)
        scored = {}
        if algorithm.needs("ref_logp"):
            scored["ref_logp"] = scores(run.state.reference, sequences).logp
        if algorithm.needs("behaviour_entropy"):
            scored["behaviour_entropy"] = scores(run.state.params, sequences).entropy
        batch = prepared(groups, **scored)
        history = []
        for part in micro_batches((sequences, batch), config.minibatches, config.microbatch):
            if not part[1].weights.any():
                continue
            done = int(run.state.step) * config.minibatches + len(history)
            run.state, metrics = update(run.state, *put_rows(setup.mesh, part, leading=1))
            history.append(
                {name: float(value) for name, value in metrics.items()} | {"learning_rate": float(schedule(done))}
            )
        if algorithm.reference_rate > 0:
            run.state = run.state._replace(reference=follow(run.state.reference, run.state.params))
        run.state = run.state._replace(step=run.state.step + 1)
        return {name: float(np.mean([row[name] for row in history])) for name in history[0]} if history else {}

    return learn


def reinforce(run: Run) -> None:
    """Sample, judge, learn; evaluate, show and save on the way."""
    config, setup = run.config, run.setup
    order = PromptStream(range(len(setup.train.prompts.tokens)), seed=config.seed).indices
    learn = make_learner(run)
    run.display.phase("rl", config.steps)
    while int(run.state.step) < config.steps:
        begun = time.monotonic()
        run.state, collected = next_rollout(
            run.state, run.carried, config=config, engine=setup.train, algorithm=setup.algorithm, order=order
        )
        run.carried = collected.surplus
        step = int(run.state.step) + 1
        if not collected.complete:
            run.display.warning(
                f"Step {step}: {collected.groups.count} of {config.prompts} groups after {collected.tries} tries; "
                f"{collected.filtered_ratio:.0%} were all right or all wrong. Training on those there are."
            )
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


def evaluate_and_keep_best(run: Run, step: int) -> None:
    """Evaluate; log it; save a checkpoint when it is the best so far."""
    metrics = evaluate(run.setup.heldout, run.state.params).metrics()
    run.trackers.log("eval", step, metrics)
    run.display.message(f"Step {step}: held-out greedy accuracy {metrics['accuracy']:.1%}.")
    run.notes["accuracy"] = metrics["accuracy"]
    if metrics["accuracy"] > run.notes.get("best_accuracy", -1.0):
        run.notes["best_accuracy"], run.notes["best_step"] = metrics["accuracy"], step
        run.save(BEST)


def describe(setup: Setup, state: TrainState, folder: RunFolder) -> list[str]:
    """What is about to run, in a few lines."""
    config = setup.config
    mesh = " x ".join(f"{name}={size}" for name, size in setup.mesh.shape.items())
    kind = setup.mesh.devices.flat[0].device_kind
    train, heldout = setup.train.prompts, setup.heldout.prompts
    lines = [
        f"algorithm {config.algorithm} on {config.dataset or 'generated arithmetic'}: {len(train.tokens)} training prompts, "
        f"{len(heldout.tokens)} held out",
        f"model {config.model or 'from random weights'}: {count_parameters(state.params):,} parameters, {config.dtype}",
        f"mesh {mesh} of {jax.device_count()} {kind} device(s)",
        f"run folder {folder.path}",
    ]
    dropped = train.dropped + heldout.dropped
    if dropped:
        lines.append(f"{dropped} prompts are longer than max_prompt_tokens={config.max_prompt_tokens} and were left out")
    return lines


def initial_state(setup: Setup, params: Params) -> TrainState:
    """Begin with these parameters, at the warm start if there is one, else at RL."""
    config = setup.config
    optimizer, _ = optimizer_of(config, "warm_start")
    state = create(params, optimizer, config.seed, with_reference=setup.algorithm.needs("ref_logp"))
    return place(state, setup.mesh)


def train(
    config: TrainConfig | None = None,
    reward: Callable | None = None,
    *,
    algorithm: Algorithm | None = None,
    problems: tuple[Sequence[Problem], Sequence[Problem]] | None = None,
    resume: str | Path | None = None,
) -> Result:
    """Train a language model with reinforcement learning.

    Args:
        config: all settings; on resume they are read from the run's config.json and this must be left out.
        reward: `f(prompts, completions, **columns) -> list[float | None]`, in place of `config.reward`. Columns are those of the
            dataset, one entry a completion; only the ones the function names are given, unless it takes `**kwargs`.
        algorithm: a record of your own, in place of `config.algorithm`.
        problems: training and held-out problems, in place of `config.dataset`.
        resume: folder of a run to continue. What was passed besides the configuration must be passed again.

    Returns:
        Where the run lies, held-out accuracy before and after, and the parameters.

    Raises:
        InputError: something in the configuration, the data or the reward cannot work; nothing was overwritten.
        Interrupted: Ctrl-C; the run is saved and can be resumed.
    """
    if (config is None) == (resume is None):
        raise InputError("Give train() either a configuration or resume=FOLDER, not both and not neither.")
    existing = None if resume is None else RunFolder.open(resume)
    if existing is not None:
        config = TrainConfig.from_json(dict(existing.config))
    config = described(config, reward=reward, algorithm=algorithm, problems=problems)
    setup, first_params = make_setup(config, reward=reward, algorithm=algorithm, problems=problems)
    state = initial_state(setup, first_params())
    restored = Checkpoint(state, None, {})
    if existing is None:
        path = config.run or default_run_path(config.name, datetime.now())
        folder = RunFolder.create(path, replace(config, run=str(path)).to_json())
    else:
        folder = existing
        restored = checkpoints.restore(folder.checkpoints / LAST, state)
        folder.rewind(int(restored.state.warm_step), int(restored.state.step))
    with ExitStack() as stack:
        display = stack.enter_context(make_display(config.quiet, sys.stdout))
        trackers = make_trackers(config, folder)
        stack.callback(trackers.close)
        stop = stack.enter_context(StopRequest())
        run = Run(setup, folder, display, trackers, stop, restored.state, restored.carried, restored.notes)
        display.header(describe(setup, run.state, folder))
        return execute(run)


def described(config: TrainConfig, **given: object) -> TrainConfig:
    """Write into the configuration what was passed as an object, so that a resume without it is refused, not guessed."""
    names = {"reward": "reward", "algorithm": "algorithm", "problems": "dataset"}
    changes = {names[name]: f"<{name} passed to train()>" for name, value in given.items() if value is not None}
    return replace(config, **changes)


def make_trackers(config: TrainConfig, folder: RunFolder) -> Trackers:
    """JSONL and TensorBoard always, Weights & Biases when asked."""
    trackers = [JsonlTracker(folder), TensorBoardTracker(folder)]
    if config.wandb:
        trackers.append(WandbTracker(folder, project=config.name))
    return Trackers(trackers)


def execute(run: Run) -> Result:
    """Run whatever phases are left, and say what came of it."""
    if int(run.state.phase) != RL:
        if run.config.warm_start_steps:
            warm_start(run)
        run.state = place(begin_rl(run.state, optimizer_of(run.config, "rl")[0]), run.setup.mesh)
        evaluate_and_keep_best(run, 0)
        run.notes["accuracy_before"] = run.notes["accuracy"]
        run.save(LAST)
        run.stop_if_asked()
    reinforce(run)
    plot_curves(run.folder.metrics, run.folder.curves, title=run.config.name)
    before, after = run.notes["accuracy_before"], run.notes["accuracy"]
    run.display.finish(
        [
            f"Held-out greedy accuracy: {before:.1%} before RL, {after:.1%} after.",
            f"Best checkpoint: {run.folder.checkpoints / BEST} ({run.notes['best_accuracy']:.1%} at step {run.notes['best_step']})",
            f"Curves: {run.folder.curves}",
            f"Metrics: {run.folder.metrics}, samples: {run.folder.samples}, TensorBoard: {run.folder.tensorboard}",
        ]
    )
    return Result(run.folder.path, before, after, run.state.params)
