"""PPO: proximal policy optimization with a critic (arXiv:1707.06347)."""

import math
from functools import partial

from rljax.algorithms.algorithm import Algorithm, Critic
from rljax.algorithms.terms import entropy_bonus, kl_penalty
from rljax.ops.gae import gae, lambda_returns
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import dual_clipped
from rljax.ops.value import clipped_value_loss
from rljax.ops.weights import token_mean


def ppo(
    *,
    clip: float = 0.2,
    gamma: float = 1.0,
    lambda_: float = 0.95,
    value_clip: float = 0.2,
    beta: float = 0.0,
    entropy: float = 0.0,
    dual_clip: float = math.inf,
) -> Algorithm:
    """PPO with generalized advantage estimation (arXiv:1707.06347, Eq. 7; arXiv:1506.02438, Eq. 16).

    ::

        J = E_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t)      A_t = Σ_l (γλ)^l δ_{t+l}      δ_t = r_t + γ V_{t+1} - V_t
        L_V = E_t ½ max((V_t - R_t)², (clip(V_t, V_old ± c) - R_t)²)      R_t = A_t + V_old_t
        r_t = [t is last] r - β log(π/π_ref)_t

    Args:
        clip: ε = 0.2 (Section 6.1).
        gamma: γ = 1, as is usual with one reward at the end of a response; 0.99 in the paper's control tasks.
        lambda_: λ = 0.95 (Table 3).
        value_clip: c = 0.2 in the reward's unit (OpenAI Baselines; the paper has no value clip). Infinity disables it.
        beta: β of the KL penalty in the reward; 0 removes it and the reference model. arXiv:1909.08593 adapts β during training.
        entropy: coefficient of an entropy bonus; 0 removes it, as in the paper's control tasks (0.01 on Atari).
        dual_clip: c = 3 in arXiv:1912.09729, a bound on the objective of a token with A < 0; infinity disables it.

    Deviations: the critic is a separate network with its own loss, so the paper's c_1 is not needed. Advantages are not
    whitened, because neither paper does so.
    """
    return Algorithm(
        advantage=None,
        critic=Critic(
            advantage=partial(gae, gamma=gamma, lambda_=lambda_),
            target=partial(lambda_returns, gamma=gamma, lambda_=lambda_),
            loss=partial(clipped_value_loss, clip=value_clip),
        ),
        reward_kl=kl_penalty(beta),
        log_ratio=token_log_ratio,
        surrogate=partial(dual_clipped, low=clip, high=clip, cap=dual_clip),
        weights=token_mean,
        terms=entropy_bonus(entropy),
    )
