"""LUSPO: length-unbiased sequence policy optimization (arXiv:2602.05261)."""

from rljax.algorithms.algorithm import Algorithm
from rljax.algorithms.gspo import gspo
from rljax.ops.weights import sequence_sum


def luspo(*, clip_low: float = 2e-3, clip_high: float = 2.5e-3, eps: float = 1e-6, ddof: int = 1) -> Algorithm:
    """LUSPO (arXiv:2602.05261): GSPO with each response's objective multiplied by its length, so that the gradient has no 1/|o_i|.

    ::

        J = (1/G) Σ_i |o_i| min(s_i A_i, clip(s_i, 1-ε_low, 1+ε_high) A_i)      s_i = exp((1/|o_i|) Σ_t log ρ_it)
        A_i = (r_i - mean r) / std r

    Args:
        clip_low: ε_low = 2e-3 (Section 5.1).
        clip_high: ε_high = 2.5e-3 (Section 5.1).
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: none known.
    """
    return gspo(clip_low=clip_low, clip_high=clip_high, eps=eps, ddof=ddof)._replace(weights=sequence_sum)
