"""GEPO: group expectation policy optimization (arXiv:2508.17850)."""

from functools import partial

from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Algorithm
from rljax.algorithms.terms import kl_to_sampler
from rljax.ops.group import group_centered
from rljax.ops.ratio import group_expectation_log_denominator, sequence_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.weights import sequence_mean


def gepo(*, clip: float = 0.2, sampler_kl: float = 0.005) -> Algorithm:
    """GEPO (arXiv:2508.17850, Section 3): the importance weight's denominator is an expectation over the group.

    ::

        J = (1/G) Σ_i [min(w_i A_i, clip(w_i, 1-ε, 1+ε) A_i) - c (1/|o_i|) Σ_t k3_it]      A_i = r_i - mean r
        w_i = p_i / E      E = Σ_j q_j² / Σ_j q_j      p, q = exp((1/|o|) Σ_t log π(o_t)) under the learner and the sampler
        k3_it = q_it / p_it - log(q_it / p_it) - 1      p_it, q_it: probabilities of one token

    Args:
        clip: ε = 0.2 (the authors' code; the paper defines only the weight).
        sampler_kl: c, weight of the mean k3 to the sampler; 0 removes the term. In the authors' code, the
            recipes for a sampler with older parameters use 0.005; the default is 0.

    Deviations: p and q are length-normalized as in the authors' code; the paper's full-response probabilities underflow
    (`rljax.ops.ratio.group_expectation_log_ratio_unnormalized`). w is not 1 even on-policy. Other settings of the paper: 8
    responses per prompt, learning rate 1e-6, 3 % warm-up.
    """
    return Algorithm(
        advantage=group_centered,
        denominator=_group_log_denominator,
        log_ratio=sequence_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        weights=sequence_mean,
        terms=kl_to_sampler(sampler_kl),
        group_size=8,
    )


def _group_log_denominator(policy_logp: Array, behaviour_logp: Array, mask: Array) -> Float[Array, "P G T"]:
    del behaviour_logp  # other denominators use the sampler's probability
    return group_expectation_log_denominator(policy_logp, mask)
