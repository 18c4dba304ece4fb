"""Metrics of a step as typed records. A metric that could not be measured is None, and `present` leaves it out."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Float

from rljax.algorithms import LossMetrics
from rljax.records import documented, required
from rljax.rewards.failure import Failures
from rljax.rollout import Collected, Groups
from rljax.rollout.groups import part_means, right_and_known
from rljax.training.monitoring.response_statistics import commonest_share, correlation, repetition, share_of_groups

Numbers = dict[str, float]
Record = TypeVar("Record", bound=tuple)


def present(record: Any) -> Numbers:
    """Numbers of a record by field, without those that are None; nested records and dicts are flattened.

    Example:
        >>> present(UpdateMetrics(grad_norm=0.5, learning_rate=None, loss=None))
        {'grad_norm': 0.5, 'skipped_updates': 0.0}
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
    """Average every number over records of one type; None if there are no records."""
    if not records:
        return None
    return jax.tree.map(lambda *values: np.mean(values, dtype=np.float64), *records)


def mean_update(records: Sequence["UpdateMetrics"]) -> "UpdateMetrics | None":
    """Average the updates of one rollout that were made, and count those that were skipped; None if there were none.

    Example:
        >>> present(mean_update([UpdateMetrics(None, 2.0), UpdateMetrics(None, np.inf, 1.0)]))
        {'grad_norm': 2.0, 'skipped_updates': 0.5}
    """
    return _mean_of_sound(records, UpdateMetrics(None, None), "skipped_updates")


def mean_critic_update(records: Sequence["CriticMetrics"]) -> "CriticMetrics | None":
    """The same for updates of the critic."""
    return _mean_of_sound(records, CriticMetrics(None, None, None), "skipped_value_updates")


def _mean_of_sound(records: Sequence[Any], empty: Any, skipped: str) -> Any:
    """The mean of the records whose field `skipped` is 0, or `empty`, with the share of the others; None without a record."""
    if not records:
        return None
    shares = [float(getattr(record, skipped)) for record in records]
    mean = mean_of([record for record, share in zip(records, shares, strict=True) if not share])
    return (empty if mean is None else mean)._replace(**{skipped: float(np.mean(shares))})


@documented
class UpdateMetrics(NamedTuple):
    """Averages over the policy updates of one rollout."""

    loss: LossMetrics | None
    """Loss and its parts."""
    grad_norm: Float[Array, ""] | float | None
    """Norm of the gradient before it is clipped; None if every update was skipped."""
    skipped_updates: Float[Array, ""] | float = 0.0
    """Share of the updates that were skipped, because the loss or the gradient was not finite; they are in no average."""
    learning_rate: float | None = None
    """Learning rate; None if the optimiser's state does not hold it."""
    anchor_penalty: Float[Array, ""] | float | None = None
    """Penalty of the Fisher anchor before each update; None without an anchor."""
    auxiliary_loss: Float[Array, ""] | float | None = None
    """Negative log-likelihood of the examples of the auxiliary loss, nats a token, before its weight; None without one."""


@documented
class SupervisedMetrics(NamedTuple):
    """One update on demonstrations; everything is computed before it, over their response tokens."""

    loss: Float[Array, ""]
    """Mean negative log-likelihood, nats a token."""
    entropy: Float[Array, ""]
    """Mean entropy of the policy, nats."""
    grad_norm: Float[Array, ""]
    """Norm of the gradient before it is clipped."""
    skipped_updates: Float[Array, ""]
    """1 where the update was skipped, because it was not sound."""
    anchor_penalty: Float[Array, ""] | None = None
    """Penalty of the Fisher anchor; None without an anchor."""


@documented
class CriticMetrics(NamedTuple):
    """Averages over the critic updates of one rollout."""

    value_loss: Float[Array, ""] | float | None
    """The critic's loss; None if every update was skipped, like the next two."""
    value_explained_variance: Float[Array, ""] | float | None
    """Explained variance of the targets, before each update."""
    value_grad_norm: Float[Array, ""] | float | None
    """Norm of the gradient before it is clipped."""
    skipped_value_updates: Float[Array, ""] | float = 0.0
    """Share of the updates that were skipped, because the loss or the gradient was not finite; they are in no average."""


@documented
class CreditMetrics(NamedTuple):
    """Quality of the critic's predictions on a rollout before its updates, and correlation of the advantages with the outcome."""

    explained_variance: Float[Array, ""] | float
    """Explained variance of the outcome's reward over all response tokens."""
    value: Float[Array, ""] | float
    """Mean value."""
    outcome_loss: Float[Array, ""] | float
    """Half the mean squared difference of outcome and value."""
    advantage_correlation: Float[Array, ""] | float
    """Correlation of a token's advantage and the outcome's reward."""
    lambda_10: float | None = None
    """10th percentile of λ over the responses; None if λ does not depend on the length."""
    lambda_50: float | None = None
    """Median of λ over the responses; None as above."""
    lambda_90: float | None = None
    """90th percentile of λ over the responses; None as above."""


