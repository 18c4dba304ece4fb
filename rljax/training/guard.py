"""Skip unsafe updates: if an update is non-finite or far too large, keep the old state, and count and report the skip."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

MAX_CONSECUTIVE_SKIPS = 5
"""A run stops after this many consecutive training steps whose updates were all skipped."""

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
    is_costly = "dot_general" in str(compute.trace(*arguments, **extra).jaxpr)

    def apply() -> tuple[PyTree[Array], optax.OptState]:
        found, state = (updates, after) if is_costly else compute(*arguments, **extra)
        return optax.apply_updates(params, found), state

    return *jax.lax.cond(safe, apply, lambda: (params, opt_state)), norm, safe


def where_safe(safe: Bool[Array, ""], updated: PyTree[Array], before: PyTree[Array]) -> PyTree[Array]:
    """Return the updated arrays if the update is safe, else the arrays before the update."""
    return jax.tree.map(lambda new, old: jnp.where(safe, new, old), updated, before)


def skip_count(safe: Bool[Array, ""]) -> Float[Array, ""]:
    """Return 1 for an update that was skipped, 0 for one that was made."""
    return 1 - safe.astype(jnp.float32)


def count_consecutive_skips(count: int, share: Float[Array, ""] | float | None) -> int:
    """Count consecutive training steps whose updates were all skipped; a step that attempted no update leaves the count unchanged.

    Args:
        count: the number of such steps before this step.
        share: fraction of this step's updates that were skipped; None if it attempted none.

    Example:
        >>> count_consecutive_skips(2, 1.0), count_consecutive_skips(2, 0.75), count_consecutive_skips(2, None)
        (3, 0, 2)
    """
    if share is None:
        return count
    return count + 1 if float(share) == 1 else 0


def explain_skips(count: int, learning_rate: str, run: str) -> str:
    """Explain why a run stops after too many skipped updates, and what the user can do.

    Args:
        count: number of consecutive training steps whose updates were all skipped.
        learning_rate: the flag that sets the learning rate of these steps.
        run: folder of the run, quoted for a shell.
    """
    return (
        f"The loss or gradient was not finite, or the update was far too large, in {count} training steps in a row, so nothing was "
        f"learned in these steps. The parameters before them are saved: `rljax export {run} model --checkpoint last` writes a "
        f"model folder, and `rljax train --model model` with a lower {learning_rate} continues from it. Infinite values from your "
        "own reward or algorithm are another possible cause."
    )
