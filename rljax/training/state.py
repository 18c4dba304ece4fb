"""The training state of a run, as one immutable pytree."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, Sharding
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, UInt32

from rljax.models import Params
from rljax.ops.arrays import Number
from rljax.ops.unpublished.reward_history import RewardHistory
from rljax.parallel import Partition, policy_shardings, put
from rljax.records import documented

WARM_START, VALUE_PRETRAINING, RL = 0, 1, 2


@documented
class CriticState(NamedTuple):
    """The critic's part of the state."""

    params: Params
    """All parameters, those of a frozen trunk included."""
    opt_state: optax.OptState
    """Optimiser state of the trained parameters: all of them, or the head's if the trunk is frozen."""
    pretrained: Params | None
    """Parameters of the critic before RL, if the algorithm blends their values in."""


@documented
class Anchor(NamedTuple):
    """Parameters that a policy is held to, so that it keeps what it has learned before."""

    params: Params
    """Parameters of the policy at the beginning of the run."""
    fisher: Params
    """Diagonal of their Fisher information, in the parameters' structure."""


@documented
class TrainState(NamedTuple):
    """Parameters, optimiser states, random key and counters; a step is `(state, data) -> (state, metrics)`."""

    params: Params
    """Parameters of the policy that are trained: all of them, or an adapter."""
    opt_state: optax.OptState
    """State of the policy's optimiser."""
    reference: Params | None
    """Parameters of the reference policy, if the algorithm needs one and they are not the base of the adapter."""
    anchor: Anchor | None
    """What the parameters are held to, if they are."""
    critic: CriticState | None
    """State of the critic, if the algorithm has one."""
    remembered: RewardHistory | None
    """The last rewards of each training prompt, if new responses are compared with them."""
    kl_coefficient: Float[Array, ""] | None
    """Coefficient of the KL penalty in the next step, if it follows the divergence."""
    key: UInt32[Array, "2"]
    """Root key of all sampling. It never changes; `draws` is folded into it."""
    phase: Int[Array, ""]
    """0 in the supervised warm start, 1 while only the critic learns, 2 in RL."""
    warm_step: Int[Array, ""]
    """Supervised steps done."""
    value_step: Int[Array, ""]
    """Steps of value pretraining done."""
    step: Int[Array, ""]
    """RL steps done."""
    draws: Int[Array, ""]
    """Number of times that responses were sampled for training."""
    position: Int[Array, ""]
    """Number of prompts taken from the endless stream of training prompts."""


def create(
    params: Params,
    optimizer: optax.GradientTransformation,
    seed: int,
    *,
    with_reference: bool,
    with_anchor: bool = False,
    critic: CriticState | None = None,
    remembered: RewardHistory | None = None,
    kl_coefficient: Number | None = None,
) -> TrainState:
    """State at the beginning of the warm start, with all counters at 0."""
    key = jax.random.key_data(jax.random.key(seed))
    reference = jax.tree.map(jnp.copy, params) if with_reference else None
    counters = [jnp.zeros((), jnp.int32) for _ in range(6)]  # six buffers, because a donated one may not be shared
    strength = None if kl_coefficient is None else jnp.float32(kl_coefficient)
    anchor = anchor_at(params) if with_anchor else None
    return TrainState(params, optimizer.init(params), reference, anchor, critic, remembered, strength, key, *counters)


def anchor_at(params: Params) -> Anchor:
    """An anchor at these parameters that does not hold them yet: their Fisher information is 0 until it is estimated."""
    return Anchor(jax.tree.map(jnp.copy, params), jax.tree.map(jnp.zeros_like, params))


def end_warm_start(state: TrainState, optimizer: optax.GradientTransformation, critic: CriticState | None) -> TrainState:
    """End the warm start: reset the optimiser, copy the current policy as the reference, and set the initial critic."""
    return state._replace(
        opt_state=optimizer.init(state.params),
        reference=None if state.reference is None else jax.tree.map(jnp.copy, state.params),
        critic=critic,
        phase=jnp.int32(VALUE_PRETRAINING),
    )


def begin_rl(state: TrainState) -> TrainState:
    """Begin RL: keep a copy of the current critic as the pretrained one, if the algorithm needs one."""
    critic = state.critic
    if critic is not None and critic.pretrained is not None:
        critic = critic._replace(pretrained=jax.tree.map(jnp.copy, critic.params))
    return state._replace(critic=critic, phase=jnp.int32(RL))


def kl_coefficient_of(state: TrainState) -> float | None:
    """Coefficient of the KL penalty in the next step; None if it is the algorithm's own."""
    return None if state.kl_coefficient is None else float(state.kl_coefficient)


def draw_key(state: TrainState) -> PRNGKeyArray:
    """Key of the next sampling."""
    return jax.random.fold_in(jax.random.wrap_key_data(state.key), state.draws)


def place(
    state: TrainState, mesh: Mesh, partition: Partition, *, base: PyTree[jax.ShapeDtypeStruct] | None = None
) -> TrainState:
    """Place every array on the mesh, each in its own buffer, because an update donates the buffers of the old state.

    Args:
        state: the state.
        mesh: the devices.
        partition: how the policy's parameters are sharded.
        base: shapes of the parameters below an adapter; a critic has copies of them.
    """
    return put(_copy_shared(state), policy_shardings(mesh, state, state.params, partition, besides=base))


def _copy_shared(state: TrainState) -> TrainState:
    """Copy arrays that occur several times in the state, such as one array of zeros for several parameters."""
    seen: set[int] = set()

    def own(array: Array) -> Array:
        copied = jnp.copy(array) if id(array) in seen else array
        seen.add(id(array))
        return copied

    return jax.tree.map(own, state)


@documented
class Places(NamedTuple):
    """Shardings of the arrays of a pytree; hashable, so that the programs for equal places can be shared."""

    shardings: tuple[Sharding, ...]
    """Sharding of each array."""
    structure: Any
    """Structure of the pytree, a `jax.tree_util.PyTreeDef`."""

    def tree(self) -> PyTree[Sharding]:
        """The shardings as a pytree."""
        return jax.tree.unflatten(self.structure, self.shardings)


def places(state: PyTree) -> Places:
    """Sharding of every array of a placed state."""
    arrays, structure = jax.tree.flatten(state)
    return Places(tuple(array.sharding for array in arrays), structure)
