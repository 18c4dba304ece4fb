"""`--kl-target`: adjust the KL penalty's coefficient to bring the divergence from the reference to a target.

Source: the adaptive controller of Ziegler et al., arXiv:1909.08593, Section 2.2; see `rljax.ops.reference`.
"""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rljax.algorithms.terms import kl_coefficient, with_kl_coefficient
from rljax.errors import InputError
from rljax.models import Params
from rljax.ops.arrays import Number
from rljax.ops.reference import adaptive_kl_coefficient
from rljax.parallel import put
from rljax.records import required
from rljax.training.metrics import LearnMetrics
from rljax.training.setup import Setup
from rljax.training.state import Option, TrainState, Updates

NAME = "kl_coefficient"


def install(setup: Setup) -> Setup:
    """Adjust the coefficient after each step.

    Raises:
        InputError: the algorithm has no KL penalty with a coefficient.
    """
    target, gain = required(setup.config.algorithm.kl_target, "kl_target"), setup.config.algorithm.kl_gain
    try:
        first = kl_coefficient(setup.algorithm)
    except ValueError as error:
        raise InputError(
            f"kl_target={target} adjusts the coefficient of a KL penalty: {error}; choose an algorithm with one, such as grpo with "
            "--algorithm-options beta=0.04, or leave kl_target out."
        ) from error
    control = partial(adaptive_kl_coefficient, target=target, **({} if gain is None else {"gain": gain}))
    option = Option(
        NAME, init=partial(constant, first), adjust=with_kl_coefficient, after_updates=make_kl_adjuster(control)
    )
    return setup.with_option(option)


def constant(value: Number, params: Params) -> Float[Array, ""]:
    """Return `value` as the initial coefficient, which does not depend on the parameters."""
    del params
    return jnp.float32(value)


def make_kl_adjuster(
    control: Callable[[float, float], Number],
) -> Callable[[TrainState, LearnMetrics, Updates], tuple[TrainState, dict[str, float]]]:
    """Build the function that adjusts the coefficient after a step, from the divergence measured before the step's updates.

    A step without an applied update leaves the coefficient unchanged.
    """

    def follow(state: TrainState, metrics: LearnMetrics, updates: Updates) -> tuple[TrainState, dict[str, float]]:
        now = state.options[NAME]
        reported, divergence = {NAME: float(now)}, (metrics.options or {}).get("kl_to_reference")
        if divergence is None or not updates.applied:
            return state, reported
        after = put(np.asarray(control(float(now), divergence), np.float32), now.sharding)
        return state._replace(options=state.options | {NAME: after}), reported

    return follow
