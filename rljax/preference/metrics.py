"""Typed records of the metrics of an update on pairs or on solutions with labeled steps."""

from typing import NamedTuple

from jaxtyping import Array, Float


class ScoreMetrics(NamedTuple):
    """Metrics of a reward model, averaged over the pairs."""

    loss: Float[Array, ""]
    """Bradley-Terry loss."""
    accuracy: Float[Array, ""]
    """Fraction of pairs whose preferred response has the higher score; a tie counts as wrong."""
    lead: Float[Array, ""]
    """Score of the preferred response minus the score of the other."""
    score: Float[Array, ""]
    """Mean score of all responses."""


class StepMetrics(NamedTuple):
    """Metrics of a process reward model, averaged over the steps."""

    loss: Float[Array, ""]
    """Cross-entropy of the probability that a step is right."""
    accuracy: Float[Array, ""]
    """Fraction of steps whose probability is on the same side of 1/2 as their label."""
    score: Float[Array, ""]
    """Mean probability that a step is right."""


class DirectMetrics(NamedTuple):
    """Metrics of a language model on pairs: for each pair, or averaged over the pairs."""

    loss: Float[Array, "*N"]
    """Loss of the pair."""
    accuracy: Float[Array, "*N"]
    """1 if the preferred response has the higher implicit reward; 0 otherwise, also for a tie."""
    margin: Float[Array, "*N"]
    """Implicit reward of the preferred response minus the implicit reward of the other."""
    chosen_logp: Float[Array, "*N"]
    """Log-probability of the preferred response, summed over its tokens, in nats."""
    rejected_logp: Float[Array, "*N"]
    """Log-probability of the other response, summed over its tokens, in nats."""


class PairUpdateMetrics(NamedTuple):
    """Metrics of one update on pairs, all computed before the update."""

    pairs: ScoreMetrics | StepMetrics | DirectMetrics
    """Means over the pairs, or the steps, of the batch."""
    grad_norm: Float[Array, ""]
    """Norm of the gradient before it is clipped."""
    reference_point: Float[Array, ""] | None = None
    """Reference point of the batch; None for losses that do not read it."""
    reward_shift: Float[Array, ""] | None = None
    """Reward shift of the batch; None for losses that do not read it."""
    skipped_updates: Float[Array, ""] | float = 0.0
    """1 if the update was skipped because it was not finite or too large."""
