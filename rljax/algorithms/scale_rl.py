"""ScaleRL: the art of scaling reinforcement learning compute (arXiv:2510.13786)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.algorithms.corrections import sampling_denominator
from rljax.ops.arrays import check_at_least
from rljax.ops.batch import centered_over_advantage_std
from rljax.ops.ratio import token_log_ratio
from rljax.ops.selection import has_mixed_outcomes
from rljax.ops.surrogate import cispo
from rljax.ops.weights import token_mean_per_group


def scale_rl(*, cap: float = 5.0, eps: float = 1e-6, ddof: int = 1) -> Algorithm:
    """ScaleRL (arXiv:2510.13786, Section 4): CISPO's loss, averaged over a prompt's tokens, then over prompts.

    ::

        J = (1/Σ_g|o_g|) Σ_i Σ_t sg[min(ρ_it, ε_max)] A_i log π(o_it)      0 < mean r < 1
        A_i = (r_i - mean r) / (standard deviation of these differences in the batch)      ρ_it = π(o_it) / π_generator(o_it)

    Args:
        cap: ε_max = 5, the largest ratio that scales a gradient; the paper finds little difference between 4 and 8.
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    The ratio's denominator is the probability that the generator itself computed (`behaviour_logp`; with top-k or top-p, after
    truncation), as in the paper. So the ratio also corrects for a generator with older parameters or another engine.

    Deviations: the standard deviation is over the rollout, including any groups with a single outcome. Three parts
    of the recipe are outside the loss and are left to the run: a prompt whose pass rate has reached 0.9 is not sampled again
    (no-positive-resampling), groups with a single outcome are dropped and not replaced, and an overlong chain of thought is
    interrupted. The objective has log ρ in place of log π, which changes its value but not its gradient.
    """
    check_at_least(1, cap=cap)
    return Algorithm(
        keep_group=has_mixed_outcomes,
        advantage=partial(centered_over_advantage_std, eps=eps, ddof=ddof),
        denominator=sampling_denominator,
        log_ratio=token_log_ratio,
        surrogate=partial(cispo, low=1.0, high=cap - 1),
        weights=token_mean_per_group,
        group_size=16,
    )
