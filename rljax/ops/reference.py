"""Adapting the coefficient of the KL penalty, and resetting the reference policy."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import (
    Number,
    Step,
    Tree,
    check_count,
    check_nonnegative,
    check_positive,
    check_same_structure,
    in_float32,
)


@in_float32
def adaptive_kl_coefficient(
    coefficient: Number, divergence: Number, *, target: Number, gain: Number = 0.1, bound: Number = 0.2
) -> Float[Array, ""]:
    """KL coefficient for the next update, adjusted to bring the divergence to a target: a proportional controller in log space.

    ::

        e = clip((KL - KL_target) / KL_target, -bound, bound)        β' = β (1 + K_β e)

    Args:
        coefficient: β of the last update, a number (shape `[]`), not negative, in the reward's unit per nat.
        divergence: KL(π ‖ π_ref) of the last rollout, a number (shape `[]`), in nats per response or any other unit.
        target: KL_target, positive, in the unit of `divergence`.
        gain: K_β, not negative; 0.1 in Section 2.2. Code with a horizon h and a batch of n responses uses n / h instead.
        bound: bound on the relative error, not negative; 0.2 in Section 2.2.

    Returns:
        A number, in the unit of `coefficient`.

    Raises:
        ValueError: `target` not positive; `coefficient`, `gain` or `bound` negative.

    Example:
        >>> round(float(adaptive_kl_coefficient(0.5, 9.0, target=6.0)), 6)
        0.51

    Source:
        Ziegler et al., arXiv:1909.08593, Section 2.2.
    """
    check_nonnegative(coefficient=coefficient, gain=gain, bound=bound)
    check_positive(target=target)
    check_nonnegative(divergence=jnp.abs(jnp.asarray(divergence)))  # a sampled KL may be negative, but must not be NaN
    error = jnp.clip(divergence / target - 1, -bound, bound)
    return jnp.asarray(coefficient * (1 + gain * error))


def reset_reference(reference: Tree, params: Tree, step: Step, *, period: int) -> Tree:
    """Replace the reference with the policy every `period` updates; otherwise keep it unchanged.

    The paper also resets the optimizer's state, and decides from the validation curve when to reset; this function resets
    after a fixed period instead.

    ::

        θ_ref ← θ  if step > 0 and step mod period = 0,  else θ_ref

    Args:
        reference: parameters of the reference, a pytree of floating-point arrays.
        params: parameters of the policy, a pytree of the same structure and shapes.
        step: number of updates so far, an integer; may be traced.
        period: number of updates between two resets, at least 1.

    Returns:
        A new pytree, in the reference's dtypes.

    Raises:
        ValueError: the structures or shapes differ, a leaf is not floating point, or `period` is below 1.

    Example:
        >>> import jax.numpy as jnp
        >>> old, new = {"w": jnp.array([0.0])}, {"w": jnp.array([4.0])}
        >>> [reset_reference(old, new, step, period=2)["w"].tolist() for step in (0, 1, 2)]
        [[0.0], [0.0], [4.0]]

    Source:
        ProRL, arXiv:2505.24864 (reference policy reset).
    """
    check_count(1, period=period)
    check_same_structure(reference=reference, params=params)
    now = (jnp.asarray(step) > 0) & (jnp.asarray(step) % period == 0)
    return jax.tree.map(lambda old, new: jnp.where(now, new.astype(old.dtype), old), reference, params)
