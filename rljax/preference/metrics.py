"""Metrics of an update on pairs as typed records."""

from typing import NamedTuple

from jaxtyping import Array, Float

from rljax.records import documented


@documented
class ScoreMetrics(NamedTuple):
    """Metrics of a reward model, in the mean over the pairs."""

    loss: Float[Array, ""]
    """Bradley-Terry loss."""
    accuracy: Float[Array, ""]
    """Share whose preferred response has the higher score; a tie does not count."""
    lead: Float[Array, ""]
    """Difference of the scores, the preferred response's less the other's."""
    score: Float[Array, ""]
    """Score of a response."""


@documented
class DirectMetrics(NamedTuple):
    """Metrics of a language model on pairs: of each pair, or in the mean over them."""

    loss: Float[Array, "*N"]
    """Loss of the pair."""
    accuracy: Float[Array, "*N"]
    """1 where the preferred response has the higher implicit reward; a tie does not count."""
    margin: Float[Array, "*N"]
    """Difference of the implicit rewards, the preferred response's less the other's."""
    chosen_logp: Float[Array, "*N"]
    """Log-probability of the preferred response, summed over its tokens, nats."""
    rejected_logp: Float[Array, "*N"]
    """Log-probability of the other response, summed over its tokens, nats."""


@documented
class PairUpdateMetrics(NamedTuple):
    """One update on pairs; everything is computed before it."""

    pairs: ScoreMetrics | DirectMetrics
    """Means over the pairs of the batch."""
    grad_norm: Float[Array, ""]
    """Norm of the gradient before it is clipped."""
    reference_point: Float[Array, ""] | None = None
    """Reference point of the batch; None for losses without one."""
    skipped_updates: Float[Array, ""] | float = 0.0
    """1 where the update was skipped, because it was not sound."""
