"""PKPO: pass-at-k policy optimization (arXiv:2505.15201)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.pass_at_k import pass_at_k_marginal
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.weights import sequence_sum


def pkpo(*, k: int = 2) -> Algorithm:
    """PKPO (arXiv:2505.15201, Eq. 33): REINFORCE on what a response adds to the best of k.

    ::

        ∇J = Σ_i s_i ∇ log π(o_i | q)      s_i = (1/C(G, k)) Σ_{|I| = k, i ∈ I} (max_{j ∈ I} r_j - max_{j ∈ I∖i} r_j)

    Args:
        k: number of responses among which only the best counts, from 2 to G; 2 is possible with every group size; the paper
            compares 2, 4 and 8 and anneals k. For k = 1, use `rloo`.

    Deviations: the paper's training runs pass these rewards to PPO; here REINFORCE uses them, as in the paper's estimator. Of the
    paper's three estimators, this one has the least variance; `rljax.ops.pass_at_k` has the others. PKPO is on-policy, so take
    one update per rollout. The objective has log(π/π_old) in place of log π, which changes its value but not its gradient. The
    paper uses 16 responses per prompt.
    """
    return Algorithm(
        advantage=partial(pass_at_k_marginal, k=k),
        log_ratio=token_log_ratio,
        surrogate=reinforce,
        weights=sequence_sum,
        group_size=16,
    )
