"""Losses that train a language model on preferences directly, without a reward model.

The losses compare the policy with a reference policy: each takes a response's log-probability, summed over its tokens, under both
policies. All losses are computed in float32 or wider. `rljax.ops.reference_free` has losses without a reference.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import (
    Number,
    check_between,
    check_boolean,
    check_floating,
    check_nonnegative,
    check_positive,
    check_rank,
    check_same_shape,
    in_float32,
)


@in_float32
def implicit_reward(
    logp: Float[Array, "*rows"], ref_logp: Float[Array, "*rows"], *, beta: Number = 0.1
) -> Float[Array, "*rows"]:
    """The reward for which this policy is optimal under a KL penalty of weight β.

    ::

        r̂(x, y) = β log(π(y|x) / π_ref(y|x))

    The complete reward has another term, which depends only on the prompt and cancels between two responses to one prompt.

    Args:
        logp: log π(y|x), summed over the response's tokens, nats, `[...]`.
        ref_logp: log π_ref(y|x), summed, nats, of the same shape.
        beta: β, weight of the KL penalty, reward per nat, positive.

    Returns:
        `[...]`, units of reward; 0 for the reference itself.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or β not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> implicit_reward(jnp.array([-3.0]), jnp.array([-5.0]), beta=0.5).tolist()
        [1.0]

    Source:
        DPO, arXiv:2305.18290, Section 4, which defines r̂ below the gradient; Eq. 5 includes the prompt's term.
    """
    check_floating(logp=logp, ref_logp=ref_logp)
    check_same_shape(logp=logp, ref_logp=ref_logp)
    check_positive(beta=beta)
    return beta * (logp - ref_logp)


@in_float32
def dpo_loss(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    ref_chosen: Float[Array, "*pairs"],
    ref_rejected: Float[Array, "*pairs"],
    *,
    beta: Number = 0.1,
) -> Float[Array, "*pairs"]:
    """Negative log-likelihood of a preference, if a response's reward is β times its log-ratio to the reference policy.

    ::

        L = -log σ(β h)        h = log(π(y_w|x) / π_ref(y_w|x)) - log(π(y_l|x) / π_ref(y_l|x))

        ∇L = -β σ(-β h) [∇log π(y_w|x) - ∇log π(y_l|x)]

    L is computed as log(1 + exp(-β h)) without overflow. If policy and reference agree, h = 0, L = log 2, and ∂L/∂h = -β/2.

    Args:
        chosen: log π(y_w|x) of the preferred response, summed over its tokens, nats, carries the gradient, `[...]`.
        rejected: log π(y_l|x) of the rejected response, summed, carries the gradient, of the same shape.
        ref_chosen: log π_ref(y_w|x), summed, of the same shape.
        ref_rejected: log π_ref(y_l|x), summed, of the same shape.
        beta: β, strength of the pull towards the reference, positive; the larger β, the smaller the h that reaches the same loss.

    Returns:
        `[...]`, nats, to be minimized as a mean over the pairs.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or β not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> two = jnp.array([-4.0, -300.0]), jnp.array([-6.0, -100.0])
        >>> loss = dpo_loss(*two, jnp.array([-4.0, -200.0]), jnp.array([-6.0, -200.0]), beta=0.5)
        >>> [round(number, 4) for number in loss.tolist()]
        [0.6931, 100.0]

    Source:
        DPO, arXiv:2305.18290, Eq. 7; the gradient is the equation in Section 4. β = 0.1 in its experiments.
    """
    check_positive(beta=beta)
    return jax.nn.softplus(-beta * _margin(chosen, rejected, ref_chosen, ref_rejected))


@in_float32
def conservative_dpo_loss(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    ref_chosen: Float[Array, "*pairs"],
    ref_rejected: Float[Array, "*pairs"],
    *,
    beta: Number = 0.1,
    epsilon: Number,
) -> Float[Array, "*pairs"]:
    """DPO for noisy preference labels: cross-entropy with smoothed labels.

    ::

        L = -(1 - ε) log σ(β h) - ε log σ(-β h)        h as in `dpo_loss`

    Unlike DPO's loss, L has its minimum at a finite h, where σ(β h) = 1 - ε; beyond this h the gradient changes sign.

    Args:
        chosen: log π(y_w|x) of the preferred response, summed over its tokens, nats, carries the gradient, `[...]`.
        rejected: log π(y_l|x) of the rejected response, summed, carries the gradient, of the same shape.
        ref_chosen: log π_ref(y_w|x), summed, of the same shape.
        ref_rejected: log π_ref(y_l|x), summed, of the same shape.
        beta: β, strength of the pull towards the reference, positive.
        epsilon: ε, probability that a label is wrong, from 0 (DPO) to 0.5 (labels carry no information).

    Returns:
        `[...]`, nats, to be minimized as a mean over the pairs.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, β not positive, or ε outside [0, 0.5].

    Example:
        >>> import jax.numpy as jnp
        >>> zero = jnp.zeros(1)
        >>> round(float(conservative_dpo_loss(jnp.array([20.0]), zero, zero, zero, beta=1.0, epsilon=0.1)[0]), 4)
        2.0

    Source:
        Convention: cDPO, E. Mitchell, "A note on DPO with noisy preferences & relationship to IPO" (2023), Eq. 3, as in its
        author's code (eric-mitchell/direct-preference-optimization, `preference_loss`); ε = 0 gives DPO, arXiv:2305.18290, Eq. 7.
    """
    check_positive(beta=beta)
    check_between(0, 0.5, epsilon=epsilon)
    logit = beta * _margin(chosen, rejected, ref_chosen, ref_rejected)
    return (1 - epsilon) * jax.nn.softplus(-logit) + epsilon * jax.nn.softplus(logit)


@in_float32
def robust_dpo_loss(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    ref_chosen: Float[Array, "*pairs"],
    ref_rejected: Float[Array, "*pairs"],
    *,
    beta: Number = 0.1,
    epsilon: Number,
) -> Float[Array, "*pairs"]:
    """DPO for noisy preference labels: an unbiased estimate of DPO's loss under the correct labels.

    ::

        L = (-(1 - ε) log σ(β h) + ε log σ(-β h)) / (1 - 2ε)        h as in `dpo_loss`

    The mean of L over labels that are wrong with probability ε is DPO's loss under the correct labels. L is negative for pairs
    with a large margin h. Unlike the loss of `conservative_dpo_loss`, L always decreases as h grows.

    Args:
        chosen: log π(y_w|x) of the preferred response, summed over its tokens, nats, carries the gradient, `[...]`.
        rejected: log π(y_l|x) of the rejected response, summed, carries the gradient, of the same shape.
        ref_chosen: log π_ref(y_w|x), summed, of the same shape.
        ref_rejected: log π_ref(y_l|x), summed, of the same shape.
        beta: β, strength of the pull towards the reference, positive.
        epsilon: ε, probability that a label is wrong, from 0 (DPO) to below 0.5.

    Returns:
        `[...]`, nats, to be minimized as a mean over the pairs; the loss has no lower bound.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, β not positive, or ε outside [0, 0.5).

    Example:
        >>> import jax.numpy as jnp
        >>> zero = jnp.zeros(1)
        >>> round(float(robust_dpo_loss(jnp.array([20.0]), zero, zero, zero, beta=1.0, epsilon=0.1)[0]), 4)
        -2.5

    Source:
        Robust DPO (rDPO), arXiv:2403.00409, Section 3: the unbiased loss for a known flip rate.
    """
    check_positive(beta=beta)
    check_between(0, 0.5, epsilon=epsilon)
    check_positive(**{"1 - 2 * epsilon": 1 - 2 * epsilon})
    logit = beta * _margin(chosen, rejected, ref_chosen, ref_rejected)
    return ((1 - epsilon) * jax.nn.softplus(-logit) - epsilon * jax.nn.softplus(logit)) / (1 - 2 * epsilon)


@in_float32
def ipo_loss(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    ref_chosen: Float[Array, "*pairs"],
    ref_rejected: Float[Array, "*pairs"],
    *,
    tau: Number = 0.1,
) -> Float[Array, "*pairs"]:
    """Squared distance between a pair's margin h and a fixed target, so that deterministic preferences cannot drive h to infinity.

    ::

        L = (h - 1/(2τ))²        h as in `dpo_loss`

    Args:
        chosen: log π(y_w|x) of the preferred response, nats, carries the gradient, `[...]`. In the equation π(y|x) is the full
            response's probability, so the tokens' log-probabilities are summed. On the authors' advice, TRL instead averages
            them over the tokens, for both policy and reference.
        rejected: log π(y_l|x) of the rejected response, carries the gradient, of the same shape.
        ref_chosen: log π_ref(y_w|x), of the same shape.
        ref_rejected: log π_ref(y_l|x), of the same shape.
        tau: τ, strength of the regularization, positive; the smaller τ, the larger the target 1/(2τ), in nats.

    Returns:
        `[...]`, nats squared, to be minimized as a mean over the pairs.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or τ not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> zero = jnp.zeros(2)
        >>> ipo_loss(jnp.array([0.0, 5.0]), zero, zero, zero, tau=0.1).tolist()
        [25.0, 0.0]

    Source:
        IPO, arXiv:2310.12036, Eq. 17.
    """
    check_positive(tau=tau)
    return jnp.square(_margin(chosen, rejected, ref_chosen, ref_rejected) - 1 / (2 * tau))


@in_float32
def hinge_preference_loss(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    ref_chosen: Float[Array, "*pairs"],
    ref_rejected: Float[Array, "*pairs"],
    *,
    beta: Number = 0.1,
) -> Float[Array, "*pairs"]:
    """Hinge loss on the margin h of the preferred response: a pair with h above 1/β contributes no gradient.

    ::

        L = max(0, 1 - β h)        h as in `dpo_loss`

    Args:
        chosen: log π(y_w|x) of the preferred response, summed over its tokens, nats, carries the gradient, `[...]`.
        rejected: log π(y_l|x) of the rejected response, summed, carries the gradient, of the same shape.
        ref_chosen: log π_ref(y_w|x), summed, of the same shape.
        ref_rejected: log π_ref(y_l|x), summed, of the same shape.
        beta: β, positive; 1/β is the margin beyond which the loss is 0, nats.

    Returns:
        `[...]`, to be minimized as a mean over the pairs.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or β not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> zero = jnp.zeros(2)
        >>> hinge_preference_loss(jnp.array([0.5, 4.0]), zero, zero, zero, beta=0.5).tolist()
        [0.75, 0.0]

    Source:
        SLiC-HF, arXiv:2305.10425, applied to log-ratios to a reference, which is the hinge-norm loss of RSO, arXiv:2309.06657.
    """
    check_positive(beta=beta)
    return jax.nn.relu(1 - beta * _margin(chosen, rejected, ref_chosen, ref_rejected))


@in_float32
def apo_zero_loss(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    ref_chosen: Float[Array, "*pairs"],
    ref_rejected: Float[Array, "*pairs"],
    *,
    beta: Number = 0.1,
) -> Float[Array, "*pairs"]:
    """APO-zero: make the preferred response more likely than under the reference, and the rejected response less likely.

    ::

        L = σ(β h_l) - σ(β h_w)        h_i = log π(y_i|x)/π_ref(y_i|x)

    Use it if the policy is worse than the preferred responses. DPO constrains only h_w - h_l, so h_w and h_l may both decrease.

    Args:
        chosen: log π(y_w|x) of the preferred response, summed over its tokens, nats, carries the gradient, `[...]`.
        rejected: log π(y_l|x) of the rejected response, summed, carries the gradient, of the same shape.
        ref_chosen: log π_ref(y_w|x), summed, of the same shape.
        ref_rejected: log π_ref(y_l|x), summed, of the same shape.
        beta: β, positive.

    Returns:
        `[...]`, in (-1, 1), to be minimized as a mean over the pairs.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or β not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> zero = jnp.zeros(1)
        >>> round(float(apo_zero_loss(jnp.array([2.0]), jnp.array([-2.0]), zero, zero, beta=1.0)[0]), 4)
        -0.7616

    Source:
        APO, arXiv:2408.06266, APO-zero; TRL adds 1 to the loss.
    """
    check_positive(beta=beta)
    chosen_log_ratio, rejected_log_ratio = _log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    return jax.nn.sigmoid(beta * rejected_log_ratio) - jax.nn.sigmoid(beta * chosen_log_ratio)


@in_float32
def apo_down_loss(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    ref_chosen: Float[Array, "*pairs"],
    ref_rejected: Float[Array, "*pairs"],
    *,
    beta: Number = 0.1,
) -> Float[Array, "*pairs"]:
    """APO-down: make both responses less likely than under the reference, the rejected one more so than the preferred one.

    ::

        L = σ(β h_w) - σ(β (h_w - h_l))        h_i = log π(y_i|x)/π_ref(y_i|x)

    Use it if the policy is better than the preferred responses.

    Args:
        chosen: log π(y_w|x) of the preferred response, summed over its tokens, nats, carries the gradient, `[...]`.
        rejected: log π(y_l|x) of the rejected response, summed, carries the gradient, of the same shape.
        ref_chosen: log π_ref(y_w|x), summed, of the same shape.
        ref_rejected: log π_ref(y_l|x), summed, of the same shape.
        beta: β, positive.

    Returns:
        `[...]`, in (-1, 1), to be minimized as a mean over the pairs.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or β not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> zero = jnp.zeros(1)
        >>> round(float(apo_down_loss(jnp.array([-1.0]), jnp.array([-3.0]), zero, zero, beta=1.0)[0]), 4)
        -0.6119

    Source:
        APO, arXiv:2408.06266, APO-down; TRL adds 1 to the loss.
    """
    check_positive(beta=beta)
    chosen_log_ratio, rejected_log_ratio = _log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    return jax.nn.sigmoid(beta * chosen_log_ratio) - jax.nn.sigmoid(beta * (chosen_log_ratio - rejected_log_ratio))


@in_float32
def rebel_loss(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    ref_chosen: Float[Array, "*pairs"],
    ref_rejected: Float[Array, "*pairs"],
    reward_gap: Float[Array, "*pairs"],
    *,
    eta: Number = 1.0,
) -> Float[Array, "*pairs"]:
    """Squared error of a pair's reward difference, predicted from the responses' log-ratios to the policy that sampled them.

    ::

        L = (h / η - (r(x, y) - r(x, y')))²        h = log(π(y|x) / π_old(y|x)) - log(π(y'|x) / π_old(y'|x))

    Both responses were sampled from π_old. Before the first update h = 0, and the gradient is -4/η times the pair's policy
    gradient with a leave-one-out baseline (RLOO). If the rewards are equal, the loss keeps the two log-ratios equal. Either
    response may be passed as `chosen`, if the sign of `reward_gap` matches.

    Args:
        chosen: log π(y|x) of one response, summed over its tokens, nats, carries the gradient, `[...]`.
        rejected: log π(y'|x) of the other response, summed, carries the gradient, of the same shape.
        ref_chosen: log π_old(y|x), summed, of the same shape.
        ref_rejected: log π_old(y'|x), summed, of the same shape.
        reward_gap: r(x, y) - r(x, y'), units of reward, of the same shape.
        eta: η, size of the policy's step in nats per unit of reward, positive; 1/η is the weight of the KL divergence from π_old.

    Returns:
        `[...]`, units of reward squared, to be minimized as a mean over the pairs.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or η not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> two = jnp.array([-4.0, -3.0]), jnp.array([-6.0, -6.0])
        >>> old = jnp.array([-4.0, -4.0]), jnp.array([-6.0, -6.0])
        >>> rebel_loss(*two, *old, jnp.array([0.5, 0.5]), eta=2.0).tolist()
        [0.25, 0.0]

    Source:
        REBEL, arXiv:2404.16767, Algorithm 1. Its authors' code computes (h - η (r - r'))², which is η² times as large.
    """
    check_positive(eta=eta)
    check_floating(reward_gap=reward_gap)
    check_same_shape(chosen=chosen, reward_gap=reward_gap)
    return jnp.square(_margin(chosen, rejected, ref_chosen, ref_rejected) / eta - reward_gap)


@in_float32
def kto_reference_point(logp: Float[Array, "*rows N"], ref_logp: Float[Array, "*rows N"]) -> Float[Array, ""]:
    """KL divergence from the reference, estimated on responses paired with other prompts. No gradient flows through it.

    ::

        z_0 = sg[max(0, (1/N) Σ_i log(π(y_j|x_i) / π_ref(y_j|x_i)))]        j ≠ i

    The estimate needs no sampling, but is biased because y_j was not sampled from π(·|x_i). The full batch shares one z_0.

    Args:
        logp: log π(y_j|x_i) of a response under another example's prompt, summed over its tokens, nats, `[..., N]`.
        ref_logp: log π_ref(y_j|x_i), summed, of the same shape.

    Returns:
        z_0, one number, nats, not negative.

    Raises:
        ValueError: an argument that is not floating point, no examples, or mismatched shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> float(kto_reference_point(jnp.array([-9.0, -9.0]), jnp.array([-12.0, -10.0])))
        2.0

    Source:
        KTO, arXiv:2402.01306, z_0 in Eq. 8, and the paper's estimate of z_0 over a microbatch.
    """
    check_floating(logp=logp, ref_logp=ref_logp)
    check_rank(1, logp=logp)
    check_same_shape(logp=logp, ref_logp=ref_logp)
    return jax.lax.stop_gradient(jnp.maximum((logp - ref_logp).mean(), 0))


@in_float32
def kto_loss(
    logp: Float[Array, "*rows"],
    ref_logp: Float[Array, "*rows"],
    desirable: Bool[Array, "*rows"],
    *,
    reference_point: Number,
    beta: Number = 0.1,
    desirable_weight: Number = 1.0,
    undesirable_weight: Number = 1.0,
) -> Float[Array, "*rows"]:
    """KTO's loss: a response's maximum value minus its value, which saturates for gains and losses relative to a reference point.

    ::

        L = λ_y - v(x, y)        v = λ_D σ(β (r - z_0)) if y is desirable, λ_U σ(β (z_0 - r)) if not
                                 r = log(π(y|x) / π_ref(y|x))

    Each response is a separate example, so no pairs are needed. The loss is between 0 and λ_y, and its slope in r vanishes far
    from z_0 on either side, so an example that the policy cannot learn is effectively ignored.

    Args:
        logp: log π(y|x), summed over the response's tokens, nats, carries the gradient, `[...]`.
        ref_logp: log π_ref(y|x), summed, of the same shape.
        desirable: whether a response is wanted, boolean, of the same shape.
        reference_point: z_0, nats, not negative; see `kto_reference_point`.
        beta: β, how fast utility saturates, per nat, positive.
        desirable_weight: λ_D, weight of wanted responses, not negative.
        undesirable_weight: λ_U, weight of unwanted responses, not negative.

    Returns:
        `[...]`, dimensionless, to be minimized as a mean over the examples.

    Raises:
        ValueError: an argument that is not floating point or not boolean, mismatched shapes, β not positive, or a negative
            `reference_point` or weight.

    Example:
        >>> import jax.numpy as jnp
        >>> logp, wanted = jnp.array([-5.0, -5.0]), jnp.array([True, False])
        >>> loss = kto_loss(logp, jnp.array([-7.0, -5.0]), wanted, reference_point=1.0, beta=1.0)
        >>> [round(number, 4) for number in loss.tolist()]
        [0.2689, 0.2689]

    Source:
        KTO, arXiv:2402.01306, Eq. 8. λ_D = λ_U = 1 suits data with as many desirable as undesirable examples.
    """
    check_floating(logp=logp, ref_logp=ref_logp)
    check_boolean(desirable=desirable)
    check_same_shape(logp=logp, ref_logp=ref_logp, desirable=desirable)
    check_positive(beta=beta)
    check_nonnegative(
        reference_point=reference_point, desirable_weight=desirable_weight, undesirable_weight=undesirable_weight
    )
    gain = beta * (logp - ref_logp - reference_point)
    # σ(-x) equals 1 - σ(x) without the rounding error of the subtraction.
    return jnp.where(desirable, desirable_weight * jax.nn.sigmoid(-gain), undesirable_weight * jax.nn.sigmoid(gain))


def _log_ratios(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    ref_chosen: Float[Array, "*pairs"],
    ref_rejected: Float[Array, "*pairs"],
) -> tuple[Float[Array, "*pairs"], Float[Array, "*pairs"]]:
    """h_w and h_l: the two responses' log-ratios to the reference."""
    logps = {"chosen": chosen, "rejected": rejected, "ref_chosen": ref_chosen, "ref_rejected": ref_rejected}
    check_floating(**logps)
    check_same_shape(**logps)
    return chosen - ref_chosen, rejected - ref_rejected


def _margin(*logps: Float[Array, "*pairs"]) -> Float[Array, "*pairs"]:
    """h = h_w - h_l, the margin: the difference between the two responses' log-ratios to the reference."""
    chosen_log_ratio, rejected_log_ratio = _log_ratios(*logps)
    return chosen_log_ratio - rejected_log_ratio
