"""Updates that must not happen: where the loss or the gradient is not finite, the state stays as it was, and the run says so."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from rljax.errors import InputError
from rljax.rollout import Groups

MOST_SKIPPED = 5
"""Training steps in a row without a sound update, after which a run stops."""


def is_sound(loss: Float[Array, ""], grad_norm: Float[Array, ""]) -> Bool[Array, ""]:
    """Whether an update may be made: its loss and the norm of its gradient are finite.

    Example:
        >>> bool(is_sound(jnp.float32(1.0), jnp.float32(jnp.inf)))
        False
    """
    return jnp.isfinite(loss) & jnp.isfinite(grad_norm)


def where_sound(sound: Bool[Array, ""], updated: PyTree[Array], before: PyTree[Array]) -> PyTree[Array]:
    """The updated arrays if the update is sound, else those before it."""
    return jax.tree.map(lambda new, old: jnp.where(sound, new, old), updated, before)


def skipped(sound: Bool[Array, ""]) -> Float[Array, ""]:
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


def check_skipped(count: int, learning_rate: str) -> None:
    """Refuse to go on after too many training steps without a sound update.

    Args:
        count: number of these steps in a row.
        learning_rate: the flag that sets their learning rate.

    Raises:
        InputError: the message says what to change.
    """
    if count >= MOST_SKIPPED:
        raise InputError(
            f"Loss or gradient was not finite in {count} training steps in a row, so nothing was learned from them. The parameters "
            f"before them are saved. Start again from an earlier checkpoint or a new run with a lower {learning_rate}; a reward, "
            "or an algorithm of your own, that returns infinite numbers has the same effect."
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
            "infinite or NaN. Nothing that was saved holds them. Start again from an earlier checkpoint or a new run with a lower "
            "--learning-rate (--warm-start-learning-rate if this is before RL)."
        )
