"""Functions for the slots of `Critic` that several algorithms share."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import Number
from rljax.ops.unpublished.mixture import mix_values, pretrained_value_weight
from rljax.ops.value import value_loss


def squared_error(
    values: Float[Array, "*rows T"], old_values: Float[Array, "*rows T"], target: Float[Array, "*rows T"], mask: Array
) -> Float[Array, "*rows T"]:
    """`rljax.ops.value.value_loss`, half the squared error, with the signature of the slot `Critic.loss`."""
    del old_values  # other losses keep the values near these
    return value_loss(values, target, mask)


def blend_pretrained_value(
    pretrained: Float[Array, "P G T"],
    values: Float[Array, "P G T"],
    progress: Number,
    explained: Number,
    *,
    initial: Number = 0.8,
    decay: Number = 2.0,
    eta: Number = 1.0,
) -> Float[Array, "P G T"]:
    """Blend the pretrained critic's values with the current critic's, for the slot `Critic.blend`.

    ::

        V_aug = w V_pretrained + (1 - w) V_critic        w(t) = w_0 exp(-κ t/T_total) / (1 + η max(EV, 0))

    Args:
        pretrained: V_pretrained, values of the pretrained critic.
        values: V_critic, values of the current critic.
        progress: t/T_total, the fraction of training completed.
        explained: EV, the critic's explained variance.
        initial: w_0 in [0, 1], the weight at t = 0 if EV ≤ 0.
        decay: κ, how fast the weight falls with t, not negative.
        eta: η, how strongly the critic's explained variance reduces the weight, not negative; the design document gives no value.

    Example:
        >>> blend_pretrained_value(jnp.ones((1, 1, 1)), jnp.zeros((1, 1, 1)), jnp.array(0.0), jnp.array(1.0)).item()
        0.4000000059604645

    Source:
        unpublished: a design document (not a paper), Eqs. 17-18 (`mix_values` and `pretrained_value_weight` of
        `rljax.ops.unpublished.mixture`).
    """
    reliability = jnp.maximum(explained, 0.0)
    weight = pretrained_value_weight(
        progress, total_steps=1, initial=initial, decay=decay, reliability=reliability, eta=eta
    )
    return mix_values(pretrained, values, weight)
