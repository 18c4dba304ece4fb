"""Dr.GRPO: GRPO done right (arXiv:2503.20783)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.group import group_centered
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.weights import constant_length


def dr_grpo(*, max_length: int = 3000, clip: float = 0.2) -> Algorithm:
    """Dr.GRPO (arXiv:2503.20783, Section 3): GRPO without its length bias, 1/|o_i|, and difficulty bias, 1/std r.

    ::

        J = (1/G) Σ_i (1/L) Σ_t min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i)      A_i = r_i - mean r

    Args:
        max_length: L, the generation budget in tokens (3000 in the authors' code).
        clip: ε = 0.2, the clip range.

    Deviations: the authors' code sets a truncated response's reward to 0; here that is left to the reward function. Other
    settings of the authors: no KL, 8 responses per prompt, learning rate 1e-6, batches of 128.
    """
    return Algorithm(
        advantage=group_centered,
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        weights=partial(constant_length, max_length=max_length),
        group_size=8,
    )
