"""Open-Reasoner-Zero: plain PPO (arXiv:2503.24290)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm, Critic
from rljax.ops.batch import batch_normalized
from rljax.ops.gae import gae, lambda_returns
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.value import clipped_value_loss
from rljax.ops.weights import token_mean


def open_reasoner_zero(
    *,
    clip: float = 0.2,
    gamma: float = 1.0,
    lambda_: float = 1.0,
    value_clip: float = 0.2,
    eps: float = 1e-8,
    ddof: int = 0,
) -> Algorithm:
    """Open-Reasoner-Zero (arXiv:2503.24290, Section 2): PPO with λ = γ = 1, no KL, no entropy bonus.

    ::

        J = E_t min(ρ_t A'_t, clip(ρ_t, 1-ε, 1+ε) A'_t)      A'_t = (A_t - mean A) / std A      A_t = R - V_old_t
        L_V = E_t ½ max((V_t - R)², (clip(V_t, V_old_t ± c) - R)²)

    Args:
        clip: ε = 0.2.
        gamma: γ = 1.
        lambda_: λ = 1.
        value_clip: c = 0.2 in the reward's unit (the authors' code; the paper does not mention it). Infinity disables it.
        eps: added to the standard deviation of the rollout's advantages (not stated in the paper).
        ddof: delta degrees of freedom of that standard deviation (not stated in the paper).

    Deviations: the authors' code averages both losses first over the tokens of each row, then over the rows; here every
    token has the same weight. The advantages' mean and standard deviation are over all tokens of the rollout. Other settings of the
    paper: learning rates of 1e-6 for the policy and 5e-6 for the critic (`learning_rate_ratio`), 50 warm-up steps, 128 prompts of
    64 responses, and 12 critic updates per policy update (`updates`; pass that many `value_minibatches` to `prepare`).
    """
    return Algorithm(
        advantage=None,
        critic=Critic(
            advantage=partial(gae, gamma=gamma, lambda_=lambda_),
            target=partial(lambda_returns, gamma=gamma, lambda_=lambda_),
            loss=partial(clipped_value_loss, clip=value_clip),
            learning_rate_ratio=5.0,
            updates=12,
        ),
        normalize=partial(batch_normalized, eps=eps, ddof=ddof),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        weights=token_mean,
        group_size=64,
    )
