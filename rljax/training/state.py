"""The training state of a run, as one immutable pytree, and options: features that only some runs use.

An option is a record of functions that the training core calls without knowing what they do. Its arrays are
`state.options[name]`, so a checkpoint saves them with the state. `rljax.options` has the built-in options.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, Sharding
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, UInt32

from rljax.algorithms import Algorithm, Batch, EarlierRewards, Rollout
from rljax.models import Params
from rljax.parallel import Partition, policy_shardings, put

Frozen = Mapping[str, Any]
"""Arrays that an update reads and never changes, by name, such as the model under an adapter, or a teacher."""


class Updates(NamedTuple):
    """The policy updates of one rollout."""

    planned: int
    """Number of updates in the step if no stopping rule ends it early."""
    metrics: Sequence[Any]
    """`UpdateMetrics` of each update, including skipped updates."""

    @property
    def applied(self) -> int:
        """Number of updates that changed the parameters."""
        return sum(not each.skipped_updates for each in self.metrics)


class Option(NamedTuple):
    """One optional feature of a run. A field that is None does nothing.

    `adjust` and `gradient` run inside the compiled update; the others run on the host, between compiled programs.
    """

    name: str
    """Key of the option's arrays in `TrainState.options`."""
    init: Callable[[Params], PyTree[Array]] | None = None
    """Trained parameters -> the option's initial arrays. It must be traceable, because a resumed run traces it for shapes."""
    from_start: bool = False
    """Whether the arrays exist from the start of the run; if False, they exist from the start of RL."""
    begin: Callable[[Any], Any] | None = None
    """State -> state, called once at the start of a new run."""
    adjust: Callable[[Algorithm, PyTree[Array]], Algorithm] | None = None
    """(algorithm, the option's arrays) -> the algorithm of this step, for coefficients that change during the run."""
    data: Callable[[int, int], PyTree[Array]] | None = None
    """(RL steps done, updates done in this step) -> further inputs of `gradient`, and of the setup's `forward`."""
    gradient: Callable[[Any, Frozen, Params, PyTree[Array]], tuple[Params, dict[str, Array]]] | None = None
    """(state, frozen arrays, gradient, data) -> (the gradient to apply, metrics)."""
    sampler: Callable[[Any], tuple[Params, int]] | None = None
    """State -> (trained parameters that sample the next rollout, number of RL steps that produced them)."""
    step: Callable[..., Any] | None = None
    """Makes an RL step in place of `rljax.training.rl_phase.one_step`, with the same arguments and result."""
    past: Callable[[Any, Any], EarlierRewards] | None = None
    """(state, groups of a rollout) -> earlier rewards of their prompts, with which the responses are compared."""
    before_updates: Callable[[Any, Any], Any] | None = None
    """(state, scored rollout) -> state, before the updates of a rollout."""
    measure: Callable[[Rollout, Batch], dict[str, float]] | None = None
    """(rollout, prepared batch) -> metrics."""
    wrap_optimizer: Callable[[optax.GradientTransformation], optax.GradientTransformation] = lambda optimizer: optimizer
    """Optimizer of the policy in RL -> the optimizer that replaces it, with the same state. Equal arguments give equal results."""
    stop: Callable[[Sequence[Any]], bool] | None = None
    """Metrics of the updates made so far -> whether to stop updating on this rollout."""
    restart: Callable[[Any, Any], None] | None = None
    """(run, checkpoint): restores the option's files to their contents at a checkpoint, when RL begins or continues."""
    react: Callable[[Any, Any, Any], Any] | None = None
    """(run, checkpoint, watch over the alarms) -> checkpoint, after a step; `checkpoint.journal` records each change."""
    revise: Callable[[Any, Any], Any] | None = None
    """(setup, checkpoint) -> the setup with the changes that the journal records."""
    after_updates: Callable[[Any, Any, Updates], tuple[Any, dict[str, float]]] | None = None
    """(state, `LearnMetrics`, updates) -> (state, metrics), after the updates of a rollout."""


class TracedOption(NamedTuple):
    """The part of an option that runs inside compiled programs. Options with equal parts share a program."""

    name: str
    adjust: Callable[[Algorithm, PyTree[Array]], Algorithm] | None
    gradient: Callable[[Any, Frozen, Params, PyTree[Array]], tuple[Params, dict[str, Array]]] | None


def traced_parts(options: Sequence[Option]) -> tuple[TracedOption, ...]:
    """Return the parts of the options that run inside compiled programs."""
    return tuple(
        TracedOption(option.name, option.adjust, option.gradient) for option in options if option.adjust or option.gradient
    )


def adjust_algorithm(
    algorithm: Algorithm, options: Sequence[Option | TracedOption], arrays: Mapping[str, PyTree]
) -> Algorithm:
    """Return the algorithm of this step, in which each option may set coefficients from its arrays."""
    for option in options:
        if option.adjust is not None:
            algorithm = option.adjust(algorithm, arrays[option.name])
    return algorithm


def adjustments(options: Sequence[Option], state: Any) -> dict[str, PyTree]:
    """Return host copies of the arrays that `adjust_algorithm` reads."""
    return {option.name: jax.device_get(state.options[option.name]) for option in options if option.adjust is not None}


