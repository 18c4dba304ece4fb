"""On-policy distillation: the student generates, and a teacher scores every token (after arXiv:2306.13649)."""

from rljax.algorithms.algorithm import Algorithm, Credit
from rljax.ops.distillation import teacher_log_ratio
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.weights import sequence_sum


def on_policy_distillation() -> Algorithm:
    """On-policy distillation (arXiv:2306.13649: GKD with λ = 1 and reverse KL): the teacher's score for each sampled token.

    ::

        ∇J = (1/G) Σ_i Σ_t A_it ∇ log π(o_it)      A_it = log π_T(o_it) - log π(o_it)
        E_{o_it ~ π} [A_it ∇ log π(o_it)] = -∇ KL(π‖π_T) at the context of token t

    Deviations: GKD computes each KL from the logits of both models; here one sampled token gives an unbiased estimate of the KL
    and of its gradient (the reward form of Lu, "On-Policy Distillation", 2025). `gkd` has the loss form over the full
    vocabulary, whose gradient has less noise. GKD averages over a response's tokens; here they are summed, since 1/|o_i| depends
    on the token being scored (an EOS makes the response shorter) and would bias the gradient or even reverse it. The task's
    reward is measured but not learned from. The algorithm is on-policy, so take one update per rollout. The objective has
    log(π/π_old) in place of log π, which changes its value but not its gradient.
    """
    return Algorithm(
        advantage=Credit(teacher_log_ratio, needs=("policy_logp", "teacher_logp", "mask")),
        log_ratio=token_log_ratio,
        surrogate=reinforce,
        weights=sequence_sum,
    )
