"""Schedules: numbers that change with the training step.

Each is a pure function of the step, which may be traced; `functools.partial` with the keywords filled in turns it into an
Optax schedule.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import Number, Step, check_between, check_count, check_nonnegative, check_positive, in_float32


@in_float32
def warmup_cosine(step: Step, *, peak: Number, warmup_steps: int, total_steps: int) -> Float[Array, "..."]:
    """Learning rate that rises linearly and falls along a quarter cosine.

    ::

        η_t = η_0 min(1, t / t_warm) cos(π t / (2 T_total))        0 from T_total on

    The cosine starts at t = 0, so with warm-up the rate never quite reaches η_0.
    The document has min(1, t_warm / t), which is 1 at first, decays as 1/t afterwards, and divides by 0 at t = 0.

    Args:
        step: t, not negative, a number or an array of any shape.
        peak: η_0, positive.
        warmup_steps: t_warm, in steps; 0: no warm-up.
        total_steps: T_total, in steps, at least 1 and at least `warmup_steps`.

    Returns:
        η_t in [0, η_0], in the shape of `step`.

    Raises:
        ValueError: a negative step, or another argument outside its range.

    Example:
        >>> [round(warmup_cosine(t, peak=1.0, warmup_steps=2, total_steps=4).item(), 4) for t in range(5)]
        [0.0, 0.4619, 0.7071, 0.3827, 0.0]

    Source:
        unpublished: a design document (not a paper), Eq. 57, corrected. Published alternative: the half cosine
        of SGDR, arXiv:1608.03983, Eq. 5 (`optax.warmup_cosine_decay_schedule`).
    """
    check_nonnegative(step=step)
    check_positive(peak=peak)
    check_nonnegative(warmup_steps=warmup_steps)
    check_count(1, total_steps=total_steps)
    if warmup_steps > total_steps:
        raise ValueError(f"warmup_steps must not exceed total_steps {total_steps}, got {warmup_steps}")
    time = jnp.minimum(jnp.asarray(step, jnp.result_type(float)), total_steps)
    warm = jnp.minimum(1.0, time / warmup_steps) if warmup_steps else jnp.ones_like(time)
    # cos(π t / 2T) = sin(π (T - t) / 2T), which is exactly 0 at T, where the rounded cosine would be negative.
    return peak * warm * jnp.sin(jnp.pi * (total_steps - time) / (2 * total_steps))


@in_float32
def exponential_decay(step: Step, *, initial: Number, decay: Number, total_steps: Number) -> Float[Array, "..."]:
    """A number that is multiplied by e^-κ over a training run.

    ::

        x(t) = x_0 exp(-κ t / T_total)

    Args:
        step: t, not negative, a number or an array of any shape.
        initial: x_0, the value at step 0, not negative.
        decay: κ, decay rate over the training run, not negative.
        total_steps: T_total, at least 1; the decay continues after it.

    Returns:
        x(t), in the unit of x_0 and the shape of `step`.

    Raises:
        ValueError: an argument outside its range.

    Example:
        >>> round(exponential_decay(50, initial=1.0, decay=2.0, total_steps=100).item(), 4)
        0.3679

    Source:
        unpublished: a design document (not a paper), the common part of Eqs. 18 and 59. For the same job:
        `optax.exponential_decay`.
    """
    check_nonnegative(step=step, initial=initial, decay=decay)
    check_count(1, total_steps=total_steps)
    return initial * jnp.exp(-decay * jnp.asarray(step, jnp.result_type(float)) / total_steps)


@in_float32
def hybrid_weight(step: Step, *, initial: Number, decay: Number, total_steps: Number) -> Float[Array, "..."]:
    """Weight of the critic's advantage in a mixture with the group's advantage.

    ::

        α(t) = α_0 exp(-λ t / T_total)        for  A = α A_critic + (1 - α) A_group

    Args:
        step: t, not negative, a number or an array of any shape.
        initial: α_0, the weight at step 0, in [0, 1].
        decay: λ, decay rate over the training run, not negative.
        total_steps: T_total, at least 1.

    Returns:
        α(t) in [0, α_0], in the shape of `step`.

    Raises:
        ValueError: an argument outside its range.

    Example:
        >>> round(hybrid_weight(100, initial=0.5, decay=1.0, total_steps=100).item(), 4)
        0.1839

    Source:
        unpublished: a design document (not a paper), Eqs. 58-59. No published estimator has such a weight.
    """
    check_between(0, 1, initial=initial)
    return exponential_decay(step, initial=initial, decay=decay, total_steps=total_steps)
