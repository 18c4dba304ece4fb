"""DeepSeek-V3.2: GRPO made stable for large runs (arXiv:2512.02556)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.algorithms.corrections import off_policy_mask, sampling_denominator
from rljax.algorithms.terms import importance_weighted_kl
from rljax.ops.group import group_centered
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.weights import sequence_mean


def deepseek_v32(*, clip: float = 0.2, beta: float = 0.001, delta: float = 0.5) -> Algorithm:
    """DeepSeek-V3.2 (arXiv:2512.02556, Section 3.1): GRPO with an unbiased KL penalty, and without stale negative responses.

    ::

        J = (1/G) Σ_i (1/|o_i|) Σ_t [min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i) M_i - β ρ_it k3_it]      A_i = r_i - mean r
        M_i = 0 if A_i < 0 and (1/|o_i|) Σ_t log(π_old(o_it) / π(o_it)) > δ, else 1      ρ_it = π(o_it) / π_old(o_it)

    Args:
        clip: ε = 0.2, as in PPO; the paper states no value.
        beta: β = 0.001, weight of the KL penalty towards the reference policy (as in TRL, which cites DeepSeek-R1; the paper states
            no value, but finds that mathematics needs a weak penalty or none). 0 removes the term and the reference model.
        delta: δ = 0.5 nats per token (TRL's suggestion; the paper states no value).

    π_old is the probability that the sampler itself computed (`behaviour_logp`). The paper states this only for M, but uses the
    same symbol in ρ. So ρ and M account for a different engine and older parameters of the sampler as well as for updates.

    Deviations: two parts of the recipe are settings of a run, off by default: --sampling-mask keeps the truncation masks of top-p
    and top-k for the learner, and --replay-experts keeps the experts to which the sampler routed each token. As in the paper, M
    does not apply to the KL.
    """
    return Algorithm(
        advantage=group_centered,
        denominator=sampling_denominator,
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        surrogate_mask=off_policy_mask(delta),
        weights=sequence_mean,
        terms=importance_weighted_kl(beta),
    )
