"""A run in progress: what it works with, the few things that move, and what is said and kept of it."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import optax

from rljax.data.fault import describe as describe_faults
from rljax.data.history import History
from rljax.models import count_parameters
from rljax.parallel import any_host
from rljax.rollout import Groups
from rljax.training import checkpoint as checkpoints
from rljax.training.checkpoint import BEST, LAST, Checkpoint
from rljax.training.config import TrainConfig
from rljax.training.critic import Valuer
from rljax.tracking.display import Display
from rljax.evaluation.greedy import evaluate
from rljax.training.interrupt import Interrupted, StopRequest
from rljax.training.optimizer import constant_schedule, cosine_schedule, make_optimizer
from rljax.tracking.run_folder import RunFolder
from rljax.training.setup import Setup
from rljax.training.state import TrainState
from rljax.tracking.trackers import Trackers
from rljax.training.update import Scorer


class Quality(NamedTuple):
    """How good held-out answers are; with rewards of 1 and 0 both are the same number."""

    accuracy: float
    """Share of the answers whose reward is positive."""
    reward: float
    """Their mean reward."""

    def __str__(self) -> str:
        """Write the accuracy, and the reward where it says more.

        Example:
            >>> print(Quality(0.5, 0.5), "|", Quality(0.0, -0.25))
            50.0% | 0.0% (mean reward -0.250)
        """
        share = f"{self.accuracy:.1%}"
        return share if self.reward == self.accuracy else f"{share} (mean reward {self.reward:.3f})"


@dataclass
class Run:
    """A run in progress: the immutable setup, and the few things that move."""

    setup: Setup
    folder: RunFolder
    display: Display
    trackers: Trackers
    stop: StopRequest
    state: TrainState
    history: History
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

    @property
    def valuer(self) -> Valuer:
        """How the critic looks at sequences; for algorithms that have one."""
        return Valuer(self.setup.critic, self.setup.algorithm.critic.head, self.setup.prompt_length)

    def save(self, which: str) -> None:
        """Write a checkpoint, the last or the best."""
        checkpoints.save(self.folder.checkpoints / which, Checkpoint(self.state, self.history, self.carried, self.notes))

    def stop_if_asked(self) -> None:
        """After Ctrl-C: save, say how to go on, and leave."""
        if any_host(self.stop.requested):
            self.save(LAST)
            self.display.warning(f"Stopped. Everything is saved; go on with: rljax train --resume {self.folder.path}")
            raise Interrupted


def policy_optimizer(config: TrainConfig, phase: str) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Optimiser and learning-rate schedule of the policy in "warm_start" or "rl"."""
    if phase == "warm_start":
        schedule = cosine_schedule(config.warm_start_learning_rate, config.learning_rate_warmup, config.warm_start_steps)
    else:
        schedule = constant_schedule(config.learning_rate, config.learning_rate_warmup)
    return make_optimizer(config, schedule), schedule


def critic_learning_rate(setup: Setup) -> float:
    """Peak learning rate of the critic in RL."""
    config = setup.config
    if config.critic_learning_rate is not None:
        return config.critic_learning_rate
    return config.learning_rate * setup.algorithm.critic.learning_rate_ratio


def critic_optimizer(setup: Setup) -> optax.GradientTransformation:
    """Optimiser of the critic in RL."""
    return make_optimizer(setup.config, constant_schedule(critic_learning_rate(setup), setup.config.learning_rate_warmup))


def pretraining_optimizer(setup: Setup, updates: int) -> optax.GradientTransformation:
    """Optimiser of the critic in value pretraining of so many updates; RL goes on with its state."""
    config = setup.config
    peak = config.value_pretraining_learning_rate
    peak = critic_learning_rate(setup) if peak is None else peak
    return make_optimizer(config, cosine_schedule(peak, config.learning_rate_warmup, updates))


def evaluate_and_keep_best(run: Run, step: int) -> None:
    """Evaluate; log it; save a checkpoint when its mean reward is the best so far."""
    metrics = evaluate(run.setup.heldout, run.state.params).metrics()
    run.trackers.log("eval", step, metrics)
    now = Quality(metrics["accuracy"], metrics["reward"])
    run.display.message(f"Step {step}: held-out greedy accuracy {now}.")
    run.notes["quality"] = now
    best = math.nan if step == 0 else run.notes["best_quality"][1]
    if now.reward > best or math.isnan(best):
        run.notes["best_quality"], run.notes["best_step"] = now, step
        run.save(BEST)


def describe(setup: Setup, state: TrainState, folder: RunFolder) -> list[str]:
    """What is about to run, in a few lines."""
    config = setup.config
    mesh = " x ".join(f"{name}={size}" for name, size in setup.mesh.shape.items())
    kind = setup.mesh.devices.flat[0].device_kind
    train, heldout = setup.train.prompts, setup.heldout.prompts
    hosts = f" on {jax.process_count()} hosts" if jax.process_count() > 1 else ""
    lines = [
        f"algorithm {config.algorithm} on {config.dataset or 'generated arithmetic'}: {len(train.tokens)} training prompts, "
        f"{len(heldout.tokens)} held out",
        f"model {config.model or 'from random weights'}: {count_parameters(state.params):,} parameters, {config.dtype}",
        f"mesh {mesh} of {jax.device_count()} {kind} device(s){hosts}",
        f"run folder {folder.path}",
    ]
    if setup.critic is not None:
        trained = count_parameters(setup.critic.learned(state.critic.params))
        lines.insert(2, f"critic from {config.critic or 'the policy'}: {trained:,} parameters that learn")
    dropped = train.dropped + heldout.dropped
    if dropped:
        lines.append(f"{dropped} prompts are longer than max_prompt_tokens={config.max_prompt_tokens} and were left out")
    if setup.faults:
        lines.append(f"data: {describe_faults(setup.faults)}")
    return lines
