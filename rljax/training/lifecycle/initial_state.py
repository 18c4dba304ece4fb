"""The state at the beginning of each phase of a run."""

from collections.abc import Collection

import jax
import jax.numpy as jnp

from rljax.models import Params
from rljax.models.quantization import matrix_shapes
from rljax.ops.unpublished.reward_history import empty_history
from rljax.parallel import row_shards, together
from rljax.records import required
from rljax.rollout import DecodingEngine
from rljax.rollout.decoder_check import check_decoder
from rljax.training.objective.anchor import with_fisher
from rljax.training.objective.critic import first_critic
from rljax.training.objective.optimizer import check_optimizer, critic_optimizer, warm_start_optimizer
from rljax.training.objective.reference import first_coefficient, keeps_reference
from rljax.training.parts.adapter import first_adapter
from rljax.training.setup import Setup
from rljax.training.state import WARM_START, CriticState, TrainState, create, end_warm_start, place
from rljax.training.update import check_policy, make_score


def first_params(setup: Setup) -> Params:
    """Load or initialise the parameters that are trained."""
    if setup.base is not None:
        return first_adapter(setup.config, setup.base)
    return setup.policy.init(jax.random.key(setup.config.run.seed))


def first_state(setup: Setup, own_parts: Collection[str] = ("policy", "engine")) -> TrainState:
    """Load or initialise the parameters, check that policy, engine and optimiser accept them, and make the initial state.

    Args:
        setup: everything that the run uses.
        own_parts: names of the arguments that were passed to `train`; a built-in policy and a built-in engine need no check, which
            takes seconds.

    Raises:
        InputError: the policy cannot score a response or be sampled from, or the optimiser cannot take the parameters.
    """
    params = together(lambda: first_params(setup))
    all_params = params if setup.base is None else setup.base.params
    policy, rows, budget = setup.policy, row_shards(setup.mesh), setup.config.sampling.max_response_tokens
    engine = setup.train.engine
    if "policy" in own_parts:
        check_policy(policy, all_params, rows=rows, prompt_length=setup.prompt_length, response_length=budget)
    if isinstance(engine, DecodingEngine) and {"policy", "engine"} & set(own_parts):
        lengths = {"rows": rows, "prompt_length": setup.prompt_length, "budget": budget}
        check_decoder(engine.decoder, all_params, policy.vocab_size, **lengths)
    check_optimizer(setup.optimizer, params)
    return initial_state(setup, params)


def initial_critic(setup: Setup, params: Params) -> CriticState | None:
    """Initial critic for these parameters of the policy, with the adapter merged in; None if the algorithm has no critic."""
    if setup.critic is None:
        return None
    optimizer = critic_optimizer(setup.config, setup.algorithm)
    blended = required(setup.algorithm.critic, "algorithm.critic").blend is not None
    policy = setup.whole(params)
    if setup.config.adapter.quantize is not None:
        # The merged copy has the type of the products, and a critic learns in float32.
        policy = jax.tree.map(lambda array: array.astype(jnp.float32), policy)
    return first_critic(setup.critic, optimizer, policy, setup.config.run.seed, blended=blended)


def initial_state(setup: Setup, params: Params) -> TrainState:
    """State at the beginning of the warm start, with these parameters of the policy."""
    config = setup.config
    remembered = None
    if config.sampling.remembered_rewards:
        remembered = empty_history(len(setup.train.prompts.tokens), config.sampling.remembered_rewards)
    state = create(
        params,
        warm_start_optimizer(config),
        config.run.seed,
        with_reference=keeps_reference(config, setup.algorithm),
        with_anchor=config.algorithm.anchor is not None,
        critic=initial_critic(setup, params),
        remembered=remembered,
        kl_coefficient=first_coefficient(config, setup.algorithm),
    )
    return place_state(setup, state)


def place_state(setup: Setup, state: TrainState) -> TrainState:
    """The state on the run's mesh."""
    base = None if setup.base is None else matrix_shapes(setup.base.params)
    return place(state, setup.mesh, setup.policy.partition, base=base)


def rl_state(setup: Setup, state: TrainState) -> TrainState:
    """State after the warm start: optimiser state, reference and critic are initialised from the current policy."""
    critic = initial_critic(setup, state.params)
    return place_state(setup, end_warm_start(state, setup.optimizer, critic))


def add_anchor(setup: Setup, state: TrainState) -> TrainState:
    """State at the beginning of the run, with the Fisher information of its anchor, if it has one."""
    if setup.anchor is None:
        return state
    score = make_score(setup.policy, setup.config.sampling.temperature)
    return with_fisher(state, setup.anchor, score, setup.mesh)


def state_of_phase(setup: Setup, state: TrainState, phase: int) -> TrainState:
    """State with the shapes of a phase, made from the initial one. The warm start has a different optimiser than RL."""
    return state if phase == WARM_START else rl_state(setup, state)
