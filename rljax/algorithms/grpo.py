"""GRPO: group relative policy optimisation (arXiv:2402.03300)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.algorithms.terms import kl_to_reference
from rljax.ops.group import group_normalized
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.weights import sequence_mean


def grpo(*, clip: float = 0.2, beta: float = 0.04, eps: float = 1e-6, ddof: int = 1) -> Algorithm:
    """GRPO with outcome supervision (arXiv:2402.03300, Eq. 3).

    ::

        J = (1/G) Σ_i (1/|o_i|) Σ_t [min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i) - β k3_it]      A_i = (r_i - mean r) / std r

    Args:
        clip: ε = 0.2 (the paper states none; PPO's).
        beta: β = 0.04 (Section 4.2), against the reference policy; 0 leaves the term and the reference model out.
        eps: added to the standard deviation (unstated in the paper).
        ddof: of the standard deviation (unstated in the paper).

    Deviations: none known. Other settings of the paper: learning rate 1e-6, 64 responses a prompt, at most 1024 tokens,
    batches of 1024, one update a rollout.
    """
    return Algorithm(
        advantage=partial(group_normalized, eps=eps, ddof=ddof),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        weights=sequence_mean,
        terms=kl_to_reference(beta),
    )
