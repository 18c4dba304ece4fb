"""`--keep-zeros`: weights that are zero stay zero, so that a pruned model stays pruned during RL."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from rljax.caching import cache_results
from rljax.errors import InputError
from rljax.models import Params
from rljax.training.setup import Setup
from rljax.training.state import Option


def install(setup: Setup) -> Setup:
    """Mask the updates of the policy's optimizer.

    Raises:
        InputError: an adapter is trained, or a warm start would fill the zeros.
    """
    config = setup.config
    if config.adapter.rank is not None:
        raise InputError(
            "keep_zeros: lora_rank trains an adapter, whose product is added to all weights, including zeros; leave one of the "
            "two out."
        )
    if config.warm_start.steps and setup.demonstrations is not None:
        raise InputError(
            f"keep_zeros applies only in RL, and the warm start of {config.warm_start.steps} steps would change the zeros before; "
            "set warm_start_steps=0, or run the warm start separately and prune its model."
        )
    return setup.with_option(Option("keep_zeros", wrap_optimizer=mask_updates))


@cache_results
def mask_updates(optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Set an optimizer's update to zero wherever the weight is exactly zero, in arrays with two or more axes.

    ::

        Δθ_i <- 0 if θ_i = 0

    The mask needs no memory, because it is read from the weights themselves. Vectors, such as biases, are updated as usual.

    Example:
        >>> gradient, weights = {"w": jnp.ones((1, 2)), "b": jnp.ones(2)}, {"w": jnp.array([[0.0, 3.0]]), "b": jnp.zeros(2)}
        >>> optimizer = mask_updates(optax.sgd(1.0))
        >>> update, _ = optimizer.update(gradient, optimizer.init(weights), weights)
        >>> update["w"].tolist(), update["b"].tolist()
        ([[0.0, -1.0]], [-1.0, -1.0])

    Source:
        Fine-tuning with the mask of a pruned network: Han et al., arXiv:1506.02626, Section 3.
    """

    def mask(update: Array, weight: Array) -> Array:
        return jnp.where(weight == 0, 0, update) if weight.ndim > 1 else update

    inner = optax.with_extra_args_support(optimizer)

    def update(
        updates: Params, state: optax.OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Params, optax.OptState]:
        updates, state = inner.update(updates, state, params, **extra)
        return jax.tree.map(mask, updates, params), state

    return optax.GradientTransformationExtraArgs(inner.init, update)
