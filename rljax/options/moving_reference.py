"""A moving reference policy: a moving average of the policy, or a copy of the policy every `--reference-period` steps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import optax

from rljax.algorithms import Algorithm
from rljax.caching import cache_results
from rljax.errors import InputError
from rljax.ops.divergence import ema_update
from rljax.ops.reference import reset_reference
from rljax.training.config import TrainConfig
from rljax.training.metrics import LearnMetrics
from rljax.training.setup import Setup
from rljax.training.state import Option, Shardings, TrainState, Updates, shardings_of

AfterUpdates = Callable[[TrainState, LearnMetrics, Updates], tuple[TrainState, dict[str, float]]]
"""See `Option.after_updates`."""


def install(setup: Setup) -> Setup:
    """Move the reference at the algorithm's rate, or replace it every `reference_period` steps."""
    rate, period = setup.algorithm.reference_rate, setup.config.algorithm.reference_period
    if period is not None:
        check_period(setup.algorithm, setup.config)
        return setup.with_option(Option("moving_reference", after_updates=make_restart(setup.optimizer, period)))
    return setup.with_option(Option("moving_reference", after_updates=make_average(rate)))


def check_period(algorithm: Algorithm, config: TrainConfig) -> None:
    """Raise an `InputError` if the algorithm or another setting rules out a reference period."""
    period = config.algorithm.reference_period
    if not algorithm.needs("ref_logp"):
        raise InputError(
            f"reference_period={period}: the algorithm has no KL penalty to a reference; choose an algorithm with one, such as "
            "grpo with --algorithm-options beta=0.04, or leave reference_period out."
        )
    if algorithm.reference_rate > 0:
        raise InputError(
            f"reference_period={period}: the algorithm's reference already follows the policy, by reference_rate="
            f"{algorithm.reference_rate} per step; leave one of the two out."
        )
    if config.optimization.schedule != "constant":
        raise InputError(
            f"reference_period={period}: the optimizer restarts with each new reference, so the learning rate of "
            f"schedule={config.optimization.schedule!r} would return to its peak each time; leave one of the two out."
        )
    if config.optimization.remedy == "controller":
        raise InputError(
            f"reference_period={period}: the optimizer restarts with each new reference, but remedy=controller adjusts one "
            "optimizer over the full run; leave one of the two out."
        )


def make_average(rate: float) -> AfterUpdates:
    """Build the function that moves the reference towards the policy, by `rate` of the distance, after each step's updates."""
    follow = average_program(rate)

    def move(state: TrainState, metrics: LearnMetrics, updates: Updates) -> tuple[TrainState, dict[str, float]]:
        del metrics, updates
        return state._replace(reference=follow(state.reference, state.params)), {}

    return move


def make_restart(optimizer: optax.GradientTransformation, period: int) -> AfterUpdates:
    """Build the function that replaces the reference with the policy every `period` steps, and restarts the optimizer.

    A step without an applied update does not replace the reference.
    """

    def move(state: TrainState, metrics: LearnMetrics, updates: Updates) -> tuple[TrainState, dict[str, float]]:
        del metrics
        if not updates.applied or int(state.step) % period:
            return state, {}
        return _restart_program(optimizer, shardings_of(state), period)(state), {}

    return move


@cache_results
def average_program(rate: float) -> Any:
    """Compile the function that moves parameters towards other parameters, by `rate` of the distance."""
    return jax.jit(partial(ema_update, rate=rate), donate_argnums=0)


@cache_results
def _restart_program(optimizer: optax.GradientTransformation, shardings: Shardings, period: int) -> Any:
    @partial(jax.jit, donate_argnums=0, out_shardings=shardings.tree())
    def restart(state: TrainState) -> TrainState:
        reference = reset_reference(state.reference, state.params, state.step, period=period)
        return state._replace(reference=reference, opt_state=optimizer.init(state.params))

    return restart
