"""REINFORCE++: advantages normalized over the full batch (arXiv:2501.03262), with or without a group baseline."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm, Credit
from rljax.algorithms.terms import kl_penalty, kl_to_reference
from rljax.ops.batch import batch_normalized
from rljax.ops.divergence import k2
from rljax.ops.gae import monte_carlo_returns
from rljax.ops.group import group_centered
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.weights import token_mean


def reinforce_pp(*, clip: float = 0.2, beta: float = 0.0, eps: float = 1e-8, ddof: int = 0) -> Algorithm:
    """REINFORCE++ (arXiv:2501.03262): neither critic nor group; one response per prompt is enough.

    ::

        J = E_t min(ρ_t A'_t, clip(ρ_t, 1-ε, 1+ε) A'_t)      A'_t = (A_t - mean A) / std A
        A_t = r - β Σ_{k≥t} log(π/π_ref)_k      mean, std over all tokens of the rollout

    Args:
        clip: ε = 0.2, as in PPO.
        beta: β of the KL penalty in the reward; 0 removes it and the reference model.
        eps: added to the standard deviation; version 9 of the paper prints it without a value (Eqs. 5 and 7).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: Eq. 1 of version 9 takes the mean over the tokens of each response (`weights.sequence_mean`); here every token of
    the optimizer batch has the same weight.
    """
    return Algorithm(
        advantage=Credit(monte_carlo_returns, needs=("token_rewards", "mask")),
        normalize=partial(batch_normalized, eps=eps, ddof=ddof),
        reward_kl=kl_penalty(beta),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        weights=token_mean,
    )


def reinforce_pp_baseline(*, clip: float = 0.2, beta: float = 0.0, eps: float = 1e-8, ddof: int = 0) -> Algorithm:
    """REINFORCE++ with a baseline (arXiv:2501.03262): the reward minus its group's mean, normalized over the batch.

    ::

        J = E_t [min(ρ_t A'_t, clip(ρ_t, 1-ε, 1+ε) A'_t) - β k2_t]      A'_t = (A_t - mean A) / std A
        A_t = r_i - (1/G) Σ_j r_j      mean, std over all tokens of the rollout

    Args:
        clip: ε = 0.2, as in PPO.
        beta: β of the KL penalty in the loss, k2 as in the paper; 0 removes it and the reference model.
        eps: added to the standard deviation; version 9 of the paper prints it without a value (Eqs. 5 and 7).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: Eq. 1 of version 9 takes the mean over the tokens of each response (`weights.sequence_mean`); here every token of
    the optimizer batch has the same weight. Each response enters the mean and the standard deviation once
    per token, as in `reinforce_pp`; `rljax.ops.batch.batch_normalized_rewards` counts it once.
    """
    return reinforce_pp(clip=clip, eps=eps, ddof=ddof)._replace(
        advantage=group_centered, terms=kl_to_reference(beta, estimator=k2)
    )
