"""Measurements of a step as typed records. A value that could not be measured is None, and absent from `numbers`."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Float

from rljax.algorithms import LossMetrics
from rljax.records import documented, required
from rljax.rewards.failure import Failures
from rljax.rollout import Collected, Groups

Numbers = dict[str, float]
Record = TypeVar("Record", bound=tuple)


def present(record: Any) -> Numbers:
    """The numbers of a record that are there, by field; the entries of a dict stand for themselves.

    Example:
        >>> present(UpdateMetrics(grad_norm=0.5, learning_rate=None, loss=None))
        {'grad_norm': 0.5}
    """
    numbers: Numbers = {}
    for name, value in record._asdict().items():
        if isinstance(value, dict):
            numbers |= value
        elif isinstance(value, tuple):
            numbers |= value.numbers() if isinstance(value, LossMetrics) else present(value)
        elif value is not None:
            numbers[name] = float(value)
    return numbers


def mean_of(records: Sequence[Record]) -> Record | None:
    """Average every number over records of one kind; None without any."""
    if not records:
        return None
    return jax.tree.map(lambda *values: np.mean(values, dtype=np.float64), *records)


@documented
class UpdateMetrics(NamedTuple):
    """The policy's updates of one rollout, averaged."""

    loss: LossMetrics | None
    """Loss and its parts."""
    grad_norm: Float[Array, ""] | float
    """Norm of the gradient before it is clipped."""
    learning_rate: float | None = None
    """None where the optimiser's state does not hold it."""


@documented
class CriticMetrics(NamedTuple):
    """The critic's updates of one rollout, averaged."""

    value_loss: Float[Array, ""] | float
    """The critic's loss."""
    value_explained_variance: Float[Array, ""] | float
    """Explained variance of the targets, before each update."""
    value_grad_norm: Float[Array, ""] | float
    """Norm of the gradient before it is clipped."""


@documented
class CreditMetrics(NamedTuple):
    """How well the critic knew a rollout before it learnt from it, and how its credit goes with the outcome."""

    explained_variance: Float[Array, ""] | float
    """Explained variance of the outcome's reward over all response tokens."""
    value: Float[Array, ""] | float
    """Mean value."""
    outcome_loss: Float[Array, ""] | float
    """Half the mean squared difference of outcome and value."""
    advantage_correlation: Float[Array, ""] | float
    """Correlation of a token's advantage and the outcome's reward."""
    lambda_10: float | None = None
    """10th percentile of the λ of the responses, where λ depends on the length; so the two below."""
    lambda_50: float | None = None
    """Median of it."""
    lambda_90: float | None = None
    """90th percentile of it."""


@documented
class LearnMetrics(NamedTuple):
    """What `learn` measured of one rollout. An absent part: nothing was updated, or there is no critic."""

    credit: CreditMetrics | None = None
    """The critic before it learnt."""
    critic: CriticMetrics | None = None
    """The critic's updates."""
    policy: UpdateMetrics | None = None
    """The policy's updates; None when every group was filtered out."""
    correction_cut: float | None = None
    """Share of the trained tokens that the correction capped or left out; None without a correction."""


@documented
class RolloutMetrics(NamedTuple):
    """Averages over everything that was sampled in a step, whether it was trained on or not."""

    reward: float | None
    """Mean reward; None where the reward had no opinion on anything."""
    accuracy: float | None
    """Share of positive rewards."""
    response_length: float
    """Tokens a response."""
    truncated_share: float
    """Share of the responses that were cut off."""
    group_size: float
    """Responses a prompt."""
    filtered_ratio: float
    """Share of the groups that dynamic sampling dropped."""
    tries: int
    """How often it sampled."""
    trained_groups: int
    """Groups that are trained on."""
    staleness: float | None
    """RL steps between the sampling of the groups that are trained on and now, on average."""
    tokens_per_second: float
    """Sampled tokens over the time of the whole step."""
    seconds: float
    """Time of the whole step."""
    parts: dict[str, float]
    """Mean of each part of a reward that has several, `reward_NAME`."""
    failures: dict[str, float]
    """Responses that the reward failed to judge, by kind, `reward_KIND`."""


def rollout_metrics(collected: Collected, *, version: int, seconds: float) -> RolloutMetrics:
    """Measure a rollout.

    Args:
        collected: what was sampled and what is trained on.
        version: RL steps done.
        seconds: time of the whole step.
    """
    sampled, rollout, trained = collected.sampled, collected.sampled.rollout, collected.groups
    lengths = sampled.attention.sum(-1)[sampled.present]
    rewards = rollout.rewards[required(rollout.valid, "rollout.valid")]
    age = version - trained.version[trained.present]
    return RolloutMetrics(
        reward=float(rewards.mean()) if rewards.size else None,
        accuracy=float((rewards > 0).mean()) if rewards.size else None,
        response_length=float(lengths.mean()),
        truncated_share=float(required(rollout.truncated, "rollout.truncated")[sampled.present].mean()),
        group_size=float(sampled.present.sum(-1).mean()),
        filtered_ratio=collected.filtered_ratio,
        tries=collected.tries,
        trained_groups=trained.count,
        staleness=float(age.mean()) if age.size else None,
        tokens_per_second=float(lengths.sum()) / seconds,
        seconds=seconds,
        parts=part_means(sampled),
        failures=failure_counts(sampled),
    )


def part_means(groups: Groups) -> Numbers:
    """Mean of each part of a reward that has several, over the responses that it has an opinion on."""
    parts = {} if groups.parts is None else groups.parts
    opinions = {name: array[np.isfinite(array)] for name, array in parts.items()}
    return {f"reward_{name}": float(values.mean()) for name, values in opinions.items() if values.size}


def failure_counts(groups: Groups) -> Numbers:
    """How many responses the reward failed to judge, by kind; kinds that did not occur are left out."""
    counts = {f"reward_{kind}": float((groups.failed == place).sum()) for place, kind in enumerate(Failures._fields, 1)}
    return {name: count for name, count in counts.items() if count}
