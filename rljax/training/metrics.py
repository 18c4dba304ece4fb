"""Metrics of a step as typed records, and statistics of sampled responses. A metric that could not be measured is None."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Float, Float32, Int, Int32, UInt64

from rljax.algorithms import LossMetrics
from rljax.records import required
from rljax.rewards.correctness import Failures
from rljax.rewards.reward_call import has_failed
from rljax.rollout import Collected, Groups
from rljax.rollout.groups import correctness_masks, mean_parts_and_metrics, sampled_versions

Numbers = dict[str, float]
Record = TypeVar("Record", bound=tuple)


def present(record: Any) -> Numbers:
    """Return the metrics of a record by field, without those that are None; nested records and dicts are flattened.

    Example:
        >>> present(UpdateMetrics(grad_norm=0.5, learning_rate=None, loss=None))
        {'grad_norm': 0.5, 'skipped_updates': 0.0}
    """
    numbers: Numbers = {}
    for name, value in record._asdict().items():
        if isinstance(value, dict):
            numbers |= {key: float(entry) for key, entry in value.items()}
        elif isinstance(value, tuple):
            numbers |= value.numbers() if isinstance(value, LossMetrics) else present(value)
        elif value is not None:
            numbers[name] = float(value)
    return numbers


def mean_of(records: Sequence[Record]) -> Record | None:
    """Average each field over records of one type; None if there are no records."""
    if not records:
        return None
    return jax.tree.map(lambda *values: np.mean(values, dtype=np.float64), *records)


def average_updates(records: Sequence["UpdateMetrics"]) -> "UpdateMetrics | None":
    """Average the metrics of a rollout's updates without the skipped ones, and set the fraction skipped; None without updates.

    Example:
        >>> present(average_updates([UpdateMetrics(None, 2.0), UpdateMetrics(None, np.inf, 1.0)]))
        {'grad_norm': 2.0, 'skipped_updates': 0.5}
    """
    return _mean_of_unskipped(records, UpdateMetrics(None, None), "skipped_updates")


def average_critic_updates(records: Sequence["CriticMetrics"]) -> "CriticMetrics | None":
    """Average the metrics of a rollout's critic updates, as `average_updates` does for the policy's."""
    return _mean_of_unskipped(records, CriticMetrics(None, None, None), "skipped_value_updates")


def _mean_of_unskipped(records: Sequence[Any], empty: Any, skipped: str) -> Any:
    """Average the records whose field `skipped` is 0 (`empty` if there are none), and set this field to its overall mean."""
    if not records:
        return None
    shares = [float(getattr(record, skipped)) for record in records]
    mean = mean_of([record for record, share in zip(records, shares, strict=True) if not share])
    return (empty if mean is None else mean)._replace(**{skipped: float(np.mean(shares))})


class UpdateMetrics(NamedTuple):
    """Averages over the policy updates of one rollout."""

    loss: LossMetrics | None
    """The loss and its terms."""
    grad_norm: Float[Array, ""] | float | None
    """Norm of the gradient before it is clipped; None if every update was skipped."""
    skipped_updates: Float[Array, ""] | float = 0.0
    """Fraction of updates that were skipped because they were unsafe; the averages leave these updates out."""
    learning_rate: float | None = None
    """Learning rate; None if the optimizer's state does not contain it."""
    options: dict[str, Float[Array, ""]] | None = None
    """Metrics of the run's options."""


class SupervisedMetrics(NamedTuple):
    """Metrics of one update on demonstrations, averaged over the response tokens with the parameters before the update."""

    loss: Float[Array, ""]
    """Mean negative log-likelihood, in nats per token."""
    entropy: Float[Array, ""]
    """Mean entropy of the policy, in nats per token."""
    grad_norm: Float[Array, ""]
    """Norm of the gradient before it is clipped."""
    skipped_updates: Float[Array, ""]
    """1 if the update was skipped because it was unsafe, else 0."""
    options: dict[str, Float[Array, ""]] | None = None
    """Metrics of the run's options."""


class CriticMetrics(NamedTuple):
    """Averages over the critic updates of one rollout."""

    value_loss: Float[Array, ""] | float | None
    """The critic's loss; this and the next two metrics are None if every update was skipped."""
    value_explained_variance: Float[Array, ""] | float | None
    """Fraction of the targets' variance that the values explain, before each update."""
    value_grad_norm: Float[Array, ""] | float | None
    """Norm of the gradient before it is clipped."""
    skipped_value_updates: Float[Array, ""] | float = 0.0
    """Fraction of updates that were skipped because they were unsafe; the averages leave these updates out."""


