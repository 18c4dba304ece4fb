"""T1: reinforcement learning that keeps exploring (arXiv:2501.11651), written from other papers' descriptions of it."""

from functools import partial

from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Algorithm
from rljax.algorithms.terms import entropy_bonus
from rljax.ops.arrays import Number, check_between, check_nonnegative
from rljax.ops.divergence import batch_normalized_kl
from rljax.ops.group import leave_one_out
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.weights import sequence_sum


def _subtract_normalized_kl(
    rewards: Array, logp: Array, ref_logp: Array, mask: Array, *, beta: Number
) -> Float[Array, "P G T"]:
    return rewards - beta * batch_normalized_kl(logp, ref_logp, mask)


def t1(*, beta: float = 2e-4, entropy: float = 1e-3, reference_rate: float = 0.01) -> Algorithm:
    """T1, from secondary descriptions (arXiv:2501.11651): RLOO, entropy bonus, KL to a moving reference.

    ::

        ∇J = (1/G) Σ_i (R_i - (1/(G-1)) Σ_{j≠i} R_j) ∇ log π(o_i | q) + c (1/G) Σ_i Σ_t ∇ H_it
        R_i = r_i - β Σ_t (k1_it - mean k1)      θ_ref ← (1 - α) θ_ref + α θ

    Args:
        beta: β = 2e-4, weight of the KL penalty in the reward; mean k1 is over all tokens of the rollout.
        entropy: c, weight of the token-entropy bonus; we did not have the paper's value, 1e-3 is our choice.
        reference_rate: α of the moving reference, per rollout; we did not have the paper's value, 0.01 is our choice.

    Deviations: unknown, because we did not have the paper's equations. Descriptions of the paper mention a leave-one-out baseline,
    a token-entropy bonus, and a KL to a moving average of the policy, with the batch's mean subtracted. How the KL enters, its
    estimator (k1), which tokens its mean is over, and the sum over tokens are our interpretation. The paper's rewards of -1 for
    repetitive, overlong and garbled responses belong in the reward function. Settings of the paper that are not set here: 32
    prompts, learning rate 1.5e-6, sampling temperature above 1.
    """
    check_nonnegative(beta=beta)
    check_between(0, 1, reference_rate=reference_rate)
    return Algorithm(
        advantage=leave_one_out,
        reward_kl=partial(_subtract_normalized_kl, beta=beta),
        log_ratio=token_log_ratio,
        surrogate=reinforce,
        weights=sequence_sum,
        terms=entropy_bonus(entropy),
        reference_rate=reference_rate,
        group_size=64,
    )
