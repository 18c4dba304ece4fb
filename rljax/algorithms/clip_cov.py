"""Clip-Cov and KL-Cov: restrain the few tokens that make the entropy collapse (arXiv:2505.22617)."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.algorithms.algorithm import Algorithm, Term, TermInputs
from rljax.ops.arrays import check_between, check_nonnegative
from rljax.ops.group import group_normalized
from rljax.ops.masked import zero_outside
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.token_choice import clip_cov_tokens, kl_cov_tokens, token_covariance
from rljax.ops.weights import token_mean


def clip_cov(
    *,
    share: float = 2e-4,
    lower: float = 1.0,
    upper: float = 5.0,
    clip: float = 1.0,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Algorithm:
    """Clip-Cov (arXiv:2505.22617): no gradient for a few random tokens whose log-probability and advantage covary highly.

    ::

        J = (1/Σ|o_i|) Σ_i Σ_t 1[it ∉ I] min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i)      A_i = (r_i - mean r) / std r
        I: ⌊r Σ|o_i|⌋ tokens sampled from those with ω_low < Cov_it < ω_high
        Cov_it = (log π(o_it) - mean log π) (A_i - mean A)

    Args:
        share: r = 2e-4, the fraction of tokens to leave out, at least one token (the authors' recipes, as in verl).
        lower: ω_low = 1, lower bound of the covariance (the authors' recipes).
        upper: ω_high = 5, upper bound of the covariance (the authors' recipes).
        clip: ε = 1 (the authors' recipes; verl has PPO's 0.2).
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: covariances and their means are computed once per rollout, before its updates. The authors' code computes them in
    each update, with the policy being trained, and only from the update's tokens that PPO would not clip; in the first
    update, the two agree. The random numbers are derived from a response's log-probabilities, so they need no random key and do not
    depend on the order of the responses; responses with identical log-probabilities get the same random numbers.
    """
    check_between(-jnp.inf, upper, lower=lower)
    check_between(0, 1, share=share)
    return Algorithm(
        advantage=partial(group_normalized, eps=eps, ddof=ddof),
        keep_tokens=partial(_tokens_to_keep, share=share, lower=lower, upper=upper),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        weights=token_mean,
    )


def _tokens_to_keep(
    advantage: Float[Array, "P G T"], logp: Float[Array, "P G T"], mask: Array, *, share: float, lower: float, upper: float
) -> Bool[Array, "P G T"]:
    """Return the tokens whose gradient Clip-Cov keeps."""
    covariance = token_covariance(logp, advantage, mask)
    return ~clip_cov_tokens(covariance, sample_uniform(logp, mask), mask, share=share, lower=lower, upper=upper)


def sample_uniform(logp: Float[Array, "*rows T"], mask: Array) -> Float[Array, "*rows T"]:
    """Sample one uniform number in [0, 1) for each token, 0 outside the mask.

    A token's random key is derived from its position in the response and from the bits of all the response's log-probabilities.

    Example:
        >>> samples = sample_uniform(jnp.array([[-0.5, 0.0, 0.0], [0.0, -0.5, 0.0]]), jnp.ones((2, 3), bool))
        >>> len(set(samples.ravel().tolist()))
        6
    """
    is_response = mask.astype(bool)
    bits = jax.lax.bitcast_convert_type(zero_outside(logp, mask).astype(jnp.float32), jnp.uint32).reshape(-1)
    position = (jnp.cumsum(is_response, -1) - 1).astype(jnp.uint32).reshape(-1)
    fold = jax.vmap(jax.random.fold_in)
    token_keys = fold(jax.vmap(partial(jax.random.fold_in, jax.random.key(0)))(position), bits)
    hashes = jnp.where(
        is_response, jax.vmap(partial(jax.random.bits, dtype=jnp.uint32))(token_keys).reshape(logp.shape), jnp.uint32(0)
    )
    response_hash = jnp.broadcast_to(hashes.sum(-1, dtype=jnp.uint32, keepdims=True), logp.shape)
    samples = jax.vmap(partial(jax.random.uniform, dtype=jnp.float32))(fold(token_keys, response_hash.reshape(-1)))
    return jnp.where(is_response, samples.reshape(logp.shape).astype(logp.dtype), 0.0)


def kl_cov(*, share: float = 2e-3, beta: float = 1.0, eps: float = 1e-6, ddof: int = 1) -> Algorithm:
    """KL-Cov (arXiv:2505.22617): an unclipped ratio, plus a penalty on tokens whose log-probability and advantage covary most.

    ::

        J = (1/Σ|o_i|) Σ_i Σ_t (ρ_it A_i - β 1[it ∈ I] |log ρ_it|)      A_i = (r_i - mean r) / std r
        I: the ⌊k Σ|o_i|⌋ tokens with the highest Cov_it = (log π(o_it) - mean log π) (A_i - mean A)

    Args:
        share: k = 2e-3, the fraction of tokens with a penalty, at least one token (the authors' recipe for 7B; 2e-4 for 32B and
            in verl).
        beta: β = 1, weight of the penalty (the authors' recipes).
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: the penalty is the |log ρ| of the authors' code; the paper writes the KL divergence from the sampling policy.
    Covariances are computed once per rollout, before its updates. The authors' code computes them in each update, with the policy
    being trained and the update's tokens; in the first update, the two agree. In that update, the penalty is 0, so it has an effect
    only with more than one update per rollout.
    """
    check_between(0, 1, share=share)
    check_nonnegative(beta=beta)
    return Algorithm(
        advantage=partial(group_normalized, eps=eps, ddof=ddof),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=1.0, high=jnp.inf),
        weights=token_mean,
        terms=(Term("kl_cov", beta, _distance_from_sampler, tokens=partial(_tokens_of_high_covariance, share=share)),),
    )


def _distance_from_sampler(inputs: TermInputs) -> Float[Array, "B T"]:
    return jnp.abs(inputs.logp - inputs.policy_logp)


def _tokens_of_high_covariance(
    advantage: Float[Array, "P G T"], logp: Float[Array, "P G T"], mask: Array, *, share: float
) -> Bool[Array, "P G T"]:
    """Return the tokens that KL-Cov penalizes."""
    return kl_cov_tokens(token_covariance(logp, advantage, mask), mask, share=share)
