"""Learning-rate schedules, AdamW with gradient clipping, factored moments and Muon."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax import algorithms
from rljax.errors import InputError
from rljax.training.config import TrainConfig
from rljax.training.objective.optimizer import (
    adafactor,
    adamw,
    check_optimizer,
    constant_schedule,
    cosine_schedule,
    critic_optimizer,
    decay_to_zero,
    learning_rate_of,
    muon,
    policy_optimizer,
    pretraining_optimizer,
    quarter_cosine_schedule,
    warm_start_optimizer,
)


def test_the_constant_schedule_rises_linearly_and_stays_constant():
    schedule = constant_schedule(1.0, 4)
    np.testing.assert_allclose([float(schedule(step)) for step in range(7)], [0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0], rtol=1e-6)


def test_without_warm_up_the_first_update_is_at_the_peak():
    assert float(constant_schedule(3.0, 0)(0)) == 3.0


@pytest.mark.parametrize("updates", [2, 5, 9, 20])
def test_a_run_shorter_than_its_warm_up_reaches_the_peak(updates):
    rates = [float(cosine_schedule(1.0, 10, updates)(update)) for update in range(updates)]
    assert max(rates) == rates[updates // 2] == 1.0
    assert float(cosine_schedule(1.0, 10, updates)(updates)) == pytest.approx(0.1)


def test_the_cosine_schedule_falls_to_a_tenth():
    schedule = cosine_schedule(1.0, 4, 24)
    np.testing.assert_allclose(
        [float(schedule(step)) for step in (0, 4, 14, 24, 99)], [0.2, 1.0, 0.55, 0.1, 0.1], rtol=1e-6
    )


def test_the_falling_schedule_starts_above_0_and_ends_at_0():
    """The design document's equation, shifted by one update: η min(1, t / t_warm) cos(π t / 2T)."""
    schedule = quarter_cosine_schedule(2.0, 3, 9)
    times = np.arange(1, 11)
    expected = 2.0 * np.minimum(1, times / 4) * np.cos(np.pi * times / 20)
    np.testing.assert_allclose([float(schedule(count)) for count in range(10)], expected, atol=1e-6)
    assert float(schedule(0)) > 0 == float(schedule(9))


def test_linear_and_cosine_decay_reach_zero():
    """After 4 warm-up updates: η (1 - u) and η ½ (1 + cos π u), with u from 0 to 1 over the remaining 20."""
    fraction = np.arange(21) / 20
    for shape, expected in (("linear", 2 * (1 - fraction)), ("cosine", 1 + np.cos(np.pi * fraction))):
        schedule = decay_to_zero(2.0, 4, 24, shape=shape)
        np.testing.assert_allclose([float(schedule(count)) for count in range(4)], [0.4, 0.8, 1.2, 1.6], rtol=1e-6)
        np.testing.assert_allclose([float(schedule(count)) for count in range(4, 25)], expected, atol=1e-6)
        assert float(schedule(99)) == pytest.approx(0, abs=1e-6)


def test_a_short_run_reaches_its_peak():
    """5 updates with a warm-up of 10: 2 updates rise, 3 fall."""
    schedule = decay_to_zero(3.0, 10, 5, shape="linear")
    np.testing.assert_allclose([float(schedule(count)) for count in range(6)], [1, 2, 3, 2, 1, 0], atol=1e-6)


def test_the_settings_choose_the_schedule():
    for name, last in (("constant", 0.5), ("linear", 0.0), ("cosine", 0.0), ("quarter_cosine", 0.0)):
        config = TrainConfig.flat(schedule=name, learning_rate=0.5, learning_rate_warmup=0, steps=3, minibatches=1)
        optimizer, params = policy_optimizer(config), {"w": jnp.ones(2)}
        state = optimizer.init(params)
        for _ in range(4):
            _, state = optimizer.update(params, state, params)
        assert learning_rate_of(state) == pytest.approx(last, abs=1e-6)


def rates_of(optimizer, updates: int) -> list[float | None]:
    """Learning rates of the first updates."""
    params = {"w": jnp.ones((2, 2))}
    state, rates = optimizer.init(params), []
    for _ in range(updates):
        _, state = optimizer.update(params, state, params)
        rates.append(learning_rate_of(state))
    return rates


