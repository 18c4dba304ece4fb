"""GPG: group policy gradient (arXiv:2504.02546)."""

from functools import partial

from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.arrays import check_positive
from rljax.ops.batch import gpg_scale
from rljax.ops.group import group_centered
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.weights import token_mean


def _center_and_scale(rewards: Float[Array, "P G"], *, norm: float, valid: Array | None = None) -> Float[Array, "P G"]:
    return group_centered(rewards, valid=valid) / norm


def gpg(*, norm: float = 1.0) -> Algorithm:
    """GPG (arXiv:2504.02546): REINFORCE within a group; no reference model, no ratio, no clip.

    ::

        J = α (1/Σ|o_i|) Σ_i Σ_t A_i log π(o_it)      A_i = (r_i - mean r) / F_norm
        α = B / (B - M)      B groups in the optimizer batch; in M of them, all responses are right or all wrong

    Args:
        norm: F_norm = 1, a constant divisor.

    Deviations: M counts groups of identical rewards, which is the same for binary rewards. The objective has log(π/π_old) in place
    of log π, which changes its value but not its gradient. GPG is on-policy, so take one update per rollout.
    """
    check_positive(norm=norm)
    return Algorithm(
        advantage=partial(_center_and_scale, norm=norm),
        log_ratio=token_log_ratio,
        surrogate=reinforce,
        weights=token_mean,
        scale=gpg_scale,
    )
