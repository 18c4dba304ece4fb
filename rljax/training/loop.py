"""The whole run: warm start, value pretraining, reinforcement learning, and everything that is kept of it."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rljax.algorithms import Algorithm
from rljax.data.history import no_history
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models import Params
from rljax.ops.unpublished.reward_history import empty_history
from rljax.parallel import agree, is_first, of_first, on_first, together
from rljax.training import checkpoint as checkpoints
from rljax.training.checkpoint import BEST, LAST, Checkpoint
from rljax.training.config import TrainConfig
from rljax.training.critic import first_critic
from rljax.training.display import make_display
from rljax.training.interrupt import StopRequest
from rljax.training.plots import plot_curves
from rljax.training.reinforce import reinforce
from rljax.training.run import Quality, Run, critic_optimizer, describe, evaluate_and_keep_best, policy_optimizer
from rljax.training.run_folder import RunFolder, default_run_path
from rljax.training.setup import Setup, make_setup
from rljax.training.state import RL, WARM_START, CriticState, TrainState, begin_rl, create, end_warm_start, place
from rljax.training.trackers import JsonlTracker, TensorBoardTracker, Trackers, WandbTracker
from rljax.training.value_pretraining import pretrain_value
from rljax.training.warm_start import warm_start


class Result(NamedTuple):
    """What came of a run."""

    run: Path
    accuracy_before: float
    """Held-out greedy accuracy before RL, a share."""
    accuracy_after: float
    """Held-out greedy accuracy after RL, a share."""
    params: Params


def initial_critic(setup: Setup, params: Params) -> CriticState | None:
    """The critic that goes with these parameters of the policy, if the algorithm has one."""
    if setup.critic is None:
        return None
    blended = setup.algorithm.critic.blend is not None
    return first_critic(setup.critic, critic_optimizer(setup), params, setup.config.seed, blended=blended)


def initial_state(setup: Setup, params: Params) -> TrainState:
    """Begin with these parameters, at the warm start if there is one, else at RL."""
    config = setup.config
    optimizer, _ = policy_optimizer(config, "warm_start")
    reference, critic = setup.algorithm.needs("ref_logp"), initial_critic(setup, params)
    remembered = None
    if config.remembered_rewards:
        remembered = empty_history(len(setup.train.prompts.tokens), config.remembered_rewards)
    state = create(params, optimizer, config.seed, with_reference=reference, critic=critic, remembered=remembered)
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

    On several hosts (after `jax.distributed.initialize()`) each calls it alike; the run folder has to lie where all can reach it,
    and the parameters that come back are spread over them.

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
    existing = None if resume is None else together(lambda: RunFolder.open(resume))
    if existing is not None:
        config = TrainConfig.from_json(dict(existing.config))
    config = described(config, reward=reward, algorithm=algorithm, problems=problems)
    agree("settings", repr(config))
    given = {"reward": reward, "algorithm": algorithm, "problems": problems}
    setup, first_params = together(lambda: make_setup(config, **given))
    asked = [*setup.train.prompts.problems, *setup.heldout.prompts.problems]
    agree("problems", repr([(problem.prompt, problem.answer) for problem in asked]))
    state = initial_state(setup, together(first_params))
    restored = Checkpoint(state, no_history(len(setup.train.prompts.tokens)), None, {})
    if existing is None:
        path = config.run or default_run_path(config.name, time_of_first())
        on_first(lambda: RunFolder.create(path, replace(config, run=str(path)).to_json()))
        folder = together(lambda: RunFolder.open(path))
    else:
        folder = existing
        restored = checkpoints.restore(folder.checkpoints / LAST, state)
        done = restored.state
        warm_step, value_step, step = map(int, (done.warm_step, done.value_step, done.step))
        on_first(lambda: folder.rewind(warm_step, step, value_step=value_step))
    with ExitStack() as stack:
        screen = sys.stdout if is_first() else stack.enter_context(Path(os.devnull).open("w"))
        display = stack.enter_context(make_display(config.quiet, screen))
        trackers = together(lambda: make_trackers(config, folder))
        stack.callback(trackers.close)
        stop = stack.enter_context(StopRequest())
        run = Run(setup.watched(display.judging), folder, display, trackers, stop, *restored)
        display.header(describe(setup, run.state, folder))
        return execute(run)


def time_of_first() -> datetime:
    """Now, to the second, by the first host's clock."""
    fields = np.array(datetime.now().timetuple()[:6], np.int32)
    return datetime(*of_first(fields).tolist())


def described(config: TrainConfig, **given: object) -> TrainConfig:
    """Write into the configuration what was passed as an object, so that a resume without it is refused, not guessed."""
    names = {"reward": "reward", "algorithm": "algorithm", "problems": "dataset"}
    changes = {names[name]: f"<{name} passed to train()>" for name, value in given.items() if value is not None}
    return replace(config, **changes)


def make_trackers(config: TrainConfig, folder: RunFolder) -> Trackers:
    """JSONL and TensorBoard always, Weights & Biases when asked; of several hosts the first one keeps them."""
    if not is_first():
        return Trackers([])
    trackers = [JsonlTracker(folder), TensorBoardTracker(folder)]
    if config.wandb:
        trackers.append(WandbTracker(folder, project=config.name))
    return Trackers(trackers)


def execute(run: Run) -> Result:
    """Run whatever phases are left, and say what came of it."""
    setup = run.setup
    if int(run.state.phase) == WARM_START:
        if run.config.warm_start_steps:
            warm_start(run)
        critic = initial_critic(setup, run.state.params)
        run.state = place(end_warm_start(run.state, policy_optimizer(run.config, "rl")[0], critic), setup.mesh)
        evaluate_and_keep_best(run, 0)
        run.notes["quality_before"] = run.notes["quality"]
        run.save(LAST)
        run.stop_if_asked()
    if int(run.state.phase) != RL:
        pretrain_value(run)
        run.state = place(begin_rl(run.state), setup.mesh)
        run.save(LAST)
    reinforce(run)
    title = f"{run.config.name}: {run.config.algorithm}"
    on_first(lambda: plot_curves(run.folder.metrics, run.folder.curves, title=title))
    before, after, best = (Quality(*run.notes[name]) for name in ("quality_before", "quality", "best_quality"))
    run.display.finish(
        [
            f"Held-out greedy accuracy: {before} before RL, {after} after.",
            f"Best checkpoint: {run.folder.checkpoints / BEST} ({best} at step {run.notes['best_step']})",
            f"Curves: {run.folder.curves}",
            f"Metrics: {run.folder.metrics}, samples: {run.folder.samples}, TensorBoard: {run.folder.tensorboard}",
        ]
    )
    return Result(run.folder.path, before.accuracy, after.accuracy, run.state.params)
