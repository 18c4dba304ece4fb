"""Value pretraining: the policy is fixed, and the critic learns to predict the outcomes of the policy's responses.

Each step samples a new rollout with one response per prompt, measures the critic on it, and only then updates the critic. The
explained variance and the loss, which are shown and can end the phase, are thus computed on responses that the critic has not
learned from. Targets are Monte Carlo returns (VC-PPO, arXiv:2503.01491; VAPO, arXiv:2504.05118, Section 4.1).
"""

import math
import time
from dataclasses import replace
from functools import partial

import numpy as np

from rljax.algorithms import Algorithm, Batch
from rljax.caching import cache_results
from rljax.ops.weights import token_mean
from rljax.parallel import any_host
from rljax.records import required
from rljax.rollout import sequences_of
from rljax.training.checkpoints.checkpoint import BEST, Checkpoint, Quality
from rljax.training.config import CriticConfig, TrainConfig
from rljax.training.lifecycle.initial_state import state_after_warm_start
from rljax.training.metrics import CreditMetrics, LearnMetrics, present
from rljax.training.objective.algorithm import one_response_per_prompt
from rljax.training.objective.critic import CRITIC_FOLDER
from rljax.training.objective.optimizer import pretraining_optimizer
from rljax.training.parts.model_folder import companions, save_model
from rljax.training.phase import Phase, RunStep, StepOutcome
from rljax.training.rl_phase import Learn
from rljax.training.rollout_data import ScoredRollout, make_prepare, make_prompt_chooser, make_rollout_scorer, next_rollout
from rljax.training.run import Run, evaluate_and_keep_best, stop_reason
from rljax.training.setup import Setup
from rljax.training.state import WARM_START, TrainState
from rljax.training.value_update import make_critic_updates, measure_credit, value_schedule


def pretraining_steps(algorithm: Algorithm, config: TrainConfig) -> int:
    """Return the maximum number of steps: the configured number, else the algorithm's; 0 without a critic."""
    if algorithm.critic is None:
        return 0
    steps = config.critic.pretraining_steps
    return algorithm.critic.pretraining_steps if steps is None else steps


@cache_results
def critic_only(algorithm: Algorithm) -> Algorithm:
    """Reduce an algorithm to its critic, with the Monte Carlo returns of all responses as targets."""
    critic = required(algorithm.critic, "algorithm.critic")
    return Algorithm(
        advantage=None,
        log_ratio=algorithm.log_ratio,
        surrogate=algorithm.surrogate,
        weights=token_mean,
        shape_reward=algorithm.shape_reward,
        critic=critic._replace(target=partial(critic.target, lambda_=1.0), blend=None),
    )


def meets_thresholds(credit: CreditMetrics, config: CriticConfig) -> bool:
    """Return True if every threshold that was set is met, and at least one was set."""
    min_variance, max_loss = config.pretraining_explained_variance, config.pretraining_loss
    met = [] if min_variance is None else [float(credit.explained_variance) >= min_variance]
    met += [] if max_loss is None else [float(credit.outcome_loss) <= max_loss]
    return bool(met) and all(met)


def pretraining_config(config: TrainConfig) -> TrainConfig:
    """Return the phase's settings: one response per prompt, because responses to more prompts teach a critic more."""
    config = one_response_per_prompt(config.replace(stratified=False))  # a single response has no strata
    return replace(config, data=replace(config.data, difficulty_window=None, difficulty_window_end=None))


def value_pretraining(run: Run) -> Phase:
    """Return the phase that trains the critic on the fixed policy until a step limit or thresholds are reached, then saves it."""
    steps, config = pretraining_steps(run.setup.algorithm, run.config), run.config

    def evaluate(outcome: StepOutcome) -> tuple[Checkpoint, bool]:
        return outcome.checkpoint, any_host(meets_thresholds(outcome.details, config.critic))

    return Phase(
        name="value",
        steps=steps,
        steps_done=lambda state: int(state.value_step),
        make_step=partial(make_step, run, steps),
        explain_stop=lambda skipped, outcome: stop_reason(run, "--critic-learning-rate", skipped),
        saves_after=lambda done: done % config.run.checkpoint_every == 0,
        enter=partial(enter_value_pretraining, run.setup),
        evaluate_start=partial(evaluate_start, run, steps),
        saves_start=steps > 0,  # with 0 steps, the save at the beginning of RL follows immediately
        evaluate=evaluate,
        leave=lambda checkpoint: save_critic(run, checkpoint.state),
    )


