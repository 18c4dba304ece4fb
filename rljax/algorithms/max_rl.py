"""MaxRL: maximum likelihood reinforcement learning (arXiv:2602.02710)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.group import mean_normalized
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.weights import sequence_sum


def max_rl(*, eps: float = 0.0) -> Algorithm:
    """MaxRL (arXiv:2602.02710): maximize the log of the pass rate, as far as G responses can estimate it, not the pass rate.

    ::

        ∇J = (1/G) Σ_i A_i ∇ log π(o_i | q)      A_i = (r_i - mean r) / mean r, or 0 if mean r is 0

    Args:
        eps: added to the mean in the denominator; 0 in the paper, 1e-6 in the authors' code.

    Deviations: a response is one action in the paper's estimator and here; the authors' code uses the same advantages with PPO's
    clip and a token mean. MaxRL is on-policy, so take one update per rollout. Rewards must not be negative. The objective has
    log(π/π_old) in place of log π, which changes its value but not its gradient.
    """
    return Algorithm(
        advantage=partial(mean_normalized, eps=eps),
        log_ratio=token_log_ratio,
        surrogate=reinforce,
        weights=sequence_sum,
    )
