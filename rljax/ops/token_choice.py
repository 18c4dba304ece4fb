"""Choosing tokens of a batch by entropy or covariance: the ones to train on, to penalize, or to exclude from the gradient.

These functions need all tokens of the batch: call them once, before splitting the batch.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import Mask, Number, check_between, check_floating, check_mask, check_same_shape, in_float32
from rljax.ops.masked import masked_centered, zero_outside


def _rounded_count(total: Array, share: Number) -> Array:
    """The fraction `share` of a total, rounded to the nearest integer, and at least 1."""
    return jnp.maximum(jnp.round(total * share), 1).astype(jnp.int32)


def _floored_count(total: Array, share: Number) -> Array:
    """The fraction `share` of a total, rounded down, and at least 1.

    A product that is below an integer only because of a rounding error counts as that integer.
    """
    product = total * share
    rounding = 4 * float(jnp.finfo(product.dtype).eps)
    return jnp.maximum(jnp.floor(product * (1 + rounding)), 1).astype(jnp.int32)


def _largest(x: Array, candidate: Bool[Array, "..."], wanted: Array) -> Bool[Array, "..."]:
    """The `wanted` largest candidates, including ties with the smallest one selected."""
    flat = jnp.sort(jnp.where(candidate, x, -jnp.inf).reshape(-1))[::-1]
    return candidate & (x >= flat[wanted - 1])


@in_float32
def high_entropy_tokens(entropy: Float[Array, "*rows T"], mask: Mask, *, share: Number = 0.2) -> Bool[Array, "*rows T"]:
    """Mask of the highest-entropy tokens in the batch, at which responses fork.

    ::

        keep = H_it ≥ τ        τ = the round(share · n)-th largest of the batch's n entropies

    Args:
        entropy: H, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.
        share: ρ, fraction of tokens to keep, in [0, 1]; 0.2 in the paper. At least one token is kept.

    Returns:
        bool, `[..., T]`, False outside the mask; tokens that tie with the last kept token are kept as well.

    Raises:
        ValueError: the shapes differ, integer entropies, or `share` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> high_entropy_tokens(jnp.array([0.1, 2.0, 0.3, 9.0]), jnp.array([1, 1, 1, 0]), share=0.3).tolist()
        [False, True, False, False]

    Source:
        Wang et al., arXiv:2506.01939 (policy gradient on forking tokens).
    """
    check_floating(entropy=entropy)
    check_mask(mask=mask)
    check_same_shape(entropy=entropy, mask=mask)
    check_between(0, 1, share=share)
    is_response = mask.astype(bool)
    return _largest(
        zero_outside(entropy, mask), is_response, _rounded_count(is_response.sum().astype(entropy.dtype), share)
    )


@in_float32
def only_high_entropy(
    advantage: Float[Array, "*rows T"], entropy: Float[Array, "*rows T"], mask: Mask, *, share: Number = 0.2
) -> Float[Array, "*rows T"]:
    """Advantages of the batch's highest-entropy tokens; 0 on all others, which therefore get no gradient.

    ::

        A'_it = A_it  if H_it ≥ τ,  else 0        τ = the round(share · n)-th largest of the batch's n entropies

    Args:
        advantage: A, `[..., T]`.
        entropy: H, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.
        share: ρ, fraction of tokens to keep, in [0, 1]; 0.2 in the paper.

    Returns:
        `[..., T]`, in the advantage's unit; 0 outside the mask. The other tokens still count in a token mean, as in the paper.

    Raises:
        ValueError: the shapes differ, integer arrays, or `share` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> only_high_entropy(jnp.ones(4), jnp.array([0.1, 2.0, 0.3, 9.0]), jnp.array([1, 1, 1, 0]), share=0.3).tolist()
        [0.0, 1.0, 0.0, 0.0]

    Source:
        Wang et al., arXiv:2506.01939 (policy gradient on forking tokens).
    """
    check_floating(advantage=advantage)
    check_same_shape(advantage=advantage, mask=mask)
    return jnp.where(high_entropy_tokens(entropy, mask, share=share), advantage, 0.0)


def token_covariance(
    logp: Float[Array, "*rows T"], advantage: Float[Array, "*rows T"], mask: Mask
) -> Float[Array, "*rows T"]:
    """Each token's contribution to the covariance of log-probability and advantage; if positive, it lowers the entropy.

    ::

        Cov_it = (log π(o_it) - mean log π) (A_it - mean A)        means over the batch's tokens

    Args:
        logp: log π, `[..., T]`, nats.
        advantage: A, `[..., T]`.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, in nats times the advantage's unit; 0 outside the mask.

    Raises:
        ValueError: the shapes differ, or integer arrays.

    Example:
        >>> import jax.numpy as jnp
        >>> token_covariance(jnp.array([-1.0, -3.0]), jnp.array([2.0, 0.0]), jnp.array([1, 1])).tolist()
        [1.0, 1.0]

    Source:
        Cui et al., arXiv:2505.22617 (token-wise covariance of Clip-Cov and KL-Cov).
    """
    check_floating(logp=logp, advantage=advantage)
    check_mask(mask=mask)
    check_same_shape(logp=logp, advantage=advantage, mask=mask)
    flat = mask.reshape(-1)
    product = masked_centered(logp.reshape(-1), flat) * masked_centered(advantage.reshape(-1), flat)
    return product.reshape(logp.shape)


@in_float32
def kl_cov_tokens(covariance: Float[Array, "*rows T"], mask: Mask, *, share: Number) -> Bool[Array, "*rows T"]:
    """Mask of the tokens with the highest covariance in the batch, on which KL-Cov puts a KL penalty.

    KL-Cov's authors add the penalty β |log ρ_it| (β = 1) towards the sampling policy, and do not clip these tokens' ratios.

    ::

        penalized = rank(Cov_it) ≤ ⌊share · n⌋        among the batch's n tokens

    Args:
        covariance: from `token_covariance`, `[..., T]`.
        mask: response tokens, bool or 0/1, `[..., T]`.
        share: k, fraction of tokens to select, in [0, 1]; verl's default is 2e-4. At least one token is selected.

    Returns:
        bool, `[..., T]`, False outside the mask; tokens that tie with the last selected token are included.

    Raises:
        ValueError: the shapes differ, integer covariances, or `share` outside [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> kl_cov_tokens(jnp.array([0.1, 2.0, 0.3]), jnp.array([1, 1, 1]), share=0.3).tolist()
        [False, True, False]

    Source:
        KL-Cov, arXiv:2505.22617.
    """
    check_floating(covariance=covariance)
    check_mask(mask=mask)
    check_same_shape(covariance=covariance, mask=mask)
    check_between(0, 1, share=share)
    is_response = mask.astype(bool)
    return _largest(
        zero_outside(covariance, mask), is_response, _floored_count(is_response.sum().astype(covariance.dtype), share)
    )


@in_float32
def clip_cov_tokens(
    covariance: Float[Array, "*rows T"],
    draw: Float[Array, "*rows T"],
    mask: Mask,
    *,
    lower: Number,
    upper: Number,
    share: Number,
) -> Bool[Array, "*rows T"]:
    """Mask of tokens sampled from those with high covariance; Clip-Cov removes their gradient.

    ::

        cut = u_it is among the ⌊share · n⌋ largest of the tokens with ω_low < Cov_it < ω_high        u uniform

    Args:
        covariance: from `token_covariance`, `[..., T]`.
        draw: u, one uniform random number in [0, 1) per token, `[..., T]`.
        mask: response tokens that still have a gradient after PPO's clip, bool or 0/1, `[..., T]`.
        lower: ω_low, not above `upper`; verl's default is 1.
        upper: ω_high; verl's default is 5.
        share: r, fraction of the n tokens to select, in [0, 1]; verl's default is 2e-4. At least one candidate is selected.

    Returns:
        bool, `[..., T]`, False outside the mask; False everywhere if no covariance is between the bounds.

    Raises:
        ValueError: the shapes differ, integer arrays, `share` outside [0, 1], or `lower` above `upper`.

    Example:
        >>> import jax.numpy as jnp
        >>> covariance, draw = jnp.array([2.0, 3.0, 0.5, 7.0]), jnp.array([0.1, 0.8, 0.9, 0.9])
        >>> clip_cov_tokens(covariance, draw, jnp.ones(4), lower=1.0, upper=5.0, share=0.25).tolist()
        [False, True, False, False]

    Source:
        Clip-Cov, arXiv:2505.22617.
    """
    check_floating(covariance=covariance, draw=draw)
    check_mask(mask=mask)
    check_same_shape(covariance=covariance, draw=draw, mask=mask)
    check_between(-jnp.inf, jnp.inf, upper=upper)
    check_between(-jnp.inf, upper, lower=lower)
    check_between(0, 1, share=share)
    is_response = mask.astype(bool)
    clean = zero_outside(covariance, mask)
    candidate = is_response & (clean > lower) & (clean < upper)
    return _largest(zero_outside(draw, mask), candidate, _floored_count(is_response.sum().astype(covariance.dtype), share))
