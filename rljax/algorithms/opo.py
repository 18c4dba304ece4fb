"""OPO: on-policy reinforcement learning with the optimal reward baseline (arXiv:2505.23585)."""

from rljax.algorithms.algorithm import Algorithm, Credit
from rljax.ops.baseline import length_weighted_returns
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.weights import sequence_sum


def opo() -> Algorithm:
    """OPO (arXiv:2505.23585): REINFORCE, exactly on-policy, with the minimum-variance baseline.

    ::

        ∇J = (1/G) Σ_i A_i ∇ log π(o_i | q)      A_i = r_i - Σ_j |o_j| r_j / Σ_j |o_j|

    Deviations: none known. OPO is on-policy, so take one update per rollout. Other settings of the paper: 8 responses per prompt,
    neither KL nor entropy bonus. The objective has log(π/π_old) in place of log π, which changes its value but not its gradient.
    """
    return Algorithm(
        advantage=Credit(length_weighted_returns, needs=("token_rewards", "mask")),
        log_ratio=token_log_ratio,
        surrogate=reinforce,
        weights=sequence_sum,
        group_size=8,
    )
