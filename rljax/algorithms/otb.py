"""The optimal token baseline (arXiv:2602.07078)."""

from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Algorithm, Credit
from rljax.ops.baseline import optimal_token_baseline
from rljax.ops.gae import monte_carlo_returns
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.weights import sequence_sum


def otb() -> Algorithm:
    """Optimal token baseline (arXiv:2602.07078): REINFORCE with a separate baseline for each token position within a group.

    ::

        ∇J = (1/G) Σ_i Σ_t (G_it - B_t) ∇ log π(o_it)      G_it = Σ_{k≥t} r_ik      B_t = Σ_j W_jt G_jt / Σ_j W_jt
        W_it = Σ_{k≤t} w_ik² (1 - 2 π(o_ik) + Σ_v π(v | o_i,<k)²)

    w is the weight from the algorithm's `correction`, or 1 without a correction.

    Deviations: the squared norm of a token's gradient is approximated by the logit-gradient proxy, as in verl. If only one
    response reaches a position, its advantage there is exactly 0; in verl it is about 0, or the return with
    `handle_zero_tail=True` and for a group of one response. Positions count response tokens only, so observations between them
    do not shift later positions. The algorithm is on-policy, so take one update per rollout. The objective has log(π/π_old) in
    place of log π, which changes its value but not its gradient.
    """
    return Algorithm(
        advantage=Credit(
            _subtract_token_baseline,
            needs=("token_rewards", "policy_logp", "square_sum", "mask", "correction_weight"),
        ),
        log_ratio=token_log_ratio,
        surrogate=reinforce,
        weights=sequence_sum,
    )


def _subtract_token_baseline(
    token_rewards: Float[Array, "P G T"],
    logp: Float[Array, "P G T"],
    square_sum: Float[Array, "P G T"],
    mask: Array,
    correction_weight: Float[Array, "P G T"],
) -> Float[Array, "P G T"]:
    returns = monte_carlo_returns(token_rewards, mask, gamma=1.0)
    return optimal_token_baseline(returns, logp, square_sum, mask, importance=correction_weight)
