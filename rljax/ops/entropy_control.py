"""An entropy bonus whose coefficient adapts to the measured entropy, to keep the entropy above a target."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import Number, check_nonnegative, check_positive, in_float32


@in_float32
def adaptive_entropy_coefficient(
    coefficient: Number, entropy: Number, *, target: Number = 0.2, step: Number = 0.005, high: Number = math.inf
) -> Float[Array, ""]:
    """Coefficient of the next update's entropy bonus: raised by a step if the entropy is below its target, lowered if above.

    ::

        c_{k+1} = clip(c_k + Δ, 0, c_max) if e_k < e_target, clip(c_k - Δ, 0, c_max) if e_k > e_target, else c_k

    Args:
        coefficient: c_k, the current coefficient, a number of at least 0 (shape `[]`), in reward per nat; start at 0.
        entropy: e_k, mean entropy of the policy, a number (shape `[]`), nats per token.
        target: e_target, nats per token, positive.
        step: Δ, not negative; 0.005 in the paper, 0.0001 in its authors' scripts.
        high: c_max, positive; infinite in the paper, 0.005 in its authors' scripts.

    Returns:
        c_{k+1}, a number; see `active_entropy_coefficient`.

    Raises:
        ValueError: `coefficient`, `entropy` or `step` negative, or `target` or `high` not positive.

    Example:
        >>> [round(float(adaptive_entropy_coefficient(0.005, entropy)), 6) for entropy in (0.1, 0.2, 0.3)]
        [0.01, 0.005, 0.0]

    Source:
        Skywork-OR1, arXiv:2505.22312, Eq. 3.2. The lower bound of 0 is from the authors' code (SkyworkAI/Skywork-OR1,
        `EntController`); the printed equation has no bound, so after many updates above the target the coefficient
        would be negative and penalize entropy.
    """
    check_nonnegative(coefficient=coefficient, entropy=entropy, step=step)
    check_positive(target=target, high=high)
    return jnp.clip(coefficient + step * jnp.sign(jnp.asarray(target) - entropy), 0, high)


@in_float32
def active_entropy_coefficient(coefficient: Number, entropy: Number, *, target: Number = 0.2) -> Float[Array, ""]:
    """The coefficient if the entropy is at most its target, else 0: the bonus is off while the entropy is above its target.

    ::

        α_k = c_k if e_k ≤ e_target else 0

    Args:
        coefficient: c_k, a number (shape `[]`), not negative; see `adaptive_entropy_coefficient`.
        entropy: e_k, mean entropy of the policy, a number (shape `[]`), nats per token.
        target: e_target, nats per token, positive.

    Returns:
        α_k, a number: the weight of the tokens' mean entropy in an objective to be maximized.

    Raises:
        ValueError: `coefficient` or `entropy` negative, or `target` not positive.

    Example:
        >>> [round(float(active_entropy_coefficient(0.01, entropy)), 6) for entropy in (0.2, 0.3)]
        [0.01, 0.0]

    Source:
        Skywork-OR1, arXiv:2505.22312, Eq. 3.2, with the bonus of Eq. 3.1.
    """
    check_nonnegative(coefficient=coefficient, entropy=entropy)
    check_positive(target=target)
    return jnp.where(jnp.asarray(entropy) <= target, coefficient, 0.0)
