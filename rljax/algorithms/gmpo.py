"""GMPO: geometric-mean policy optimization (arXiv:2507.20673)."""

from functools import partial

from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.group import group_normalized
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import gmpo as gmpo_surrogate
from rljax.ops.weights import sequence_mean


def geometric_mean_surrogate(
    log_ratio: Float[Array, "B T"], advantage: Float[Array, "B T"], *, clip: float
) -> Float[Array, "B T"]:
    """`rljax.ops.surrogate.gmpo` with the signature of the slot `surrogate`."""
    # The slot passes no mask and needs none: `prepare` sets the advantage to 0 outside the trained tokens, and a
    # response's trained tokens share one advantage. If it is 0, so are the surrogate and its gradient, whatever the mask.
    return gmpo_surrogate(log_ratio, advantage, advantage != 0, clip=clip)


def gmpo(*, clip: float = 0.4, eps: float = 1e-6, ddof: int = 1) -> Algorithm:
    """GMPO (arXiv:2507.20673): the geometric mean of a response's ratios, each clipped in log space.

    ::

        J = (1/G) Σ_i A_i exp((1/|o_i|) Σ_t s min(s log ρ_it, clip(s log ρ_it, -c, c)))      s = sign(A_i)
        A_i = (r_i - mean r) / std r

    Args:
        clip: c = 0.4 nats, bound on each token's log-ratio.
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: none known.
    """
    return Algorithm(
        advantage=partial(group_normalized, eps=eps, ddof=ddof),
        log_ratio=token_log_ratio,
        surrogate=partial(geometric_mean_surrogate, clip=clip),
        weights=sequence_mean,
    )
