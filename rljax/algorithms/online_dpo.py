"""Online DPO, and XPO, which adds optimism to it: preferences between responses that the policy samples during training."""

from collections.abc import Callable
from functools import partial

from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Algorithm, Credit
from rljax.ops.arrays import Number, check_nonnegative, check_positive
from rljax.ops.masked import masked_sum
from rljax.ops.online_preference import online_dpo_credit, xpo_credit
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.weights import sequence_sum


def online_dpo(*, beta: float = 0.1) -> Algorithm:
    """Online DPO (arXiv:2402.04792, OAIF): DPO on responses of the current policy, ranked by their rewards.

    ::

        ∇J = (1/G) Σ_i A_i ∇log π(y_i|x) = -∇ [mean over pairs of -log σ(β (ℓ_w - ℓ_l))]        ℓ = log(π(y|x) / π_ref(y|x))

    Args:
        beta: β = 0.1 (the paper's value for DPO), strength of the pull towards the reference.

    Deviations: the paper's annotator compares two responses; here the rewards decide, for all pairs of a group, with no
    preference between equal rewards. σ(-β (ℓ_w - ℓ_l)) is computed once per rollout, so the gradient is DPO's only at the policy
    that sampled the responses; take one update per rollout. The objective has log(π/π_old) in place of log π, which
    changes its value but not its gradient.
    """
    check_positive(beta=beta)
    return _preference_algorithm(online_dpo_credit, beta=beta)


def xpo(*, beta: float = 0.1, alpha: float = 1e-5) -> Algorithm:
    """XPO (arXiv:2405.21046, Algorithm 1): online DPO that also moves away from what the reference would sample.

    ::

        L = mean over pairs of -log σ(β (ℓ_w - ℓ_l)) + α E_{ỹ ~ π_ref}[log π(ỹ|x)]        ℓ = log(π(y|x) / π_ref(y|x))

    Args:
        beta: β = 0.1, as in DPO, strength of the pull towards the reference.
        alpha: α = 1e-5, as in TRL, weight of the optimism; the paper's value depends on constants in its theorem. 0 is online DPO.

    Deviations: the paper compares a response of the policy with one of the reference, which is ỹ. Here all responses are the
    policy's: pairs are compared as in `online_dpo`, and the mean over ỹ is estimated with self-normalized importance weights
    π_ref/π within the group, minus a term whose mean is 0. The paper's mean is over all pairs seen so far; here it is over the
    rollout's pairs only, so take one update per rollout. The objective has log(π/π_old) in place of log π, which changes
    its value.
    """
    check_positive(beta=beta)
    check_nonnegative(alpha=alpha)
    return _preference_algorithm(xpo_credit, beta=beta, alpha=alpha)


def log_ratio_to_reference(policy_logp: Array, ref_logp: Array, mask: Array) -> Float[Array, "P G"]:
    """ℓ, the log-ratio of policy to reference for each response, summed over its tokens, nats."""
    return masked_sum(policy_logp, mask) - masked_sum(ref_logp, mask)


def _credit(
    rewards: Array,
    policy_logp: Array,
    ref_logp: Array,
    mask: Array,
    *,
    equation: Callable[..., Array],
    valid: Array | None = None,
    **options: Number,
) -> Float[Array, "P G"]:
    """Return the equation's credit for each response."""
    return equation(rewards, log_ratio_to_reference(policy_logp, ref_logp, mask), valid=valid, **options)


def _preference_algorithm(equation: Callable[..., Array], **options: Number) -> Algorithm:
    """Build the record whose gradient is each response's score function times its credit, averaged over the responses."""
    return Algorithm(
        advantage=Credit(
            partial(_credit, equation=equation, **options),
            needs=("rewards", "policy_logp", "ref_logp", "mask"),
            optional=("valid",),
        ),
        log_ratio=token_log_ratio,
        surrogate=reinforce,
        weights=sequence_sum,
        group_size=2,
    )
