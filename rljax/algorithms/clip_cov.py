"""Clip-Cov and KL-Cov: the few tokens that make the entropy collapse are held back (arXiv:2505.22617)."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.algorithms.algorithm import Algorithm, Rollout, Term, TermInputs
from rljax.ops.checks import check_between, check_nonnegative
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
    clip: float = 0.2,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Algorithm:
    """Clip-Cov (arXiv:2505.22617): PPO's clip, and no gradient for a few tokens drawn among those of high covariance.

    ::

        J = (1/Σ|o_i|) Σ_i Σ_t 1[it ∉ I] min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i)      A_i = (r_i - mean r) / std r
        I: round(r Σ|o_i|) tokens drawn among those with ω_low < Cov_it < ω_high
        Cov_it = (log π(o_it) - mean log π) (A_i - mean A)

    Args:
        share: r = 2e-4 of the tokens, at least one (the authors' code, as in verl).
        lower: ω_low = 1 (the authors' code).
        upper: ω_high = 5 (the authors' code).
        clip: ε = 0.2, PPO's.
        eps: added to the standard deviation (unstated in the paper).
        ddof: of the standard deviation (unstated in the paper).

    Deviations: covariances and their means are those of the rollout before its updates, where the authors' code takes the policy
    that is trained and the tokens of an update that PPO's clip has not cut yet; at the first update they are equal. The draw is
    made from each token's log-probability, so it needs no random key and does not depend on the order of the responses.
    """
    check_between(-jnp.inf, upper, lower=lower)
    check_between(0, 1, share=share)
    return Algorithm(
        advantage=partial(group_normalized, eps=eps, ddof=ddof),
        keep_tokens=partial(_outside_choice, share=share, lower=lower, upper=upper),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        weights=token_mean,
    )


def _outside_choice(
    advantage: Float[Array, "P G T"], logp: Float[Array, "P G T"], mask: Array, *, share: float, lower: float, upper: float
) -> Bool[Array, "P G T"]:
    """The tokens that Clip-Cov does not cut."""
    covariance = token_covariance(logp, advantage, mask)
    return ~clip_cov_tokens(covariance, uniform_of(logp), mask, share=share, lower=lower, upper=upper)


def uniform_of(logp: Float[Array, "*rows T"]) -> Float[Array, "*rows T"]:
    """One number in [0, 1) for each token, drawn with the bits of its log-probability as key.

    Example:
        >>> draws = uniform_of(jnp.array([-0.5, -0.25, -0.5]))
        >>> bool(draws[0] == draws[2]), bool(draws[0] == draws[1])
        (True, False)
    """
    bits = jax.lax.bitcast_convert_type(logp.astype(jnp.float32), jnp.uint32)
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(0)))(bits.reshape(-1))
    return jax.vmap(partial(jax.random.uniform, dtype=jnp.float32))(keys).reshape(logp.shape).astype(logp.dtype)


def kl_cov(*, share: float = 2e-4, beta: float = 1.0, eps: float = 1e-6, ddof: int = 1) -> Algorithm:
    """KL-Cov (arXiv:2505.22617): an unclipped ratio, and a penalty where log-probability and advantage vary most together.

    ::

        J = (1/Σ|o_i|) Σ_i Σ_t (ρ_it A_i - β 1[it ∈ I] |log ρ_it|)      A_i = (r_i - mean r) / std r
        I: the round(k Σ|o_i|) tokens of the highest Cov_it = (log π(o_it) - mean log π) (A_i - mean A)

    Args:
        share: k = 2e-4 of the tokens, at least one (the authors' code, as in verl).
        beta: β = 1 (the authors' code).
        eps: added to the standard deviation (unstated in the paper).
        ddof: of the standard deviation (unstated in the paper).

    Deviations: covariances are those of the policy before the rollout's updates, where the authors' code takes the policy that is
    trained; at the first update they are equal. The penalty is 0 there, so it takes more than one update a rollout to be felt.
    """
    check_between(0, 1, share=share)
    check_nonnegative(beta=beta)
    weights = partial(_on_high_covariance, share=share, eps=eps, ddof=ddof)
    return Algorithm(
        advantage=partial(group_normalized, eps=eps, ddof=ddof),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=1.0, high=jnp.inf),
        weights=token_mean,
        terms=(Term("kl_cov", beta, _distance_from_sampler, weights=weights),),
    )


def _distance_from_sampler(inputs: TermInputs) -> Float[Array, "B T"]:
    return jnp.abs(inputs.logp - inputs.policy_logp)


def _on_high_covariance(rollout: Rollout[Array], *, share: float, eps: float, ddof: int) -> Float[Array, "P G T"]:
    """Weights of the penalty: those of the surrogate on the tokens of high covariance."""
    validity = {} if rollout.valid is None else {"valid": rollout.valid}
    advantage = group_normalized(rollout.rewards, eps=eps, ddof=ddof, **validity)[..., None]
    logp = rollout.behaviour_logp if rollout.policy_logp is None else rollout.policy_logp
    logp = zero_outside(logp, rollout.mask)
    covariance = token_covariance(logp, jnp.broadcast_to(advantage, logp.shape), rollout.mask)
    return jnp.where(kl_cov_tokens(covariance, rollout.mask, share=share), token_mean(rollout.mask), 0.0)
