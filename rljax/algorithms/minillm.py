"""MiniLLM: reverse KL between complete responses, with its policy gradient (arXiv:2306.08543)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm, Credit
from rljax.algorithms.terms import distance_from_teacher
from rljax.ops.distillation import mean_later_log_ratio
from rljax.ops.divergence import exact_kl
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.weights import sequence_sum


def minillm(*, clip: float = 0.2) -> Algorithm:
    """MiniLLM (arXiv:2306.08543, Eqs. 3 and 6): the reverse KL at each token, and credit for the token's effect on later tokens.

    ::

        ∇L = (1/G) Σ_i Σ_t [∇KL(π‖π_T)(x, o_i,<t) - A_it ∇log π(o_it)]
        A_it = mean over k > t of log(π_T(o_ik) / π(o_ik)), 0 at the last token

    Args:
        clip: ε = 0.2 (the authors' code), PPO's clip of the token ratio, which the paper adds for stability.

    Deviations: the paper divides the sum over the T - t later tokens by T - t - 1, which is 0 if one token is left; here the
    divisor is T - t. The authors' code includes token t in the mean and normalizes over the batch; the paper does neither. Only
    the student generates responses; the paper mixes in the teacher (its Eq. 4), with importance weights that are 1 here. The
    paper's loss on pretraining data is left out; --auxiliary adds one. The task's reward is measured but not learned from. The
    second term is computed as PPO's surrogate, which has the same gradient at the sampling policy but a different value.
    """
    return Algorithm(
        advantage=Credit(mean_later_log_ratio, needs=("policy_logp", "teacher_logp", "mask")),
        teacher_divergence=exact_kl,
        terms=distance_from_teacher(1.0),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        weights=sequence_sum,
    )
