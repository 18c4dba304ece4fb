"""GDPO: group reward-decoupled normalization policy optimization (arXiv:2601.05242)."""

from collections.abc import Mapping
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Algorithm, Credit
from rljax.ops.batch import decoupled_normalized
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.weights import sequence_mean


def gdpo(*, clip: float = 0.2, eps: float = 1e-6, ddof: int = 1) -> Algorithm:
    """GDPO (arXiv:2601.05242): GRPO for several rewards, each normalized separately before they are added.

    ::

        J = (1/G) Σ_i (1/|o_i|) Σ_t min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i)
        A_i = (S_i - mean S) / std S over the batch
        S_i = Σ_n w_n (r_in - mean_n) / std_n      mean_n, std_n of reward n in the group

    Args:
        clip: ε = 0.2, as in PPO.
        eps: added to the standard deviations (1e-6 in verl, 1e-4 in TRL).
        ddof: delta degrees of freedom of the standard deviations (not stated in the paper).

    The weights w_n of the rewards may have either sign; by default each is 1.

    Deviations: the second normalization is over the rollout, and the advantages go into GRPO's objective without KL. A reward that
    abstains on a response adds nothing to that response's sum, and is normalized over the responses that it judges.
    """
    return Algorithm(
        advantage=Credit(partial(_normalize_parts, eps=eps, ddof=ddof), needs=("reward_parts",), optional=("valid",)),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        weights=sequence_mean,
    )


def _normalize_parts(
    parts: dict[str, Float[Array, "P G"]],
    *,
    eps: float,
    ddof: int,
    weights: Mapping[str, float | int] | None = None,
    valid: Array | None = None,
) -> Float[Array, "P G"]:
    names = sorted(parts)
    if weights is not None and sorted(weights) != names:
        raise ValueError(f"weights must have the names of the rewards {', '.join(names)}, got {', '.join(sorted(weights))}")
    scores = jnp.stack([parts[name] for name in names], axis=-1)
    judged = ~jnp.isnan(scores)
    member = judged if valid is None else judged & valid.astype(bool)[..., None]
    factors = jnp.asarray([1.0 if weights is None else float(weights[name]) for name in names], scores.dtype)
    return decoupled_normalized(scores, factors, eps=eps, ddof=ddof, valid=member)
