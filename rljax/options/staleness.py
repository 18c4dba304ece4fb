"""`--staleness K`: asynchronous training. The next rollouts are sampled while the learner makes its updates.

Rollout k is sampled with the parameters after step k - K, so rollouts k + 1 to k + K can begin during the updates of step k.
The timing of the threads does not change which parameters a rollout is sampled with. The results are therefore the same as with
`--sampler-delay K`, and a resumed run repeats the sampling of the rollouts that were waiting when the run ended.

With `--engine-in-flight` (PipelineRL, arXiv:2509.19128), the server receives the new parameters of each step as soon as they exist,
even in the middle of sampling. The results then depend on timing, so the run cannot be repeated exactly.

The learner has its own thread. Rewards, environments and signals are handled in the main thread.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rljax.algorithms import Batch
from rljax.data.history import History
from rljax.errors import InputError, ServerLostError
from rljax.models import Params
from rljax.options.sampler_delay import NAME, Queue, make_newest_entry
from rljax.parallel import put
from rljax.rollout import Collected, Groups
from rljax.rollout.overlapped_judging import check_settings, thread_settings
from rljax.tracking.phase_times import PhaseSeconds, Stopwatch
from rljax.training.checkpoints.checkpoint import Checkpoint
from rljax.training.config import TrainConfig
from rljax.training.metrics import LearnMetrics, present
from rljax.training.phase import StepOutcome, mark_unevaluated, save_and_exit
from rljax.training.rl_phase import StepDetails, StepFunctions, learn_from, make_learner, step_outcome
from rljax.training.rollout_data import ChoosePrompts, ScoredRollout, next_rollout
from rljax.training.run import Run
from rljax.training.setup import Setup
from rljax.training.state import Option, TrainState


def overlap_steps(setup: Setup) -> Setup:
    """Let the steps of a run with `--staleness` overlap; the option `sampler_delay` keeps the older parameters.

    Raises:
        InputError: another option changes settings between the steps, or weights cannot be replaced in flight.
    """
    reacting = [option.name for option in setup.options if option.react is not None]
    if reacting:
        raise InputError(
            f"staleness={setup.config.sampling.staleness}: {reacting[0]} changes settings between steps, when the rollouts of the "
            f"next steps are already sampled; leave out staleness or that option, or use --sampler-delay instead of staleness."
        )
    is_possible, in_flight = can_overlap(setup.config, setup.mesh), bool(setup.config.sampling.engine_in_flight)
    if in_flight and not is_possible:
        raise InputError(
            "engine_in_flight: the learner publishes weights while the server samples, which works only with one process and, on "
            "several devices, only without an adapter or a reward model; leave engine_in_flight out."
        )
    if not is_possible:
        return setup
    return setup.with_option(Option("staleness", step=Overlap(setup.config.sampling.lag, in_flight=in_flight).step))


def can_overlap(config: TrainConfig, mesh: Mesh) -> bool:
    """Return True if sampling and learning can run at the same time.

    Two programs that exchange messages between devices must start in the same order on every device, which two threads do not
    guarantee. On several devices, only the learner may therefore run programs: a server must do the sampling, and there must be
    neither a reward model nor an adapter, which a program would merge for the server.
    """
    has_server, merges = config.sampling.engine_url is not None, config.adapter.rank is not None
    only_learns = has_server and not merges and "model:" not in config.reward.name
    return jax.process_count() == 1 and (only_learns or mesh.size == 1)


LearnerResult = tuple[TrainState, ScoredRollout, Batch[Any], LearnMetrics, PhaseSeconds]
"""The state after the updates of a step, the inputs and metrics of these updates, and the seconds that they took."""


class WaitingRollout(NamedTuple):
    """A sampled rollout that waits for the learner, and the position at which the next rollout begins."""

    step: int
    """Number of RL steps that precede the step that learns from this rollout."""
    position: int
    """Position in the stream of prompts after this rollout."""
    draws: int
    """Number of sampling calls after this rollout."""
    history: History
    """History of the prompts after this rollout."""
    collected: Collected
    """The groups."""


class Overlap:
    """Steps that sample later rollouts while the learner learns from the current rollout.

    Args:
        staleness: K, the maximum number of rollouts that wait.
        in_flight: whether the server switches to new parameters as soon as they exist, even within a response.
    """

    def __init__(self, staleness: int, *, in_flight: bool = False) -> None:
        self.staleness, self.in_flight = staleness, in_flight
        self._published: int | None = None
        self._waiting: deque[WaitingRollout] = deque()
        self._error: Exception | None = None
        self._learner: StepFunctions | None = None

    def step(
        self, run: Run, functions: StepFunctions, checkpoint: Checkpoint, choose_prompts: ChoosePrompts
    ) -> StepOutcome:
        """Run one step; see `rljax.training.rl_phase.one_step`."""
        start, done = time.monotonic(), int(checkpoint.state.step)
        sample = partial(sample_rollout, functions.setup, choose_prompts)
        self._publish(functions.setup, checkpoint.state.params, done)
        with run.abandonable(partial(save_and_exit, run, checkpoint)), run.stopwatch.phase("sample"):
            rollout = self._take(done) or sample(checkpoint.state, checkpoint.history, checkpoint.carried)
        state, (sampler, *newer), after = split_queue(checkpoint, rollout)
        del checkpoint  # the updates donate the checkpoint's state
        newer.append(make_newest_entry(functions.setup, state.params))
        template = copy_for_sampling(state)
        run.display.activity("learning and sampling", compiles=True)
        if self._learner is None:
            self._learner = make_learner_functions(functions, state)
        learning = call_in_thread(partial(self._learn, self._learner, state, sampler, rollout.collected, done + 1))
        del state, sampler
        last = min(done + self.staleness, run.config.optimization.steps - 1)
        finish = partial(finish_step, run, after, tuple(newer), rollout.collected, learning, start=start)
        leaving = partial(leave_once_learned, run, finish)
        with run.abandonable(leaving), run.stopwatch.phase("sample"):
            while (previous := self._waiting[-1] if self._waiting else rollout).step < last and not run.stop.requested:
                if learning.done() and (self._waiting or learning.exception()):
                    break
                following = set_counters(template, previous.step + 1, previous)
                following = following._replace(options={NAME: (newer[previous.step - done],)})
                try:
                    self._waiting.append(sample(following, previous.history, previous.collected.surplus))
                except Exception as error:  # a reward or a server failed; finish the current step first
                    self._error = error
                    break
        return finish()

    def _learn(
        self, functions: StepFunctions, state: TrainState, sampler: Params, collected: Collected, step: int
    ) -> LearnerResult:
        """Learn from a rollout in the learner's thread, and publish the new parameters if `in_flight` is set."""
        learned = learn(functions, state, sampler, collected)
        try:
            self._publish(functions.setup, learned[0].params, step)
        except ServerLostError as error:  # finish this step first
            self._error = error
        return learned

    def _publish(self, setup: Setup, params: Params, step: int) -> None:
        """Publish the parameters after `step` steps, if `in_flight` is set and they have not been published yet."""
        if not self.in_flight or self._published == step:
            return
        from rljax.engines.server_engine import ServerEngine  # noqa: PLC0415  few runs need it

        engine = setup.train.engine
        if not isinstance(engine, ServerEngine):
            raise InputError(f"engine_in_flight needs the engine of engine_url; this run has {type(engine).__name__}.")
        engine.publish_in_flight(make_newest_entry(setup, params), step)
        self._published = step

    def _take(self, step: int) -> WaitingRollout | None:
        """Return the rollout of a step if it was sampled ahead, else None.

        Raises:
            Exception: sampling this rollout failed during the previous step.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._waiting and self._waiting[0].step != step:  # the run was restarted
            self._waiting.clear()
        return self._waiting.popleft() if self._waiting else None


def sample_rollout(
    setup: Setup, choose_prompts: ChoosePrompts, state: TrainState, history: History, carried: Groups | None
) -> WaitingRollout:
    """Sample the rollout of a step; see `next_rollout`."""
    step = int(state.step)
    state, history, collected = next_rollout(setup, state, history, carried, choose_prompts)
    return WaitingRollout(step, int(state.position), int(state.draws), history, collected)


def set_counters(state: TrainState, step: int, before: WaitingRollout) -> TrainState:
    """Return the state with its counters set to a step and to the values after `before` was sampled."""
    counters = {"step": step, "position": before.position, "draws": before.draws}
    return state._replace(
        **{name: put(np.asarray(value, np.int32), state.step.sharding) for name, value in counters.items()}
    )


def copy_for_sampling(state: TrainState) -> TrainState:
    """Copy what sampling reads from a state, because the updates donate the originals; parameters are left out."""
    key, step = np.asarray(state.key), jnp.copy(state.step)
    return state._replace(params=None, opt_state=None, reference=None, critic=None, options={}, key=key, step=step)


def split_queue(checkpoint: Checkpoint, rollout: WaitingRollout) -> tuple[TrainState, Queue, Checkpoint]:
    """Take the older parameters out of a checkpoint's state, because the updates would donate them while they are in use.

    Returns:
        Three values: the state without the older parameters, with its counters set to their values after the rollout; the older
        parameters; and the checkpoint with the history and surplus groups after the rollout.
    """
    state = set_counters(checkpoint.state, rollout.step, rollout)
    others = {name: arrays for name, arrays in state.options.items() if name != NAME}
    after = checkpoint._replace(history=rollout.history, carried=rollout.collected.surplus)
    return state._replace(options=others), state.options[NAME], after


def with_queue(state: TrainState, queue: Queue) -> TrainState:
    """Return the state with the older parameters added."""
    return state._replace(options=state.options | {NAME: queue})


def make_learner_functions(functions: StepFunctions, state: TrainState) -> StepFunctions:
    """Build the step functions for states without the older parameters."""
    options = tuple(option for option in functions.setup.options if option.name != NAME)
    setup = functions.setup._replace(options=options)
    return StepFunctions(setup, functions.score_rollout, make_learner(setup, state))


def learn(functions: StepFunctions, state: TrainState, sampler: Params, collected: Collected) -> LearnerResult:
    """Learn from a rollout in the learner's thread, and measure the seconds that scoring and updates take."""
    stopwatch = Stopwatch()
    return *learn_from(functions, state, sampler, collected, stopwatch), stopwatch.lap()


