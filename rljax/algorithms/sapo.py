"""SAPO: soft adaptive policy optimization (arXiv:2511.20347)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.group import group_normalized
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import sapo as sapo_surrogate
from rljax.ops.weights import sequence_mean


def sapo(*, tau_positive: float = 1.0, tau_negative: float = 1.05, eps: float = 1e-6, ddof: int = 1) -> Algorithm:
    """SAPO (arXiv:2511.20347): a soft gate in place of the clip.

    ::

        J = (1/G) Σ_i (1/|o_i|) Σ_t (4/τ_i) σ(τ_i (ρ_it - 1)) A_i      A_i = (r_i - mean r) / std r
        τ_i = τ_positive if A_i > 0 else τ_negative

    Args:
        tau_positive: τ_positive = 1, how fast the gate closes if A > 0.
        tau_negative: τ_negative = 1.05, how fast the gate closes otherwise. It is larger because a negative advantage raises the
            probability of all the tokens that were not sampled, which is less stable.
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: none known. The gate was checked against the paper; the mean over tokens and responses is assumed to be GRPO's.
    """
    return Algorithm(
        advantage=partial(group_normalized, eps=eps, ddof=ddof),
        log_ratio=token_log_ratio,
        surrogate=partial(sapo_surrogate, tau_positive=tau_positive, tau_negative=tau_negative),
        weights=sequence_mean,
    )
