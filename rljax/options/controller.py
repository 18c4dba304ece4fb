"""`--remedy controller`: adjust the size of updates, the clip range and an entropy bonus after each step, from the run's metrics.

Each step's hyperparameters are a function of the metrics so far. The idea is Eq. 61 of an unpublished design document, which does
not specify the function; `next_control` is our own. The factors are part of the training state, so nothing is recompiled when
they change, and a resumed run continues exactly.
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
from rljax.caching import cache_results
from rljax.errors import InputError
from rljax.models import Params
from rljax.ops.arrays import Number
from rljax.ops.surrogate import clipped, dual_clipped
from rljax.parallel import put
from rljax.training.config import TrainConfig
from rljax.training.metrics import LearnMetrics
from rljax.training.setup import Setup
from rljax.training.state import Option, TrainState, Updates

TARGET = 1e-3
"""Target divergence per update, in nats per nat of entropy. In runs of the task `sums`, each with a tuned learning rate, this is
1e-3 to 2e-2. The target is the low end, because an update that is too small costs less than one that is too large."""
GAIN = 0.25
"""Fraction of the needed change of the log update scale that is applied per step."""
MAX_LOG_DECREASE = 1.0
"""Largest decrease of the logarithm of the update scale per step."""
MAX_LOG_INCREASE, MAX_LOG_INCREASE_BELOW_1 = 0.25, math.log(2)
"""Largest increase of the logarithm of the update scale per step, for scales of at least 1, and for scales below 1."""
MAX_UPDATE_SCALE = 100.0
"""Largest update scale. Its inverse is the smallest scale, with which a run begins."""
MIN_CLIP_SCALE = 0.5
"""Smallest scale of the clip range."""
MIN_ENTROPY_SHARE = 0.1
"""Fraction of the initial entropy below which the entropy bonus grows."""
BONUS_RATE, MAX_BONUS = 1e-3, 1e-2
"""Largest change per step of the entropy bonus's weight, and its largest value."""
BONUS = "entropy_bonus"
NAME = "controller"


class Control(NamedTuple):
    """State of the controller: the factors and the coefficient for the next step."""

    update_scale: Float[Array, ""] | float = 1 / MAX_UPDATE_SCALE
    """Factor for every update, and thus for the learning rate. It starts at its minimum, because the damage from an update that is
    too large cannot be undone."""
    clip_scale: Float[Array, ""] | float = 1.0
    """Factor for both sides of the clip range."""
    entropy_weight: Float[Array, ""] | float = 0.0
    """Coefficient of the entropy bonus."""
    first_entropy: Float[Array, ""] | float = math.nan
    """Entropy in the first step, in nats per token; NaN before that step."""


def divergence_by_update(kl: Number, *, updates: int) -> Number:
    """Estimate the divergence that one update causes, from measurements before each update on a rollout.

    ::

        6 KL / ((n - 1)(2n - 1))        before n equal updates, the divergences are 0, 1, 4, ... (n - 1)² times one update's

    Args:
        kl: KL, the divergence from the sampling policy just before each update, averaged over the updates, in nats per token.
        updates: n, number of updates, at least 2.

    Example:
        >>> divergence_by_update(7.0, updates=4)  # (0 + 1 + 4 + 9) / 4 = 3.5
        2.0
    """
    return 6 * kl / ((updates - 1) * (2 * updates - 1))


