"""VESPO: variational sequence-level soft policy optimization (arXiv:2602.10693)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.algorithms.corrections import sampling_denominator
from rljax.ops.group import group_normalized
from rljax.ops.off_policy import gamma_weighted, whole_response_token_log_ratio
from rljax.ops.weights import token_mean


def vespo(
    *,
    power_positive: float = 2.0,
    decay_positive: float = 3.0,
    power_negative: float = 3.0,
    decay_negative: float = 2.0,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Algorithm:
    """VESPO (arXiv:2602.10693): REINFORCE with soft weights that depend on the full response's ratio, without length normalization.

    ::

        J = (1/Σ|o_i|) Σ_i Σ_t sg[φ(W_i)] A_i log π(o_it)      W_i = Π_t π(o_it) / μ(o_it)      φ(W) = W^c₁ exp(c₂ (1 - W))
        A_i = (r_i - mean r) / std r      c₁, c₂ by the sign of A_i

    Args:
        power_positive: c₁ = 2 if A >= 0 (the authors' code).
        decay_positive: c₂ = 3 if A >= 0 (the authors' code).
        power_negative: c₁ = 3 if A < 0 (the authors' code).
        decay_negative: c₂ = 2 if A < 0 (the authors' code).
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    μ is the sampling policy, with the probabilities that the sampler itself reported (`behaviour_logp`; with top-k or top-p, after
    truncation), as in the paper's pseudocode (Appendix I). So W also corrects for the sampling engine, and φ damps that
    correction as well.

    Deviations: the mean over the tokens of the optimizer batch is from the authors' code. That code also clamps log W and each
    token's log-ratio to ±20; this is left out, because φ already damps such weights. The objective has log W in place of log π,
    which changes its value but not its gradient, and the metric `ratio` is the mean of W.
    """
    return Algorithm(
        advantage=partial(group_normalized, eps=eps, ddof=ddof),
        denominator=sampling_denominator,
        log_ratio=whole_response_token_log_ratio,
        surrogate=partial(
            gamma_weighted,
            power_positive=power_positive,
            decay_positive=decay_positive,
            power_negative=power_negative,
            decay_negative=decay_negative,
        ),
        weights=token_mean,
    )
