"""Importance ratios, in log space.

`logp` carries the gradient, `behaviour_logp` does not: it is data. Every function returns a log-ratio broadcast over the
tokens, `[..., T]`, with 0 outside the mask.
"""

from jaxtyping import Array, Float

from rljax.ops.checks import check_floating, check_same_shape
from rljax.ops.masked import Mask, zero_outside


def token_log_ratio(
    logp: Float[Array, "*rows T"], behaviour_logp: Float[Array, "*rows T"], mask: Mask
) -> Float[Array, "*rows T"]:
    """Log-ratio of each token.

    ::

        log ρ_t = log π_θ(o_t | q, o_<t) - log π_old(o_t | q, o_<t)

    Args:
        logp: log-probabilities under the policy that is trained, `[..., T]`, nats.
        behaviour_logp: under the policy that sampled, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats; 0 outside the mask. Not clamped.

    Raises:
        ValueError: the shapes differ, or the log-probabilities are not floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> token_log_ratio(jnp.array([-1.0, -2.0]), jnp.array([-1.5, 0.0]), jnp.array([1, 0])).tolist()
        [0.5, 0.0]

    Source:
        PPO, arXiv:1707.06347, Eq. 6; GRPO, arXiv:2402.03300, Eq. 3.
    """
    check_floating(logp=logp, behaviour_logp=behaviour_logp)
    check_same_shape(logp=logp, behaviour_logp=behaviour_logp, mask=mask)
    return zero_outside(logp, mask) - zero_outside(behaviour_logp, mask)
