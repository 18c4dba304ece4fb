"""VAPO: value-based augmented PPO (arXiv:2504.05118), and its hybrid with GRPO."""

from functools import partial

from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Algorithm, Critic
from rljax.algorithms.critic_functions import squared_error
from rljax.algorithms.terms import positive_examples
from rljax.ops.gae import gae, lambda_returns, length_adaptive_lambda
from rljax.ops.group import group_normalized
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.unpublished.mixture import mix_advantages
from rljax.ops.unpublished.schedule import hybrid_weight
from rljax.ops.weights import token_mean


def vapo(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    gamma: float = 1.0,
    alpha: float = 0.05,
    value_lambda: float = 1.0,
    positive: float = 0.1,
    pretraining_steps: int = 50,
) -> Algorithm:
    """VAPO (arXiv:2504.05118, Sections 4.1-4.3): PPO with a pretrained critic, decoupled and length-adaptive GAE, and DAPO's clip.

    ::

        J = (1/Σ|o_i|) Σ_i Σ_t min(ρ_it A_it, clip(ρ_it, 1-ε_low, 1+ε_high) A_it) - μ L_NLL
        A_it = Σ_l (γ λ_i)^l δ_{t+l}      λ_i = clip(1 - 1/(α|o_i|), 0, 1)      L_V = mean ½ (V_it - R_it)²
        L_NLL = mean{-log π(o_it) : r_i > 0}      R_it = V_old_it + Σ_l (γ λ_value)^l δ_{t+l}

    Args:
        clip_low: ε_low = 0.2 (Section 5.1).
        clip_high: ε_high = 0.28 (Section 5.1).
        gamma: γ = 1 (Section 5.1).
        alpha: α = 0.05 (Section 5.1).
        value_lambda: λ_value = 1 (Section 4.1).
        positive: μ = 0.1, weight of the positive-example loss (Section 5.1).
        pretraining_steps: rollouts of value warm-up, 50 in the paper (Section 5.1).

    Deviations: λ_i is clipped to [0, 1]; the paper's is negative below 1/α = 20 tokens. Token means are over the full
    optimizer batch. Other settings of the paper: learning rates of 1e-6 for the actor and 2e-6 for the critic
    (`learning_rate_ratio`), 512 prompts with 16 responses each, mini-batches of 512.
    """
    return Algorithm(
        advantage=None,
        critic=Critic(
            advantage=partial(gae, gamma=gamma),
            policy_lambda=partial(length_adaptive_lambda, alpha=alpha),
            target=partial(lambda_returns, gamma=gamma, lambda_=value_lambda),
            loss=squared_error,
            learning_rate_ratio=2.0,
            pretraining_steps=pretraining_steps,
        ),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip_low, high=clip_high),
        weights=token_mean,
        terms=positive_examples(positive),
        group_size=16,
    )


def _mix(critic: Array, group: Array, progress: Array, *, initial: float, decay: float) -> Float[Array, "P G T"]:
    return mix_advantages(critic, group, weight=hybrid_weight(progress, initial=initial, decay=decay, total_steps=1))


def vapo_grpo(
    *,
    initial: float = 1.0,
    decay: float = 3.0,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    gamma: float = 1.0,
    alpha: float = 0.05,
    value_lambda: float = 1.0,
    positive: float = 0.1,
    pretraining_steps: int = 50,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Algorithm:
    """VAPO-GRPO hybrid (unpublished: a design document, Eqs. 58-59): the critic's credit at first, the group's at the end.

    ::

        A_it = α(t) A_it^VAPO + (1 - α(t)) A_i^GRPO      α(t) = α_0 exp(-κ t/T_total)

    Args:
        initial: α_0 = 1, so that training begins as VAPO; the document gives no value.
        decay: κ = 3, so that VAPO's weight is 5 % at the end; the document, which calls κ λ, gives no value.
        clip_low: as in `vapo`.
        clip_high: as in `vapo`.
        gamma: as in `vapo`.
        alpha: as in `vapo`.
        value_lambda: as in `vapo`.
        positive: as in `vapo`.
        pretraining_steps: as in `vapo`.
        eps: added to the group's standard deviation.
        ddof: delta degrees of freedom of the group's standard deviation.

    Deviations: the document defines only the advantage; everything else here is VAPO's. t/T_total is the argument `progress` of
    `prepare`.
    """
    base = vapo(
        clip_low=clip_low,
        clip_high=clip_high,
        gamma=gamma,
        alpha=alpha,
        value_lambda=value_lambda,
        positive=positive,
        pretraining_steps=pretraining_steps,
    )
    return base._replace(
        advantage=partial(group_normalized, eps=eps, ddof=ddof), mix=partial(_mix, initial=initial, decay=decay)
    )
