"""A*-PO: regression of the log-ratio on the optimal advantage (arXiv:2505.20686)."""

from functools import partial

from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Algorithm, Credit
from rljax.algorithms.online_dpo import log_ratio_to_reference
from rljax.ops.arrays import Number, check_positive
from rljax.ops.off_policy import mirror_descent
from rljax.ops.online_preference import optimal_value
from rljax.ops.ratio import response_log_ratio
from rljax.ops.weights import sequence_mean


def a_star_po(*, beta1: float = 0.5, beta2: float = 1e-3) -> Algorithm:
    """A*-PO (arXiv:2505.20686): least squares on the optimal advantage, which does not depend on the current policy.

    ::

        L = (1/G) Σ_i (β₂ log(π(y_i|x) / π_ref(y_i|x)) - (r_i - V*(x)))²        V*(x) = β₁ log E_{y ~ π_ref}[exp(r(x, y) / β₁)]

    Args:
        beta1: β₁ = 0.5 (the authors' value), KL weight in the optimal value V*, in reward per nat.
        beta2: β₂ = 0.001 (the authors' value), weight of the log-ratio in the loss, in reward per nat.

    Deviations: the paper estimates V* once, before training, from 8 reference responses per prompt, and then samples one
    response per prompt. Here V* is estimated from the group itself, with self-normalized importance weights π_ref/π; in the
    first step, when the policy equals the reference, this is the paper's estimate. Our objective is the paper's loss divided by
    -2β₂, up to a constant: with ρ = π/π_old and A = r - V* - β₂ log(π_old/π_ref), the paper's loss (β₂ log ρ - A)² has -2β₂
    times the gradient of our objective A log ρ - (β₂/2) log² ρ. The paper also removes prompts that no reference response
    solves; here they stay.
    """
    check_positive(beta1=beta1, beta2=beta2)
    return Algorithm(
        advantage=Credit(
            partial(_penalized_advantage, beta1=beta1, beta2=beta2),
            needs=("rewards", "policy_logp", "ref_logp", "mask"),
            optional=("valid",),
        ),
        log_ratio=response_log_ratio,
        surrogate=partial(mirror_descent, tau=beta2),
        weights=sequence_mean,
    )


def _penalized_advantage(
    rewards: Array,
    policy_logp: Array,
    ref_logp: Array,
    mask: Array,
    *,
    beta1: Number,
    beta2: Number,
    valid: Array | None = None,
) -> Float[Array, "P G"]:
    """Optimal advantage r - V* minus β₂ times the log-ratio of the policy before the update to the reference."""
    log_ratio = log_ratio_to_reference(policy_logp, ref_logp, mask)
    value = optimal_value(rewards, log_ratio, beta=beta1, valid=valid)
    return rewards - value[..., None] - beta2 * log_ratio