@pytest.mark.parametrize(("warmup", "short"), [(6, 6), (300, 20)])
def test_long_warmup_is_shortened_for_critic_and_pretraining(warmup, short):
    config = TrainConfig.flat(
        **{"algorithm": "vapo", "learning_rate": 0.5, "critic_learning_rate": 0.5, "value_pretraining_learning_rate": 0.5},
        **{"learning_rate_warmup": warmup, "steps": 100, "minibatches": 2, "warm_start_steps": 200},
        **{"warm_start_learning_rate": 0.5, "warm_start_optimizer": "adamw"},
    )
    vapo = algorithms.vapo()
    np.testing.assert_allclose(rates_of(policy_optimizer(config), 3), 0.5 * np.arange(1, 4) / (warmup + 1), rtol=1e-5)
    for optimizer in (
        critic_optimizer(config, vapo),
        pretraining_optimizer(config, vapo, 200),
        warm_start_optimizer(config),
    ):
        rates = rates_of(optimizer, short + 1)
        np.testing.assert_allclose(rates, 0.5 * np.arange(1, short + 2) / (short + 1), rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_only_gradients_above_the_limit_are_scaled_down(scale):
    """The first moment shows the clipped gradient; AdamW's first update is the gradient's sign times the learning rate."""
    optimizer = adamw(constant_schedule(0.1, 0), b1=0.9, b2=0.95, weight_decay=0.0, max_grad_norm=1.0)
    params = {"w": jnp.zeros(4)}
    state = optimizer.init(params)
    gradient = {"w": jnp.array([3.0, -4.0, 0.0, 0.0]) * scale}
    updates, state = optimizer.update(gradient, state, params)
    np.testing.assert_allclose(updates["w"], [-0.1, 0.1, 0.0, 0.0], rtol=1e-3)
    moment = optax.tree.get(state, "mu")["w"]
    limit = min(1.0, 1.0 / (5.0 * scale))
    np.testing.assert_allclose(moment, (1 - 0.9) * np.array([3.0, -4.0, 0.0, 0.0]) * scale * limit, rtol=1e-4)


def test_weight_decay_pulls_towards_zero():
    optimizer = adamw(constant_schedule(0.1, 0), b1=0.9, b2=0.95, weight_decay=0.5, max_grad_norm=1.0)
    params = {"w": jnp.array([2.0])}
    updates, _ = optimizer.update({"w": jnp.zeros(1)}, optimizer.init(params), params)
    np.testing.assert_allclose(updates["w"], [-0.1 * 0.5 * 2.0], rtol=1e-6)


def test_the_state_contains_the_learning_rate_of_the_last_update():
    optimizer = adamw(constant_schedule(1.0, 4), b1=0.9, b2=0.95, weight_decay=0.0, max_grad_norm=1.0)
    params = {"w": jnp.ones(2)}
    state, rates = optimizer.init(params), []
    for _ in range(3):
        _, state = optimizer.update(params, state, params)
        rates.append(learning_rate_of(state))
    np.testing.assert_allclose(rates, [0.2, 0.4, 0.6], rtol=1e-6)
    assert learning_rate_of(optax.sgd(0.1).init(params)) is None


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (
            optax.GradientTransformation(lambda params: {"name": "state"}, lambda *_: None),
            "optimizer.init: the state must be a pytree of arrays .*; got TypeError",
        ),
        (
            optax.GradientTransformation(lambda params: (), lambda updates, state, _: ({"w": jnp.ones(())}, state)),
            "optimizer.update: .* that returns updates of the parameters .*; got AssertionError",
        ),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_an_invalid_optimizer_is_refused(optimizer, message):
    with pytest.raises(InputError, match=message):
        check_optimizer(optimizer, {"w": jnp.ones(2)})


@pytest.mark.parametrize("make", [partial(adamw, b2=0.95), adafactor])
def test_the_first_moment_can_be_kept_in_bfloat16(make):
    optimizer = make(constant_schedule(0.1, 0), b1=0.9, weight_decay=0.0, max_grad_norm=1.0, moments_dtype="bfloat16")
    params = {"w": jnp.arange(1.0, 5.0)}
    state = optimizer.init(params)
    updates, state = optimizer.update({"w": jnp.array([3.0, -4.0, 0.5, 0.0])}, state, params)
    np.testing.assert_allclose(updates["w"], [-0.1, 0.1, -0.1, 0.0], rtol=1e-2, atol=1e-5)
    assert updates["w"].dtype == jnp.float32
    both = [leaf for leaf in jax.tree.leaves(state) if leaf.shape == (4,)]
    assert sorted(str(leaf.dtype) for leaf in both) == ["bfloat16", "float32"], (
        "bfloat16 for the first moment, float32 for the second"
    )
    assert learning_rate_of(state) == pytest.approx(0.1)


def test_a_factored_second_moment_is_the_product_of_two_means():
    """The first update is g / sqrt(row mean · column mean / mean), where the means are of g²."""
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=(130, 140)) + 0.1
    optimizer = adafactor(constant_schedule(0.1, 0), b1=0.0, weight_decay=0.5, max_grad_norm=1e9)
    params = {"w": jnp.full((130, 140), 2.0), "bias": jnp.zeros(3)}
    state = optimizer.init(params)
    rows = [tree["w"].shape for _, tree in optax.tree.get_all_with_path(state, "v_row")]
    assert rows == [(130,)], "one number per row, not one per parameter"
    gradients = {"w": jnp.asarray(gradient, jnp.float32), "bias": jnp.array([1.0, -2.0, 0.5])}
    updates, _ = optimizer.update(gradients, state, params)
    square = gradient**2
    expected = gradient / np.sqrt(square.mean(1, keepdims=True) * square.mean(0, keepdims=True) / square.mean())
    expected /= max(1.0, np.sqrt((expected**2).mean()))
    np.testing.assert_allclose(updates["w"], -0.1 * (expected + 0.5 * 2.0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(updates["bias"], [-0.1, 0.1, -0.1], rtol=1e-5)


def test_muon_equalizes_singular_values_and_uses_adam_elsewhere():
    """The first update has the gradient's singular vectors, with nearly equal singular values."""
    rng = np.random.default_rng(0)
    gradient = {
        "query": rng.normal(size=(24, 2, 6)),
        "output": rng.normal(size=(2, 6, 24)),
        "expert_up": rng.normal(size=(3, 24, 12)),
        "embedding": rng.normal(size=(5, 24)),
    }
    gradient = jax.tree.map(jnp.float32, gradient)
    optimizer = muon(constant_schedule(0.1, 0), b1=0.9, b2=0.95, weight_decay=0.0, max_grad_norm=1e9)
    params = jax.tree.map(jnp.zeros_like, gradient)
    updates, state = optimizer.update(gradient, optimizer.init(params), params)
    pairs = [
        [np.asarray(tree[name], np.float64).reshape(shape) for tree in (gradient, updates)]
        for name, shape in {"query": (24, 12), "output": (12, 24)}.items()
    ]
    pairs += [[np.asarray(tree["expert_up"][expert], np.float64) for tree in (gradient, updates)] for expert in range(3)]
    for matrix, update in pairs:
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        rotated = left.T @ update @ right.T
        scaled_values = -np.diag(rotated) / (0.1 * np.sqrt(24))
        assert values.max() / values.min() > 3
        assert 0.6 < scaled_values.min() <= scaled_values.max() < 1.3
        np.testing.assert_allclose(rotated, np.diag(np.diag(rotated)), atol=1e-4)
    momentum_factor = 1 + 0.9 * 0.1 / (
        1 - 0.9**2
    )  # Nesterov momentum: the corrected gradient plus the next update's moment
    np.testing.assert_allclose(updates["embedding"], -0.1 * momentum_factor * np.sign(gradient["embedding"]), rtol=1e-4)
    assert learning_rate_of(state) == pytest.approx(0.1)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warm_start_optimizer": "sgd"}, "warm_start_optimizer is 'sgd'; choose adamw or muon"),
        ({"warm_start_loss": "mle"}, "warm_start_loss is 'mle', but 'dft' or null is expected"),
        ({"warm_start_optimizer": "muon", "second_moment": "factored"}, "cannot be used with warm_start_optimizer='muon'"),
    ],
)
def test_invalid_warm_start_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        TrainConfig.flat(**settings)


@pytest.mark.parametrize("settings", [{"moments_dtype": "float16"}, {"second_moment": "sparse"}])
@pytest.mark.usefixtures("without_type_checks")
def test_unsupported_moment_settings_are_refused(settings):
    with pytest.raises(InputError, match=f"{next(iter(settings))} is '.*'; choose "):
        TrainConfig.flat(**settings)
