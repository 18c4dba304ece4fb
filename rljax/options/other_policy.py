"""Another policy plays some turns of an environment's episodes: a past copy of the trained policy, or a model from a folder.

The environment decides whose turn is next (`is_others_turn`) and names the other policy (`other_policy`). A past copy is part of
the training state, so a resumed run plays against the same parameters. The current parameters replace the copy every
`refresh_every` steps. Held-out episodes are played against the folder's model or, if the other policy is a past copy, against the
evaluated policy itself.
"""

from dataclasses import replace
from functools import partial

from jax.sharding import Mesh

from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.models import Policy
from rljax.options import other_policy_of
from rljax.options.distillation import load_second_model
from rljax.options.sampler_delay import choose_cast, make_entry, make_newest_entry
from rljax.rollout.environment import Player
from rljax.training.checkpoints.checkpoint import Checkpoint
from rljax.training.config import TrainConfig
from rljax.training.metrics import LearnMetrics
from rljax.training.phase import StepOutcome
from rljax.training.rl_phase import StepFunctions, one_step
from rljax.training.rollout_data import ChoosePrompts
from rljax.training.run import Run
from rljax.training.setup import Setup
from rljax.training.state import Option, TrainState, Updates
from rljax.training.worker import make_engine

NAME = "other_policy"
PAST = "past"
DEFAULT_REFRESH_STEPS = 20
"""Number of RL steps between two copies if the environment does not set `refresh_every`."""


def install(setup: Setup) -> Setup:
    """Add the other policy.

    Raises:
        InputError: the other policy cannot play in this run; the message names the reason.
    """
    source, config = other_policy_of(setup), setup.config
    if source == PAST:
        check_past(config)
        return setup.with_option(past_copy_option(setup))
    if setup.train is None or source is None:  # a plan needs only the state, which never contains a folder's model
        return setup
    player = read_player(source, config, setup.policy, setup.tokenizer, setup.mesh, setup.prompt_length)
    return setup._replace(train=replace(setup.train, other=player), heldout=replace(setup.heldout, other=player))


def check_past(config: TrainConfig) -> None:
    """Reject settings with which a past copy cannot be combined.

    Raises:
        InputError: rollouts overlap with updates, or a server samples.
    """
    if config.sampling.staleness:
        raise InputError(
            f"staleness={config.sampling.staleness}: a rollout begins before the copy that it plays against exists; use "
            "--sampler-delay instead, or leave staleness out."
        )
    if config.sampling.engine_url is not None:
        raise InputError(
            f"engine_url={config.sampling.engine_url!r}: the server has the parameters of one policy, but other_policy='past' "
            "needs two policies; leave engine_url out, or name a model folder as other_policy."
        )


def read_player(
    source: str, config: TrainConfig, policy: Policy, tokenizer: Tokenizer, mesh: Mesh, prompt_length: int
) -> Player:
    """Load a model from a folder, and build an engine for it.

    Args:
        source: model folder or hub id.
        config: the settings.
        policy: the policy being trained, whose vocabulary the model must share.
        tokenizer: tokenizer of the policy.
        mesh: the devices of both models.
        prompt_length: number of token slots per prompt.

    Raises:
        InputError: the folder cannot be read, is not a language model, or has a different vocabulary.
    """
    model = load_second_model(source, config, policy, tokenizer, mesh, role="other policy")
    engine = make_engine(config, model.policy, mesh, prompt_length, free_bytes=None, text=tokenizer.decode)
    return Player(engine, model.params)


def past_copy_option(setup: Setup) -> Option:
    """Return the option that plays against a past copy of the trained parameters.

    Raises:
        InputError: `refresh_every` is not a positive whole number.
    """
    environment = None if setup.train is None else setup.train.environment
    period = getattr(environment, "refresh_every", DEFAULT_REFRESH_STEPS)
    if not isinstance(period, int) or isinstance(period, bool) or period < 1:
        raise InputError(f"environment.refresh_every: expected a positive whole number of RL steps; got {period!r:.80}.")
    cast = choose_cast(setup.policy, setup.config)

    def step(run: Run, functions: StepFunctions, checkpoint: Checkpoint, choose_prompts: ChoosePrompts) -> StepOutcome:
        own = functions.setup
        past = checkpoint.state.options[NAME]
        player = Player(own.train.engine, past if own.base is None else own.full_params(past))
        own = own._replace(train=replace(own.train, other=player))
        return one_step(run, functions._replace(setup=own), checkpoint, choose_prompts)

    def refresh(state: TrainState, metrics: LearnMetrics, updates: Updates) -> tuple[TrainState, dict[str, float]]:
        del metrics, updates
        if int(state.step) % period:
            return state, {}
        newest = make_newest_entry(setup, state.params, state.options[NAME])
        return state._replace(options=state.options | {NAME: newest}), {}

    return Option(NAME, init=partial(make_entry, cast), step=step, after_updates=refresh)
