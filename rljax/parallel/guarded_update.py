"""Clip gradients, and update parameters in place; if the update is non-finite or far too large, leave them unchanged."""

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array, Bool, Float, PyTree

LARGEST_UPDATE = 100.0
"""Largest allowed norm of an update, as a multiple of max(‖params‖, 1)."""


def is_safe(
    loss: Float[Array, ""], grad_norm: Float[Array, ""], updates: PyTree[Array], params: PyTree[Array]
) -> Bool[Array, ""]:
    """Return True if an update is safe: loss and gradient are finite, and the update is not far larger than the parameters.

    ::

        |u| <= 100 max(|θ|, 1)

    Args:
        loss: the loss.
        grad_norm: norm of the gradient.
        updates: u, the values that the optimizer adds to the parameters.
        params: θ, the parameters before the update.

    Example:
        >>> params, loss, norm = jnp.ones(3), jnp.float32(0.5), jnp.float32(2.0)
        >>> bool(is_safe(loss, norm, params * 10, params)), bool(is_safe(loss, norm, params * 1000, params))
        (True, False)
    """
    bound = LARGEST_UPDATE * jnp.maximum(optax.tree.norm(params), 1.0)
    return jnp.isfinite(loss) & jnp.isfinite(grad_norm) & (optax.tree.norm(updates) <= bound)


def clip_to_norm(gradient: PyTree[Array], params: PyTree[Array] | None = None, *, max_norm: float) -> PyTree[Array]:
    """Scale a gradient with a larger global norm down to `max_norm`, by multiplying it by max_norm / norm.

    ::

        g min(1, c / |g|)

    With `optax.clip_by_global_norm`, which divides each entry, AdamW takes twice as long on CPUs.

    Args:
        gradient: g.
        params: ignored; `optax.stateless` passes them.
        max_norm: c.

    Example:
        >>> clip_to_norm(jnp.array([3.0, 4.0]), max_norm=2.5).tolist(), clip_to_norm(jnp.array([0.3, 0.4]), max_norm=2.5).tolist()
        ([1.5, 2.0], [0.30000001192092896, 0.4000000059604645])
    """
    del params
    scale = jnp.minimum(1.0, max_norm / optax.tree.norm(gradient))
    return jax.tree.map(lambda part: part * scale.astype(part.dtype), gradient)


def guarded_update(
    optimizer: optax.GradientTransformation,
    gradient: PyTree[Array],
    opt_state: optax.OptState,
    params: PyTree[Array],
    loss: Float[Array, ""],
    **extra: PyTree,
) -> tuple[PyTree[Array], optax.OptState, Float[Array, ""], Bool[Array, ""]]:
    """Apply an optimizer's update if it is safe; otherwise, keep the parameters and the optimizer's state.

    No array may be overwritten before the norm of the update is known. Keeping the update and Adam's new moments until then would
    take three times the memory of the parameters, so an optimizer without matrix products runs twice: the second time in place.

    Args:
        optimizer: turns the gradient into an update; it gets `extra` if it takes further arguments.
        gradient: the gradient of the loss.
        opt_state: the optimizer's state.
        params: the parameters.
        loss: the loss.
        extra: further arguments of the optimizer.

    Returns:
        The parameters, the optimizer's state, the gradient's norm, and whether the update was safe.
    """
    compute = jax.jit(optax.with_extra_args_support(optimizer).update)
    arguments = (gradient, opt_state, params)
    updates, after = compute(*arguments, **extra)
    norm = optax.tree.norm(gradient)
    safe = is_safe(loss, norm, updates, params)
    is_costly = has_matrix_product(compute.trace(*arguments, **extra).jaxpr)

    def apply() -> tuple[PyTree[Array], optax.OptState]:
        found, state = (updates, after) if is_costly else compute(*arguments, **extra)
        return optax.apply_updates(params, found), state

    return *jax.lax.cond(safe, apply, lambda: (params, opt_state)), norm, safe


def has_matrix_product(program: ClosedJaxpr) -> bool:
    """Return True if a traced program, or a program that it calls, contains a matrix product."""
    return "dot_general" in str(program)


def skip_count(safe: Bool[Array, ""]) -> Float[Array, ""]:
    """Return 1 for an update that was skipped, 0 for one that was made."""
    return 1 - safe.astype(jnp.float32)
