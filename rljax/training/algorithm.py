"""Build the algorithm of a run from its settings, and check that it fits the sizes of the run."""

import inspect
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rljax.algorithms import BY_NAME, Algorithm, LossMetrics, Past, Rollout, loss, prepare, without
from rljax.algorithms.critic import with_pretrained_value
from rljax.errors import InputError
from rljax.ops.unpublished.reward_history import empty_history
from rljax.records import required
from rljax.training.config import TrainConfig
from rljax.training.critic import check_critic, make_head


def option_names(algorithm: str) -> dict[str, int | float]:
    """Options of an algorithm and their default values.

    Raises:
        InputError: the name is unknown.
    """
    if algorithm not in BY_NAME:
        raise InputError(f"The algorithm {algorithm!r} is unknown; choose one of {', '.join(sorted(BY_NAME))}.")
    return {name: option.default for name, option in inspect.signature(BY_NAME[algorithm]).parameters.items()}


def make_algorithm(config: TrainConfig) -> Algorithm:
    """Build the algorithm with its hyper-parameters and value head, and without the parts to be removed.

    Raises:
        InputError: a name, option or part is unknown, the algorithm refuses a value, or the critic's settings do not fit it.
    """
    name, options = config.algorithm.name, config.algorithm.options
    known = sorted(option_names(name))
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(f"{name} has no option {', '.join(map(repr, unknown))}; it has {', '.join(known) or 'none'}.")
    try:
        algorithm = BY_NAME[name](**options)
    except ValueError as error:
        raise InputError(f"The options {options} do not fit {name}: {error}.") from error
    for part in config.algorithm.without:
        try:
            algorithm = without(name, algorithm, part)
        except ValueError as error:
            raise InputError(f"--without {part}: {error}.") from error
    check_critic(algorithm, config)
    if config.critic.head is not None:
        head = make_head(config.critic.head, config.critic.head_options)
        algorithm = algorithm._replace(critic=required(algorithm.critic, "algorithm.critic")._replace(head=head))
    return with_pretrained_value(algorithm) if config.critic.mix_pretrained_value else algorithm


def one_response_a_prompt(config: TrainConfig) -> TrainConfig:
    """Keep the number of responses in a rollout, but draw each for a different prompt."""
    rows = config.sampling.prompts * config.sampling.group_size
    return replace(config, sampling=replace(config.sampling, prompts=rows, group_size=1, token_budget=None))


def laid_out(config: TrainConfig, algorithm: Algorithm) -> TrainConfig:
    """Apply `one_response_a_prompt` if the algorithm takes groups of one response."""
    return one_response_a_prompt(config) if algorithm.group_size == 1 else config


def check_algorithm(algorithm: Algorithm, config: TrainConfig) -> None:
    """Refuse sizes and options that the algorithm cannot work with. JAX traces one loss of these shapes without computing it.

    Raises:
        InputError: the algorithm refuses them; the message has its reason.
    """
    sampling, name = config.sampling, config.algorithm.name
    if sampling.remembered_rewards and algorithm.advantage is None:
        raise InputError(
            f"{name} does not compare the responses to a prompt, so remembered_rewards={sampling.remembered_rewards} "
            "cannot apply to it; leave it out."
        )
    try:
        jax.eval_shape(lambda: _one_loss(algorithm, config, _blank_rollout(config)))
    except ValueError as error:
        raise InputError(
            f"{name} with the options {config.algorithm.options} cannot train on {sampling.prompts} prompts x "
            f"group_size={sampling.group_size} responses: {error}."
        ) from error


def _blank_rollout(config: TrainConfig) -> Rollout[Array]:
    """A rollout of zeros with the run's sizes."""
    sampling = config.sampling
    shape = (sampling.prompts, sampling.group_size, sampling.max_response_tokens)
    number, flag = jnp.zeros(shape, jnp.float32), jnp.zeros(shape, bool)
    return Rollout(
        mask=flag,
        behaviour_logp=number,
        rewards=number[..., 0],
        policy_logp=number,
        ref_logp=number,
        truncated=flag[..., 0],
        values=number,
        behaviour_entropy=number,
        step_rewards=number,
        step_end=flag,
    )


def _one_loss(algorithm: Algorithm, config: TrainConfig, rollout: Rollout[Array]) -> tuple[Array, LossMetrics]:
    """Prepare a rollout and compute its loss."""
    prompts, remembered = config.sampling.prompts, config.sampling.remembered_rewards
    past = Past(empty_history(prompts, remembered), jnp.arange(prompts)) if remembered else None
    batch = prepare(algorithm, rollout, minibatches=config.optimization.minibatches, progress=0.0, past=past)
    return loss(algorithm, batch.policy_logp, batch, entropy=batch.policy_logp)
