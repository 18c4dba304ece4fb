"""Corrections, by name, for a sampler whose probabilities differ from the learner's, and DeepSeek-V3.2's off-policy mask.

A correction weights tokens once per rollout, from the log-probabilities of the sampler and of the learner before its updates. These
differ if the two run on different engines, if the sampler truncates its distribution, or if it has older parameters. The off-policy
mask depends on the policy being trained and is part of the loss.

A token or response that is left out has weight 0 but still counts in the loss normalizer, so the others keep their weights.
verl removes rejected tokens from the response mask, so its mean is over the remaining tokens only, and its gradient is
larger by the factor 1 / (fraction of tokens kept).
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Correction, TermInputs
from rljax.ops.arrays import check_nonnegative
from rljax.ops.correction import (
    geometric_rejection,
    masked_importance_weight,
    off_policy_sequence_mask,
    ratio_outside_bounds,
    sequence_masked_importance_weight,
    sequence_truncated_importance_weight,
    truncated_importance_weight,
    two_sided_importance_weight,
)
from rljax.ops.ratio import response_log_ratio, sequence_log_ratio, token_log_ratio

LogRatio = Callable[[Array, Array, Array], Array]
"""(policy_logp, behaviour_logp, mask) -> log-ratio at each token, of the token or of its response."""


def _make_cut(log_ratio: LogRatio, *, high: float, low: float = 0.0) -> Callable[[Array, Array, Array], Array]:
    """Build the function that returns the tokens whose ratio is outside the bounds."""

    def cut(policy_logp: Array, behaviour_logp: Array, mask: Array) -> Array:
        ratio = log_ratio(policy_logp, behaviour_logp, mask)
        return ratio_outside_bounds(ratio, mask, low=low, high=high)

    return cut


def capped(*, high: float = 2.0) -> Correction:
    """Truncated importance sampling: each token's weight is its ratio, at most `high`."""
    return Correction(partial(truncated_importance_weight, cap=high), _make_cut(token_log_ratio, high=high))


def masked(*, low: float = 0.5, high: float = 5.0) -> Correction:
    """IcePop (arXiv:2510.18855): each token's weight is its ratio, or 0 outside the bounds."""
    weight = partial(masked_importance_weight, low=low, high=high)
    return Correction(weight, _make_cut(token_log_ratio, low=low, high=high))


def two_sided(*, low: float, high: float = 2.0) -> Correction:
    """Two-sided truncation: each token's weight is its ratio, clipped to the bounds."""
    weight = partial(two_sided_importance_weight, low=low, high=high)
    return Correction(weight, _make_cut(token_log_ratio, low=low, high=high))


def sequence(*, high: float = 2.0) -> Correction:
    """Truncated importance sampling of sequences: each response's weight is its ratio, at most `high`."""
    return Correction(partial(sequence_truncated_importance_weight, cap=high), _make_cut(response_log_ratio, high=high))


def sequence_masked(*, low: float = 0.0, high: float = 2.0) -> Correction:
    """Masked importance sampling of sequences: each response's weight is its ratio, or 0 outside the bounds."""
    weight = partial(sequence_masked_importance_weight, low=low, high=high)
    return Correction(weight, _make_cut(response_log_ratio, low=low, high=high))


def geometric(*, low: float = 0.999, high: float = 1.001) -> Correction:
    """Geometric rejection: a response's weight is 0 if the geometric mean of its ratios is outside the bounds, else 1."""
    return Correction(partial(geometric_rejection, low=low, high=high), _make_cut(sequence_log_ratio, low=low, high=high))


BY_NAME: Mapping[str, Callable[..., Correction]] = MappingProxyType(
    {
        "capped": capped,
        "masked": masked,
        "two_sided": two_sided,
        "sequence": sequence,
        "sequence_masked": sequence_masked,
        "geometric": geometric,
    }
)
"""Name -> factory, whose arguments are the correction's bounds."""


def sampling_denominator(policy_logp: Array, behaviour_logp: Array, mask: Array) -> Float[Array, "P G T"]:
    """Use the sampler's log-probability as `Algorithm.denominator`, so that the ratio corrects for the sampler."""
    del policy_logp  # other denominators use the learner's probability
    return jnp.where(mask.astype(bool), behaviour_logp, 0.0)


def off_policy_mask(delta: float) -> Callable[[TermInputs, Array, Array], Array]:
    """DeepSeek-V3.2's off-policy sequence mask (arXiv:2512.02556, Section 3.1), relative to the sampling policy.

    The sampler's log-probability is the paper's π_old, so the mask accounts for differences between engines as well as for updates.

    Args:
        delta: δ, largest mean log-ratio log(π_old/π) at which a response with a negative advantage is still trained on; nats per
            token, not negative.
    """
    check_nonnegative(delta=delta)

    def select_trained(inputs: TermInputs, advantage: Array, mask: Array) -> Array:
        return off_policy_sequence_mask(inputs.logp, inputs.behaviour_logp, advantage, mask, delta=delta)

    return select_trained
