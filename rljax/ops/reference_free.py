"""Losses that train a language model on preferences without a reference policy.

They take one number per response: its log-probability, averaged over its tokens (summed for CPO and TPO). All losses are computed
in float32 or wider.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import (
    Number,
    check_between,
    check_floating,
    check_nonnegative,
    check_positive,
    check_same_shape,
    in_float32,
)

LARGEST_ALPHA = 10.0
"""Largest |α| of `alpha_reward`: beyond it, powers of ordinary probabilities leave the range of float32."""


@in_float32
def simpo_loss(
    chosen: Float[Array, "*pairs"], rejected: Float[Array, "*pairs"], *, beta: Number = 2.0, margin: Number = 1.0
) -> Float[Array, "*pairs"]:
    """Negative log-likelihood of a preference, with the average log-probability as the reward and a required margin.

    ::

        L = -log σ(β/|y_w| log π(y_w|x) - β/|y_l| log π(y_l|x) - γ)

    Without a reference policy, only the learning rate keeps the policy near its starting point.

    Args:
        chosen: log π(y_w|x) / |y_w|, the mean log-probability of the preferred response's tokens, nats per token, carries the
            gradient, `[...]`.
        rejected: log π(y_l|x) / |y_l|, likewise for the other response, carries the gradient, of the same shape.
        beta: β, scale of the reward, positive; larger than DPO's, because an average is smaller than a sum.
        margin: γ, the required lead of the preferred response, in units of reward, not negative.

    Returns:
        `[...]`, nats, to be minimized as a mean over the pairs.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, β not positive, or a negative margin.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(simpo_loss(jnp.array([-1.0]), jnp.array([-1.5]), beta=2.0, margin=1.0)[0]), 4)
        0.6931

    Source:
        SimPO, arXiv:2405.14734, Eq. 6. β = 2 and γ/β = 0.5 are its authors' values for Llama 3 Base (princeton-nlp/SimPO, README).
    """
    check_floating(chosen=chosen, rejected=rejected)
    check_same_shape(chosen=chosen, rejected=rejected)
    check_positive(beta=beta)
    check_nonnegative(margin=margin)
    return jax.nn.softplus(margin - beta * (chosen - rejected))


@in_float32
def alpha_reward(mean_logp: Float[Array, "*rows"], *, alpha: Number) -> Float[Array, "*rows"]:
    """Reward that is a power of the response's length-normalized probability, instead of its logarithm.

    ::

        r(x, y) = (1 - P^-α) / α        P = π(y|x)^(1/|y|)        log P in the limit α = 0

    Its slope in log P is P^-α, while the logarithm's is 1. So for unlikely responses this reward is steeper than the logarithm if
    α > 0, and flatter if α < 0.

    Args:
        mean_logp: log P, the response's log-probability averaged over its tokens, nats per token, `[...]`.
        alpha: α, in [-10, 10]; 0 is SimPO's reward without its β.

    Returns:
        `[...]`; 0 where P = 1.

    Raises:
        ValueError: `mean_logp` is not floating point, or α is outside [-10, 10].

    Example:
        >>> import jax.numpy as jnp
        >>> [round(number, 4) for number in alpha_reward(jnp.log(jnp.array([0.25, 1.0])), alpha=0.5).tolist()]
        [-2.0, 0.0]

    Source:
        AlphaPO, arXiv:2501.03884, its α-parametrized reward, without β.
    """
    check_floating(mean_logp=mean_logp)
    check_between(-LARGEST_ALPHA, LARGEST_ALPHA, alpha=alpha)
    alpha = jnp.asarray(alpha, mean_logp.dtype)
    power = jnp.where(alpha == 0, 1, alpha)
    return jnp.where(alpha == 0, mean_logp, -jnp.expm1(-power * mean_logp) / power)


@in_float32
def alphapo_loss(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    *,
    alpha: Number = 0.25,
    beta: Number = 2.5,
    margin: Number = 0.25,
) -> Float[Array, "*pairs"]:
    """SimPO with a different reward: a power of the length-normalized probability, as in `alpha_reward`.

    ::

        L = -log σ(β r(x, y_w) - β r(x, y_l) - γ)        r = (1 - P^-α) / α        P = π(y|x)^(1/|y|)

    Args:
        chosen: log P, the mean log-probability of the preferred response's tokens, nats per token, carries the gradient, `[...]`.
        rejected: log P, likewise for the other response, carries the gradient, of the same shape.
        alpha: α, shape of the reward; 0 is SimPO.
        beta: β, scale of the reward, positive.
        margin: γ, the required lead of the preferred response, in units of βr, not negative.

    Returns:
        `[...]`, nats, to be minimized as a mean over the pairs.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, α outside [-10, 10], β not positive, or γ negative.

    Example:
        >>> import jax.numpy as jnp
        >>> pair = jnp.log(jnp.array([0.25])), jnp.log(jnp.array([0.25]))
        >>> round(float(alphapo_loss(*pair, alpha=0.5, beta=2.0, margin=0.0)[0]), 4)
        0.6931

    Source:
        AlphaPO, arXiv:2501.03884, Eq. 4, as in the trainer that its authors wrote for TRL. The defaults are their values for
        Mistral Instruct; that trainer's parameter is γ/β, so the 0.1 in the paper's Table 3 means γ = 0.1 · 2.5 = 0.25.
    """
    check_floating(chosen=chosen, rejected=rejected)
    check_same_shape(chosen=chosen, rejected=rejected)
    return simpo_loss(alpha_reward(chosen, alpha=alpha), alpha_reward(rejected, alpha=alpha), beta=beta, margin=margin)


@in_float32
def log_odds(mean_logp: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
    """Log-odds of a response: how much likelier it is to be generated than not.

    ::

        log odds(y|x) = log(P / (1 - P)) = log P - log(1 - exp(log P))        log P = (1/|y|) log π(y|x)

    At P = 1 the odds are infinite, so log P is capped at -ε, where ε is the machine epsilon; above the cap the gradient is 0.

    Args:
        mean_logp: log P, the response's log-probability averaged over its tokens, nats per token, not positive, `[...]`.

    Returns:
        `[...]`, nats; 0 where P = 1/2.

    Raises:
        ValueError: `mean_logp` is not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(number, 4) for number in log_odds(jnp.log(jnp.array([0.5, 0.8]))).tolist()]
        [0.0, 1.3863]

    Source:
        ORPO, arXiv:2403.07691, Eq. 4, with P from Eq. 3.
    """
    check_floating(mean_logp=mean_logp)
    capped = jnp.minimum(mean_logp, -jnp.finfo(mean_logp.dtype).eps)
    return capped - jax.nn.log1mexp(-capped)


def odds_ratio_loss(chosen: Float[Array, "*pairs"], rejected: Float[Array, "*pairs"]) -> Float[Array, "*pairs"]:
    """Negative log-likelihood of a preference, with the log-odds as the reward.

    ::

        L_OR = -log σ(log odds(y_w|x) - log odds(y_l|x))

    Args:
        chosen: log P, the mean log-probability of the preferred response's tokens, nats per token, carries the gradient, `[...]`.
        rejected: log P, likewise for the other response, carries the gradient, of the same shape.

    Returns:
        `[...]`, nats; log 2 if both responses are equally likely.

    Raises:
        ValueError: an argument that is not floating point, or mismatched shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(odds_ratio_loss(jnp.log(jnp.array([0.5])), jnp.log(jnp.array([0.25])))[0]), 4)
        0.2877

    Source:
        ORPO, arXiv:2403.07691, Eq. 7.
    """
    check_floating(chosen=chosen, rejected=rejected)
    check_same_shape(chosen=chosen, rejected=rejected)
    return jax.nn.softplus(log_odds(rejected) - log_odds(chosen))


@in_float32
def orpo_loss(
    chosen: Float[Array, "*pairs"], rejected: Float[Array, "*pairs"], *, coefficient: Number = 0.1
) -> Float[Array, "*pairs"]:
    """Negative log-likelihood of the preferred response, plus the odds-ratio loss as a penalty.

    ::

        L = L_SFT + λ L_OR        L_SFT = -(1/|y_w|) log π(y_w|x)        L_OR as in `odds_ratio_loss`

    Args:
        chosen: log P, the mean log-probability of the preferred response's tokens, nats per token, carries the gradient, `[...]`.
        rejected: log P, likewise for the other response, carries the gradient, of the same shape.
        coefficient: λ, weight of the penalty, not negative.

    Returns:
        `[...]`, nats, to be minimized as a mean over the pairs.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or a negative coefficient.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(orpo_loss(jnp.log(jnp.array([0.5])), jnp.log(jnp.array([0.25])), coefficient=1.0)[0]), 4)
        0.9808

    Source:
        ORPO, arXiv:2403.07691, Eq. 6; L_SFT averages over response tokens only. λ = 0.1 is its authors' value for Mistral
        (xfactlab/orpo, `scripts/run_mistral_orpo_beta.sh`).
    """
    check_nonnegative(coefficient=coefficient)
    penalty = odds_ratio_loss(chosen, rejected)
    return coefficient * penalty - chosen.astype(penalty.dtype)


@in_float32
def cpo_loss(
    chosen: Float[Array, "*pairs"], rejected: Float[Array, "*pairs"], *, beta: Number = 0.1, coefficient: Number = 1.0
) -> Float[Array, "*pairs"]:
    """DPO's loss with a uniform reference, plus the negative log-likelihood of the preferred response.

    ::

        L = -log σ(β log π(y_w|x) - β log π(y_l|x)) - λ log π(y_w|x)

    Args:
        chosen: log π(y_w|x) of the preferred response, summed over its tokens, nats, carries the gradient, `[...]`.
        rejected: log π(y_l|x) of the other response, summed over its tokens, carries the gradient, of the same shape.
        beta: β, scale of the reward, positive.
        coefficient: λ, weight of the imitation term, not negative; 1 in the paper.

    Returns:
        `[...]`, nats, to be minimized as a mean over the pairs.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, β not positive, or a negative coefficient.

    Example:
        >>> import jax.numpy as jnp
        >>> round(float(cpo_loss(jnp.array([-1.0]), jnp.array([-1.0]), beta=1.0, coefficient=1.0)[0]), 4)
        1.6931

    Source:
        CPO, arXiv:2401.08417, the sum of its L_prefer and L_NLL; its authors' code averages L_NLL over the tokens.
    """
    check_floating(chosen=chosen, rejected=rejected)
    check_same_shape(chosen=chosen, rejected=rejected)
    check_positive(beta=beta)
    check_nonnegative(coefficient=coefficient)
    return jax.nn.softplus(-beta * (chosen - rejected)) - coefficient * chosen


@in_float32
def tpo_loss(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    gold: Float[Array, "*pairs"],
    *,
    beta: Number = 0.01,
    margin: Number = 0.0,
    coefficient: Number = 1.0,
) -> Float[Array, "*pairs"]:
    """Preference loss on two responses, plus imitation of a third response that is better than both.

    ::

        L = -log σ(β log π(y_w|x) - β log π(y_l|x) - γ) - α (1/|y_g|) log π(y_g|x)

    The imitation term replaces the supervised training that usually precedes preference training. Its gold response is not part
    of the pair, so the two terms have no log-probability in common.

    Args:
        chosen: log π(y_w|x) of the preferred response, summed over its tokens, or averaged in TPO-L, nats, carries the gradient,
            `[...]`.
        rejected: log π(y_l|x) of the other response, likewise, of the same shape.
        gold: (1/|y_g|) log π(y_g|x), the mean log-probability of the tokens of the third, gold response, nats per token, carries
            the gradient, of the same shape.
        beta: β, scale of the reward, positive.
        margin: γ, the required lead of the preferred response, in units of the reward, not negative; 0 in TPO.
        coefficient: α, weight of the imitation term, not negative.

    Returns:
        `[...]`, nats, to be minimized as a mean over the triples.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, β not positive, or a negative margin or coefficient.

    Example:
        >>> import jax.numpy as jnp
        >>> one = jnp.array([-1.0])
        >>> round(float(tpo_loss(one, one, 2 * one, beta=1.0, coefficient=0.5)[0]), 4)
        1.6931

    Source:
        TPO, arXiv:2405.16681, its preference term with the reward β log π, plus α times the negative log-likelihood of the
        gold response. Its authors' code (sahsaeedi/triple-preference-optimization, `TPOTrainer`) and TRL average this term over
        tokens. TPO-L adds a margin and averages log-probabilities. β = 0.01 and α = 1 are its authors' values for base models.
    """
    check_floating(gold=gold)
    check_same_shape(chosen=chosen, gold=gold)
    check_nonnegative(coefficient=coefficient)
    return simpo_loss(chosen, rejected, beta=beta, margin=margin) - coefficient * gold
