"""Optimizers from Optax with a linear warm-up and gradient clipping (AdamW, Adafactor, Muon), and frozen parameters.

Frozen parameters have no gradients and no moments.
"""

from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax.tree_util import KeyPath, tree_leaves_with_path, tree_map_with_path
from jaxtyping import Array, Float, PyTree

from rljax.algorithms import Algorithm
from rljax.caching import cache_results
from rljax.errors import InputError
from rljax.models import Params, Policy
from rljax.models.axes import INPUT_AXES, matrix_axes
from rljax.models.path_patterns import matches, select_paths
from rljax.models.policy import path_names
from rljax.ops.unpublished.schedule import warmup_cosine
from rljax.parallel.guarded_update import clip_to_norm
from rljax.records import required
from rljax.text import one_line
from rljax.training.config import OptimizationConfig, TrainConfig


def is_frozen(path: KeyPath, patterns: tuple[str, ...]) -> bool:
    """Return True if one of the patterns matches the path of a parameter."""
    return any(matches(pattern, path_names(path)) for pattern in patterns)


def check_freeze(config: TrainConfig, policy: Policy) -> None:
    """Reject freeze patterns that match no parameter of the policy, or all of them.

    Args:
        config: the settings.
        policy: the model.

    Raises:
        InputError: the patterns match none or all of the parameters, or the run trains an adapter.
    """
    patterns = config.optimization.freeze
    if not patterns:
        return
    if config.adapter.rank is not None:
        raise InputError(
            "freeze cannot be used if lora_rank is set, because the full model is frozen under its adapter; choose the matrices "
            "to adapt with lora_targets."
        )
    key = jax.random.key(config.run.seed)
    shapes = jax.eval_shape(policy.init, key) if policy.shapes is None else policy.shapes()
    paths = [path_names(path) for path, _ in tree_leaves_with_path(shapes)]
    if len(select_paths(patterns, paths, setting="freeze")) == len(paths):
        raise InputError(
            f"freeze={' '.join(patterns)} matches every parameter, so nothing could be learned; leave some out."
        )


def stop_frozen_gradients(policy: Policy, patterns: tuple[str, ...]) -> Policy:
    """Return the policy with gradients stopped at the parameters that the patterns match; unchanged if there are no patterns."""
    if not patterns:
        return policy
    names = [name for name in ("score", "features", "supervised_score") if getattr(policy, name) is not None]
    return policy._replace(**{name: _stop_frozen_gradients(getattr(policy, name), patterns) for name in names})


@cache_results
def _stop_frozen_gradients(function: Callable, patterns: tuple[str, ...]) -> Callable:
    """Wrap a function of a policy. Caching the policy itself would keep any parameters that its `init` refers to in memory."""

    def frozen(params: Params, *inputs: Any) -> Any:
        stopped = tree_map_with_path(
            lambda path, leaf: jax.lax.stop_gradient(leaf) if is_frozen(path, patterns) else leaf, params
        )
        return function(stopped, *inputs)

    return frozen


