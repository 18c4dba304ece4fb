"""Build the algorithm of a run from its settings, and check that it fits the sizes of the run."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rljax.algorithms import Algorithm, Correction, LossMetrics, Past, Rollout, loss, prepare, without
from rljax.algorithms.algorithm import CREDIT
from rljax.algorithms.corrections import BY_NAME as CORRECTIONS
from rljax.algorithms.corrections import off_policy_mask
from rljax.algorithms.critic import with_pretrained_value
from rljax.algorithms.parts import with_parts
from rljax.errors import InputError
from rljax.evaluation.kinds import MOST_KINDS, kind_column
from rljax.evaluation.report import KNOWN_COLUMNS
from rljax.importing import is_own
from rljax.models import Policy
from rljax.ops.unpublished.reward_history import empty_history
from rljax.records import required
from rljax.rewards.protocol import Weighted
from rljax.rollout.worker import RolloutWorker
from rljax.sharing import shared
from rljax.training.config import AlgorithmConfig, SamplingConfig, TrainConfig
from rljax.training.config.algorithm_options import factory_of, option_names
from rljax.training.objective.critic import check_critic, make_head


def resolved_settings(config: TrainConfig) -> dict[str, Any]:
    """Every setting by its flat name, those that the algorithm leaves to its factory among its options.

    Raises:
        InputError: the algorithm is unknown or cannot be imported.

    Example:
        >>> resolved_settings(TrainConfig.flat(algorithm="grpo", algorithm_options={"beta": 0.0}))["algorithm_options"]
        {'clip': 0.2, 'beta': 0.0, 'eps': 1e-06, 'ddof': 1}
    """
    options = option_names(config.algorithm.name) | dict(config.algorithm.options)
    return config.to_flat() | {"algorithm_options": options}


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
        algorithm = factory_of(name)(**options) if is_own(name) else _built_in(name, **options)
    except ValueError as error:
        raise InputError(f"The options {options} do not fit {name}: {error}.") from error
    if not isinstance(algorithm, Algorithm):
        raise InputError(f"{name} must return an rljax.algorithms.Algorithm; got {algorithm!r:.80}.")
    for part in config.algorithm.without:
        try:
            algorithm = without(name, algorithm, part)
        except ValueError as error:
            raise InputError(f"--without {part}: {error}.") from error
    try:
        algorithm = _with_parts(algorithm, config.algorithm.all_parts)
    except ValueError as error:
        raise InputError(f"--with {' '.join(config.algorithm.all_parts)}: {error}.") from error
    check_critic(algorithm, config)
    if config.critic.head is not None:
        head = make_head(config.critic.head, config.critic.head_options)
        algorithm = algorithm._replace(critic=required(algorithm.critic, "algorithm.critic")._replace(head=head))
    return _blended(algorithm) if config.critic.mix_pretrained_value else algorithm


_blended = shared(with_pretrained_value)
_with_parts = shared(with_parts)


@shared
def _built_in(name: str, /, **options: int | float) -> Algorithm:
    return factory_of(name)(**options)


def add_correction(algorithm: Algorithm, config: TrainConfig) -> Algorithm:
    """Give an algorithm the correction and the off-policy mask of the settings.

    Raises:
        InputError: an unknown correction, a bound that it does not have or that is missing, or an algorithm that has one already or
            learns from no advantage.
    """
    settings = config.algorithm
    chosen = {"correction": settings.correction, "off_policy_delta": settings.off_policy_delta}
    without_credit = all(algorithm._asdict()[slot] is None for slot in CREDIT)
    for name, value in chosen.items():
        if without_credit and value not in (None, "none"):
            raise InputError(
                f"{name}={value}: the algorithm learns from no advantage, so there is nothing to weigh; leave it out, or choose "
                "another algorithm."
            )
    if settings.off_policy_delta is not None:
        if algorithm.surrogate_mask is not None:
            raise InputError(
                f"off_policy_delta={settings.off_policy_delta}: the algorithm has an off-policy mask already; leave it out."
            )
        algorithm = algorithm._replace(surrogate_mask=_masked(settings.off_policy_delta))
    if settings.correction == "none":
        return algorithm
    if algorithm.correction is not None:
        raise InputError(f"correction={settings.correction!r}: the algorithm has a correction already; leave it out.")
    return algorithm._replace(correction=make_correction(settings))


def reward_weights(algorithm: Algorithm, worker: RolloutWorker) -> Mapping[str, float] | None:
    """Weights that an algorithm which takes several rewards one by one needs.

    None where it does not do so, where an environment judges, where there is one reward, or where each weight is 1.
    """
    reward = worker.judge.reward
    if algorithm.parts_advantage is None or len(reward_names(worker)) == 1 or not isinstance(reward, Weighted):
        return None
    weights = reward.flat().weights
    return None if set(weights.values()) == {1} else weights


def reward_names(worker: RolloutWorker) -> tuple[str, ...]:
    """Names of the rewards that judge a response one by one; one name where an environment judges, or one reward does."""
    reward = worker.judge.reward
    several = worker.environment is None and isinstance(reward, Weighted)
    return tuple(reward.flat().weights) if several else ("reward",)


def with_reward_weights(algorithm: Algorithm, weights: Mapping[str, float] | None) -> Algorithm:
    """Give an algorithm that takes several rewards one by one the weights with which they are summed, if it needs any.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> with_reward_weights(BY_NAME["gdpo"](), {"right": 1.0, "long": -0.3}).parts_advantage.keywords["weights"]
        {'right': 1.0, 'long': -0.3}
    """
    if weights is None:
        return algorithm
    parts_advantage = required(algorithm.parts_advantage, "algorithm.parts_advantage")
    return algorithm._replace(parts_advantage=_weighted(parts_advantage, tuple(weights.items())))


@shared
def _weighted(parts_advantage: Callable, weights: tuple[tuple[str, float], ...]) -> Callable:
    return partial(parts_advantage, weights=dict(weights))


def make_correction(settings: AlgorithmConfig) -> Correction:
    """Look a correction up and give it its bounds.

    Raises:
        InputError: an unknown name, or a bound that it does not have or that is missing.
    """
    name = settings.correction
    if name not in CORRECTIONS:
        raise InputError(f"The correction {name!r} is unknown; choose one of none, {', '.join(CORRECTIONS)}.")
    settable = {"low": settings.correction_low, "high": settings.correction_high}
    bounds = {bound: value for bound, value in settable.items() if value is not None}
    known = inspect.signature(CORRECTIONS[name]).parameters
    for bound in set(bounds) - set(known):
        raise InputError(f"The correction {name} has no correction_{bound}; leave it out, or choose another correction.")
    for bound, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and bound not in bounds:
            raise InputError(f"The correction {name} needs correction_{bound}, which has no default; give a number.")
    return _bounded(name, **bounds)


@shared
def _bounded(name: str, /, **bounds: float) -> Correction:
    return CORRECTIONS[name](**bounds)


_masked = shared(off_policy_mask)


def one_response_a_prompt(config: TrainConfig) -> TrainConfig:
    """Keep the number of responses in a rollout, but draw each for a different prompt."""
    rows = config.sampling.prompts * config.sampling.group_size
    return replace(config, sampling=replace(config.sampling, prompts=rows, group_size=1, token_budget=None))


def settings_for(config: TrainConfig, algorithm: Algorithm) -> TrainConfig:
    """Apply `one_response_a_prompt` if the algorithm takes groups of one response."""
    return one_response_a_prompt(config) if algorithm.group_size == 1 else config


def check_algorithm(algorithm: Algorithm, config: TrainConfig, *, rewards: int = 2) -> None:
    """Refuse sizes and options that the algorithm cannot work with. JAX traces one loss of these shapes without computing it.

    Args:
        algorithm: the algorithm.
        config: the settings.
        rewards: of each response; while their number is not known, any that is enough for all algorithms.

    Raises:
        InputError: the algorithm refuses them; the message has its reason.
    """
    sampling, name = config.sampling, config.algorithm.name
    if sampling.remembered_rewards and algorithm.advantage is None:
        raise InputError(
            f"{name} does not compare the responses to a prompt, so remembered_rewards={sampling.remembered_rewards} "
            "cannot apply to it; leave it out."
        )
    if config.reward.combine != "sum" and algorithm.parts_advantage is not None:
        raise InputError(
            f"{name} takes several rewards one by one, so reward_combine={config.reward.combine!r} cannot apply; leave it out, "
            "or choose another algorithm."
        )
    try:
        jax.eval_shape(_one_loss(algorithm, sampling, config.optimization.minibatches, rewards))
    except ValueError as error:
        raise InputError(
            f"{name} with the options {config.algorithm.options}{_parts_in_words(config.algorithm)} cannot train on "
            f"{sampling.prompts} prompts x group_size={sampling.group_size} responses: {error}."
        ) from error


def _parts_in_words(settings: AlgorithmConfig) -> str:
    return f" and --with {' '.join(settings.parts)}" if settings.parts else ""


def check_features(algorithm: Algorithm, config: TrainConfig, policy: Policy) -> None:
    """Refuse a policy that cannot show its whole distributions to an algorithm that reads them.

    Raises:
        InputError: the message names the function that is missing.
    """
    if policy.features is None and (algorithm.teacher_divergence is not None or algorithm.needs("square_sum")):
        raise InputError(
            f"policy.features: {config.algorithm.name} reads whole distributions, so it needs the hidden states and the matrix "
            "whose products are the logits; got None. Give the policy this function, or choose another algorithm."
        )


def check_judges(algorithm: Algorithm, config: TrainConfig, worker: RolloutWorker) -> None:
    """Refuse an algorithm that needs more than there is of what the responses are judged by, or of the problems' kinds.

    Raises:
        InputError: the message names what is missing.
    """
    if algorithm.needs("kinds") and kind_column(worker.prompts.problems) is None:
        raise InputError(
            f"{config.algorithm.name}{_parts_in_words(config.algorithm)} compares problems of one kind, and no column of the "
            f"training problems tells 2 to {MOST_KINDS} kinds apart; give the data one of the columns {', '.join(KNOWN_COLUMNS)}."
        )
    if algorithm.rollout_advantage is not None:
        check_algorithm(algorithm, config, rewards=len(reward_names(worker)))


def blank_rollout(sampling: SamplingConfig, rewards: int) -> Rollout[Array]:
    """A rollout of zeros with the run's sizes, and with all that an algorithm may read.

    Args:
        sampling: the sizes.
        rewards: number of rewards of each response.
    """
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
        teacher_logp=number,
        square_sum=number,
        greedy_rewards=number[:, 0, 0],
        reward_parts={f"reward {i}": number[..., 0] for i in range(rewards)},
        kinds=jnp.zeros(sampling.prompts, jnp.int32),
        step_rewards=number,
        step_end=flag,
    )


@shared
def _one_loss(
    algorithm: Algorithm, sampling: SamplingConfig, minibatches: int, rewards: int
) -> Callable[[], tuple[Array, LossMetrics]]:
    """Build the function that prepares a rollout of zeros and computes its loss."""

    def one_loss() -> tuple[Array, LossMetrics]:
        prompts, remembered = sampling.prompts, sampling.remembered_rewards
        past = Past(empty_history(prompts, remembered), jnp.arange(prompts)) if remembered else None
        batch = prepare(algorithm, blank_rollout(sampling, rewards), minibatches=minibatches, progress=0.0, past=past)
        blank = batch.policy_logp
        return loss(algorithm, blank, batch, entropy=blank, teacher_divergence=blank)

    return one_loss
