"""Build the algorithm of a run from its settings, and check that it fits the sizes of the run."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rljax.algorithms import Algorithm, Correction, Credit, EarlierRewards, LossMetrics, Rollout, loss, prepare
from rljax.algorithms.algorithm import ROLLOUT_FIELDS
from rljax.algorithms.corrections import BY_NAME as CORRECTIONS
from rljax.algorithms.corrections import off_policy_mask, sampling_denominator
from rljax.caching import cache_results
from rljax.errors import InputError
from rljax.evaluation.problem_kinds import KNOWN_COLUMNS, MAX_KINDS, kind_column
from rljax.importing import is_custom
from rljax.models import Policy
from rljax.ops.unpublished.reward_history import empty_history
from rljax.records import required
from rljax.rewards.reward_scores import Weighted
from rljax.rollout.worker import RolloutWorker
from rljax.settings.checks import check_options, default_lengths, misfit_lengths, paper_lengths, truncation_warnings
from rljax.text import nearest_first
from rljax.training.config import AlgorithmConfig, SamplingConfig, TrainConfig
from rljax.training.config.algorithm import factory_of, option_defaults
from rljax.training.objective.critic import check_critic, make_head


def resolved_settings(config: TrainConfig) -> dict[str, Any]:
    """Return every setting by its flat name; the algorithm's options include the factory's defaults.

    Raises:
        InputError: the algorithm is unknown or cannot be imported.

    Example:
        >>> resolved_settings(TrainConfig.flat(algorithm="grpo", algorithm_options={"beta": 0.0}))["algorithm_options"]
        {'clip': 0.2, 'beta': 0.0, 'eps': 1e-06, 'ddof': 1}
    """
    options = option_defaults(config.algorithm.name) | _run_lengths(config) | dict(config.algorithm.options)
    return config.to_flat() | {"algorithm_options": options}


def _run_lengths(config: TrainConfig) -> dict[str, int]:
    known = {} if is_custom(config.algorithm.name) else option_defaults(config.algorithm.name)
    return default_lengths(known, config.algorithm.options, config.sampling.max_response_tokens)


def with_paper_lengths(config: TrainConfig) -> TrainConfig:
    """Set the algorithm's lengths that are not set yet to the paper's lengths, which were the defaults of rljax up to 0.3.0.

    Example:
        >>> with_paper_lengths(TrainConfig.flat(algorithm="dapo")).algorithm.options
        {'max_length': 20480, 'cache': 4096}
    """
    name, options = config.algorithm.name, config.algorithm.options
    return config if is_custom(name) else config.replace(algorithm_options=paper_lengths(option_defaults(name), options))


def list_misfits(config: TrainConfig, algorithm: Algorithm) -> list[str]:
    """List settings that conflict: an algorithm's lengths with the run's limit, or a correction with truncated sampling."""
    settings, sampling = config.algorithm, config.sampling
    lengths = misfit_lengths(algorithm.weights, algorithm.shape_reward, sampling.max_response_tokens)
    chosen = {"correction": settings.correction, "off_policy_delta": settings.off_policy_delta}
    return lengths + ([] if sampling.sampling_mask else truncation_warnings(chosen, sampling.top_k, sampling.top_p))


def make_algorithm(config: TrainConfig, own: Algorithm | None = None) -> Algorithm:
    """Build the algorithm, with the parts and the value head that the settings add to it.

    Raises:
        InputError: a name, option or part is unknown, the algorithm rejects a value, or the critic's settings do not apply to it.
    """
    algorithm = _named_algorithm(config) if own is None else own
    try:
        algorithm = _with_parts(algorithm, config.algorithm.all_parts) if config.algorithm.all_parts else algorithm
    except ValueError as error:
        raise InputError(f"--with {' '.join(config.algorithm.all_parts)}: {error}.") from error
    check_critic(algorithm, config)
    if config.critic.head is not None:
        head = make_head(config.critic.head, config.critic.head_options)
        algorithm = algorithm._replace(critic=required(algorithm.critic, "algorithm.critic")._replace(head=head))
    return _with_parts(algorithm, ("critic.blend=pretrained_value",)) if config.critic.mix_pretrained_value else algorithm


def _named_algorithm(config: TrainConfig) -> Algorithm:
    """Build the algorithm that the settings name, minus the parts in `without`."""
    name, options = config.algorithm.name, config.algorithm.options
    option_defaults(name)  # every argument must have a default
    check_options(name, options, factory_of(name))
    options = _run_lengths(config) | dict(options)
    try:
        algorithm = factory_of(name)(**options) if is_custom(name) else _built_in(name, **options)
    except ValueError as error:
        raise InputError(f"The options {options} do not fit {name}: {error}.") from error
    if not isinstance(algorithm, Algorithm):
        raise InputError(f"{name} must return an rljax.algorithms.Algorithm; got {algorithm!r:.80}.")
    for part in config.algorithm.without:
        from rljax.algorithms import without  # noqa: PLC0415  few runs remove a part

        try:
            algorithm = without(name, algorithm, part)
        except ValueError as error:
            raise InputError(f"--without {part}: {error}.") from error
    return algorithm


@cache_results
def _with_parts(algorithm: Algorithm, parts: tuple[str, ...]) -> Algorithm:
    from rljax.algorithms.parts import with_parts  # noqa: PLC0415  few runs add parts, which import many equations

    return with_parts(algorithm, parts)


@cache_results
def _built_in(name: str, /, **options: int | float) -> Algorithm:
    return factory_of(name)(**options)


def add_correction(algorithm: Algorithm, config: TrainConfig) -> Algorithm:
    """Add the settings' correction and off-policy mask to an algorithm.

    Raises:
        InputError: the correction is unknown, a bound is missing or does not apply, or the algorithm already has a correction or
            does not learn from advantages.
    """
    settings = config.algorithm
    chosen = {"correction": settings.correction, "off_policy_delta": settings.off_policy_delta}
    for name, value in chosen.items():
        if not algorithm.credits and value not in (None, "none"):
            raise InputError(
                f"{name}={value}: the algorithm does not learn from advantages, so there is nothing to weight; leave {name} out, "
                "or choose another algorithm."
            )
    if settings.off_policy_delta is not None:
        if algorithm.surrogate_mask is not None:
            raise InputError(
                f"off_policy_delta={settings.off_policy_delta} adds an off-policy mask, but the algorithm already has one; leave "
                "off_policy_delta out."
            )
        algorithm = algorithm._replace(surrogate_mask=_make_mask(settings.off_policy_delta))
    if settings.correction == "none":
        return algorithm
    if algorithm.correction is not None:
        raise InputError(
            f"correction={settings.correction!r}: the algorithm already has a correction; leave correction out."
        )
    if algorithm.denominator is sampling_denominator:
        raise InputError(
            f"correction={settings.correction!r}: {settings.name}'s ratio divides by the sampler's probability, which is already a "
            "correction; leave correction out."
        )
    return algorithm._replace(correction=make_correction(settings))


def reward_weights(algorithm: Algorithm, worker: RolloutWorker) -> Mapping[str, float] | None:
    """Return the weights of the rewards, for an algorithm that reads several rewards separately instead of their sum.

    Return None if the algorithm reads the sum, an environment judges, there is only one reward, or each weight is 1.
    """
    reward = worker.judge.reward
    if not reads_rewards_separately(algorithm) or len(reward_names(worker)) == 1 or not isinstance(reward, Weighted):
        return None
    weights = reward.flatten().weights
    return None if set(weights.values()) == {1} else weights


def reads_rewards_separately(algorithm: Algorithm) -> bool:
    """Return True if the advantage reads several rewards separately, and adds them itself with the argument `weights`."""
    return algorithm.needs("reward_parts") and all("rewards" not in credit.needs for credit in algorithm.credits)


def reward_names(worker: RolloutWorker) -> tuple[str, ...]:
    """Return the names of the rewards that judge a response; only "reward" if there is one reward, or an environment judges."""
    reward = worker.judge.reward
    has_several = worker.environment is None and isinstance(reward, Weighted)
    return tuple(reward.flatten().weights) if has_several else ("reward",)


def with_reward_weights(algorithm: Algorithm, weights: Mapping[str, float] | None) -> Algorithm:
    """Set the weights with which an algorithm sums rewards that it reads separately; None leaves the algorithm unchanged.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> weighted = with_reward_weights(BY_NAME["gdpo"](), {"right": 1.0, "long": -0.3})
        >>> weighted.credits[0].function.keywords["weights"]
        {'right': 1.0, 'long': -0.3}
    """
    if weights is None:
        return algorithm
    (credit,) = algorithm.credits
    return algorithm._replace(advantage=_add_weights(credit, tuple(weights.items())))


@cache_results
def _add_weights(credit: Credit, weights: tuple[tuple[str, float], ...]) -> Credit:
    return credit._replace(function=partial(credit.function, weights=dict(weights)))


def make_correction(settings: AlgorithmConfig) -> Correction:
    """Build the correction of the settings, with its bounds.

    Raises:
        InputError: the name is unknown, or a bound is missing or does not apply.
    """
    name = settings.correction
    if name not in CORRECTIONS:
        advice = f"choose one of none, {', '.join(CORRECTIONS)}."
        raise InputError(f"The correction {name!r} is unknown{nearest_first(name, CORRECTIONS, advice)}")
    settable = {"low": settings.correction_low, "high": settings.correction_high}
    bounds = {bound: value for bound, value in settable.items() if value is not None}
    known = inspect.signature(CORRECTIONS[name]).parameters
    for bound in set(bounds) - set(known):
        raise InputError(
            f"The correction {name} has no correction_{bound}; leave that bound out, or choose another correction."
        )
    for bound, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and bound not in bounds:
            raise InputError(f"The correction {name} needs correction_{bound}, which has no default; set it to a number.")
    return _build_correction(name, **bounds)


@cache_results
def _build_correction(name: str, /, **bounds: float) -> Correction:
    return CORRECTIONS[name](**bounds)


_make_mask = cache_results(off_policy_mask)


def keeps_reference(config: TrainConfig, algorithm: Algorithm) -> bool:
    """Return True if the state stores a reference. A fixed reference of an adapter without a warm start is the base: not stored."""
    if not algorithm.needs("ref_logp"):
        return False
    is_moving = algorithm.reference_rate > 0 or config.algorithm.reference_period is not None
    return config.adapter.rank is None or config.warm_start.steps > 0 or is_moving


def one_response_per_prompt(config: TrainConfig) -> TrainConfig:
    """Change the settings to sample one response per prompt, with the same number of responses per rollout."""
    rows = config.sampling.prompts * config.sampling.group_size
    return replace(config, sampling=replace(config.sampling, prompts=rows, group_size=1, token_budget=None))


def fit_group_size(config: TrainConfig, algorithm: Algorithm) -> TrainConfig:
    """Apply `one_response_per_prompt` if the algorithm needs groups of one response."""
    return one_response_per_prompt(config) if algorithm.group_size == 1 else config


def check_algorithm(algorithm: Algorithm, config: TrainConfig, *, rewards: int = 2) -> None:
    """Reject sizes and options that the algorithm cannot work with, by tracing its loss for these shapes without computing it.

    Args:
        algorithm: the algorithm.
        config: the settings.
        rewards: number of rewards per response; callers that do not know it use the default, which is enough for all algorithms.

    Raises:
        InputError: the algorithm rejects the settings; the message includes the reason.
    """
    sampling, name = config.sampling, config.algorithm.name
    if sampling.remembered_rewards and not algorithm.compares_groups:
        raise InputError(
            f"{name} does not compare the responses of a group, so remembered_rewards={sampling.remembered_rewards} "
            "cannot be used; leave remembered_rewards out."
        )
    if config.reward.combine != "sum" and reads_rewards_separately(algorithm):
        raise InputError(
            f"{name} reads several rewards separately, so reward_combine={config.reward.combine!r} cannot be used; leave "
            "reward_combine out, or choose another algorithm."
        )
    try:
        jax.eval_shape(_make_blank_loss(algorithm, sampling, config.optimization.minibatches, rewards))
    except (TypeError, ValueError) as error:  # TypeError: one of its functions does not accept an argument, such as `valid`
        raise InputError(
            f"{name}{_describe_changes(config.algorithm)} cannot train with "
            f"prompts={sampling.prompts} and group_size={sampling.group_size}: {error}."
        ) from error


def _describe_changes(settings: AlgorithmConfig) -> str:
    options = f" with the options {settings.options}" if settings.options else ""
    return options + (f" and --with {' '.join(settings.parts)}" if settings.parts else "")


def check_features(algorithm: Algorithm, config: TrainConfig, policy: Policy) -> None:
    """Reject a policy or a sampling mask that hides full distributions from an algorithm that reads them.

    Raises:
        InputError: the policy lacks a function, or there is a mask; the message names it.
    """
    reads_all = algorithm.teacher_divergence is not None or algorithm.needs("square_sum")
    mask = config.sampling.sampling_mask
    if mask is not None and (reads_all or algorithm.needs("teacher_logp")):
        raise InputError(
            f"sampling_mask={mask}: {config.algorithm.name} reads full distributions, or compares them with a teacher's, and a "
            "mask leaves out a part of each; leave sampling_mask out, or choose another algorithm."
        )
    if policy.features is None and reads_all:
        raise InputError(
            f"policy.features: {config.algorithm.name} reads full distributions, so it needs the hidden states and the matrix "
            "whose product is the logits; got None. Give the policy the function `features`, or choose another algorithm."
        )


def check_rewards_and_kinds(algorithm: Algorithm, config: TrainConfig, worker: RolloutWorker) -> None:
    """Reject an algorithm that needs more rewards than there are, or kinds of problems that the data does not have.

    Raises:
        InputError: rewards or kinds are missing; the message explains what is needed.
    """
    if algorithm.needs("kinds") and kind_column(worker.prompts.problems) is None:
        raise InputError(
            f"{config.algorithm.name}{_describe_changes(config.algorithm)} must compare problems of the same kind, but no column "
            f"of the training problems has 2 to {MAX_KINDS} kinds; add one of the columns {', '.join(KNOWN_COLUMNS)} to the data."
        )
    if algorithm.needs("reward_parts"):
        check_algorithm(algorithm, config, rewards=len(reward_names(worker)))


def blank_rollout(sampling: SamplingConfig, rewards: int) -> Rollout[Array]:
    """Return a rollout of zeros with the run's sizes, and with all fields that an algorithm may read.

    Args:
        sampling: the sampling settings, which determine the sizes.
        rewards: number of rewards per response.
    """
    shape = (sampling.prompts, sampling.group_size, sampling.max_response_tokens)
    blank: dict[str, Any] = {name: jnp.zeros(field.shape(shape), field.dtype) for name, field in ROLLOUT_FIELDS.items()}
    blank["reward_parts"] = {f"reward {i}": blank["rewards"] for i in range(rewards)}
    return Rollout(**blank)


@cache_results
def _make_blank_loss(
    algorithm: Algorithm, sampling: SamplingConfig, minibatches: int, rewards: int
) -> Callable[[], tuple[Array, LossMetrics]]:
    """Build the function that prepares a rollout of zeros and computes its loss."""

    def blank_loss() -> tuple[Array, LossMetrics]:
        prompts, remembered = sampling.prompts, sampling.remembered_rewards
        past = EarlierRewards(empty_history(prompts, remembered), jnp.arange(prompts)) if remembered else None
        batch = prepare(algorithm, blank_rollout(sampling, rewards), minibatches=minibatches, progress=0.0, past=past)
        blank = batch.policy_logp
        if algorithm.critic is not None and algorithm.critic.blend is not None:
            algorithm.critic.blend(blank[None], blank[None], jnp.float32(0), jnp.float32(0))
        return loss(algorithm, blank, batch, entropy=blank, teacher_divergence=blank)

    return blank_loss
