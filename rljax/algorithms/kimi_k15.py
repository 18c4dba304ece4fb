"""The policy optimization of Kimi k1.5, a variant of online policy mirror descent (arXiv:2501.12599)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.arrays import check_nonnegative
from rljax.ops.group import group_centered
from rljax.ops.off_policy import mirror_descent
from rljax.ops.ratio import response_log_ratio
from rljax.ops.weights import sequence_mean


def kimi_k15(*, tau: float = 0.1) -> Algorithm:
    """Kimi k1.5 (arXiv:2501.12599, Eq. 3): policy mirror descent, with a squared penalty on each response's log-ratio, not a clip.

    ::

        ∇J = (1/G) Σ_i [A_i ∇ log π(o_i | q) - (τ/2) ∇ (log π(o_i | q) / π_old(o_i | q))²]      A_i = r_i - mean r

    Args:
        tau: τ, weight of the penalty in reward per nat; the paper gives no value. With our default of 0.1, the log-ratio of
            a response with A = 0.5 converges to 5 nats; τ = 0 is REINFORCE with a group baseline.

    Deviations: the loss is the paper's surrogate loss divided by 2τ, up to a constant, because the gradient of
    (A_i - τ log ρ_i)², with ρ_i = π/π_old, is -2τ times the one above. The paper resets the optimizer at each rollout; here the
    optimizer keeps its moments. Left out are the paper's length reward and its sampling of problems by difficulty. The penalty
    acts only if a rollout has several updates or the sampler has older parameters, because at π_old, log ρ and the gradient of
    its square are 0.
    """
    check_nonnegative(tau=tau)
    return Algorithm(
        advantage=group_centered,
        log_ratio=response_log_ratio,
        surrogate=partial(mirror_descent, tau=tau),
        weights=sequence_mean,
    )