def first_arrays(options: Sequence[Option], params: Params, *, from_start: bool) -> dict[str, PyTree[Array]]:
    """Return the initial arrays of the options whose arrays exist from the start of the run, or else from the start of RL."""
    return {
        option.name: option.init(params)
        for option in options
        if option.init is not None and option.from_start == from_start
    }


WARM_START, VALUE_PRETRAINING, RL = 0, 1, 2


class CriticState(NamedTuple):
    """The critic's part of the state."""

    params: Params
    """All parameters of the critic, including a frozen trunk."""
    opt_state: optax.OptState
    """Optimizer state of the trained parameters: all of them, or only the head's if the trunk is frozen."""
    pretrained: Params | None
    """Parameters of the critic before RL, if the algorithm blends their values into the current values; otherwise None."""


class TrainState(NamedTuple):
    """Parameters, optimizer states, random key and counters; a step is `(state, data) -> (state, metrics)`."""

    params: Params
    """Trained parameters of the policy: all of them, or an adapter."""
    opt_state: optax.OptState
    """State of the policy's optimizer."""
    reference: Params | None
    """Parameters of the reference policy, if the algorithm needs one and they are not the base of the adapter."""
    critic: CriticState | None
    """State of the critic; None if the algorithm has no critic."""
    options: dict[str, PyTree[Array]]
    """Arrays of the optional parts of the run, by the option's name; see `Option`."""
    key: UInt32[Array, "2"]
    """Root key of all sampling. It never changes; `draws` is folded into it."""
    phase: Int[Array, ""]
    """0 in the supervised warm start, 1 while only the critic learns, 2 in RL."""
    warm_step: Int[Array, ""]
    """Number of supervised steps done."""
    value_step: Int[Array, ""]
    """Number of value pretraining steps done."""
    step: Int[Array, ""]
    """Number of RL steps done."""
    draws: Int[Array, ""]
    """Number of calls that sampled responses for training."""
    position: Int[Array, ""]
    """Number of prompts taken from the endless stream of training prompts."""


def create(
    params: Params,
    optimizer: optax.GradientTransformation,
    seed: int,
    *,
    with_reference: bool,
    critic: CriticState | None = None,
    options: dict[str, PyTree[Array]] | None = None,
) -> TrainState:
    """Return the state at the beginning of the warm start, with all counters at 0."""
    key = jax.random.key_data(jax.random.key(seed))
    reference = jax.tree.map(jnp.copy, params) if with_reference else None
    counters = [jnp.zeros((), jnp.int32) for _ in range(6)]  # separate buffers, because a donated buffer must not be shared
    return TrainState(params, optimizer.init(params), reference, critic, dict(options or {}), key, *counters)


def end_warm_start(state: TrainState, optimizer: optax.GradientTransformation, critic: CriticState | None) -> TrainState:
    """End the warm start: reset the optimizer, copy the current policy as the reference, and set the initial critic."""
    return state._replace(
        opt_state=optimizer.init(state.params),
        reference=None if state.reference is None else jax.tree.map(jnp.copy, state.params),
        critic=critic,
        phase=jnp.int32(VALUE_PRETRAINING),
    )


def begin_rl(state: TrainState, options: dict[str, PyTree[Array]]) -> TrainState:
    """Begin RL: add the options' arrays, and copy the critic as the pretrained critic if the algorithm needs it."""
    critic = state.critic
    if critic is not None and critic.pretrained is not None:
        critic = critic._replace(pretrained=jax.tree.map(jnp.copy, critic.params))
    return state._replace(critic=critic, options=state.options | options, phase=jnp.int32(RL))


def sampling_key(state: TrainState) -> PRNGKeyArray:
    """Return the random key of the next sampling call."""
    return jax.random.fold_in(jax.random.wrap_key_data(state.key), state.draws)


def place(
    state: TrainState, mesh: Mesh, partition: Partition, *, base: PyTree[jax.ShapeDtypeStruct] | None = None
) -> TrainState:
    """Place each array on the mesh in its own buffer, because an update donates the buffers of the old state.

    Args:
        state: the state.
        mesh: the devices.
        partition: how the policy's parameters are sharded.
        base: shapes of the parameters under an adapter; a critic contains copies of these parameters.
    """
    return put(_copy_shared(state), policy_shardings(mesh, state, state.params, partition, extra_params=base))


def _copy_shared(state: TrainState) -> TrainState:
    """Copy arrays that occur more than once in the state, such as one array of zeros for several parameters."""
    seen: set[int] = set()

    def copy_repeated(array: Array) -> Array:
        copied = jnp.copy(array) if id(array) in seen else array
        seen.add(id(array))
        return copied

    return jax.tree.map(copy_repeated, state)


class Shardings(NamedTuple):
    """Shardings of the arrays of a pytree; hashable, so that programs for equal shardings can be shared."""

    shardings: tuple[Sharding, ...]
    """Sharding of each array."""
    structure: Any
    """Structure of the pytree, a `jax.tree_util.PyTreeDef`."""

    def tree(self) -> PyTree[Sharding]:
        """Return the shardings as a pytree."""
        return jax.tree.unflatten(self.structure, self.shardings)


def shardings_of(state: PyTree) -> Shardings:
    """Return the sharding of each array of a placed state."""
    arrays, structure = jax.tree.flatten(state)
    return Shardings(tuple(array.sharding for array in arrays), structure)
