"""Equations of the parts, adapted to the signatures of their slots."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.algorithms.algorithm import TermInputs
from rljax.ops.arrays import Number, ratio_or_zero
from rljax.ops.gae import td_errors
from rljax.ops.masked import zero_outside
from rljax.ops.off_policy import binary_kl, binary_total_variation, in_trust_region
from rljax.ops.ratio import clamp_log_ratio, token_log_ratio
from rljax.ops.shaping import rule_reward
from rljax.ops.token_choice import high_entropy_tokens
from rljax.ops.unpublished.group_baseline import confidence_quality, length_quality, reliability_quality, weighted_centered
from rljax.ops.unpublished.length import length_reweighted, length_shaped_reward, median_length
from rljax.ops.unpublished.offset_gae import complexity_weighted_gae, offset_decayed_gae
from rljax.ops.unpublished.ratio_bound import bounded_ratio
from rljax.ops.weights import token_mean


def less_by_length(rewards: Float[Array, "P G"], mask: Array, *, valid: Array | None = None) -> Float[Array, "P G"]:
    """Reward minus a mean in which short responses weigh more."""
    weights = length_quality(mask.sum(-1))
    return weighted_centered(rewards, weights.astype(rewards.dtype), valid=valid)


def less_by_confidence(
    rewards: Float[Array, "P G"], behaviour_logp: Array, mask: Array, *, valid: Array | None = None
) -> Float[Array, "P G"]:
    """Reward minus a mean in which responses weigh by the policy's confidence in them."""
    weights = confidence_quality(behaviour_logp, mask)
    return weighted_centered(rewards, weights.astype(rewards.dtype), valid=valid)


def less_by_reliability(
    rewards: Float[Array, "P G"], reward_parts: Mapping[str, Array], *, floor: Number, valid: Array | None = None
) -> Float[Array, "P G"]:
    """Reward minus a mean in which responses weigh by how far several rewards of them agree.

    The rewards are treated as raters on one scale, without their weights. A response that fewer than two rewards judge has no
    weight in the mean.

    Raises:
        ValueError: the rollout has fewer than two rewards of each response.
    """
    if len(reward_parts) < 2:
        raise ValueError(f"the reliability of a reward needs two rewards of each response or more, got {len(reward_parts)}")
    scores = jnp.stack([reward_parts[name] for name in sorted(reward_parts)], axis=-1)
    weights = reliability_quality(scores, floor=floor, valid=~jnp.isnan(scores))
    return weighted_centered(rewards, weights.astype(rewards.dtype), valid=valid)


def most_credited(advantage: Array, policy_logp: Array, mask: Array, *, share: Number) -> Bool[Array, "P G T"]:
    """Tokens whose choice changed the expected reward most, by the advantage of each."""
    del policy_logp  # the slot's second argument is for a choice by how likely tokens were
    return high_entropy_tokens(jnp.abs(advantage), mask, share=share)  # the same selection, by the size of the advantage


def right_or_wrong(rewards: Array, outcome: Array, lengths: Array) -> Float[Array, "P G"]:
    """1 for a correct response, -1 for any other."""
    del lengths  # the slot's third argument is for rewards that depend on the length
    return rule_reward(outcome > 0).astype(rewards.dtype)


def shaped_by_length(rewards: Array, outcome: Array, lengths: Array, **numbers: Number) -> Float[Array, "P G"]:
    """Reward minus a penalty for length."""
    del outcome  # the slot's second argument is for rewards that depend on the verdict alone
    return length_shaped_reward(rewards, lengths, **numbers)


def tilted_token_mean(mask: Array, *, alpha: Number) -> Float[Array, "P G T"]:
    """Token mean, tilted against responses longer than the median."""
    return length_reweighted(token_mean(mask), mask, alpha=alpha, reference=median_length(mask))


def in_variation(inputs: TermInputs, advantage: Array, mask: Array, *, threshold: Number) -> Bool[Array, "B T"]:
    """Tokens within a total variation of the sampling policy, or moving back towards it."""
    divergence = binary_total_variation(inputs.logp, inputs.behaviour_logp)
    return in_trust_region(_moved(inputs, mask), advantage, divergence, threshold=threshold)


def in_divergence(inputs: TermInputs, advantage: Array, mask: Array, *, threshold: Number) -> Bool[Array, "B T"]:
    """Tokens within a divergence of the sampling policy, or moving back towards it."""
    divergence = binary_kl(inputs.logp, inputs.behaviour_logp)
    return in_trust_region(_moved(inputs, mask), advantage, divergence, threshold=threshold)


def _moved(inputs: TermInputs, mask: Array) -> Float[Array, "B T"]:
    return token_log_ratio(inputs.logp, inputs.behaviour_logp, mask)


def bounded(logp: Array, old_logp: Array, mask: Array, *, bound: float) -> Float[Array, "B T"]:
    """Log-ratio of each token, its ratio kept within a factor."""
    return bounded_ratio(token_log_ratio(logp, old_logp, mask), bound=bound)


def clamped(logp: Array, old_logp: Array, mask: Array, *, bound: float) -> Float[Array, "B T"]:
    """Log-ratio of each token, kept within a bound."""
    return clamp_log_ratio(token_log_ratio(logp, old_logp, mask), bound=bound)


def falling_lambda(
    rewards: Array,
    values: Array,
    mask: Array,
    *,
    bootstrap: Array | None = None,
    gamma: Number,
    lambda_base: Number,
    alpha: Number,
    max_length: Number,
) -> Float[Array, "P G T"]:
    """Advantage whose λ falls with the offset to the TD error."""
    errors = td_errors(rewards, values, mask, gamma=gamma, bootstrap=bootstrap)
    return offset_decayed_gae(errors, mask, gamma=gamma, lambda_base=lambda_base, alpha=alpha, max_length=max_length)


def relative_entropy(entropy: Array, mask: Array) -> Float[Array, "P G T"]:
    """Entropy of the policy before each token, as a share of the largest in the rollout: our reading of a state's complexity.

    The document only says that the complexity of a state is "syntactic/semantic". If the policy is uncertain how to continue, the
    state is hard for it; unlike syntax, this is known for every state of every task.
    """
    inside = zero_outside(entropy, mask)
    return ratio_or_zero(inside, inside.max())


def complexity_lambda(
    rewards: Array,
    values: Array,
    mask: Array,
    entropy: Array,
    *,
    bootstrap: Array | None = None,
    gamma: Number,
    lambda_base: Number,
    alpha: Number,
    max_length: Number,
    beta: Number,
) -> Float[Array, "P G T"]:
    """Advantage whose λ falls with the offset to the TD error, and with the relative entropy of the policy there."""
    errors = td_errors(rewards, values, mask, gamma=gamma, bootstrap=bootstrap)
    return complexity_weighted_gae(
        errors,
        relative_entropy(entropy, mask),
        mask,
        gamma=gamma,
        lambda_base=lambda_base,
        alpha=alpha,
        max_length=max_length,
        beta=beta,
        max_complexity=1.0,
    )
