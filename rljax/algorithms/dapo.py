"""DAPO: decoupled clip and dynamic sampling policy optimisation (arXiv:2503.14476)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.group import group_normalized
from rljax.ops.ratio import token_log_ratio
from rljax.ops.selection import has_mixed_outcomes
from rljax.ops.shaping import soft_overlong_penalty
from rljax.ops.surrogate import clipped
from rljax.ops.weights import token_mean


def dapo(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    max_length: int = 20480,
    cache: int = 4096,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Algorithm:
    """DAPO (arXiv:2503.14476, Eqs. 8-13).

    ::

        J = (1/Σ|o_i|) Σ_i Σ_t min(ρ_it A_i, clip(ρ_it, 1-ε_low, 1+ε_high) A_i)      0 < #correct < G
        A_i = (R_i - mean R) / std R      R_i = r_i + overlong(|o_i|)

    Args:
        clip_low: ε_low = 0.2 (Section 4.1).
        clip_high: ε_high = 0.28 (Section 4.1).
        max_length: L_max = 20480 tokens, where the overlong punishment reaches -1.
        cache: L_cache = 4096 tokens, the stretch before it over which the punishment grows.
        eps: added to the standard deviation (unstated in the paper).
        ddof: of the standard deviation (unstated in the paper).

    Deviations: the token mean runs over the whole optimiser batch, as in the authors' code; the paper's Eq. 8 takes it over
    the responses of one prompt (`rljax.ops.weights.token_mean_per_group`). Groups are kept by the rewards before the overlong
    punishment. Other settings of the paper: rewards +1 / -1, AdamW at 1e-6, 20 warm-up rollouts, 512 prompts of 16 responses,
    16 updates a rollout.
    """
    return Algorithm(
        shape_reward=partial(soft_overlong_penalty, max_length=max_length, cache=cache),
        keep_group=has_mixed_outcomes,
        advantage=partial(group_normalized, eps=eps, ddof=ddof),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip_low, high=clip_high),
        weights=token_mean,
    )
