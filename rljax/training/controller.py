"""`--remedy controller`: the size of an update, the clip range and an entropy bonus follow the run's own numbers, step by step.

The hyper-parameters of a step are a function of the statistics so far, as in Eq. 61 of the design document (unpublished), which
names no such function; this one is ours. What it has come to is a part of the optimiser's state, so that nothing is compiled again,
and a resumed run goes on exactly.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from rljax.algorithms import Algorithm
from rljax.algorithms.terms import entropy_bonus
from rljax.errors import InputError
from rljax.models import Params
from rljax.ops.arrays import Number
from rljax.ops.surrogate import clipped, dual_clipped
from rljax.parallel import put
from rljax.records import documented
from rljax.sharing import shared
from rljax.training.config import TrainConfig
from rljax.training.metrics import LearnMetrics
from rljax.training.state import TrainState

TARGET = 1e-3
"""Divergence by one update that is aimed at, nats for each nat of entropy: the least of the 1e-3 to 2e-2 that the arithmetic runs
show at their own learning rates, as a step that is too small costs less than one that is too large."""
GAIN = 0.25
"""Share of the correction, as a logarithm, that a step makes."""
LARGEST_FALL = 1.0
"""Largest fall of the logarithm of the update's scale in a step."""
LARGEST_RISE, LARGEST_RISE_BELOW_1 = 0.25, math.log(2)
"""Largest rise of it, beyond the learning rate of the run, and up to there."""
BOUND = 100.0
"""Largest scale of an update; its inverse is the smallest, with which a run begins."""
NARROWEST = 0.5
"""Smallest scale of the clip range."""
FLOOR = 0.1
"""Share of the first entropy below which the bonus grows."""
BONUS_RATE, LARGEST_BONUS = 1e-3, 1e-2
"""Change of the weight of the entropy bonus in a step, and its largest value."""
BONUS = "entropy_bonus"


@documented
class Control(NamedTuple):
    """Factors by which the controller multiplies settings in the next step."""

    update_scale: Float[Array, ""] | float = 1 / BOUND
    """Factor of every update, and so of the learning rate. It begins as small as it may be: what too large an update destroys does
    not come back."""
    clip_scale: Float[Array, ""] | float = 1.0
    """Factor of both sides of the clip range."""
    entropy_weight: Float[Array, ""] | float = 0.0
    """Coefficient of an entropy bonus."""
    first_entropy: Float[Array, ""] | float = math.nan
    """Entropy in the first step, nats a token; NaN before it."""


def divergence_by_update(kl: Number, *, updates: int) -> Number:
    """Divergence by one update, from the mean over the updates of a rollout of the divergence before each.

    ::

        6 KL / ((n - 1)(2n - 1))        n equal updates in one direction diverge as 0, 1, 4, ... (n - 1)² times that of one

    Args:
        kl: KL, nats a token.
        updates: n, at least 2.

    Example:
        >>> divergence_by_update(7.0, updates=4)  # (0 + 1 + 4 + 9) / 4 = 3.5
        2.0
    """
    return 6 * kl / ((updates - 1) * (2 * updates - 1))


