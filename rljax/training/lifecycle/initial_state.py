"""The training state at the beginning of each phase of a run, and the state's shapes, into which a checkpoint is restored."""

from collections.abc import Callable, Collection
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from rljax.models import Params
from rljax.models.adapters import Base
from rljax.models.quantization import matrix_shapes
from rljax.parallel import add_shardings, policy_shardings, row_shards, run_together
from rljax.records import required
from rljax.rollout import DecodingEngine
from rljax.rollout.decoder_check import check_decoder
from rljax.training.objective.algorithm import keeps_reference
from rljax.training.objective.critic import initial_critic_state
from rljax.training.objective.optimizer import check_optimizer, critic_optimizer, warm_start_optimizer
from rljax.training.parts.adapter import fresh_adapter, initial_adapter, merge_params
from rljax.training.scoring import check_score
from rljax.training.setup import Setup
from rljax.training.state import (
    RL,
    WARM_START,
    CriticState,
    TrainState,
    begin_rl,
    create,
    end_warm_start,
    first_arrays,
    place,
)


def first_params(setup: Setup) -> Params:
    """Load or initialize the trained parameters."""
    if setup.base is not None:
        return initial_adapter(setup.config, setup.base)
    return setup.policy.init(jax.random.key(setup.config.run.seed))


def param_shapes(setup: Setup) -> PyTree[jax.ShapeDtypeStruct]:
    """Return the shapes of the trained parameters.

    If the policy has no `shapes`, its parameters are initialized and then discarded, because its `init` need not be traceable.
    """
    if setup.base is not None:
        return jax.eval_shape(partial(fresh_adapter, setup.config, setup.base))
    if setup.policy.shapes is not None:
        return setup.policy.shapes()
    return jax.eval_shape(lambda params: params, run_together(lambda: first_params(setup)))


def load_initial_state(setup: Setup, own_parts: Collection[str] = ("policy", "engine", "optimizer")) -> TrainState:
    """Load or initialize the parameters, check them with `check_models`, and build the initial state."""
    params = run_together(lambda: first_params(setup))
    check_models(setup, params, own_parts)
    return initial_state(setup, params)


def check_models(setup: Setup, params: PyTree, own_parts: Collection[str] = ("policy", "engine", "optimizer")) -> None:
    """Check that policy, engine and optimizer accept the parameters, by tracing without any computation.

    Args:
        setup: everything that the run uses.
        params: the trained parameters, or their shapes.
        own_parts: names of the arguments that were passed to `train`. Built-in ones are not checked, because the checks take
            seconds.

    Raises:
        InputError: the policy cannot score a response or be sampled from, or the optimizer cannot take the parameters.
    """
    all_params = params if setup.base is None else setup.base.params
    policy, rows, budget = setup.policy, row_shards(setup.mesh), setup.config.sampling.max_response_tokens
    engine = setup.train.engine
    if "policy" in own_parts:
        check_score(policy, all_params, rows=rows, prompt_length=setup.prompt_length, response_length=budget)
    if isinstance(engine, DecodingEngine) and {"policy", "engine"} & set(own_parts):
        lengths = {"rows": rows, "prompt_length": setup.prompt_length, "budget": budget}
        check_decoder(engine.decoder, all_params, policy.vocab_size, **lengths)
    if "optimizer" in own_parts:
        check_optimizer(setup.optimizer, params)


def initial_critic(setup: Setup, params: Params) -> CriticState | None:
    """Return the initial critic, built from the policy's full parameters (adapter merged in); None if there is no critic."""
    if setup.critic is None:
        return None
    optimizer = critic_optimizer(setup.config, setup.algorithm)
    blended = required(setup.algorithm.critic, "algorithm.critic").blend is not None
    if setup.config.adapter.quantize is not None:
        # The merged copy has the dtype of the matrix products, but a critic learns in float32.
        params = jax.tree.map(lambda array: array.astype(jnp.float32), params)
    return initial_critic_state(setup.critic, optimizer, params, setup.config.run.seed, blended=blended)


def make_unplaced_state(setup: Setup, params: Params, all_params: Params | None) -> TrainState:
    """Build the state at the beginning of the warm start from the trained parameters, not yet placed on the mesh.

    Args:
        setup: everything that the run uses.
        params: the trained parameters.
        all_params: the policy's full parameters, from which a critic is initialized; None if there is no critic.
    """
    config = setup.config
    return create(
        params,
        warm_start_optimizer(config),
        config.run.seed,
        with_reference=keeps_reference(config, setup.algorithm),
        critic=initial_critic(setup, all_params),
        options=first_arrays(setup.options, params, from_start=True),
    )


def initial_state(setup: Setup, params: Params) -> TrainState:
    """Build the state at the beginning of the warm start from the trained parameters, placed on the run's mesh."""
    all_params = None if setup.critic is None else setup.full_params(params)
    return place_state(setup, make_unplaced_state(setup, params, all_params))


def place_state(setup: Setup, state: TrainState) -> TrainState:
    """Place a state on the run's mesh."""
    base = None if setup.base is None else matrix_shapes(setup.base.params)
    return place(state, setup.mesh, setup.policy.partition, base=base)


def state_after_warm_start(setup: Setup, state: TrainState) -> TrainState:
    """Return the state after the warm start: optimizer state, reference and critic are initialized from the current policy."""
    critic = None if setup.critic is None else initial_critic(setup, setup.full_params(state.params))
    return place_state(setup, end_warm_start(state, setup.optimizer, critic))


def state_like(setup: Setup, phase: int) -> TrainState:
    """Return the shapes, dtypes and shardings of the state in a phase; they depend on the phase's optimizer and options."""

    def begin(params: Params, base: Base | None) -> TrainState:
        all_params = None if setup.critic is None else merge_params(base, params, setup.config)
        state = make_unplaced_state(setup, params, all_params)
        if phase != WARM_START:
            state = end_warm_start(state, setup.optimizer, state.critic)
        return begin_rl(state, first_arrays(setup.options, params, from_start=False)) if phase == RL else state

    return template(setup, begin)


def template(setup: Setup, begin: Callable[[Params, Base | None], TrainState]) -> TrainState:
    """Return the shapes, dtypes and shardings of the state that `begin` would build, to restore a checkpoint into them.

    Args:
        setup: everything that the run uses.
        begin: (trained parameters, model under the adapter or None) -> the state, not yet placed.
    """
    trained, base = param_shapes(setup), setup.base
    state = jax.eval_shape(begin, trained, base)
    base_shapes = None if base is None else matrix_shapes(base.params)
    return add_shardings(
        state, policy_shardings(setup.mesh, state, trained, setup.policy.partition, extra_params=base_shapes)
    )


def begin_options(setup: Setup, state: TrainState) -> TrainState:
    """Return the state of a new run after each of `setup.options` has computed its initial arrays."""
    for option in setup.options:
        if option.begin is not None:
            state = option.begin(state)
    return state


def first_rl_state(setup: Setup, state: TrainState) -> TrainState:
    """Return the state at the start of RL, with the arrays of all of `setup.options`."""
    return place_state(setup, begin_rl(state, first_arrays(setup.options, state.params, from_start=False)))