class CreditMetrics(NamedTuple):
    """Quality of the critic's predictions on a rollout, before the critic is updated, and of the advantages."""

    explained_variance: Float[Array, ""] | float
    """Fraction of the outcome reward's variance, over all response tokens, that the values explain."""
    value: Float[Array, ""] | float
    """Mean of the critic's values."""
    outcome_loss: Float[Array, ""] | float
    """Half the mean squared difference between outcome reward and value."""
    advantage_correlation: Float[Array, ""] | float
    """Correlation between a token's advantage and the outcome reward."""
    lambda_10: float | None = None
    """10th percentile of λ over the responses; None if λ does not depend on the length."""
    lambda_50: float | None = None
    """Median of λ over the responses; None as above."""
    lambda_90: float | None = None
    """90th percentile of λ over the responses; None as above."""


class LearnMetrics(NamedTuple):
    """Metrics of learning from one rollout. A field is None if nothing was updated or there is no critic."""

    credit: CreditMetrics | None = None
    """Metrics of the critic before its updates."""
    critic: CriticMetrics | None = None
    """Metrics of the critic's updates."""
    policy: UpdateMetrics | None = None
    """Metrics of the policy's updates; None if every group was filtered out."""
    advantage_variance: float | None = None
    """Variance of the advantage over the trained tokens; None if there are no such tokens."""
    sampler_gap: float | None = None
    """Divergence of the learner from the sampler, before the first update; None if this update was skipped or absent."""
    options: dict[str, float] | None = None
    """Metrics of the run's options."""

    def with_options(self, found: dict[str, float]) -> "LearnMetrics":
        """Return these metrics with the metrics of an option added."""
        return self._replace(options={**(self.options or {}), **found}) if found else self


class RolloutMetrics(NamedTuple):
    """Averages over all responses that were sampled in a step, whether or not they are trained on."""

    reward: float | None
    """Mean reward; None if no response has a reward."""
    accuracy: float | None
    """Fraction of responses that are correct (without a verifier, that have a reward above 0); None if unknown for all of them."""
    response_length: float
    """Mean number of tokens per response."""
    turns: float
    """Mean number of turns of the policy per response."""
    truncated_share: float
    """Fraction of responses that were cut off."""
    group_size: float
    """Mean number of responses per prompt."""
    filtered_ratio: float
    """Fraction of groups that dynamic sampling dropped."""
    tries: int
    """Number of sampling rounds."""
    trained_groups: int
    """Number of groups that are trained on."""
    unfilled_groups: int
    """Number of groups that are missing after dynamic sampling: the requested number minus `trained_groups`."""
    unjudged: int
    """Number of responses that the reward failed to judge; they are left out."""
    staleness: float | None
    """Mean age of the parameters that sampled the trained responses, in RL steps; None if nothing is trained on."""
    tokens_per_second: float
    """Number of sampled tokens divided by the duration of the full step."""
    seconds: float
    """Duration of the full step, in seconds."""
    reward_variance: float | None
    """Variance of the reward over the responses; None if no response has a reward."""
    groups_all_right: float | None
    """Fraction of groups whose responses are all correct; see `unanimous_share`."""
    groups_all_wrong: float | None
    """Fraction of groups whose responses are all wrong; see `unanimous_share`."""
    reward_length_correlation: float | None
    """Correlation between reward and length; None if no response has a reward, or if one of the two is the same for all."""
    repetition: float
    """Fraction of 8-token sequences that occurred earlier in the same response."""
    commonest_response: float
    """Fraction of responses that equal the most frequent response, over all prompts."""
    parts: dict[str, float]
    """Mean of each part of a reward with several parts, as `reward_NAME`."""
    failures: dict[str, float]
    """Number of responses that the reward failed to judge, by kind, as `reward_KIND`, and `unstated_share`. Zeros are left out."""


def rollout_metrics(collected: Collected, *, wanted: int, version: int, seconds: float) -> RolloutMetrics:
    """Measure a rollout.

    Args:
        collected: the sampled groups and the groups that are trained on.
        wanted: number of groups that a step should train on.
        version: number of RL steps before this step.
        seconds: duration of the full step.
    """
    sampled, rollout, trained = collected.sampled, collected.sampled.rollout, collected.groups
    lengths = sampled.attention.sum(-1)[sampled.present]
    rewards = rollout.rewards[required(rollout.valid, "rollout.valid")]
    right, known = correctness_masks(rollout)
    age = version - sampled_versions(trained)
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
        unjudged=int(has_failed(sampled.failed).sum()),
        staleness=float(age.mean()) if age.size else None,
        tokens_per_second=float(lengths.sum()) / seconds,
        seconds=seconds,
        reward_variance=float(rewards.var(dtype=np.float64)) if rewards.size else None,
        groups_all_right=unanimous_share(sampled, right=True),
        groups_all_wrong=unanimous_share(sampled, right=False),
        reward_length_correlation=correlation(rewards, sampled.attention.sum(-1)[required(rollout.valid, "rollout.valid")]),
        repetition=repetition(sampled.tokens[sampled.present], lengths),
        commonest_response=commonest_share(sampled.tokens[sampled.present], lengths),
        parts=mean_parts_and_metrics(sampled),
        failures=failure_counts(sampled),
    )


