"""CISPO: clipped importance-sampling-weight policy optimization (arXiv:2506.13585)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.group import group_normalized
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import cispo as cispo_surrogate
from rljax.ops.weights import token_mean


def cispo(*, clip_low: float = 1.0, clip_high: float = 0.28, eps: float = 1e-6, ddof: int = 1) -> Algorithm:
    """CISPO (arXiv:2506.13585, Eqs. 4-5): REINFORCE with a clipped weight, so that no token loses its gradient.

    ::

        J = (1/Σ|o_i|) Σ_i Σ_t sg[clip(ρ_it, 1-ε_low, 1+ε_high)] A_i log π(o_it)      A_i = (r_i - mean r) / std r

    Args:
        clip_low: ε_low = 1, which leaves the lower side unbounded, as in the paper.
        clip_high: ε_high = 0.28, from DAPO; the paper tunes it and gives no value.
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: Section 3.1 also takes dynamic sampling and the length penalty from DAPO. Both are left out here; in `dapo` they
    are the slots `keep_group` (`has_mixed_outcomes`) and `shape_reward` (`soft_overlong_penalty`). The token mean is over the
    full optimizer batch. The objective has log ρ in place of log π, which changes its value but not its gradient.
    """
    return Algorithm(
        advantage=partial(group_normalized, eps=eps, ddof=ddof),
        log_ratio=token_log_ratio,
        surrogate=partial(cispo_surrogate, low=clip_low, high=clip_high),
        weights=token_mean,
    )
