"""GSPO: group sequence policy optimization (arXiv:2507.18071), and its token form."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.group import group_normalized
from rljax.ops.ratio import sequence_log_ratio, sequence_token_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.weights import sequence_mean


def gspo(*, clip_low: float = 3e-4, clip_high: float = 4e-4, eps: float = 1e-6, ddof: int = 1) -> Algorithm:
    """GSPO (arXiv:2507.18071, Eqs. 5-7): ratio and clip apply to the full response.

    ::

        J = (1/G) Σ_i min(s_i A_i, clip(s_i, 1-ε_low, 1+ε_high) A_i)      s_i = exp((1/|o_i|) Σ_t log ρ_it)
        A_i = (r_i - mean r) / std r

    Args:
        clip_low: ε_low = 3e-4 (version 2, Section 5.1).
        clip_high: ε_high = 4e-4 (version 2, Section 5.1).
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: none known.
    """
    return Algorithm(
        advantage=partial(group_normalized, eps=eps, ddof=ddof),
        log_ratio=sequence_log_ratio,
        surrogate=partial(clipped, low=clip_low, high=clip_high),
        weights=sequence_mean,
    )


def gspo_token(*, clip_low: float = 3e-4, clip_high: float = 4e-4, eps: float = 1e-6, ddof: int = 1) -> Algorithm:
    """GSPO-token (arXiv:2507.18071, Section 4.3): the response's ratio, but each token has its own gradient.

    ::

        J = (1/G) Σ_i (1/|o_i|) Σ_t min(s_it A_it, clip(s_it, 1-ε_low, 1+ε_high) A_it)
        s_it = sg[s_i] π(o_it) / sg[π(o_it)]      s_i = exp((1/|o_i|) Σ_t log ρ_it)

    Args:
        clip_low: ε_low = 3e-4 (version 2, Section 5.1).
        clip_high: ε_high = 4e-4 (version 2, Section 5.1).
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: none known. If all tokens of a response have the same advantage, GSPO-token trains exactly as `gspo` does.
    """
    return gspo(clip_low=clip_low, clip_high=clip_high, eps=eps, ddof=ddof)._replace(log_ratio=sequence_token_log_ratio)
