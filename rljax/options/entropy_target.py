"""`--with term=adaptive_entropy`: adjust the entropy bonus's coefficient to keep the entropy above a target.

Source: Skywork-OR1, arXiv:2505.22312, Section 3.2.5; see `rljax.ops.entropy_control`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rljax.algorithms import Algorithm, Term
from rljax.models import Params
from rljax.parallel import put
from rljax.records import required
from rljax.training.metrics import LearnMetrics
from rljax.training.setup import Setup
from rljax.training.state import Option, TrainState, Updates

NAME = "entropy_target"


class EntropyCoefficients(NamedTuple):
    """The two coefficients of the entropy bonus, both nonnegative."""

    stored: Float[Array, ""] | float
    """The coefficient that is adjusted after each step."""
    active: Float[Array, ""] | float
    """The coefficient used in the loss: `stored`, or 0 if the last measured entropy was above its target."""


def install(setup: Setup) -> Setup:
    """Adapt the coefficient to the measured entropy after each step."""
    (term,) = (term for term in setup.algorithm.terms if term.follow is not None)
    first = -float(term.coefficient)

    def init(params: Params) -> EntropyCoefficients:
        del params
        return EntropyCoefficients(jnp.float32(first), jnp.float32(first))

    return setup.with_option(Option(NAME, init=init, adjust=with_coefficients, after_updates=make_adjuster(term)))


def with_coefficients(algorithm: Algorithm, coefficients: EntropyCoefficients) -> Algorithm:
    """Return the algorithm with the active coefficient, which may be traced, for its adaptive entropy bonus."""
    terms = tuple(
        term if term.follow is None else term._replace(coefficient=-coefficients.active) for term in algorithm.terms
    )
    return algorithm._replace(terms=terms)


def make_adjuster(term: Term) -> Callable[[TrainState, LearnMetrics, Updates], tuple[TrainState, dict[str, float]]]:
    """Build the function that adjusts the coefficients after a step, from the mean entropy during its updates.

    A step without an applied update, or with an entropy that is not finite, leaves the coefficients unchanged.
    """
    follow = required(term.follow, "term.follow")

    def adjust(state: TrainState, metrics: LearnMetrics, updates: Updates) -> tuple[TrainState, dict[str, float]]:
        before: EntropyCoefficients = state.options[NAME]
        reported, policy = {"entropy_coefficient": float(before.active)}, metrics.policy
        if not updates.applied or policy is None or policy.loss is None or policy.loss.entropy is None:
            return state, reported
        entropy = float(policy.loss.entropy)
        if not np.isfinite(entropy):
            return state, reported
        after = EntropyCoefficients(*follow(float(before.stored), entropy))
        placed = jax.tree.map(lambda new, old: put(np.asarray(new, np.float32), old.sharding), after, before)
        return state._replace(options=state.options | {NAME: placed}), reported

    return adjust
