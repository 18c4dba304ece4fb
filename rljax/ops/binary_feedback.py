"""Binary classifier optimization (BCO): learning from single responses that are each labeled as wanted or unwanted.

The reward is `rljax.ops.direct_preference.implicit_reward`. All losses are computed in float32 or wider.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import (
    Number,
    check_between,
    check_boolean,
    check_floating,
    check_rank,
    check_same_shape,
    in_float32,
    ratio_or_zero,
)
from rljax.ops.direct_preference import implicit_reward


@in_float32
def bco_reward_shift(
    logp: Float[Array, "*rows N"],
    ref_logp: Float[Array, "*rows N"],
    desirable: Bool[Array, "*rows N"],
    *,
    beta: Number = 0.1,
) -> Float[Array, ""]:
    """Midpoint between the mean reward of wanted responses and the mean reward of unwanted ones. No gradient flows through it.

    ::

        δ = sg[(mean{r_i : y_i is desirable} + mean{r_i : y_i is not}) / 2]        r_i = β log(π(y_i|x_i) / π_ref(y_i|x_i))

    All responses in the batch share one δ. If they are all wanted or all unwanted, δ is their mean reward; the paper's average
    requires both kinds.

    Args:
        logp: log π(y|x), summed over the response's tokens, nats, `[..., N]`.
        ref_logp: log π_ref(y|x), summed, of the same shape.
        desirable: whether a response is wanted, boolean, of the same shape.
        beta: β, weight of the KL penalty, reward per nat, positive.

    Returns:
        δ, one number in units of reward, of either sign.

    Raises:
        ValueError: an argument that is not floating point or not boolean, no responses, mismatched shapes, or β not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> logp, wanted = jnp.array([-1.0, -3.0, -8.0]), jnp.array([True, True, False])
        >>> float(bco_reward_shift(logp, jnp.array([-5.0, -5.0, -5.0]), wanted, beta=1.0))
        0.0

    Source:
        BCO, arXiv:2404.04656, Eq. 7. The paper uses a moving average of δ over the updates, without stating its rate.
    """
    check_floating(logp=logp, ref_logp=ref_logp)
    check_rank(1, logp=logp)
    check_boolean(desirable=desirable)
    check_same_shape(logp=logp, ref_logp=ref_logp, desirable=desirable)
    reward = implicit_reward(logp, ref_logp, beta=beta)
    kinds = [desirable, ~desirable]
    counts = jnp.stack([kind.sum().astype(reward.dtype) for kind in kinds])
    means = ratio_or_zero(jnp.stack([jnp.where(kind, reward, 0).sum() for kind in kinds]), counts)
    return jax.lax.stop_gradient(means.sum() / (counts > 0).sum().astype(reward.dtype))


@in_float32
def bco_loss(
    logp: Float[Array, "*rows"],
    ref_logp: Float[Array, "*rows"],
    desirable: Bool[Array, "*rows"],
    *,
    reward_shift: Number,
    beta: Number = 0.1,
) -> Float[Array, "*rows"]:
    """Cross-entropy of a classifier of wanted responses, whose logit is the response's reward minus a shift.

    ::

        L = -log σ(r - δ) if y is desirable, -log σ(δ - r) if not        r = β log(π(y|x) / π_ref(y|x))

    For any δ, the sum of a pair's two losses exceeds DPO's loss; it is closest if δ is the midpoint of the pair's rewards. Unlike
    the slope of KTO's loss, the slope of L does not vanish for a response that is far on the wrong side.

    Args:
        logp: log π(y|x), summed over the response's tokens, nats, carries the gradient, `[...]`.
        ref_logp: log π_ref(y|x), summed, of the same shape.
        desirable: whether a response is wanted, boolean, of the same shape.
        reward_shift: δ, in units of reward; see `bco_reward_shift`. 0 gives the paper's BCE loss.
        beta: β, weight of the KL penalty, reward per nat, positive.

    Returns:
        `[...]`, nats. Minimize the mean over the wanted responses plus the mean over the unwanted ones. For pairs, this is
        the mean over pairs of the sum of the two losses.

    Raises:
        ValueError: an argument that is not floating point or not boolean, mismatched shapes, δ is NaN, or β not
            positive.

    Example:
        >>> import jax.numpy as jnp
        >>> logp, wanted = jnp.array([-5.0, -5.0]), jnp.array([True, False])
        >>> loss = bco_loss(logp, jnp.array([-7.0, -5.0]), wanted, reward_shift=1.0, beta=1.0)
        >>> [round(number, 4) for number in loss.tolist()]
        [0.3133, 0.3133]

    Source:
        BCO, arXiv:2404.04656, Eq. 8; the bound is its Theorem 3. β = 0.1 in its Appendix C.
    """
    check_boolean(desirable=desirable)
    check_same_shape(logp=logp, desirable=desirable)
    check_between(-jnp.inf, jnp.inf, reward_shift=reward_shift)
    logit = implicit_reward(logp, ref_logp, beta=beta) - reward_shift
    return jax.nn.softplus(jnp.where(desirable, -logit, logit))
