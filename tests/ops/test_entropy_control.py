"""The entropy bonus's coefficient, checked against a loop over steps in float64 and on a policy that loses entropy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.ops.entropy_control import active_entropy_coefficient, adaptive_entropy_coefficient

entropies = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(entropies, st.floats(0.05, 0.9), st.floats(0, 0.1), st.sampled_from([0.02, 1.0, math.inf]))
def test_coefficients_match_a_loop(entropy, target, step, high):
    stored, found, expected, by_hand = 0.0, [], [], 0.0
    with jax.enable_x64(True):
        for current_entropy in entropy:
            found.append(float(active_entropy_coefficient(stored, current_entropy, target=target)))
            stored = float(adaptive_entropy_coefficient(stored, current_entropy, target=target, step=step, high=high))
            expected.append(by_hand if current_entropy <= target else 0.0)
            if current_entropy < target:
                by_hand += step
            elif current_entropy > target:
                by_hand -= step
            by_hand = min(max(by_hand, 0.0), high)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(stored, by_hand, rtol=1e-9, atol=1e-12)


def test_at_the_target_the_bonus_is_active_and_unchanged():
    assert float(adaptive_entropy_coefficient(0.25, 0.5, target=0.5, step=0.125)) == 0.25
    assert float(active_entropy_coefficient(0.25, 0.5, target=0.5)) == 0.25
    assert float(active_entropy_coefficient(0.25, 0.625, target=0.5)) == 0.0


def test_entropy_above_the_target_stores_no_penalty():
    """The printed equation has no lower bound of 0: after 100 steps above the target, entropy would be penalized for 100 more."""
    stored = 0.0
    for _ in range(100):
        stored = adaptive_entropy_coefficient(stored, 1.0, target=0.2, step=0.01)
    assert float(stored) == 0.0
    after = adaptive_entropy_coefficient(stored, 0.1, target=0.2, step=0.01)
    assert float(active_entropy_coefficient(after, 0.1)) == pytest.approx(0.01)


def test_bonus_keeps_entropy_near_the_target(x64):
    """Gradient ascent on the reward of one of two actions ends at entropy 0 without the bonus, and near the target with it."""

    def entropy(logit):
        p = jax.nn.sigmoid(logit)
        return -(p * jnp.log(p) + (1 - p) * jnp.log1p(-p))

    def ascend(adaptive):
        def step(_, state):
            logit, stored = state
            current_entropy = entropy(logit)
            active = adaptive * active_entropy_coefficient(stored, current_entropy, target=0.3)
            logit = logit + 0.5 * jax.grad(lambda x: jax.nn.sigmoid(x) + active * entropy(x))(logit)
            return logit, adaptive_entropy_coefficient(stored, current_entropy, target=0.3, step=0.01)

        return float(entropy(jax.lax.fori_loop(0, 3000, step, (jnp.asarray(0.0), jnp.asarray(0.0)))[0]))

    assert ascend(adaptive=0.0) < 0.02
    assert ascend(adaptive=1.0) == pytest.approx(0.3, abs=0.05)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"coefficient": -0.1}, "coefficient must not be negative, got -0.1"),
        ({"entropy": math.nan}, "entropy must not be negative, got nan"),
        ({"target": 0.0}, "target must be positive, got 0.0"),
        ({"step": -1.0}, "step must not be negative, got -1.0"),
        ({"high": 0.0}, "high must be positive, got 0.0"),
    ],
)
def test_invalid_arguments_are_refused(overrides, message):
    arguments = {"coefficient": 0.1, "entropy": 0.5, "target": 0.2, "step": 0.1, "high": 1.0} | overrides
    with pytest.raises(ValueError, match=message):
        adaptive_entropy_coefficient(arguments.pop("coefficient"), arguments.pop("entropy"), **arguments)
