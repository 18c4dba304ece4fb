"""Value pretraining: the policy is fixed, and the critic learns to predict the outcomes of its responses.

Each step samples a new rollout with one response per prompt, measures the critic on it, and only then updates the critic. The
explained variance and the loss, which are shown and can end the phase, thus come from responses that the critic has not learned
from. Targets are the Monte-Carlo returns (VC-PPO, arXiv:2503.01491; VAPO, arXiv:2504.05118, Section 4.1).
"""

import time
from dataclasses import replace
from functools import partial

from rljax.algorithms import Algorithm
from rljax.ops.weights import token_mean
from rljax.parallel import any_host
from rljax.records import required
from rljax.rollout import sequences_of
from rljax.sharing import shared
from rljax.training.checkpoints.checkpoint import LAST, Checkpoint
from rljax.training.config import CriticConfig, TrainConfig
from rljax.training.learner import Learn, make_teach, measured_credit
from rljax.training.lesson import Lesson, make_study
from rljax.training.metrics import CreditMetrics, LearnMetrics, present
from rljax.training.monitoring.guard import check_drawn, skipped_in_a_row
from rljax.training.objective.algorithm import one_response_a_prompt
from rljax.training.objective.critic import critic_folder
from rljax.training.objective.optimizer import pretraining_optimizer
from rljax.training.parts.model_folder import companions, save_model
from rljax.training.rollouts import make_choice, make_prepare, next_rollout
from rljax.training.run import Run
from rljax.training.setup import Setup
from rljax.training.state import TrainState
from rljax.training.value_update import value_schedule


def pretraining_steps(algorithm: Algorithm, config: TrainConfig) -> int:
    """Maximum number of steps: the configuration's, else the algorithm's; 0 without a critic."""
    if algorithm.critic is None:
        return 0
    steps = config.critic.pretraining_steps
    return algorithm.critic.pretraining_steps if steps is None else steps


@shared
def monte_carlo(algorithm: Algorithm) -> Algorithm:
    """Reduce an algorithm to its critic, with the Monte-Carlo returns of every response as targets."""
    critic = required(algorithm.critic, "algorithm.critic")
    return Algorithm(
        advantage=None,
        log_ratio=algorithm.log_ratio,
        surrogate=algorithm.surrogate,
        weights=token_mean,
        shape_reward=algorithm.shape_reward,
        critic=critic._replace(target=partial(critic.target, lambda_=1.0), blend=None),
    )


def good_enough(credit: CreditMetrics, config: CriticConfig) -> bool:
    """True if every threshold that was set is met, and at least one was set."""
    min_variance, max_loss = config.pretraining_explained_variance, config.pretraining_loss
    met = [] if min_variance is None else [float(credit.explained_variance) >= min_variance]
    met += [] if max_loss is None else [float(credit.outcome_loss) <= max_loss]
    return bool(met) and all(met)


def pretraining_config(config: TrainConfig) -> TrainConfig:
    """Settings of the phase: one response per prompt, since a critic learns more from many prompts than from many responses."""
    config = one_response_a_prompt(config)
    return replace(config, data=replace(config.data, difficulty_window=None, difficulty_window_end=None))


def pretrain_value(run: Run, checkpoint: Checkpoint) -> Checkpoint:
    """Train the critic on the fixed policy up to the step limit or the thresholds, and save it in the run folder."""
    steps = pretraining_steps(run.setup.algorithm, run.config)
    if steps == 0:
        if run.setup.critic is not None and not run.setup.critic.loaded:
            run.display.warning(
                "The critic has not been trained: value pretraining has 0 steps. Its first advantages mean little."
            )
        return checkpoint
    setup = run.setup._replace(config=pretraining_config(run.config), algorithm=monte_carlo(run.setup.algorithm))
    choose_prompts = make_choice(setup.config, setup.order)
    study, learn = make_study(setup), make_value_learner(setup, checkpoint.state, steps)
    run.display.phase("value", steps, done=int(checkpoint.state.value_step))
    unsound = 0
    while int(checkpoint.state.value_step) < steps:
        start = time.monotonic()
        run.display.activity("sampling", compiles=True)
        state, history, collected = next_rollout(
            checkpoint.state,
            None,
            checkpoint.history,
            config=setup.config,
            worker=setup.train,
            algorithm=setup.algorithm,
            choose_prompts=choose_prompts,
            params=setup.whole(checkpoint.state.params),
        )
        check_drawn(collected.sampled)
        run.display.activity("learning", compiles=True)
        state, metrics = learn(state, study(state, collected.groups))
        checkpoint = checkpoint._replace(state=state, history=history)
        done = int(state.value_step)
        run.log("value", done, present(metrics) | {"seconds": time.monotonic() - start})
        unsound = skipped_in_a_row(unsound, None if metrics.critic is None else metrics.critic.skipped_value_updates)
        run.check_updates(checkpoint, unsound, "--critic-learning-rate")
        if any_host(good_enough(required(metrics.credit, "metrics.credit"), setup.config.critic)):
            break
        if done % setup.config.run.checkpoint_every == 0 or run.saver.has_failed:
            run.save(LAST, checkpoint)
        run.stop_if_asked(checkpoint)
    save_critic(run, checkpoint.state)
    return checkpoint


def make_value_learner(setup: Setup, state: TrainState, steps: int) -> Learn:
    """Build the function that measures the critic on a lesson and then updates it; `steps` lessons at most."""
    config, algorithm = setup.config, setup.algorithm
    schedule = value_schedule(algorithm, config)
    minibatches = config.optimization.minibatches
    prepare_batch = make_prepare(algorithm, minibatches=minibatches, value_minibatches=schedule.minibatches)
    passes = config.critic.pretraining_passes
    optimizer = pretraining_optimizer(config, algorithm, steps * passes * schedule.minibatches * schedule.passes)
    teach = make_teach(setup, algorithm, optimizer, schedule, state, passes=passes)

    def learn(state: TrainState, lesson: Lesson) -> tuple[TrainState, LearnMetrics]:
        rollout, sequences = lesson.groups.rollout, sequences_of(lesson.groups)
        batch = prepare_batch(rollout)
        credit = measured_credit(algorithm, rollout, batch)
        state, critic = teach(state, sequences, batch)
        return state._replace(value_step=state.value_step + 1), LearnMetrics(credit, critic)

    return learn


def save_critic(run: Run, state: TrainState) -> None:
    """Write the critic as a model folder; another run can start from it with `--critic RUN`."""
    critic, folder = required(run.setup.critic, "setup.critic"), critic_folder(run.folder.path)
    params = required(state.critic, "state.critic").params
    whole = "float32" if critic.function.contents is not None else None  # training goes on from it
    beside = companions(run.config, run.setup.tokenizer)
    run.disk.attempt_together("the critic", lambda: save_model(folder, critic.function, params, beside, dtype=whole))
    run.display.message(f"The pretrained critic is in {folder}.")
