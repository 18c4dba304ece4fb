"""MaxRL: maximum likelihood reinforcement learning (arXiv:2602.02710)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.group import mean_normalized
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.weights import sequence_sum


def max_rl(*, eps: float = 0.0) -> Algorithm:
    """MaxRL (arXiv:2602.02710): climb the log of the pass rate, as far as G responses can tell, instead of the pass rate.

    ::

        ∇J = (1/G) Σ_i A_i ∇ log π(o_i | q)      A_i = (r_i - mean r) / mean r, or 0 if mean r is 0

    Args:
        eps: added to the mean; 0 in the paper, 1e-6 in the authors' code.

    Deviations: a response is one action, as in the paper's estimator; the authors' code uses the same advantages with PPO's clip
    and a token mean. It is on-policy: take one update per rollout. Rewards must not be negative. The objective's value
    is relative to the sampling policy's (log ρ in place of log π); the gradient is the same.
    """
    return Algorithm(
        advantage=partial(mean_normalized, eps=eps),
        log_ratio=token_log_ratio,
        surrogate=reinforce,
        weights=sequence_sum,
    )