@documented
class LearnMetrics(NamedTuple):
    """Metrics of learning from one rollout. A part is None if nothing was updated or there is no critic."""

    credit: CreditMetrics | None = None
    """The critic before its updates."""
    critic: CriticMetrics | None = None
    """The critic's updates."""
    policy: UpdateMetrics | None = None
    """The policy's updates; None when every group was filtered out."""
    correction_cut: float | None = None
    """Share of the trained tokens that the correction capped or left out; None without a correction."""
    teacher_kl: float | None = None
    """Estimate of the divergence from the teacher before the updates, nats a token; None without a teacher."""
    kl_to_reference: float | None = None
    """Estimate of the divergence from the reference before the updates, nats a token; None without its log-probabilities."""
    kl_coefficient: float | None = None
    """Coefficient of the KL penalty in these updates; None unless it follows the divergence."""
    update_scale: float | None = None
    """Factor of these updates; None without the controller, like the next two."""
    clip_scale: float | None = None
    """Factor of their clip range; None where the algorithm does not clip on both sides."""
    entropy_weight: float | None = None
    """Coefficient of their entropy bonus."""
    advantage_variance: float | None = None
    """Variance of the advantage over the trained tokens; None without such a token."""
    sampler_gap: float | None = None
    """Divergence of the learner from the sampler, before anything changes; None if the first update was skipped or absent."""
    updates: int | None = None
    """Number of policy updates, skipped ones included; None without a limit of the divergence, where all planned ones are made."""
    planned_updates: int | None = None
    """Number of policy updates that would have been made without the limit; None as above."""


@documented
class RolloutMetrics(NamedTuple):
    """Averages over everything that was sampled in a step, whether it was trained on or not."""

    reward: float | None
    """Mean reward; None if no response has a reward."""
    accuracy: float | None
    """Share of the responses that a verifier finds correct, or, without one, whose reward is above 0; None where that is
    unknown of every response."""
    response_length: float
    """Mean number of tokens per response."""
    turns: float
    """Mean number of turns of the policy per response."""
    truncated_share: float
    """Share of the responses that were cut off."""
    group_size: float
    """Mean number of responses per prompt."""
    filtered_ratio: float
    """Share of the groups that dynamic sampling dropped."""
    tries: int
    """Number of sampling rounds."""
    trained_groups: int
    """Number of groups that are trained on."""
    unfilled_groups: int
    """Number of groups that dynamic sampling failed to find: the wanted number less `trained_groups`."""
    unjudged: int
    """Number of responses that the reward failed to judge; they are left out."""
    staleness: float | None
    """Mean number of RL steps since the responses that are trained on were sampled."""
    tokens_per_second: float
    """Number of sampled tokens divided by the time of the whole step."""
    seconds: float
    """Time of the whole step."""
    reward_variance: float | None
    """Variance of the reward over the responses; None if no response has a reward."""
    groups_all_right: float | None
    """Share of the groups whose responses are all right, with equal outcomes; None as above."""
    groups_all_wrong: float | None
    """Share of the groups whose responses are all wrong, with equal outcomes; None as above."""
    reward_length_correlation: float | None
    """Correlation of reward and length; None as above, or where one of them is the same for all."""
    repetition: float
    """Share of the runs of 8 tokens that occurred earlier in the same response."""
    commonest_response: float
    """Share of the responses that are the most frequent one, whatever the prompt."""
    parts: dict[str, float]
    """Mean of each part of a reward with several parts, as `reward_NAME`."""
    failures: dict[str, float]
    """Number of responses that the reward failed to judge, by kind of failure, as `reward_KIND`."""


def rollout_metrics(collected: Collected, *, wanted: int, version: int, seconds: float) -> RolloutMetrics:
    """Measure a rollout.

    Args:
        collected: the sampled groups and the groups that are trained on.
        wanted: number of groups that a step should train on.
        version: RL steps done before this one.
        seconds: time of the whole step.
    """
    sampled, rollout, trained = collected.sampled, collected.sampled.rollout, collected.groups
    lengths = sampled.attention.sum(-1)[sampled.present]
    rewards = rollout.rewards[required(rollout.valid, "rollout.valid")]
    right, known = right_and_known(rollout)
    age = version - trained.version[trained.present]
    return RolloutMetrics(
        reward=float(rewards.mean()) if rewards.size else None,
        accuracy=float(right[known].mean()) if known.any() else None,
        response_length=float(lengths.mean()),
        turns=float(sampled.turns[sampled.present].mean()),
        truncated_share=float(required(rollout.truncated, "rollout.truncated")[sampled.present].mean()),
        group_size=float(sampled.present.sum(-1).mean()),
        filtered_ratio=collected.filtered_ratio,
        tries=collected.tries,
        trained_groups=trained.count,
        unfilled_groups=wanted - trained.count,
        unjudged=int((sampled.failed > 0).sum()),
        staleness=float(age.mean()) if age.size else None,
        tokens_per_second=float(lengths.sum()) / seconds,
        seconds=seconds,
        reward_variance=float(rewards.var(dtype=np.float64)) if rewards.size else None,
        groups_all_right=share_of_groups(sampled, right=True),
        groups_all_wrong=share_of_groups(sampled, right=False),
        reward_length_correlation=correlation(rewards, sampled.attention.sum(-1)[required(rollout.valid, "rollout.valid")]),
        repetition=repetition(sampled.tokens[sampled.present], lengths),
        commonest_response=commonest_share(sampled.tokens[sampled.present], lengths),
        parts=part_means(sampled),
        failures=failure_counts(sampled),
    )


def failure_counts(groups: Groups) -> Numbers:
    """Number of responses that the reward failed to judge, by kind of failure; kinds that did not occur are left out."""
    counts = {f"reward_{kind}": float((groups.failed == place).sum()) for place, kind in enumerate(Failures._fields, 1)}
    return {name: count for name, count in counts.items() if count}
