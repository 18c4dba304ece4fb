"""DAPO: decoupled clip and dynamic sampling policy optimization (arXiv:2503.14476), and its hybrid with GRPO."""

from functools import partial

from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.group import group_normalized
from rljax.ops.ratio import token_log_ratio
from rljax.ops.selection import has_mixed_outcomes
from rljax.ops.shaping import soft_overlong_penalty
from rljax.ops.surrogate import clipped
from rljax.ops.unpublished.mixture import entropy_bonus, with_exploration_bonus
from rljax.ops.weights import sequence_mean, token_mean


def dapo(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    max_length: int = 20480,
    cache: int = 4096,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Algorithm:
    """DAPO (arXiv:2503.14476, Eqs. 8-13): separate clip bounds, dynamic sampling, a token mean and an overlong penalty.

    ::

        J = (1/Σ|o_i|) Σ_i Σ_t min(ρ_it A_i, clip(ρ_it, 1-ε_low, 1+ε_high) A_i)      0 < #correct < G
        A_i = (R_i - mean R) / std R      R_i = r_i + overlong(|o_i|)

    Args:
        clip_low: ε_low = 0.2 (Section 4.1).
        clip_high: ε_high = 0.28 (Section 4.1).
        max_length: L_max = 20480 tokens, at which the overlong penalty reaches -1.
        cache: L_cache = 4096 tokens, the range below L_max over which the penalty grows.
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: the token mean is over the full optimizer batch, as in the authors' code; the paper's Eq. 8 takes it over
    the responses to one prompt (`rljax.ops.weights.token_mean_per_group`). Groups are selected by their rewards before the overlong
    penalty. Other settings of the paper: rewards +1 / -1, AdamW at 1e-6, 20 warm-up rollouts, 512 prompts with 16 responses each,
    16 updates per rollout.
    """
    return Algorithm(
        shape_reward=partial(soft_overlong_penalty, max_length=max_length, cache=cache),
        keep_group=has_mixed_outcomes,
        advantage=partial(group_normalized, eps=eps, ddof=ddof),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip_low, high=clip_high),
        weights=token_mean,
        group_size=16,
    )


def _add_exploration_bonus(
    advantage: Float[Array, "P G T"], entropy: Float[Array, "P G T"], mask: Array, *, beta: float
) -> Float[Array, "P G T"]:
    return with_exploration_bonus(advantage, entropy_bonus(entropy, mask), beta=beta)


def dapo_grpo(
    *, clip_low: float = 0.2, clip_high: float = 0.28, beta: float = 0.01, eps: float = 1e-6, ddof: int = 1
) -> Algorithm:
    """DAPO-GRPO hybrid (unpublished: a design document, Algorithm 9): GRPO plus DAPO's clip and sampling and an exploration bonus.

    ::

        J = (1/G) Σ_i (1/|o_i|) Σ_t min(ρ_it A_it, clip(ρ_it, 1-ε_low, 1+ε_high) A_it)      0 < #correct < G
        A_it = (r_i - mean r) / std r + β (H_it - mean H)      H of the sampling policy; mean over the rollout

    Args:
        clip_low: ε_low = 0.2, from DAPO's paper (the document has 0.1).
        clip_high: ε_high = 0.28, from DAPO's paper (the document has 0.3).
        beta: β = 0.01, weight of the bonus per nat of entropy; the document gives no value.
        eps: added to the standard deviation.
        ddof: delta degrees of freedom of the standard deviation.

    Deviations: the document leaves the bonus undefined; `rljax.ops.unpublished.mixture.entropy_bonus` is our interpretation.
    Apart from the bonus, the document mentions only groups, the asymmetric clip and dynamic sampling, so the weights are GRPO's,
    and there is no KL or overlong penalty.
    """
    return dapo(clip_low=clip_low, clip_high=clip_high, eps=eps, ddof=ddof)._replace(
        shape_reward=None, weights=sequence_mean, bonus=partial(_add_exploration_bonus, beta=beta), group_size=None
    )
