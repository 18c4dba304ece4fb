"""A whole run: warm start, value pretraining and reinforcement learning. Each phase passes a checkpoint to the next."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import optax

from rljax.algorithms import Algorithm
from rljax.data.history import no_history
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models import Params, Policy
from rljax.ops.unpublished.reward_history import empty_history
from rljax.parallel import agree, is_first, of_first, on_first, row_shards, together
from rljax.records import documented, required
from rljax.rollout import DecodingEngine, Engine, Environment
from rljax.rollout.decoder_check import check_decoder
from rljax.tracking.display import make_display
from rljax.tracking.plots import plot_curves
from rljax.tracking.run_folder import RunFolder, default_run_path
from rljax.tracking.trackers import JsonlTracker, TensorBoardTracker, Tracker, Trackers, WandbTracker
from rljax.training import checkpoint as checkpoints
from rljax.training.checkpoint import BEST, LAST, Checkpoint
from rljax.training.config import TrainConfig
from rljax.training.critic import first_critic
from rljax.training.interrupt import StopRequest
from rljax.training.optimizer import check_optimizer, critic_optimizer, warm_start_optimizer
from rljax.training.reinforce import reinforce
from rljax.training.run import Run, describe, evaluate_and_keep_best
from rljax.training.seams import Seams, check_seams, saved_settings
from rljax.training.setup import Setup, first_params, make_setup
from rljax.training.state import RL, WARM_START, CriticState, TrainState, begin_rl, create, end_warm_start, place
from rljax.training.update import check_policy
from rljax.training.value_pretraining import pretrain_value
from rljax.training.warm_start import warm_start


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
    reward: Callable | None = None,
    *,
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
    run folder, and the returned parameters lie on the devices of all hosts.

    Args:
        config: all settings. Leave it out on resume, when the settings are read from the run's config.json.
        reward: `f(prompts, completions, **columns) -> list[float | None]`, in place of `config.reward`. The columns are
            those of the dataset, with one entry per completion; a function gets the columns that it names, or all of them if it
            takes `**kwargs`.
        policy: a model of your own, in place of `config.model`; see `rljax.models.Policy`.
        engine: draws the responses, in place of the built-in engine; see `rljax.rollout.Engine`.
        environment: answers the policy turn by turn, in place of a reward; see `rljax.rollout.Environment`.
        optimizer: any Optax transformation for the policy in RL, in place of AdamW. Warm start and critic keep AdamW.
        algorithm: an algorithm of your own, in place of `config.algorithm`.
        problems: training and held-out problems, in place of the dataset or the generated task.
        trackers: trackers to use beside JSON lines and TensorBoard; see `rljax.tracking.trackers.Tracker`.
        resume: folder of a run to continue. Every argument besides the configuration must be passed again.

    Returns:
        The run folder, held-out accuracy before and after RL, and the parameters.

    Raises:
        InputError: something in the configuration, the data, the reward or another argument cannot work; nothing was overwritten.
        Interrupted: Ctrl-C or SIGTERM; the run is saved and can be resumed.
    """
    seams = Seams(policy, engine, environment, reward, optimizer, algorithm, problems)
    config, existing = settings_of(config, resume, seams)
    agree("settings", repr((config, seams.names())))
    setup = together(lambda: make_setup(config, seams))
    texts = [*setup.train.prompts.problems, *setup.heldout.prompts.problems]
    agree("problems", repr([(problem.prompt, problem.answer) for problem in texts]))
    state = first_state(setup)
    if existing is None:
        folder = new_folder(config, seams)
        checkpoint = Checkpoint(state, no_history(len(setup.train.prompts.tokens)))
    else:
        folder = existing
        checkpoint = checkpoints.restore(folder.checkpoints / LAST, partial(state_of_phase, setup, state))
        rewind(folder, checkpoint.state)
    with ExitStack() as stack:
        screen = sys.stdout if is_first() else stack.enter_context(Path(os.devnull).open("w"))
        display = stack.enter_context(make_display(config.run.quiet, screen))
        run_trackers = together(lambda: make_trackers(config, folder, trackers))
        stack.callback(run_trackers.close)
        stop = stack.enter_context(StopRequest())
        run = Run(setup.watched(display.judging), folder, display, run_trackers, stop)
        display.header(describe(setup, checkpoint.state, folder))
        return execute(run, checkpoint)


def settings_of(
    config: TrainConfig | None, resume: str | Path | None, seams: Seams
) -> tuple[TrainConfig, RunFolder | None]:
    """The settings of a run, and its folder if the run is resumed.

    Raises:
        InputError: `config` and `resume` are both set or both None, or the other arguments differ from those of the first start.
    """
    if config is not None and resume is None:
        return config, None
    if config is not None or resume is None:
        raise InputError("train() takes either a configuration or resume=FOLDER; pass exactly one of them.")
    existing = together(lambda: RunFolder.open(resume))
    saved, needed = saved_settings(existing.config)
    check_seams(needed, seams)
    return saved, existing


def new_folder(config: TrainConfig, seams: Seams) -> RunFolder:
    """Make the folder of a new run; its config.json also names the arguments that a resume needs."""
    path = config.run.folder
    path = default_run_path(config.run.name, time_of_first()) if path is None else path
    settings = replace(config, run=replace(config.run, folder=str(path))).to_json() | {"seams": list(seams.names())}
    on_first(lambda: RunFolder.create(path, settings))
    return together(lambda: RunFolder.open(path))


