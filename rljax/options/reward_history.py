"""`--remembered-rewards N`: responses are compared with the latest N rewards of their prompt in addition to their group."""

from functools import partial
from typing import Any

import jax
from jaxtyping import Array, Int

from rljax.algorithms import Algorithm, EarlierRewards, Rollout, response_rewards
from rljax.caching import cache_results
from rljax.models import Params
from rljax.ops.unpublished.reward_history import RewardHistory, empty_history, push_history
from rljax.parallel import fetch
from rljax.rollout import Groups
from rljax.training.setup import Setup
from rljax.training.state import (
    Option,
    Shardings,
    TracedOption,
    TrainState,
    adjust_algorithm,
    adjustments,
    shardings_of,
    traced_parts,
)

NAME = "reward_history"


def install(setup: Setup) -> Setup:
    """Keep the latest rewards of each training prompt."""
    capacity = setup.config.sampling.remembered_rewards
    if setup.tokenizer is None:  # `rljax plan` loads neither a tokenizer nor prompts, so their number is unknown
        return setup
    prompts = len(setup.train.prompts.tokens)

    def init(params: Params) -> RewardHistory:
        del params
        return empty_history(prompts, capacity)

    def push(state: TrainState, scored: Any) -> TrainState:
        history, adjusting = state.options[NAME], tuple(option for option in setup.options if option.adjust is not None)
        program = _push_program(setup.algorithm, traced_parts(adjusting), shardings_of(history))
        updated = program(history, scored.groups.prompt_ids, scored.groups.rollout, adjustments(adjusting, state))
        return state._replace(options=state.options | {NAME: updated})

    def past(state: TrainState, groups: Groups) -> EarlierRewards:
        return EarlierRewards(fetch(state.options[NAME]), groups.prompt_ids)

    return setup.with_option(Option(NAME, init=init, past=past, before_updates=push))


@cache_results
def _push_program(algorithm: Algorithm, options: tuple[TracedOption, ...], shardings: Shardings) -> Any:
    """Compile `(history, prompt ids, rollout, adjustments) -> history with the rewards added`; the old history is donated."""

    @partial(jax.jit, donate_argnums=0, out_shardings=shardings.tree())
    def push(history: RewardHistory, prompt_ids: Int[Array, "P"], rollout: Rollout[Array], adjusted: dict) -> RewardHistory:
        rewards = response_rewards(adjust_algorithm(algorithm, options, adjusted), rollout)
        return push_history(history, prompt_ids, rewards, valid=rollout.valid)

    return push
