"""Nash-MD-PG: policy gradient towards the Nash equilibrium of a preference (arXiv:2312.00886)."""

from functools import partial

import jax
from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Algorithm, Credit
from rljax.algorithms.online_dpo import log_ratio_to_reference
from rljax.ops.arrays import Number, check_between, check_nonnegative
from rljax.ops.masked import zero_outside
from rljax.ops.online_preference import mixture_win_rate
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.weights import sequence_sum


def nash_md(*, mixture: float = 0.125, tau: float = 0.008) -> Algorithm:
    """Nash-MD-PG (arXiv:2312.00886, Section 7 and Appendix F): win against a mixture of the policy and the reference.

    ::

        ∇J = (1/G) Σ_i Σ_t [P_i - 1/2 - τ Σ_{k≥t} log(π(o_ik) / π_ref(o_ik))] ∇log π(o_it)
        P_i = P(y_i ≻ y'), y' ~ π^c ∝ π^(1-c) π_ref^c

    Args:
        mixture: c = 0.125 (the paper's best β), weight of the reference in the opponent; 0 is self-play, 1 plays against the
            reference.
        tau: τ = 0.008 (the paper's), weight of the KL penalty, in win probability per nat.

    Deviations: the paper's preference model reads two texts, so its preferences may be circular; here the response with the
    higher reward wins, and P = 1/2 for equal rewards. The paper samples y' token by token from the mixture of the two
    distributions; here the other responses of the group serve as samples of the mixture of complete responses (the paper's Eq.
    3), with self-normalized importance weights. With G = 2 there is only one other response, so `mixture` has no effect; use G of
    at least 4. The algorithm is on-policy, so take one update per rollout. The objective has log(π/π_old) in place of
    log π, which changes its value but not its gradient.
    """
    check_between(0, 1, mixture=mixture)
    check_nonnegative(tau=tau)
    return Algorithm(
        advantage=Credit(
            partial(advantage_minus_kl, mixture=mixture, tau=tau),
            needs=("rewards", "policy_logp", "ref_logp", "mask"),
            optional=("valid",),
        ),
        log_ratio=token_log_ratio,
        surrogate=reinforce,
        weights=sequence_sum,
    )


def advantage_minus_kl(
    rewards: Array,
    policy_logp: Array,
    ref_logp: Array,
    mask: Array,
    *,
    mixture: Number,
    tau: Number,
    valid: Array | None = None,
) -> Float[Array, "P G T"]:
    """Win rate minus 1/2, minus the KL penalty of this token and all later ones."""
    wins = mixture_win_rate(rewards, log_ratio_to_reference(policy_logp, ref_logp, mask), mixture=mixture, valid=valid)
    kl = zero_outside(policy_logp, mask) - zero_outside(ref_logp, mask)
    return wins[..., None] - 0.5 - tau * jax.lax.cumsum(kl, kl.ndim - 1, reverse=True)
