"""GEPO: group expectation policy optimisation (arXiv:2508.17850)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.group import group_centered
from rljax.ops.ratio import group_expectation_log_denominator, sequence_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.weights import sequence_mean


def gepo(*, clip: float = 0.2) -> Algorithm:
    """GEPO (arXiv:2508.17850, Section 3): the importance weight's denominator is an expectation over the group.

    ::

        J = (1/G) Σ_i min(w_i A_i, clip(w_i, 1-ε, 1+ε) A_i)      A_i = r_i - mean r
        w_i = p_i / E      E = Σ_j q_j² / Σ_j q_j      p, q = exp((1/|o|) Σ_t log π(o_t)) of the learner, of the sampler

    Args:
        clip: ε = 0.2 (the authors' code; the paper defines the weight only).

    Deviations: p and q are length-normalised as in the authors' code; the paper's whole-response probabilities underflow
    (`rljax.ops.ratio.group_expectation_log_ratio_unnormalized`). w is not 1 on-policy. Other settings of the paper: 8
    responses a prompt, learning rate 1e-6, 3 % of warm-up.
    """
    return Algorithm(
        advantage=group_centered,
        denominator=group_expectation_log_denominator,
        log_ratio=sequence_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        weights=sequence_mean,
        group_size=8,
    )
