"""Calibration: whether the confidence stated in responses matches the fraction of right responses."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from rljax.evaluation.statistics import Estimate, ratio_over_problems

BINS = 10
"""Number of equal-width bins of confidence in the calibration error."""


class Calibration(NamedTuple):
    """Calibration of stated confidences, over the judged responses that state a confidence."""

    stated: float
    """Fraction of the judged responses that state a confidence."""
    confidence: Estimate
    """Mean stated confidence."""
    accuracy: Estimate
    """Accuracy of the same responses."""
    error: Estimate
    """Expected calibration error; it has no interval."""
    brier: Estimate
    """Brier score, the mean squared difference between confidence and outcome."""

    def text(self) -> str:
        """Describe the calibration in words."""
        return (
            f"{self.stated:.1%} of the answers state a confidence: mean {self.confidence.text()}, accuracy "
            f"{self.accuracy.text()}, expected calibration error {_format(self.error)}, Brier score {_format(self.brier)}"
        )


def _format(estimate: Estimate) -> str:
    ends = "" if math.isnan(estimate.low) else f" ({estimate.low:.3f} to {estimate.high:.3f})"
    return f"{estimate.value:.3f}{ends}"


def calibration(
    confidence: Float[np.ndarray, "P N"], right: Bool[np.ndarray, "P N"], known: Bool[np.ndarray, "P N"]
) -> Calibration | None:
    """Compare stated confidences with outcomes.

    ::

        Brier = mean (q − c)²,    ECE = Σ_b n_b / n · |mean_b c − mean_b q|

    q is the confidence, c is the outcome (1 for right, else 0), and the bins b of q have a width of 0.1. Every response has the
    same weight. With few responses, chance alone makes the ECE larger than 0. The ECE has no interval: resampling problems with
    replacement adds the same amount of noise again, so a bootstrap interval would be too high, and might not contain the ECE.

    Args:
        confidence: confidence stated in each of N responses to each of P problems, `[P, N]`; NaN if the response states none.
        right: mask of the right responses, `[P, N]`.
        known: mask of the responses whose correctness is known, `[P, N]`.

    Returns:
        The calibration; None if no response of known correctness states a confidence.

    Example:
        >>> found = calibration(np.full((4, 2), 0.75), np.array([[True, True]] * 3 + [[False, False]]), np.ones((4, 2), bool))
        >>> found.error.value, found.brier.value
        (0.0, 0.1875)

    Source:
        Brier, Verification of Forecasts Expressed in Terms of Probability (1950); Guo et al., On Calibration of Modern Neural
        Networks, arXiv:1706.04599, Eq. 3.
    """
    used = known & ~np.isnan(confidence)
    if not used.any():
        return None
    q, c = np.where(used, confidence, 0.0), np.where(used, right, False).astype(float)
    counts = used.sum(-1)
    means = [ratio_over_problems(values.sum(-1), counts) for values in (q, c, (q - c) ** 2)]
    error = Estimate(_error(q[used], c[used]), math.nan, math.nan, int((counts > 0).sum()))
    return Calibration(float(used.sum() / known.sum()), means[0], means[1], error, means[2])


def _error(q: Float[np.ndarray, "R"], c: Float[np.ndarray, "R"]) -> float:
    """Compute the expected calibration error of R responses."""
    bins = np.minimum((q * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(bins, weights=c - q, minlength=BINS)).sum() / len(q))