def failure_counts(groups: Groups) -> Numbers:
    """Count the responses that the reward failed to judge, by kind, and add the fraction without an answer; omit zeros."""
    counts = {f"reward_{kind}": float((groups.failed == code).sum()) for code, kind in enumerate(Failures._fields, 1)}
    unstated = counts["reward_unstated"] / max(int(groups.present.sum()), 1)
    return {name: count for name, count in {**counts, "unstated_share": unstated}.items() if count}


REPEAT_LENGTH = 8
"""Length, in tokens, of the sequences whose repetitions `repetition` counts."""


def unanimous_share(groups: Groups, *, right: bool) -> float | None:
    """Return the fraction of groups whose responses are all correct (`right`) or all wrong; None if no group is judged.

    Without a verifier, the rewards must also be equal, because rewards that are all above 0, or all at most 0, may still differ.
    A group with fewer than two judged responses is left out.
    """
    rollout, known = groups.rollout, correctness_masks(groups.rollout)[1]
    compared = known.sum(-1) > 1
    if not compared.any():
        return None
    values = (rollout.rewards if rollout.correct is None else rollout.correct)[compared].astype(np.float64)
    high = np.where(known[compared], values, -np.inf).max(-1)
    low = np.where(known[compared], values, np.inf).min(-1)
    return float(((high == low) & ((high > 0) == right)).mean())


def correlation(rewards: Float32[np.ndarray, "N"], lengths: Int[np.ndarray, "N"]) -> float | None:
    """Return Pearson's correlation between reward and length over responses; None if one of the two is the same for all.

    Example:
        >>> correlation(np.array([0.0, 1.0, 2.0], np.float32), np.array([5, 6, 7]))
        1.0
        >>> correlation(np.ones(3, np.float32), np.array([5, 6, 7]))
    """
    if not rewards.size:
        return None
    x, y = (values.astype(np.float64) - values.mean(dtype=np.float64) for values in (rewards, lengths))
    spread = float(np.sqrt((x @ x) * (y @ y)))
    return round(float(x @ y) / spread, 12) if spread > 0 else None


def repetition(tokens: Int32[np.ndarray, "N T"], lengths: Int[np.ndarray, "N"]) -> float:
    """Return the fraction of `REPEAT_LENGTH`-token sequences that occurred earlier in the same response, averaged over responses.

    The fraction is 0 for a response of at most `REPEAT_LENGTH` tokens.

    Args:
        tokens: token ids, right-padded.
        lengths: number of tokens in each response.

    Example:
        >>> looping = np.tile(np.arange(2, dtype=np.int32), 10)[None]
        >>> round(repetition(looping, np.array([20])), 3), repetition(np.arange(20, dtype=np.int32)[None], np.array([20]))
        (0.846, 0.0)
    """
    if tokens.shape[1] < REPEAT_LENGTH + 1 or not len(tokens):
        return 0.0
    runs, count = _hashes(tokens), np.maximum(lengths - REPEAT_LENGTH + 1, 0)
    used = np.arange(runs.shape[1]) < count[:, None]
    ordered = np.sort(np.where(used, runs, np.iinfo(np.uint64).max), axis=1)
    repeated = (ordered[:, 1:] == ordered[:, :-1]) & used[:, 1:]  # `used` is still valid, because sorting puts padding last
    return float((repeated.sum(1) / np.maximum(count, 1)).mean())


def _hashes(tokens: Int32[np.ndarray, "N T"]) -> UInt64[np.ndarray, "N R"]:
    """Hash each sequence of `REPEAT_LENGTH` adjacent tokens; different sequences almost never have equal hashes."""
    count = tokens.shape[1] - REPEAT_LENGTH + 1
    total = np.zeros((len(tokens), count), np.uint64)
    for offset in range(REPEAT_LENGTH):
        total = total * np.uint64(0x9E3779B97F4A7C15) + tokens[:, offset : offset + count].astype(np.uint64) + np.uint64(1)
    return total


def commonest_share(tokens: Int32[np.ndarray, "N T"], lengths: Int[np.ndarray, "N"]) -> float:
    """Return the fraction of responses that equal the most frequent response, over all prompts; 0 if there are no responses.

    Example:
        >>> commonest_share(np.array([[1, 2], [1, 2], [1, 9]], np.int32), np.array([2, 2, 1]))
        0.6666666666666666
    """
    counts = Counter(row[:end].tobytes() for row, end in zip(tokens, lengths, strict=True))
    return max(counts.values(), default=0) / max(len(tokens), 1)
