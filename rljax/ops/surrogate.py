"""Surrogate objectives: per token, unreduced, to be **maximised**.

Each takes a log-ratio (see `rljax.ops.ratio`) and an advantage, both `[..., T]`, and returns `[..., T]`.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.checks import check_floating, check_nonnegative, check_same_shape


def clipped(
    log_ratio: Float[Array, "*rows T"], advantage: Float[Array, "*rows T"], *, low: float = 0.2, high: float = 0.2
) -> Float[Array, "*rows T"]:
    """PPO's pessimistic clip, with a low and a high side of its own.

    ::

        min(ρ A, clip(ρ, 1 - low, 1 + high) A)        ρ = exp(log_ratio)

    Args:
        log_ratio: log ρ, `[..., T]`, nats.
        advantage: A, `[..., T]`.
        low: how far below 1 the ratio is followed when A < 0, in [0, 1].
        high: how far above 1 the ratio is followed when A > 0, not negative.

    Returns:
        `[..., T]`, in the advantage's unit, to be maximised.

    Raises:
        ValueError: the shapes differ, an argument is not floating point, `low` or `high` is negative.

    Example:
        >>> import jax.numpy as jnp
        >>> clipped(jnp.log(jnp.array([2.0, 0.5])), jnp.array([1.0, -1.0]), low=0.25, high=0.5).tolist()
        [1.5, -0.75]

    Source:
        PPO, arXiv:1707.06347, Eq. 7; the two sides apart: DAPO, arXiv:2503.14476, Eq. 8; MF Eqs. 9 and 24.
    """
    check_floating(log_ratio=log_ratio, advantage=advantage)
    check_same_shape(log_ratio=log_ratio, advantage=advantage)
    check_nonnegative(low=low, high=high)
    ratio = jnp.exp(log_ratio)
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - low, 1 + high) * advantage)
