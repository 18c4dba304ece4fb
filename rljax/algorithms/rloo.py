"""RLOO: REINFORCE with a leave-one-out baseline (arXiv:2402.14740)."""

from rljax.algorithms.algorithm import Algorithm
from rljax.algorithms.terms import kl_penalty
from rljax.ops.group import leave_one_out
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.weights import sequence_sum


def rloo(*, beta: float = 0.0) -> Algorithm:
    """RLOO (arXiv:2402.14740, Section 2.3): REINFORCE with each response as one action and the others' mean reward as its baseline.

    ::

        ∇J = (1/G) Σ_i (R_i - (1/(G-1)) Σ_{j≠i} R_j) ∇ log π(o_i | q)      R_i = r_i - β log(π/π_ref)(o_i | q)

    Args:
        beta: β of the KL penalty in the reward; the paper tunes it per task. 0 removes the penalty, which suits verifiable rewards.

    Deviations: none known. RLOO is on-policy, so take one update per rollout. The objective has log(π/π_old) in place of
    log π, which changes its value but not its gradient.
    """
    return Algorithm(
        advantage=leave_one_out,
        log_ratio=token_log_ratio,
        surrogate=reinforce,
        weights=sequence_sum,
        reward_kl=kl_penalty(beta),
    )