def finish_step(
    run: Run, after: Checkpoint, queue: Queue, collected: Collected, learning: Future, *, start: float
) -> StepOutcome:
    """Wait for the updates of a step that began at the monotonic time `start`, and return the outcome of the step."""
    state, scored_rollout, batch, metrics, seconds = learning.result()
    after = after._replace(state=with_queue(state, queue))
    outcome = step_outcome(run, after, StepDetails(collected, scored_rollout, batch), metrics, start=start)
    return outcome._replace(metrics=outcome.metrics | present(seconds))


def leave_once_learned(run: Run, finish: Callable[[], StepOutcome]) -> None:
    """Finish the step, log it, save, and end the process, even though it is sampling later rollouts.

    A resumed run evaluates the step first, if it has to be evaluated.
    """
    outcome = finish()
    run.record("rl", int(outcome.checkpoint.state.step), outcome.metrics)
    save_and_exit(run, mark_unevaluated(outcome.checkpoint))


def call_in_thread(work: Callable[[], Any]) -> Future:
    """Call a function in a new thread, and check that its JAX settings are the same as in this thread."""
    result: Future = Future()
    settings = thread_settings()

    def call() -> None:
        try:
            check_settings(settings, "--staleness learns")
            result.set_result(work())
        except BaseException as error:  # the main thread raises any error
            result.set_exception(error)

    threading.Thread(target=call, name="rljax-learning").start()
    return result