def rewind(folder: RunFolder, state: TrainState) -> None:
    """Drop the rows of metrics and samples that were written after the checkpoint."""
    warm_step, value_step, step = map(int, (state.warm_step, state.value_step, state.step))
    on_first(lambda: folder.rewind(warm_step, step, value_step=value_step))


def time_of_first() -> datetime:
    """Current time on the first host, to the second."""
    fields = np.array(datetime.now().timetuple()[:6], np.int32)
    return datetime(*of_first(fields).tolist())


def make_trackers(config: TrainConfig, folder: RunFolder, further: Sequence[Tracker]) -> Trackers:
    """Make the trackers: JSON lines, TensorBoard, Weights & Biases if set, and `further` ones; none except on the first host."""
    if not is_first():
        return Trackers([])
    trackers: list[Tracker] = [JsonlTracker(folder), TensorBoardTracker(folder)]
    if config.run.wandb:
        trackers.append(WandbTracker(folder, project=config.run.name))
    return Trackers([*trackers, *further])


def first_state(setup: Setup) -> TrainState:
    """Load or initialise the parameters, check that policy, engine and optimiser accept them, and make the initial state.

    Raises:
        InputError: the policy cannot score a response or be sampled from, or the optimiser cannot take the parameters.
    """
    params = together(lambda: first_params(setup))
    policy, rows, budget = setup.policy, row_shards(setup.mesh), setup.config.sampling.max_response_tokens
    check_policy(policy, params, rows=rows, prompt_length=setup.prompt_length, response_length=budget)
    engine = setup.train.engine
    if isinstance(engine, DecodingEngine):
        lengths = {"rows": rows, "prompt_length": setup.prompt_length, "budget": budget}
        check_decoder(engine.decoder, params, policy.vocab_size, **lengths)
    check_optimizer(setup.optimizer, params)
    return initial_state(setup, params)


def initial_critic(setup: Setup, params: Params) -> CriticState | None:
    """Initial critic for these parameters of the policy; None if the algorithm has no critic."""
    if setup.critic is None:
        return None
    optimizer = critic_optimizer(setup.config, setup.algorithm)
    blended = required(setup.algorithm.critic, "algorithm.critic").blend is not None
    return first_critic(setup.critic, optimizer, params, setup.config.run.seed, blended=blended)


def initial_state(setup: Setup, params: Params) -> TrainState:
    """State at the beginning of the warm start, with these parameters of the policy."""
    config = setup.config
    remembered = None
    if config.sampling.remembered_rewards:
        remembered = empty_history(len(setup.train.prompts.tokens), config.sampling.remembered_rewards)
    state = create(
        params,
        warm_start_optimizer(config),
        config.run.seed,
        with_reference=setup.algorithm.needs("ref_logp"),
        critic=initial_critic(setup, params),
        remembered=remembered,
    )
    return place(state, setup.mesh, setup.policy.partition)


def rl_state(setup: Setup, state: TrainState) -> TrainState:
    """State after the warm start: optimiser state, reference and critic are initialised from the current policy."""
    critic = initial_critic(setup, state.params)
    return place(end_warm_start(state, setup.optimizer, critic), setup.mesh, setup.policy.partition)


def state_of_phase(setup: Setup, state: TrainState, phase: int) -> TrainState:
    """State with the shapes of a phase, made from the initial one. The warm start has a different optimiser than RL."""
    return state if phase == WARM_START else rl_state(setup, state)


def execute(run: Run, checkpoint: Checkpoint) -> Result:
    """Run the remaining phases and return the result."""
    setup = run.setup
    if int(checkpoint.state.phase) == WARM_START:
        if run.config.warm_start.steps:
            checkpoint = warm_start(run, checkpoint)
        checkpoint = checkpoint._replace(state=rl_state(setup, checkpoint.state))
        checkpoint = evaluate_and_keep_best(run, checkpoint, 0)
        run.save(LAST, checkpoint)
        run.stop_if_asked(checkpoint)
    if int(checkpoint.state.phase) != RL:
        checkpoint = pretrain_value(run, checkpoint)
        state = place(begin_rl(checkpoint.state), setup.mesh, setup.policy.partition)
        checkpoint = checkpoint._replace(state=state)
        run.save(LAST, checkpoint)
    checkpoint = reinforce(run, checkpoint)
    return finish(run, checkpoint)


def finish(run: Run, checkpoint: Checkpoint) -> Result:
    """Plot the curves, and show the results and the paths of the files."""
    folder, notes, config = run.folder, checkpoint.notes, run.config
    on_first(lambda: plot_curves(folder.metrics, folder.curves, title=f"{config.run.name}: {config.algorithm.name}"))
    run.display.finish(
        [
            f"Held-out greedy accuracy: {notes.quality_before} before RL, {notes.quality} after.",
            f"Best checkpoint: {folder.checkpoints / BEST} ({notes.best_quality} at step {notes.best_step})",
            f"Curves: {folder.curves}",
            f"Metrics: {folder.metrics}, samples: {folder.samples}, TensorBoard: {folder.tensorboard}",
        ]
    )
    before, after = required(notes.quality_before, "notes.quality_before"), required(notes.quality, "notes.quality")
    return Result(folder.path, before.accuracy, after.accuracy, checkpoint.state.params)