def next_control(control: Control, *, divergence: Number, entropy: Number, target: float = TARGET) -> Control:
    """Move the control by the numbers of a step.

    ::

        d  = D / H                                divergence for each nat of entropy
        e  = ½ log(target / d)                    an update of s times the size diverges by s² times as much
        a  = log 2 if s < 1 else ¼                largest rise
        s' = clip(s exp(clip(e / 4, -1, a)), 1/100, 100)                 scale of the updates, at first 1/100
        c' = clip(√(target / d), ½, 1)            scale of the clip range
        w' = clip(w + 0.001 clip(1 - H / (0.1 H₀), -1, 1), 0, 0.01)      weight of the entropy bonus

    Args:
        control: that of the step.
        divergence: D, by one update, nats a token.
        entropy: H, nats a token.
        target: of d. It depends on the policy: that of a table of logits is about a twentieth of that of a small transformer.

    Returns:
        The control of the next step; that of this one where a number is not finite, or the entropy is 0.

    Example:
        >>> after = next_control(Control(update_scale=1.0), divergence=1.0, entropy=0.5)
        >>> round(float(after.update_scale), 3), float(after.clip_scale), float(after.first_entropy)
        (0.387, 0.5, 0.5)
        >>> [round(float(next_control(Control(s), divergence=0.0, entropy=0.5).update_scale), 3) for s in (0.01, 1.0)]
        [0.02, 1.284]
    """
    divergence, entropy = jnp.float32(divergence), jnp.float32(entropy)
    first = jnp.where(jnp.isnan(control.first_entropy), entropy, control.first_entropy)
    ratio = jnp.sqrt(target * entropy / jnp.maximum(divergence, 1e-12))
    rise = jnp.where(jnp.asarray(control.update_scale) < 1, LARGEST_RISE_BELOW_1, LARGEST_RISE)
    change = jnp.clip(GAIN * jnp.log(jnp.maximum(ratio, 1e-6)), -LARGEST_FALL, rise)
    lack = jnp.clip(1 - entropy / (FLOOR * first), -1.0, 1.0)
    after = Control(
        update_scale=jnp.clip(control.update_scale * jnp.exp(change), 1 / BOUND, BOUND),
        clip_scale=jnp.clip(ratio, NARROWEST, 1.0),
        entropy_weight=jnp.clip(control.entropy_weight + BONUS_RATE * lack, 0.0, LARGEST_BONUS),
        first_entropy=first,
    )
    is_sound = jnp.isfinite(divergence) & jnp.isfinite(entropy) & (entropy > 0)
    return jax.tree.map(lambda new, old: jnp.where(is_sound, new, jnp.float32(old)), after, control)


def check_controller(config: TrainConfig, algorithm: Algorithm, *, own_optimizer: bool) -> None:
    """Refuse a controller that would see or move nothing.

    Raises:
        InputError: the message has the reason.
    """
    if config.optimization.remedy != "controller":
        return
    optimization = config.optimization
    if optimization.minibatches * optimization.passes < 2:
        raise InputError(
            "remedy=controller measures how far the first updates of a rollout move the policy, so it needs at least two of them; "
            "set --minibatches 2 or --passes 2, or choose remedy=auto."
        )
    if optimization.kl_limit is not None:
        raise InputError(
            f"remedy=controller and kl_limit={optimization.kl_limit} both limit the divergence from the updates of a rollout, so "
            "the controller would measure what kl_limit has cut off; leave one of the two out."
        )
    delay = config.sampling.delay
    if delay and algorithm.correction is None:
        raise InputError(
            f"remedy=controller reads how far the updates of a step move the policy, and with sampler_delay={delay} the age of the "
            "samples would be a part of it; choose a --correction, or leave one of the two out."
        )
    if own_optimizer:
        raise InputError("remedy=controller scales the built-in optimiser; leave it out, or leave your own optimizer out.")
    if any(term.name == BONUS for term in algorithm.terms):
        raise InputError(
            f"remedy=controller has an entropy bonus, and so has {config.algorithm.name}; choose remedy=auto, or another algorithm."
        )


def add_entropy_bonus(algorithm: Algorithm, config: TrainConfig) -> Algorithm:
    """Give the algorithm the entropy bonus that the controller weighs; other runs have the algorithm as it is."""
    if config.optimization.remedy != "controller":
        return algorithm
    return with_bonus(algorithm)


@shared
def with_bonus(algorithm: Algorithm) -> Algorithm:
    """Give the algorithm an entropy bonus of coefficient 1, for `with_control` to change."""
    return algorithm._replace(terms=(*algorithm.terms, *entropy_bonus(1.0)))


def under_control(algorithm: Algorithm, opt_state: Any) -> Algorithm:
    """The algorithm with the clip range and the entropy bonus of the optimiser's state; as it is where that has no control."""
    control = control_of(opt_state)
    return algorithm if control is None else with_control(algorithm, control)