def next_control(control: Control, *, divergence: Number, entropy: Number, target: float = TARGET) -> Control:
    """Adjust the control from the metrics of a step.

    ::

        d  = D / H                                divergence per nat of entropy
        e  = ½ log(target / d)                    an update s times as large causes s² times the divergence
        a  = log 2 if s < 1 else ¼                largest increase of log s
        s' = clip(s exp(clip(e / 4, -1, a)), 1/100, 100)                 scale of the updates, initially 1/100
        c' = clip(√(target / d), ½, 1)            scale of the clip range
        w' = clip(w + 0.001 clip(1 - H / (0.1 H₀), -1, 1), 0, 0.01)      weight of the entropy bonus

    Args:
        control: the control of this step.
        divergence: D, the divergence caused by one update, in nats per token.
        entropy: H, the entropy, in nats per token.
        target: target value of d. It depends on the policy: a tabular policy needs about a twentieth of a transformer's target.

    Returns:
        The control of the next step; the same control if a metric is not finite, or if the entropy is 0.

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
    rise = jnp.where(jnp.asarray(control.update_scale) < 1, MAX_LOG_INCREASE_BELOW_1, MAX_LOG_INCREASE)
    change = jnp.clip(GAIN * jnp.log(jnp.maximum(ratio, 1e-6)), -MAX_LOG_DECREASE, rise)
    shortfall = jnp.clip(1 - entropy / (MIN_ENTROPY_SHARE * first), -1.0, 1.0)
    after = Control(
        update_scale=jnp.clip(control.update_scale * jnp.exp(change), 1 / MAX_UPDATE_SCALE, MAX_UPDATE_SCALE),
        clip_scale=jnp.clip(ratio, MIN_CLIP_SCALE, 1.0),
        entropy_weight=jnp.clip(control.entropy_weight + BONUS_RATE * shortfall, 0.0, MAX_BONUS),
        first_entropy=first,
    )
    is_usable = jnp.isfinite(divergence) & jnp.isfinite(entropy) & (entropy > 0)
    return jax.tree.map(lambda new, old: jnp.where(is_usable, new, jnp.float32(old)), after, control)


def install(setup: Setup) -> Setup:
    """Add the controller, and the entropy bonus that it weights."""
    check_controller(setup.config, setup.algorithm, own_optimizer=setup.own_optimizer)
    algorithm = with_bonus(setup.algorithm)
    steer = make_control_update(algorithm)
    option = Option(NAME, init=first_control, adjust=with_control, wrap_optimizer=scale_updates, after_updates=steer)
    return setup._replace(algorithm=algorithm).with_option(option)


def first_control(params: Params) -> Control:
    """Return the control before the first step."""
    del params
    return jax.tree.map(jnp.float32, Control())


def check_controller(config: TrainConfig, algorithm: Algorithm, *, own_optimizer: bool) -> None:
    """Raise an `InputError` with the reason if the controller could not measure or change anything in this run."""
    optimization = config.optimization
    if optimization.minibatches * optimization.passes < 2:
        raise InputError(
            "remedy=controller measures how far the updates of a rollout move the policy, which takes at least two updates; set "
            "--minibatches 2 or --passes 2, or choose remedy=auto."
        )
    if optimization.kl_limit is not None:
        raise InputError(
            f"remedy=controller and kl_limit={optimization.kl_limit} both limit the divergence that the updates of a rollout "
            "cause, so the controller would measure what kl_limit has cut off; leave one of the two out."
        )
    if config.sampling.lag and algorithm.correction is None:
        name = "staleness" if config.sampling.staleness else "sampler_delay"
        raise InputError(
            f"remedy=controller measures how far the updates of a step move the policy, but with {name}={config.sampling.lag} the "
            "measure would include the age of the samples; choose a --correction, or leave one of the two out."
        )
    if own_optimizer:
        raise InputError("remedy=controller scales the built-in optimizer; leave out either remedy or your own optimizer.")
    if any(term.name == BONUS for term in algorithm.terms):
        raise InputError(
            f"remedy=controller adds an entropy bonus, but {config.algorithm.name} already has one; choose remedy=auto, or another "
            "algorithm."
        )


@cache_results
def with_bonus(algorithm: Algorithm) -> Algorithm:
    """Add an entropy bonus with coefficient 1 to the algorithm; `with_control` replaces the coefficient."""
    return algorithm._replace(terms=(*algorithm.terms, *entropy_bonus(1.0)))


def with_control(algorithm: Algorithm, control: Control) -> Algorithm:
    """Return the algorithm with the control's clip range and entropy coefficient, which may be traced."""
    terms = tuple(
        term._replace(coefficient=-control.entropy_weight) if term.name == BONUS else term for term in algorithm.terms
    )
    return algorithm._replace(terms=terms, surrogate=_narrow_clip(algorithm.surrogate, control.clip_scale))


def clip_range(surrogate: Any) -> dict[str, float]:
    """Return both sides of PPO's clip range, by name; empty for a surrogate that is not clipped on both sides.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> clip_range(BY_NAME["dapo"]().surrogate), clip_range(BY_NAME["rloo"]().surrogate)
        ({'low': 0.2, 'high': 0.28}, {})
    """
    bounds = surrogate.keywords if isinstance(surrogate, partial) and surrogate.func in (clipped, dual_clipped) else {}
    sides = {name: bounds[name] for name in ("low", "high") if name in bounds and 0 < bounds[name] < 1}
    return sides if len(sides) == 2 else {}


def _narrow_clip(surrogate: Any, scale: Number) -> Any:
    """Narrow the clip range of a surrogate that clips on both sides, as PPO's does; return any other surrogate unchanged."""
    narrower = {name: scale * value for name, value in clip_range(surrogate).items()}
    return partial(surrogate.func, *surrogate.args, **{**surrogate.keywords, **narrower}) if narrower else surrogate


@cache_results
def scale_updates(optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Multiply an optimizer's updates by the controller's `update_scale`, which is passed with the arrays of the options."""
    inner = optax.with_extra_args_support(optimizer)

    def update(
        updates: Params, state: optax.OptState, params: Params | None = None, *, options: Any = None, **extra: Any
    ) -> tuple[Params, optax.OptState]:
        updates, state = inner.update(updates, state, params, options=options, **extra)
        if NAME not in (options or {}):  # before RL, or in `check_optimizer`
            return updates, state
        scale = options[NAME].update_scale
        return jax.tree.map(lambda u: (u * scale).astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(inner.init, update)


def make_control_update(
    algorithm: Algorithm,
) -> Callable[[TrainState, LearnMetrics, Updates], tuple[TrainState, dict[str, float]]]:
    """Build the function that adjusts the control after a step, and reports the step's control as metrics.

    Args:
        algorithm: the algorithm; if its surrogate is not clipped on both sides, there is no clip range to scale or report.

    Returns:
        `(state, metrics, updates) -> (state, metrics of the control)`. Fewer than two applied updates leave the control unchanged.
    """
    is_clipped = bool(clip_range(algorithm.surrogate))

    def steer(state: TrainState, metrics: LearnMetrics, updates: Updates) -> tuple[TrainState, dict[str, float]]:
        before: Control = state.options[NAME]
        now = jax.tree.map(float, before)
        reported = {"update_scale": now.update_scale, "entropy_weight": now.entropy_weight}
        if is_clipped:
            reported["clip_scale"] = now.clip_scale
        policy = metrics.policy
        if policy is not None and policy.learning_rate is not None:
            reported["learning_rate"] = policy.learning_rate * now.update_scale
        if updates.applied < 2 or policy is None or policy.loss is None or policy.loss.entropy is None:
            return state, reported
        divergence = divergence_by_update(float(policy.loss.kl), updates=updates.applied)
        after = next_control(now, divergence=divergence, entropy=float(policy.loss.entropy))
        placed = jax.tree.map(lambda new, old: put(np.asarray(new, np.float32), old.sharding), after, before)
        return state._replace(options=state.options | {NAME: placed}), reported

    return steer
