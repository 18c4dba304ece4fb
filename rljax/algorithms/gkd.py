"""GKD: generalized knowledge distillation, on the student's own responses (arXiv:2306.13649)."""

from functools import partial

from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Algorithm
from rljax.algorithms.terms import distance_from_teacher
from rljax.ops.arrays import check_between
from rljax.ops.distillation import generalized_jsd
from rljax.ops.divergence import exact_kl
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.weights import sequence_mean


def gkd(*, beta: float = 0.5) -> Algorithm:
    """GKD (arXiv:2306.13649, with λ = 1): the student generates and moves towards the teacher's full distribution at each token.

    ::

        L = (1/G) Σ_i (1/|o_i|) Σ_t D_β(π_T ‖ π)(q, o_i,<t)
        D_β = β KL(π_T‖M) + (1-β) KL(π‖M)      M = β π_T + (1-β) π      D_0 = KL(π_T‖π)      D_1 = KL(π‖π_T)

    Args:
        beta: β in [0, 1]; the paper compares 0.1, 0.5, 0.9 and both ends. D_0 is the forward KL and D_1 the reverse KL;
            they are not the limits of D_β, which approaches 0 at both ends.

    Deviations: every response is the student's own and gets one update (λ = 1 in the paper's mix with a fixed dataset). The
    task's reward is measured but not learned from; the paper's mix of the two objectives (its Eq. 5) is left out. The teacher's
    logits are recomputed for every update, one chunk of tokens at a time, so none are stored. No gradient flows through the
    sampling, as in the paper.
    """
    check_between(0, 1, beta=beta)
    ends = {0.0: _forward_kl, 1.0: exact_kl}
    return Algorithm(
        advantage=None,
        teacher_divergence=ends[beta] if beta in ends else partial(generalized_jsd, beta=beta),
        terms=distance_from_teacher(1.0),
        log_ratio=token_log_ratio,
        surrogate=reinforce,
        weights=sequence_mean,
    )


def _forward_kl(logits: Float[Array, "*rows V"], teacher_logits: Float[Array, "*rows V"]) -> Float[Array, "*rows"]:
    return exact_kl(teacher_logits, logits)
