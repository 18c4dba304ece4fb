"""Equations for `rljax.algorithms.parts`, each with the signature of its slot."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.algorithms.algorithm import TermInputs
from rljax.ops.arrays import Number, ratio_or_zero
from rljax.ops.gae import td_errors
from rljax.ops.length_reward import cosine_length_reward, group_length_reward
from rljax.ops.masked import zero_outside
from rljax.ops.off_policy import binary_kl, in_trust_region
from rljax.ops.ratio import clamp_log_ratio, token_log_ratio
from rljax.ops.shaping import rule_reward
from rljax.ops.token_choice import high_entropy_tokens
from rljax.ops.unpublished.group_baseline import confidence_quality, length_quality, reliability_quality, weighted_centered
from rljax.ops.unpublished.length import length_reweighted, length_shaped_reward, median_length
from rljax.ops.unpublished.offset_gae import complexity_weighted_gae, offset_decayed_gae
from rljax.ops.unpublished.ratio_bound import bounded_ratio
from rljax.ops.weights import token_mean


def center_by_length(rewards: Float[Array, "P G"], mask: Array, *, valid: Array | None = None) -> Float[Array, "P G"]:
    """Reward minus a mean in which shorter responses have more weight."""
    weights = length_quality(mask.sum(-1))
    return weighted_centered(rewards, weights.astype(rewards.dtype), valid=valid)


def center_by_confidence(
    rewards: Float[Array, "P G"], behaviour_logp: Array, mask: Array, *, valid: Array | None = None
) -> Float[Array, "P G"]:
    """Reward minus a mean in which each response's weight is the policy's confidence in it."""
    weights = confidence_quality(behaviour_logp, mask)
    return weighted_centered(rewards, weights.astype(rewards.dtype), valid=valid)


def center_by_reliability(
    rewards: Float[Array, "P G"], reward_parts: Mapping[str, Array], *, floor: Number, valid: Array | None = None
) -> Float[Array, "P G"]:
    """Reward minus a mean in which a response has more weight the more closely its several rewards agree.

    The rewards are treated as raters on one scale, and their own weights are ignored. A response with fewer than two verdicts has
    no weight in the mean.

    Raises:
        ValueError: the rollout has fewer than two rewards per response.
    """
    if len(reward_parts) < 2:
        raise ValueError(
            f"the advantage reliability_quality needs at least two rewards, set by --reward, got {len(reward_parts)}"
        )
    scores = jnp.stack([reward_parts[name] for name in sorted(reward_parts)], axis=-1)
    weights = reliability_quality(scores, floor=floor, valid=~jnp.isnan(scores))
    return weighted_centered(rewards, weights.astype(rewards.dtype), valid=valid)


def select_most_credited(advantage: Array, policy_logp: Array, mask: Array, *, share: Number) -> Bool[Array, "P G T"]:
    """Tokens with the largest advantages of either sign: choosing these tokens changed the expected reward most."""
    del policy_logp  # other selection rules read how likely the tokens were
    return high_entropy_tokens(jnp.abs(advantage), mask, share=share)  # the same selection rule, applied to |advantage|


def score_right_or_wrong(rewards: Array, outcome: Array, lengths: Array) -> Float[Array, "P G"]:
    """Reward of 1 for a correct response, -1 for any other."""
    del lengths  # other rewards depend on the length
    return rule_reward(outcome > 0).astype(rewards.dtype)


def score_by_cosine(rewards: Array, outcome: Array, lengths: Array, **hyperparameters: Number) -> Float[Array, "P G"]:
    """Reward that follows half a cosine period as the length grows, with separate bounds for right and wrong responses."""
    return cosine_length_reward(outcome > 0, lengths, **hyperparameters).astype(rewards.dtype)


def add_brevity(rewards: Array, outcome: Array, lengths: Array, *, weight: Number) -> Float[Array, "P G"]:
    """Reward plus a bonus for being short, or a penalty for being long, within the group; empty responses are left out."""
    return rewards + weight * group_length_reward(outcome > 0, lengths, valid=lengths > 0).astype(rewards.dtype)


def shape_by_length(rewards: Array, outcome: Array, lengths: Array, **hyperparameters: Number) -> Float[Array, "P G"]:
    """Reward minus a length penalty."""
    del outcome  # other rewards depend on the verdict alone
    return length_shaped_reward(rewards, lengths, **hyperparameters)


def tilted_token_mean(mask: Array, *, alpha: Number) -> Float[Array, "P G T"]:
    """Token mean, reweighted against responses longer than the median."""
    return length_reweighted(token_mean(mask), mask, alpha=alpha, reference=median_length(mask))


def within_binary_kl(inputs: TermInputs, advantage: Array, mask: Array, *, threshold: Number) -> Bool[Array, "B T"]:
    """Tokens whose binary KL from the sampling policy is at most the threshold, or whose update reduces it."""
    log_ratio = token_log_ratio(inputs.logp, inputs.behaviour_logp, mask)
    return in_trust_region(log_ratio, advantage, binary_kl(inputs.logp, inputs.behaviour_logp), threshold=threshold)


def bound_token_ratio(logp: Array, old_logp: Array, mask: Array, *, bound: float) -> Float[Array, "B T"]:
    """Log-ratio of each token, clamped so that the ratio stays between 1/bound and bound."""
    return bounded_ratio(token_log_ratio(logp, old_logp, mask), bound=bound)


def clamp_token_ratio(logp: Array, old_logp: Array, mask: Array, *, bound: float) -> Float[Array, "B T"]:
    """Log-ratio of each token, clamped to [-bound, bound]."""
    return clamp_log_ratio(token_log_ratio(logp, old_logp, mask), bound=bound)


def falling_lambda_gae(
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
    """GAE whose λ falls with the distance to the TD error."""
    errors = td_errors(rewards, values, mask, gamma=gamma, bootstrap=bootstrap)
    return offset_decayed_gae(errors, mask, gamma=gamma, lambda_base=lambda_base, alpha=alpha, max_length=max_length)


def relative_entropy(entropy: Array, mask: Array) -> Float[Array, "P G T"]:
    """The policy's entropy before each token, relative to the largest in the rollout: our measure of a state's complexity.

    The design document says only that a state's complexity is "syntactic/semantic". A state is hard for a policy that is uncertain
    how to continue; unlike syntax, this uncertainty can be measured in every state of every task.
    """
    entropy = zero_outside(entropy, mask)
    return ratio_or_zero(entropy, entropy.max())


def complexity_lambda_gae(
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
    """GAE whose λ falls with the distance to the TD error, and with the policy's relative entropy at that error."""
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