@cache_results
def skip_frozen(optimizer: optax.GradientTransformation, patterns: tuple[str, ...]) -> optax.GradientTransformation:
    """Let an optimizer skip the parameters that the patterns match: they get neither an update nor an optimizer state."""
    if not patterns:
        return optimizer

    def labels(params: PyTree[Array]) -> PyTree[str]:
        return tree_map_with_path(lambda path, _: "frozen" if is_frozen(path, patterns) else "trained", params)

    return optax.multi_transform({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)


@cache_results
def constant_schedule(peak: float, warmup: int) -> optax.Schedule:
    """Rise linearly to `peak` over `warmup` updates, from a first rate above 0; then stay constant. All schedules are compiled."""
    return jax.jit(optax.schedules.linear_schedule(peak / (warmup + 1), peak, warmup))


@cache_results
def cosine_schedule(peak: float, warmup: int, total: int) -> optax.Schedule:
    """Rise linearly to `peak` over `warmup` updates (at most total / 2), then fall along a cosine to a tenth of `peak`."""
    fall = optax.schedules.cosine_decay_schedule(peak, max(total - (warmup := min(warmup, total // 2)), 1), alpha=0.1)
    return jax.jit(optax.schedules.join_schedules([constant_schedule(peak, warmup), fall], [warmup]))


@cache_results
def decay_to_zero(peak: float, warmup: int, total: int, *, shape: str) -> optax.Schedule:
    """Rise linearly to `peak` over `warmup` updates, then fall to 0 after `total` updates, linearly or along half a cosine wave.

    The warm-up takes at most half of the updates, so that a short run reaches the peak.
    """
    updates = max(total - (warmup := min(warmup, total // 2)), 1)
    falls = {
        "linear": optax.schedules.linear_schedule(peak, 0.0, updates),
        "cosine": optax.schedules.cosine_decay_schedule(peak, updates),
    }
    return jax.jit(optax.schedules.join_schedules([constant_schedule(peak, warmup), falls[shape]], [warmup]))


@cache_results
def quarter_cosine_schedule(peak: float, warmup: int, total: int) -> optax.Schedule:
    """A linear rise over `warmup` updates, from a rate above 0, times a quarter cosine that is 0 after `total` updates."""
    rate = partial(warmup_cosine, peak=peak, warmup_steps=warmup + 1, total_steps=max(total, warmup + 1) + 1)
    return jax.jit(lambda count: rate(jnp.asarray(count) + 1))


SCHEDULES = MappingProxyType(
    {
        "constant": lambda peak, warmup, total: constant_schedule(peak, warmup),
        "linear": partial(decay_to_zero, shape="linear"),
        "cosine": partial(decay_to_zero, shape="cosine"),
        "quarter_cosine": quarter_cosine_schedule,
    }
)
"""Name of a schedule -> function of (peak, warm-up, number of updates in the run) -> learning rate of each update."""


def with_standard_promotion(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Make an optimizer run under JAX's standard dtype promotion, which Optax needs for decay rates to the power of a count."""

    def init(params: Params) -> optax.OptState:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.init(params)

    def update(
        updates: PyTree[Array], state: optax.OptState, params: Params | None = None
    ) -> tuple[PyTree[Array], optax.OptState]:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(updates, state, params)

    return optax.GradientTransformation(init, update)


@cache_results
def adamw(
    schedule: optax.Schedule,
    *,
    b1: float,
    b2: float,
    weight_decay: float,
    max_grad_norm: float,
    moments_dtype: str = "float32",
) -> optax.GradientTransformation:
    """Clip the gradient by its global norm, then apply AdamW. The state contains the learning rate of the last update.

    Args:
        schedule: learning rate of each update.
        b1: decay rate of the first moment.
        b2: decay rate of the second moment.
        weight_decay: decoupled weight decay.
        max_grad_norm: largest global norm; a larger gradient is scaled down to it.
        moments_dtype: dtype of the first moment.
    """
    constant = ("b1", "b2", "eps", "eps_root", "weight_decay", "mu_dtype")
    inner = optax.inject_hyperparams(optax.adamw, static_args=constant)
    rescaled = inner(learning_rate=schedule, b1=b1, b2=b2, weight_decay=weight_decay, mu_dtype=np.dtype(moments_dtype))
    return with_standard_promotion(optax.chain(optax.stateless(partial(clip_to_norm, max_norm=max_grad_norm)), rescaled))


def _rescale_adafactor(
    learning_rate: float | Float[Array, ""], b1: float, weight_decay: float, moments_dtype: str
) -> optax.GradientTransformation:
    """Adafactor with a first moment, decoupled weight decay, and a learning rate that is not scaled by the parameters' size."""
    return optax.chain(
        optax.scale_by_factored_rms(),
        optax.clip_by_block_rms(1.0),
        optax.ema(b1, accumulator_dtype=np.dtype(moments_dtype)),
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(learning_rate),
    )


@cache_results
def adafactor(
    schedule: optax.Schedule, *, b1: float, weight_decay: float, max_grad_norm: float, moments_dtype: str = "float32"
) -> optax.GradientTransformation:
    """Clip the gradient by its global norm, then divide it by a factored second moment.

    If the two largest axes of a matrix have at least 128 entries, its second moment is the product of its means over each of them;
    smaller matrices have a full second moment. See `adamw` for the arguments and for the learning rate in the state.

    Source: Shazeer and Stern 2018, "Adafactor", arXiv:1804.04235, algorithm 4 with the decay 1 - t^-0.8.
    """
    inner = optax.inject_hyperparams(_rescale_adafactor, static_args=("b1", "weight_decay", "moments_dtype"))
    rescaled = inner(learning_rate=schedule, b1=b1, weight_decay=weight_decay, moments_dtype=moments_dtype)
    return with_standard_promotion(optax.chain(optax.stateless(partial(clip_to_norm, max_norm=max_grad_norm)), rescaled))


def _matrix_axes(params: Params) -> PyTree:
    """Return the input and output axes of each layer's matrices, for Muon; None for all other parameters."""

    def axes(path: tuple, parameter: Array) -> optax.contrib.MuonDimensionNumbers | None:
        name = path_names(path)[-1]
        if name not in INPUT_AXES:
            return None
        return optax.contrib.MuonDimensionNumbers(*matrix_axes(name, tuple(range(parameter.ndim)))[1:])

    return tree_map_with_path(axes, params)


def _muon(
    learning_rate: float | Float[Array, ""], b1: float, b2: float, weight_decay: float, moments_dtype: str
) -> optax.GradientTransformation:
    return optax.contrib.muon(
        learning_rate,
        weight_decay=weight_decay,
        mu_dtype=np.dtype(moments_dtype),
        adam_b1=b1,
        adam_b2=b2,
        adam_weight_decay=weight_decay,
        muon_weight_dimension_numbers=_matrix_axes,
        consistent_rms=1.0,
    )


@cache_results
def muon(
    schedule: optax.Schedule,
    *,
    b1: float,
    b2: float,
    weight_decay: float,
    max_grad_norm: float,
    moments_dtype: str = "float32",
) -> optax.GradientTransformation:
    """Clip the gradient by its global norm, then orthogonalize the momentum of each layer's matrices.

    The momentum's decay is 0.95. The root mean square of a matrix update is about the learning rate, which is the largest value
    that Adam can reach. The other parameters (embedding, norms, biases, adapter factors, or all of a policy with other names)
    use AdamW with Nesterov momentum. See `adamw` for the arguments and for the learning rate in the state.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", https://kellerjordan.github.io/posts/muon;
    Liu et al. 2025, "Muon is scalable for LLM training", arXiv:2502.16982, equation 4 with 1 in place of 0.2.
    """
    inner = optax.inject_hyperparams(_muon, static_args=("b1", "b2", "weight_decay", "moments_dtype"))
    rescaled = inner(learning_rate=schedule, b1=b1, b2=b2, weight_decay=weight_decay, moments_dtype=moments_dtype)
    return with_standard_promotion(optax.chain(optax.stateless(partial(clip_to_norm, max_norm=max_grad_norm)), rescaled))


def learning_rate_of(opt_state: optax.OptState) -> float | None:
    """Return the learning rate of the last update; None if the optimizer's state does not contain it (`optax.inject_hyperparams`).

    Example:
        >>> import jax.numpy as jnp
        >>> optimizer = adamw(constant_schedule(0.1, 0), b1=0.9, b2=0.95, weight_decay=0.0, max_grad_norm=1.0)
        >>> state = optimizer.init(jnp.ones(2))
        >>> round(learning_rate_of(optimizer.update(jnp.ones(2), state, jnp.ones(2))[1]), 3)
        0.1
    """
    found = [value for _, value in optax.tree.get_all_with_path(opt_state, "learning_rate")]
    rates = [float(value) for value in found if isinstance(value, jax.Array | np.ndarray | float)]
    return rates[0] if len(rates) == 1 else None


def check_optimizer(optimizer: optax.GradientTransformation, params: Params | PyTree[jax.ShapeDtypeStruct]) -> None:
    """Reject an optimizer that does not fit these parameters.

    Raises:
        InputError: `init` does not accept the parameters, or returns a state that contains more than arrays and cannot be saved;
            or `update` does not accept exactly gradient, state and parameters.
    """
    try:
        state = jax.eval_shape(optimizer.init, params)
    except Exception as error:  # an optimizer is user code and may raise anything
        raise InputError(
            "optimizer.init: the state must be a pytree of arrays made from the policy's parameters, so that it can be saved and "
            f"restored; got {one_line(error):.200}"
        ) from error

    try:
        jax.eval_shape(_trial(optimizer), params, state)
    except Exception as error:  # user code, as above
        raise InputError(
            "optimizer.update: expected a function of gradient, state and parameters that returns updates of the parameters and "
            f"the new state; got {one_line(error):.200}"
        ) from error


@cache_results
def _trial(optimizer: optax.GradientTransformation) -> Callable[[Params, optax.OptState], tuple[Params, optax.OptState]]:
    def step(params: Params, state: optax.OptState) -> tuple[Params, optax.OptState]:
        updates, state = optimizer.update(params, state, params)
        chex.assert_trees_all_equal_shapes(updates, params)  # apply_updates would broadcast
        return optax.apply_updates(params, updates), state

    return step


def policy_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """Return the built-in optimizer of the policy in RL."""
    optimization = config.optimization
    make = SCHEDULES[optimization.schedule]
    schedule = make(optimization.learning_rate, optimization.learning_rate_warmup, _rl_updates(optimization))
    return skip_frozen(_optimizer(optimization, schedule), optimization.freeze)


def warm_start_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """Return the optimizer of the policy in the warm start."""
    warm = config.warm_start
    schedule = cosine_schedule(warm.learning_rate, _short_warmup(config, warm.steps), warm.steps)
    if warm.optimizer == "muon":
        built_in = muon(schedule, b2=config.optimization.adam_b2, **_shared_settings(config.optimization))
    else:
        built_in = _optimizer(config.optimization, schedule)
    return skip_frozen(built_in, config.optimization.freeze)


def critic_learning_rate(config: TrainConfig, algorithm: Algorithm) -> float:
    """Return the peak learning rate of the critic in RL."""
    if config.critic.learning_rate is not None:
        return config.critic.learning_rate
    return config.optimization.learning_rate * required(algorithm.critic, "algorithm.critic").learning_rate_ratio


def critic_optimizer(config: TrainConfig, algorithm: Algorithm) -> optax.GradientTransformation:
    """Return the optimizer of the critic in RL."""
    peak = critic_learning_rate(config, algorithm)
    return _optimizer(config.optimization, constant_schedule(peak, critic_warmup(config)))


def critic_warmup(config: TrainConfig) -> int:
    """Return the warm-up length of the critic's learning rate in RL, in updates."""
    return _short_warmup(config, _rl_updates(config.optimization))


def pretraining_optimizer(config: TrainConfig, algorithm: Algorithm, updates: int) -> optax.GradientTransformation:
    """Return the critic's optimizer for a value pretraining of `updates` updates; RL continues from its optimizer state."""
    own = config.critic.pretraining_learning_rate
    peak = critic_learning_rate(config, algorithm) if own is None else own
    return _optimizer(config.optimization, cosine_schedule(peak, _short_warmup(config, updates), updates))


def _rl_updates(optimization: OptimizationConfig) -> int:
    """Return the planned number of policy updates in RL."""
    return optimization.steps * optimization.minibatches * optimization.passes


def _short_warmup(config: TrainConfig, updates: int) -> int:
    """Return the warm-up length of a critic or a phase before RL: the policy's, but at most max(10, updates / 10)."""
    return min(config.optimization.learning_rate_warmup, max(10, updates // 10))


def _shared_settings(config: OptimizationConfig) -> dict[str, Any]:
    """Return the settings that the optimizers of all phases share."""
    return {
        "b1": config.adam_b1,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "moments_dtype": config.moments_dtype,
    }


def _optimizer(config: OptimizationConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Return the optimizer with the settings that all phases share."""
    settings = _shared_settings(config)
    return (
        adafactor(schedule, **settings)
        if config.second_moment == "factored"
        else adamw(schedule, b2=config.adam_b2, **settings)
    )
