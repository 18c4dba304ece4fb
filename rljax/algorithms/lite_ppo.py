"""Lite PPO: PPO's clipped loss without a critic (arXiv:2508.08221)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.batch import centered_over_reward_std
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.weights import token_mean


def lite_ppo(*, clip: float = 0.2, eps: float = 1e-6, ddof: int = 1) -> Algorithm:
    """Lite PPO (arXiv:2508.08221): PPO's clip without a critic; group mean, batch standard deviation, token mean.

    ::

        J = (1/Σ|o_i|) Σ_i Σ_t min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i)
        A_i = (r_i - mean of the group) / (standard deviation of the batch)

    Args:
        clip: ε = 0.2, as in PPO.
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: the batch is the complete rollout, not a minibatch. Other settings of the paper: 8 responses per prompt, no KL.
    """
    return Algorithm(
        advantage=partial(centered_over_reward_std, eps=eps, ddof=ddof),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        weights=token_mean,
        group_size=8,
    )
