"""A bound on the importance ratio, in log space."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import check_at_least, check_floating, in_float32


@in_float32
def bounded_ratio(log_ratio: Float[Array, "*rows T"], *, bound: float) -> Float[Array, "*rows T"]:
    """Log-ratio clamped so that the ratio stays between 1/C and C.

    A clamped token has no gradient, so clamping changes the objective.

    ::

        log clip(ρ, 1/C, C)  =  clip(log ρ, -log C, log C)

    Args:
        log_ratio: log ρ, `[..., T]`, nats.
        bound: C, the largest ratio, at least 1. The source uses 10.

    Returns:
        `[..., T]`, nats: still a *log*-ratio. Compare with `log_ratio` to count the clamped tokens.

    Raises:
        ValueError: `log_ratio` is not floating point, or `bound` is below 1.

    Example:
        >>> import jax.numpy as jnp
        >>> [f"{r:.2f}" for r in jnp.exp(bounded_ratio(jnp.log(jnp.array([0.01, 2.0, 99.0])), bound=10.0))]
        ['0.10', '2.00', '10.00']

    Source:
        unpublished: a design document (not a paper), Eq. 55. `rljax.ops.ratio.clamp_log_ratio` takes log C instead.
        Published alternative: PPO's clip, `rljax.ops.surrogate.clipped`, or `rljax.ops.correction.truncated_importance_weight`.
    """
    check_floating(log_ratio=log_ratio)
    check_at_least(1, bound=bound)
    limit = jnp.log(bound)
    return jnp.clip(log_ratio, -limit, limit)
