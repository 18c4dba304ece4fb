"""Corrections, by name, for a sampler that differs from the learner; and DeepSeek-V3.2's off-policy mask.

A correction weighs tokens once per rollout, by the log-probabilities of the learner before its updates and of the sampler. These
differ if the engines differ, if sampling is truncated, or if the sampler has older parameters. The mask depends on the policy in
training and is part of the loss.

A token or a response that is left out has weight 0 and still counts in the normalizer of the loss: the others keep their weights.
verl takes what its rejection sampling rejects out of the response mask, so its mean is over the rest alone, and its gradient is
larger by one over the share that is kept.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Correction, TermInputs
from rljax.ops.checks import check_nonnegative
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
"""(policy_logp, behaviour_logp, mask) -> log-ratio on each token, of the token or of its response."""


def _cut(log_ratio: LogRatio, *, high: float, low: float = 0.0) -> Callable[[Array, Array, Array], Array]:
    """The tokens whose ratio is outside the bounds."""

    def cut(policy_logp: Array, behaviour_logp: Array, mask: Array) -> Array:
        ratio = log_ratio(policy_logp, behaviour_logp, mask)
        return ratio_outside_bounds(ratio, mask, low=low, high=high)

    return cut


def capped(*, high: float = 2.0) -> Correction:
    """Weight of the token, at most `high`: truncated importance sampling."""
    return Correction(partial(truncated_importance_weight, cap=high), _cut(token_log_ratio, high=high))


def masked(*, low: float = 0.5, high: float = 5.0) -> Correction:
    """Weight of the token, 0 outside the bounds: IcePop (arXiv:2510.18855)."""
    weight = partial(masked_importance_weight, low=low, high=high)
    return Correction(weight, _cut(token_log_ratio, low=low, high=high))


def two_sided(*, low: float, high: float = 2.0) -> Correction:
    """Weight of the token, clipped to the bounds."""
    weight = partial(two_sided_importance_weight, low=low, high=high)
    return Correction(weight, _cut(token_log_ratio, low=low, high=high))


def sequence(*, high: float = 2.0) -> Correction:
    """Weight of the response, at most `high`: truncated importance sampling of sequences."""
    return Correction(partial(sequence_truncated_importance_weight, cap=high), _cut(response_log_ratio, high=high))


def sequence_masked(*, low: float = 0.0, high: float = 2.0) -> Correction:
    """Weight of the response, 0 outside the bounds: masked importance sampling of sequences."""
    weight = partial(sequence_masked_importance_weight, low=low, high=high)
    return Correction(weight, _cut(response_log_ratio, low=low, high=high))


def geometric(*, low: float = 0.999, high: float = 1.001) -> Correction:
    """Responses whose geometric mean ratio is outside the bounds are left out; the others are not weighed."""
    return Correction(partial(geometric_rejection, low=low, high=high), _cut(sequence_log_ratio, low=low, high=high))


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
"""Name -> factory; its arguments are the bounds of the correction."""


def sampling_denominator(policy_logp: Array, behaviour_logp: Array, mask: Array) -> Float[Array, "P G T"]:
    """The sampler's log-probability as `Algorithm.denominator`: the ratio then corrects for the sampler."""
    del policy_logp  # the slot's first argument is for a ratio over the learner's probability
    return jnp.where(mask.astype(bool), behaviour_logp, 0.0)


def off_policy_mask(delta: float) -> Callable[[TermInputs, Array, Array], Array]:
    """DeepSeek-V3.2's off-policy sequence mask (arXiv:2512.02556, Section 3.1) against the policy that sampled.

    The sampler's log-probability is the paper's π_old: so the mask reflects the difference between engines as well as the updates.

    Args:
        delta: δ, nats per token, not negative.
    """
    check_nonnegative(delta=delta)

    def trained(inputs: TermInputs, advantage: Array, mask: Array) -> Array:
        return off_policy_sequence_mask(inputs.logp, inputs.behaviour_logp, advantage, mask, delta=delta)

    return trained
