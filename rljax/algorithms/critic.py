"""Building blocks shared by the critics of several algorithms."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.unpublished.mixture import mix_values, pretrained_value_weight
from rljax.ops.value import value_loss


def squared_error(
    values: Float[Array, "*rows T"], old_values: Float[Array, "*rows T"], target: Float[Array, "*rows T"], mask: Array
) -> Float[Array, "*rows T"]:
    """Half the critic's squared error, ignoring its values at sampling: `rljax.ops.value.value_loss` as a `Critic.loss`."""
    del old_values  # other losses clip around these
    return value_loss(values, target, mask)


def with_pretrained_value(algorithm: Algorithm, *, initial: float = 0.8, decay: float = 2.0, eta: float = 1.0) -> Algorithm:
    """Compute advantages from a blend of the pretrained critic's values and the current critic's.

    ::

        V_aug = w V_pretrained + (1 - w) V_critic        w(t) = w_0 exp(-κ t/T_total) / (1 + η max(EV, 0))

    Args:
        algorithm: an algorithm with a critic.
        initial: w_0 in [0, 1].
        decay: κ, not negative.
        eta: η, not negative: how strongly the critic's explained variance EV reduces the weight. The design document
            gives no value.

    Returns:
        The algorithm, changed in `critic.blend`.

    Raises:
        ValueError: the algorithm has no critic.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> blend = with_pretrained_value(BY_NAME["vapo"]()).critic.blend
        >>> blend(jnp.ones((1, 1, 1)), jnp.zeros((1, 1, 1)), jnp.array(0.0), jnp.array(1.0)).item()
        0.4000000059604645

    Source:
        unpublished: from a design document, not a paper; its Eqs. 17-18 (`mix_values` and `pretrained_value_weight` of
        `rljax.ops.unpublished.mixture`).
    """
    if algorithm.critic is None:
        raise ValueError("algorithm must have a critic, because the pretrained one is blended into it, got critic=None")

    def blend(pretrained: Array, values: Array, progress: Array, explained: Array) -> Float[Array, "P G T"]:
        reliability = jnp.maximum(explained, 0.0)
        weight = pretrained_value_weight(
            progress, total_steps=1, initial=initial, decay=decay, reliability=reliability, eta=eta
        )
        return mix_values(pretrained, values, weight)

    return algorithm._replace(critic=algorithm.critic._replace(blend=blend))
