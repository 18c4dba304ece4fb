"""Everything that a run continues from, as one immutable pytree."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Int, PRNGKeyArray, UInt32

from rljax.models import Params
from rljax.parallel import shardings

WARM_START, RL = 0, 1


class TrainState(NamedTuple):
    """Parameters, optimiser, randomness and data position; a step is `(state, batch) -> (state, metrics)`."""

    params: Params
    opt_state: optax.OptState
    reference: Params | None
    """Parameters of the reference policy, when the algorithm needs one."""
    key: UInt32[Array, "2"]
    """Root of all sampling; it never changes, `draws` is folded into it."""
    phase: Int[Array, ""]
    """0 in the supervised warm start, 1 in RL."""
    warm_step: Int[Array, ""]
    """Supervised steps done."""
    step: Int[Array, ""]
    """RL steps done."""
    draws: Int[Array, ""]
    """How often responses were sampled for training."""
    position: Int[Array, ""]
    """How many prompts were taken from the endless stream of training prompts."""


def create(params: Params, optimizer: optax.GradientTransformation, seed: int, *, with_reference: bool) -> TrainState:
    """Begin at the warm start, with nothing drawn."""
    key = jax.random.key_data(jax.random.key(seed))
    reference = jax.tree.map(jnp.copy, params) if with_reference else None
    counters = [jnp.zeros((), jnp.int32) for _ in range(5)]  # five buffers: a donated one may not be shared
    return TrainState(params, optimizer.init(params), reference, key, *counters)


def begin_rl(state: TrainState, optimizer: optax.GradientTransformation) -> TrainState:
    """Enter RL: a fresh optimiser, and the policy as it is now as the reference."""
    return state._replace(
        opt_state=optimizer.init(state.params),
        reference=None if state.reference is None else jax.tree.map(jnp.copy, state.params),
        phase=jnp.int32(RL),
    )


def draw_key(state: TrainState) -> PRNGKeyArray:
    """Key of the next sampling."""
    return jax.random.fold_in(jax.random.wrap_key_data(state.key), state.draws)


def place(state: TrainState, mesh: Mesh) -> TrainState:
    """Put every array where the mesh wants it."""
    return jax.device_put(state, shardings(mesh, state))
