"""The reference of a run: whether the state holds it, how it moves, and how strongly the policy is held to it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from rljax.algorithms import Algorithm
from rljax.algorithms.terms import kl_coefficient, with_kl_coefficient
from rljax.errors import InputError
from rljax.ops.arrays import Number
from rljax.ops.divergence import ema_update
from rljax.ops.reference import adaptive_kl_coefficient, reset_reference
from rljax.parallel import put
from rljax.records import required
from rljax.sharing import shared
from rljax.training.config import TrainConfig
from rljax.training.metrics import LearnMetrics, UpdateMetrics
from rljax.training.state import Places, TrainState, places


def keeps_reference(config: TrainConfig, algorithm: Algorithm) -> bool:
    """True if the state holds the reference: not that of an adapter without a warm start, which is the base, unless it moves."""
    if not algorithm.needs("ref_logp"):
        return False
    moves = algorithm.reference_rate > 0 or config.algorithm.reference_period is not None
    return config.adapter.rank is None or config.warm_start.steps > 0 or moves


def check_reference(algorithm: Algorithm, config: TrainConfig) -> None:
    """Refuse a target of the divergence, or a period of the reference, that the algorithm has no use for.

    Raises:
        InputError: the message names the setting and the reason.
    """
    target, period = config.algorithm.kl_target, config.algorithm.reference_period
    advice = "choose an algorithm with one, such as grpo with --algorithm-options beta=0.04, or leave it out."
    if target is not None:
        try:
            kl_coefficient(algorithm)
        except ValueError as error:
            raise InputError(f"kl_target={target} moves the coefficient of a KL penalty: {error}; {advice}") from error
    if period is None:
        return
    if not algorithm.needs("ref_logp"):
        raise InputError(f"reference_period={period}: the algorithm has no KL penalty to a reference; {advice}")
    if algorithm.reference_rate > 0:
        raise InputError(
            f"reference_period={period}: the algorithm's reference follows the policy already, by reference_rate="
            f"{algorithm.reference_rate} a step; leave one of the two out."
        )
    if config.optimization.schedule != "constant":
        raise InputError(
            f"reference_period={period}: the optimiser restarts with each reference, so "
            f"schedule={config.optimization.schedule!r} would return to its peak each time; leave one of the two out."
        )
    if config.optimization.remedy == "controller":
        raise InputError(
            f"reference_period={period}: the optimiser restarts with each reference, and with it what remedy=controller has "
            "come to; leave one of the two out."
        )


def first_coefficient(config: TrainConfig, algorithm: Algorithm) -> Number | None:
    """Coefficient of the KL penalty that a run with a target of the divergence begins with; None without a target."""
    return None if config.algorithm.kl_target is None else kl_coefficient(algorithm)


def at_strength(algorithm: Algorithm, coefficient: Number | None) -> Algorithm:
    """The algorithm with the state's coefficient of the KL penalty; as it is where the state has none."""
    return algorithm if coefficient is None else with_kl_coefficient(algorithm, coefficient)


def was_updated(policy: UpdateMetrics | None) -> bool:
    """True if a step had an update of the policy that was not skipped, by the averages over its updates."""
    return policy is not None and policy.loss is not None


def make_adapt(config: TrainConfig) -> Callable[[TrainState, LearnMetrics], TrainState]:
    """Build the function that moves the coefficient of the KL penalty after a step, by the divergence before its updates.

    A step whose updates were all skipped leaves the coefficient as it is, and so does a run without a target.
    """
    target, gain = config.algorithm.kl_target, config.algorithm.kl_gain
    if target is None:
        return lambda state, metrics: state
    control = partial(adaptive_kl_coefficient, target=target, **({} if gain is None else {"gain": gain}))

    def adapt(state: TrainState, metrics: LearnMetrics) -> TrainState:
        divergence, policy = metrics.kl_to_reference, metrics.policy
        if divergence is None or not was_updated(policy):
            return state
        now = required(state.kl_coefficient, "state.kl_coefficient")
        return state._replace(kl_coefficient=put(np.asarray(control(float(now), divergence), np.float32), now.sharding))

    return adapt


def make_move(
    algorithm: Algorithm, config: TrainConfig, optimizer: optax.GradientTransformation, state: TrainState
) -> Callable[[TrainState, UpdateMetrics | None], TrainState]:
    """Build the function that moves the reference after the updates of a step, whose averages it gets; it donates the old state.

    The reference stays, or follows the policy as the algorithm says, or is replaced by it at the period of the settings; with
    that, the policy's optimiser restarts. A step whose updates were all skipped replaces nothing.
    """
    rate, period = algorithm.reference_rate, config.algorithm.reference_period
    if rate > 0:
        follow = _follow_program(rate)
        return lambda state, policy: state._replace(reference=follow(state.reference, state.params))
    if period is None:
        return lambda state, policy: state
    restart = _restart_program(optimizer, places(state), period)
    return lambda state, policy: restart(state) if was_updated(policy) and int(state.step) % period == 0 else state


@shared
def _follow_program(rate: float) -> Any:
    return jax.jit(partial(ema_update, rate=rate), donate_argnums=0)


@shared
def _restart_program(optimizer: optax.GradientTransformation, where: Places, period: int) -> Any:
    @partial(jax.jit, donate_argnums=0, out_shardings=where.tree())
    def restart(state: TrainState) -> TrainState:
        reference = reset_reference(state.reference, state.params, state.step, period=period)
        return state._replace(reference=reference, opt_state=optimizer.init(state.params))

    return restart