def with_control(algorithm: Algorithm, control: Control) -> Algorithm:
    """The algorithm with another clip range and another coefficient of its entropy bonus, which may be traced."""
    terms = tuple(
        term._replace(coefficient=-control.entropy_weight) if term.name == BONUS else term for term in algorithm.terms
    )
    return algorithm._replace(terms=terms, surrogate=_narrowed(algorithm.surrogate, control.clip_scale))


def clip_range(surrogate: Any) -> dict[str, float]:
    """Both sides of PPO's clip range, by name; none of a surrogate that is not clipped on both.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> clip_range(BY_NAME["dapo"]().surrogate), clip_range(BY_NAME["rloo"]().surrogate)
        ({'low': 0.2, 'high': 0.28}, {})
    """
    bounds = surrogate.keywords if isinstance(surrogate, partial) and surrogate.func in (clipped, dual_clipped) else {}
    sides = {name: bounds[name] for name in ("low", "high") if name in bounds and 0 < bounds[name] < 1}
    return sides if len(sides) == 2 else {}


def _narrowed(surrogate: Any, scale: Number) -> Any:
    """A surrogate with PPO's clip on both sides, narrower; any other as it is."""
    narrower = {name: scale * value for name, value in clip_range(surrogate).items()}
    return partial(surrogate.func, *surrogate.args, **{**surrogate.keywords, **narrower}) if narrower else surrogate


@documented
class Controlled(NamedTuple):
    """State of an optimiser whose updates are scaled."""

    inner: optax.OptState
    """Its own state."""
    control: Control
    """Arrays that the controller replaces between two steps."""


@shared
def scale_updates(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Scale the updates of an optimiser by a number of its state."""

    def init(params: Params) -> Controlled:
        return Controlled(optimizer.init(params), jax.tree.map(jnp.float32, Control()))

    def update(updates: Params, state: Controlled, params: Params | None = None) -> tuple[Params, Controlled]:
        updates, inner = optimizer.update(updates, state.inner, params)
        scale = state.control.update_scale
        return jax.tree.map(lambda u: (u * scale).astype(u.dtype), updates), Controlled(inner, state.control)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]  the state is ours


def control_of(opt_state: Any) -> Control | None:
    """The control in an optimiser's state; None if it has none."""
    return opt_state.control if isinstance(opt_state, Controlled) else None


def make_steer(algorithm: Algorithm) -> Callable[[TrainState, LearnMetrics, int], tuple[TrainState, LearnMetrics]]:
    """Build the function that moves the control after a step, and notes in the metrics what it was in the step.

    Args:
        algorithm: one that is not clipped on both sides has no clip range to scale, and notes none.

    Returns:
        `(state, metrics, updates that the metrics are the mean of) -> (state, metrics)`. Fewer than two updates leave the control
        as it is.
    """
    is_clipped = bool(clip_range(algorithm.surrogate))

    def steer(state: TrainState, metrics: LearnMetrics, updates: int) -> tuple[TrainState, LearnMetrics]:
        before = state.opt_state
        if not isinstance(before, Controlled):
            return state, metrics
        now = jax.tree.map(float, before.control)
        metrics = metrics._replace(
            update_scale=now.update_scale,
            clip_scale=now.clip_scale if is_clipped else None,
            entropy_weight=now.entropy_weight,
        )
        policy = metrics.policy
        if updates < 2 or policy is None or policy.loss is None or policy.loss.entropy is None:
            return state, metrics
        divergence = divergence_by_update(float(policy.loss.kl), updates=updates)
        after = next_control(now, divergence=divergence, entropy=float(policy.loss.entropy))
        placed = jax.tree.map(lambda new, old: put(np.asarray(new, np.float32), old.sharding), after, before.control)
        return state._replace(opt_state=before._replace(control=placed)), metrics

    return steer
