"""Small compositions that the critics of several algorithms share."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.gae import gae, length_adaptive_lambda
from rljax.ops.masked import count_tokens
from rljax.ops.value import value_loss


def length_adaptive_gae(
    rewards: Float[Array, "*rows T"],
    values: Float[Array, "*rows T"],
    mask: Array,
    *,
    alpha: float = 0.05,
    gamma: float = 1.0,
    bootstrap: Float[Array, "*rows"] | None = None,
) -> Float[Array, "*rows T"]:
    """Generalised advantage estimation whose λ grows with the response.

    ::

        A_t = Σ_l (γ λ_i)^l δ_{t+l}        λ_i = clip(1 - 1/(α |o_i|), 0, 1)

    Args:
        rewards: r_t, `[..., T]`.
        values: V_t, `[..., T]`, in the reward's unit.
        mask: response tokens, bool or 0/1, `[..., T]`.
        alpha: α, the share of the response over which credit spreads, positive.
        gamma: discount a response token, in [0, 1].
        bootstrap: value after the last token, one number a row; None: 0.

    Returns:
        `[..., T]`, in the reward's unit; 0 outside the mask.

    Raises:
        ValueError: as `gae` and `length_adaptive_lambda`.

    Example:
        >>> import jax.numpy as jnp
        >>> length_adaptive_gae(jnp.array([0.0, 1.0]), jnp.array([0.25, 0.5]), jnp.array([1, 1]), alpha=1.0).tolist()
        [0.5, 0.5]

    Source:
        VAPO, arXiv:2504.05118, Eq. 4 (`rljax.ops.gae.length_adaptive_lambda` says where the clip comes from).
    """
    lambda_ = length_adaptive_lambda(count_tokens(mask), alpha=alpha)
    return gae(rewards, values, mask, gamma=gamma, lambda_=lambda_.astype(jnp.result_type(rewards)), bootstrap=bootstrap)


def squared_error(
    values: Float[Array, "*rows T"], old_values: Float[Array, "*rows T"], target: Float[Array, "*rows T"], mask: Array
) -> Float[Array, "*rows T"]:
    """Half the squared error of the critic, wherever it was at sampling: `rljax.ops.value.value_loss` as a `Critic.loss`."""
    del old_values  # the slot's fourth argument is for losses that clip around it
    return value_loss(values, target, mask)
