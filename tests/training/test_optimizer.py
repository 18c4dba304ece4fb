"""Learning-rate schedules and the clipped AdamW."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax.training.config import TrainConfig
from rljax.training.optimizer import constant_schedule, cosine_schedule, make_optimizer


def test_the_constant_schedule_rises_linearly_and_stays():
    schedule = constant_schedule(1.0, 4)
    np.testing.assert_allclose([float(schedule(step)) for step in range(7)], [0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0], rtol=1e-6)


def test_without_warm_up_the_first_update_is_at_the_peak():
    assert float(constant_schedule(3.0, 0)(0)) == 3.0


def test_the_cosine_schedule_falls_to_a_tenth():
    schedule = cosine_schedule(1.0, 4, 24)
    np.testing.assert_allclose(
        [float(schedule(step)) for step in (0, 4, 14, 24, 99)], [0.2, 1.0, 0.55, 0.1, 0.1], rtol=1e-6
    )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_only_gradients_above_the_limit_are_scaled_down(scale):
    """With plain moments the first update sees the clipped gradient: AdamW's first step is its sign times the rate."""
    config = TrainConfig(max_grad_norm=1.0)
    optimizer = make_optimizer(config, constant_schedule(0.1, 0))
    params = {"w": jnp.zeros(4)}
    state = optimizer.init(params)
    gradient = {"w": jnp.array([3.0, -4.0, 0.0, 0.0]) * scale}
    updates, state = optimizer.update(gradient, state, params)
    np.testing.assert_allclose(updates["w"], [-0.1, 0.1, 0.0, 0.0], rtol=1e-3)
    moment = optax.tree.get(state, "mu")["w"]
    limit = min(1.0, 1.0 / (5.0 * scale))
    np.testing.assert_allclose(moment, (1 - config.adam_b1) * np.array([3.0, -4.0, 0.0, 0.0]) * scale * limit, rtol=1e-4)


def test_weight_decay_pulls_towards_zero():
    optimizer = make_optimizer(TrainConfig(weight_decay=0.5), constant_schedule(0.1, 0))
    params = {"w": jnp.array([2.0])}
    updates, _ = optimizer.update({"w": jnp.zeros(1)}, optimizer.init(params), params)
    np.testing.assert_allclose(updates["w"], [-0.1 * 0.5 * 2.0], rtol=1e-6)
