"""Everything that a run continues from, as one immutable pytree."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, UInt32

from rljax.models import Params
from rljax.ops.unpublished.reward_history import RewardHistory
from rljax.parallel import Partition, policy_shardings, put
from rljax.records import documented

WARM_START, VALUE_PRETRAINING, RL = 0, 1, 2


@documented
class CriticState(NamedTuple):
    """The critic's part of the state."""

    params: Params
    """All of them, a frozen trunk too."""
    opt_state: optax.OptState
    """Of the parameters that are trained: all, or the head on a frozen trunk."""
    pretrained: Params | None
    """The critic as it was before RL, when the algorithm blends it into the values."""


@documented
class TrainState(NamedTuple):
    """Parameters, optimisers, randomness and data position; a step is `(state, data) -> (state, metrics)`."""

    params: Params
    """Of the policy."""
    opt_state: optax.OptState
    """Of the policy's optimiser."""
    reference: Params | None
    """Parameters of the reference policy, when the algorithm needs one."""
    critic: CriticState | None
    """When the algorithm has one."""
    remembered: RewardHistory | None
    """The last rewards of each training prompt, when new responses are compared with them."""
    key: UInt32[Array, "2"]
    """Root of all sampling; it never changes, `draws` is folded into it."""
    phase: Int[Array, ""]
    """0 in the supervised warm start, 1 while only the critic learns, 2 in RL."""
    warm_step: Int[Array, ""]
    """Supervised steps done."""
    value_step: Int[Array, ""]
    """Steps of value pretraining done."""
    step: Int[Array, ""]
    """RL steps done."""
    draws: Int[Array, ""]
    """How often responses were sampled for training."""
    position: Int[Array, ""]
    """How many prompts were taken from the endless stream of training prompts."""


def create(
    params: Params,
    optimizer: optax.GradientTransformation,
    seed: int,
    *,
    with_reference: bool,
    critic: CriticState | None = None,
    remembered: RewardHistory | None = None,
) -> TrainState:
    """Begin at the warm start, with nothing drawn."""
    key = jax.random.key_data(jax.random.key(seed))
    reference = jax.tree.map(jnp.copy, params) if with_reference else None
    counters = [jnp.zeros((), jnp.int32) for _ in range(6)]  # six buffers: a donated one may not be shared
    return TrainState(params, optimizer.init(params), reference, critic, remembered, key, *counters)


def end_warm_start(state: TrainState, optimizer: optax.GradientTransformation, critic: CriticState | None) -> TrainState:
    """Fix the initial policy: a fresh optimiser, the policy as it is now as the reference, and the critic it starts with."""
    return state._replace(
        opt_state=optimizer.init(state.params),
        reference=None if state.reference is None else jax.tree.map(jnp.copy, state.params),
        critic=critic,
        phase=jnp.int32(VALUE_PRETRAINING),
    )


def begin_rl(state: TrainState) -> TrainState:
    """Enter RL: the critic as it is now is the pretrained one."""
    critic = state.critic
    if critic is not None and critic.pretrained is not None:
        critic = critic._replace(pretrained=jax.tree.map(jnp.copy, critic.params))
    return state._replace(critic=critic, phase=jnp.int32(RL))


def draw_key(state: TrainState) -> PRNGKeyArray:
    """Key of the next sampling."""
    return jax.random.fold_in(jax.random.wrap_key_data(state.key), state.draws)


def place(state: TrainState, mesh: Mesh, partition: Partition) -> TrainState:
    """Put every array where the mesh and the policy want it, in a buffer of its own: an update consumes the old state."""
    return put(_unshared(state), policy_shardings(mesh, state, state.params, partition))


def _unshared(state: TrainState) -> TrainState:
    """Copy an array that stands in several places of the state, such as one zero that several parameters begin with."""
    taken: set[int] = set()

    def own(array: Array) -> Array:
        copied = jnp.copy(array) if id(array) in taken else array
        taken.add(id(array))
        return copied

    return jax.tree.map(own, state)


def places(state: TrainState) -> PyTree:
    """Where every array of a placed state lies."""
    return jax.tree.map(lambda array: array.sharding, state)
