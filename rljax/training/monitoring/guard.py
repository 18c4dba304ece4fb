"""Updates that must not happen: where one is not sound, the state stays as it was, and the run counts and shows it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PyTree

from rljax.errors import InputError
from rljax.rollout import Groups

MOST_SKIPPED = 5
"""Training steps in a row without a sound update, after which a run stops."""

LARGEST_UPDATE = 100.0
"""Largest norm of an update, as a multiple of the norm of the parameters (of 1, if that is larger)."""


def is_sound(
    loss: Float[Array, ""], grad_norm: Float[Array, ""], updates: PyTree[Array], params: PyTree[Array]
) -> Bool[Array, ""]:
    """True if an update may be made: loss and gradient are finite, and the update is not far larger than the parameters.

    ::

        |u| <= 100 max(|θ|, 1)

    Args:
        loss: the loss.
        grad_norm: norm of the gradient.
        updates: u, what the optimiser adds to the parameters.
        params: θ, the parameters before it.

    Example:
        >>> params, loss, norm = jnp.ones(3), jnp.float32(0.5), jnp.float32(2.0)
        >>> bool(is_sound(loss, norm, params * 10, params)), bool(is_sound(loss, norm, params * 1000, params))
        (True, False)
    """
    bound = LARGEST_UPDATE * jnp.maximum(optax.tree.norm(params), 1.0)
    return jnp.isfinite(loss) & jnp.isfinite(grad_norm) & (optax.tree.norm(updates) <= bound)


def where_sound(sound: Bool[Array, ""], updated: PyTree[Array], before: PyTree[Array]) -> PyTree[Array]:
    """The updated arrays if the update is sound, else those before it."""
    return jax.tree.map(lambda new, old: jnp.where(sound, new, old), updated, before)


def skip_count(sound: Bool[Array, ""]) -> Float[Array, ""]:
    """1 for an update that was skipped, 0 for one that was made."""
    return 1 - sound.astype(jnp.float32)


def skipped_in_a_row(count: int, share: Float[Array, ""] | float | None) -> int:
    """Number of training steps in a row without a sound update; a step that had nothing to update leaves it as it is.

    Args:
        count: number before this step.
        share: share of the updates of this step that were skipped; None if there were none.

    Example:
        >>> skipped_in_a_row(2, 1.0), skipped_in_a_row(2, 0.75), skipped_in_a_row(2, None)
        (3, 0, 2)
    """
    if share is None:
        return count
    return count + 1 if float(share) == 1 else 0


def unsound_text(count: int, learning_rate: str, run: str) -> str:
    """Why a run stops that could not make a sound update, and what to do.

    Args:
        count: number of training steps in a row without one.
        learning_rate: the flag that sets their learning rate.
        run: folder of the run, as a shell reads it.
    """
    return (
        f"Loss or gradient was not finite, or the update far too large, in {count} training steps in a row, so nothing was learned "
        f"from them. The parameters before them are saved: `rljax export {run} model --checkpoint last` takes them out, and `rljax "
        f"train --model model` with a lower {learning_rate} goes on from there. A reward or an algorithm of your own that returns "
        "infinite numbers has the same effect."
    )


def check_drawn(groups: Groups) -> None:
    """Refuse responses whose log-probabilities are not finite: the parameters of the policy are broken.

    Raises:
        InputError: names the share of tokens.
    """
    rollout = groups.rollout
    drawn = rollout.mask & groups.present[..., None]
    logp = rollout.behaviour_logp if rollout.policy_logp is None else rollout.policy_logp
    if not drawn.any():
        return
    broken = float((~np.isfinite(logp[drawn])).mean())
    if broken:
        raise InputError(
            f"The policy's log-probabilities are not finite for {broken:.0%} of the tokens that it drew: its parameters are "
            "infinite, NaN or far too large. Start a new run with a lower --learning-rate (--warm-start-learning-rate if this is "
            "before RL); `rljax export RUN model` writes the best checkpoint as a model to start from."
        )