def enter_value_pretraining(setup: Setup, checkpoint: Checkpoint) -> Checkpoint:
    """Replace the state at the end of the warm start with the state of the later phases."""
    if int(checkpoint.state.phase) != WARM_START:
        return checkpoint
    return checkpoint._replace(state=state_after_warm_start(setup, checkpoint.state))


def evaluate_start(run: Run, steps: int, checkpoint: Checkpoint) -> Checkpoint:
    """Evaluate the policy before RL unless the settings skip that, and warn if the critic begins RL untrained."""
    begin = keep_unevaluated if run.config.run.skip_first_eval else evaluate_and_keep_best
    checkpoint = begin(run, checkpoint, 0)
    if steps == 0 and run.setup.critic is not None and not run.setup.critic.loaded:
        run.display.warning(
            "The critic has not been trained: value pretraining has 0 steps. The first advantages are not reliable."
        )
    return checkpoint


def keep_unevaluated(run: Run, checkpoint: Checkpoint, step: int) -> Checkpoint:
    """Save the checkpoint as the best without evaluating it; any later evaluation beats it."""
    unknown = Quality(math.nan, math.nan, judged=0, answers=0)
    after = checkpoint._replace(notes=checkpoint.notes.with_result(unknown, step))
    run.save(BEST, after)
    return after


def make_step(run: Run, steps: int, checkpoint: Checkpoint) -> RunStep:
    """Build the step: sample a rollout, measure the critic on it, and then update the critic."""
    setup = run.setup._replace(
        config=pretraining_config(run.config), algorithm=critic_only(run.setup.algorithm), options=()
    )
    choose_prompts = make_prompt_chooser(setup.config, setup.order)
    score_rollout, learn = make_rollout_scorer(setup), make_value_learner(setup, checkpoint.state, steps)

    def step(checkpoint: Checkpoint) -> StepOutcome:
        start = time.monotonic()
        run.display.activity("sampling", compiles=True)
        state, _, collected = next_rollout(setup, checkpoint.state, checkpoint.history, None, choose_prompts)
        run.display.activity("learning", compiles=True)
        state, measured, _ = learn(state, score_rollout(state, collected.groups))
        lengths, seconds = collected.sampled.attention.sum(-1)[collected.sampled.present], time.monotonic() - start
        sampled = {"response_length": float(lengths.mean()), "tokens_per_second": float(lengths.sum()) / seconds}
        metrics = present(measured) | sampled | {"seconds": seconds}
        skipped = None if measured.critic is None else float(measured.critic.skipped_value_updates)
        # The history starts with RL, because a pass rate from a single response says little.
        return StepOutcome(checkpoint._replace(state=state), metrics, skipped, required(measured.credit, "metrics.credit"))

    return step


def make_value_learner(setup: Setup, state: TrainState, steps: int) -> Learn:
    """Build the function that measures the critic on a scored rollout and then updates it; it is called at most `steps` times."""
    config, algorithm = setup.config, setup.algorithm
    schedule = value_schedule(algorithm, config)
    minibatches = config.optimization.minibatches
    prepare_batch = make_prepare(algorithm, minibatches=minibatches, value_minibatches=schedule.minibatches)
    passes = config.critic.pretraining_passes
    optimizer = pretraining_optimizer(config, algorithm, steps * passes * schedule.minibatches * schedule.passes)
    update_critic = make_critic_updates(setup, optimizer, schedule, state, repeats=passes)

    def learn(state: TrainState, scored_rollout: ScoredRollout) -> tuple[TrainState, LearnMetrics, Batch[np.ndarray]]:
        rollout, sequences = scored_rollout.groups.rollout, sequences_of(scored_rollout.groups)
        batch = prepare_batch(rollout)
        credit = measure_credit(algorithm, rollout, batch)
        state, critic = update_critic(state, sequences, batch)
        return state._replace(value_step=state.value_step + 1), LearnMetrics(credit, critic), batch

    return learn


def save_critic(run: Run, state: TrainState) -> None:
    """Write the critic as a model folder; another run can start from it with `--critic RUN`."""
    critic, folder = required(run.setup.critic, "setup.critic"), run.folder.path / CRITIC_FOLDER
    params = required(state.critic, "state.critic").params
    dtype = "float32" if critic.function.contents is not None else None  # full precision, to continue training from it
    extras = companions(run.config, run.setup.tokenizer)
    run.disk.attempt_together("the critic", lambda: save_model(folder, critic.function, params, extras, dtype=dtype))
    run.display.message(f"The pretrained critic is in {folder}.")
