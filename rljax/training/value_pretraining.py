"""The critic's own phase: the policy is fixed, and the critic learns what becomes of its responses.

Each step samples a new rollout, one response a prompt, asks the critic about it, and only then teaches it: the explained variance
and the loss that are shown and that end the phase are of responses the critic has not learnt from. Targets are the Monte-Carlo
returns (VC-PPO, arXiv:2503.01491; VAPO, arXiv:2504.05118, Section 4.1).
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from rljax.algorithms import Algorithm
from rljax.models.value_model import save_value_model
from rljax.ops.weights import token_mean
from rljax.parallel import any_host, fetch, on_first
from rljax.rollout import Groups, pad
from rljax.training.checkpoint import LAST
from rljax.training.config import TrainConfig
from rljax.training.critic import critic_folder, value_schedule
from rljax.training.learner import Numbers, credit_metrics, make_critic_learner, make_rollout_values
from rljax.training.rollouts import as_rollout, as_sequences, make_ask, make_prepare, next_rollout
from rljax.training.run import Run, pretraining_optimizer


def pretraining_steps(algorithm: Algorithm, config: TrainConfig) -> int:
    """Most steps of the phase: the configuration's number, else the algorithm's; 0 without a critic."""
    if algorithm.critic is None:
        return 0
    asked = config.value_pretraining_steps
    return algorithm.critic.pretraining_steps if asked is None else asked


def monte_carlo(algorithm: Algorithm) -> Algorithm:
    """What is left of an algorithm while the policy is fixed: its critic on Monte-Carlo returns, every response counting."""
    critic = algorithm.critic
    return Algorithm(
        advantage=None,
        log_ratio=algorithm.log_ratio,
        surrogate=algorithm.surrogate,
        weights=token_mean,
        shape_reward=algorithm.shape_reward,
        critic=critic._replace(target=partial(critic.target, lambda_=1.0), blend=None),
    )


def good_enough(numbers: dict[str, float], config: TrainConfig) -> bool:
    """Whether every threshold that was set is met, and at least one was set."""
    wanted, most = config.value_pretraining_explained_variance, config.value_pretraining_loss
    met = [] if wanted is None else [numbers["explained_variance"] >= wanted]
    met += [] if most is None else [numbers["outcome_loss"] <= most]
    return bool(met) and all(met)


def one_response_a_prompt(config: TrainConfig) -> TrainConfig:
    """Spread the responses of a rollout over as many prompts: a critic learns more from many prompts than from many responses."""
    rows = config.prompts * config.group_size
    return replace(
        config, prompts=rows, group_size=1, token_budget=None, difficulty_window=None, difficulty_window_end=None
    )


def pretrain_value(run: Run) -> None:
    """Teach the critic the fixed policy until the step limit or the thresholds; save it in the run folder."""
    config, setup = one_response_a_prompt(run.config), run.setup
    steps = pretraining_steps(setup.algorithm, config)
    if steps == 0:
        if setup.critic is not None and not setup.critic.loaded:
            run.display.warning(
                "The critic has not been trained: value pretraining has 0 steps. Its first advantages mean little."
            )
        return
    algorithm = monte_carlo(setup.algorithm)
    ask = make_ask(config, setup.order)
    learn = make_value_learner(run, algorithm, steps)
    run.display.phase("value", steps)
    while int(run.state.value_step) < steps:
        begun = time.monotonic()
        run.state, run.history, collected = next_rollout(
            run.state, None, run.history, config=config, engine=setup.train, algorithm=algorithm, ask=ask
        )
        numbers = learn(collected.groups) | {"seconds": time.monotonic() - begun}
        run.state = run.state._replace(value_step=run.state.value_step + 1)
        step = int(run.state.value_step)
        run.trackers.log("value", step, numbers)
        run.display.update(step, numbers)
        if any_host(good_enough(numbers, config)):
            break
        if step % config.checkpoint_every == 0:
            run.save(LAST)
        run.stop_if_asked()
    save_critic(run)


def make_value_learner(run: Run, algorithm: Algorithm, steps: int) -> Callable[[Groups], Numbers]:
    """Compile what asks the critic about a rollout, and then teaches it; `steps` rollouts at most."""
    config, setup = one_response_a_prompt(run.config), run.setup
    schedule = value_schedule(algorithm, config, setup.mesh.size)
    prepared = make_prepare(algorithm, minibatches=config.minibatches, value_minibatches=schedule.minibatches)
    values_of = make_rollout_values(run, algorithm)
    passes = config.value_pretraining_passes
    optimizer = pretraining_optimizer(setup, steps * passes * schedule.minibatches * schedule.passes)
    teach = make_critic_learner(run, algorithm, optimizer, schedule, passes=passes)

    def learn(groups: Groups) -> Numbers:
        groups = pad(groups, config.prompts)
        sequences = as_sequences(groups)
        values = values_of(groups, sequences)
        batch = prepared(as_rollout(groups, values=values))
        shape = groups.mask.shape
        mask, advantage = batch.mask.reshape(shape), batch.advantage.reshape(shape)
        measured = credit_metrics(values.reshape(shape), groups.rewards, mask, advantage)
        return {name: float(value) for name, value in measured.items()} | teach(sequences, batch)

    return learn


def save_critic(run: Run) -> None:
    """Write the critic as a model folder, which `--critic RUN` of another run takes up."""
    folder, tokenizer = critic_folder(run.folder.path), run.setup.tokenizer
    params = fetch(run.state.critic.params)
    model, eos = run.setup.critic.model, tokenizer.eos_token_id
    on_first(lambda: save_value_model(folder, model, params, bos=None, eos=eos))
    run.display.message(f"The pretrained critic lies in {folder}.")
