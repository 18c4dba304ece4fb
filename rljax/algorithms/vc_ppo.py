"""VC-PPO: value-calibrated PPO (arXiv:2503.01491), from secondary descriptions."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm, Critic
from rljax.algorithms.critic_functions import squared_error
from rljax.ops.gae import gae, lambda_returns
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.weights import token_mean


def vc_ppo(
    *,
    clip: float = 0.2,
    gamma: float = 1.0,
    policy_lambda: float = 0.95,
    value_lambda: float = 1.0,
    pretraining_steps: int = 50,
) -> Algorithm:
    """VC-PPO, from secondary descriptions (arXiv:2503.01491): a pretrained critic that has its own λ.

    ::

        J = E_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t)      A_t = Σ_l (γ λ_policy)^l δ_{t+l}
        L_V = E_t ½ (V_t - R_t)²      R_t = V_old_t + Σ_l (γ λ_value)^l δ_{t+l}

    Args:
        clip: ε = 0.2, as in PPO.
        gamma: γ = 1.
        policy_lambda: λ_policy = 0.95, for the policy's advantages only; in the paper's sweep, 0.99 did as well and 1 far worse.
        value_lambda: λ_value = 1, which makes the target the Monte-Carlo return, without bias.
        pretraining_steps: number of rollouts of the fixed initial policy, before RL, from which only the critic learns. The paper
            continues until value loss and explained variance settle; 50 is VAPO's value.

    Deviations: this follows descriptions of the paper (one is by VAPO's authors), not the paper itself. So the ratio of the
    critic's learning rate to the policy's (2, as in VAPO) and the unclipped value loss are not verified against the paper. Value
    pretraining uses the Monte-Carlo return as its target, whatever λ_value is.
    """
    return Algorithm(
        advantage=None,
        critic=Critic(
            advantage=partial(gae, gamma=gamma, lambda_=policy_lambda),
            target=partial(lambda_returns, gamma=gamma, lambda_=value_lambda),
            loss=squared_error,
            learning_rate_ratio=2.0,
            pretraining_steps=pretraining_steps,
        ),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        weights=token_mean,
    )
