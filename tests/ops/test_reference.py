"""The adaptive KL coefficient, and the periodic reset of the reference parameters."""

import jax
import jax.numpy as jnp
import pytest

from rljax.ops import reference


@pytest.mark.parametrize(
    ("divergence", "factor"),
    [(6.0, 1.0), (6.6, 1.01), (100.0, 1.02), (5.4, 0.99), (0.0, 0.98), (-1.0, 0.98)],
)
def test_coefficient_follows_the_clipped_error(divergence, factor, x64):
    actual = reference.adaptive_kl_coefficient(0.5, divergence, target=6.0)
    assert float(actual) == pytest.approx(0.5 * factor, rel=1e-12)


def test_coefficient_converges(x64):
    """The policy's divergence is 3 / β here, so β must converge to 3 / target."""
    coefficient = jnp.asarray(0.1)
    update = jax.jit(lambda c: reference.adaptive_kl_coefficient(c, 3.0 / c, target=6.0))
    for _ in range(400):
        coefficient = update(coefficient)
    assert float(coefficient) == pytest.approx(0.5, rel=1e-3)


def test_reference_is_reset_after_each_period():
    old, new = {"w": jnp.zeros(2), "b": jnp.zeros(1)}, {"w": jnp.ones(2), "b": jnp.ones(1)}
    weight_after = jax.jit(lambda step: reference.reset_reference(old, new, step, period=3)["w"][0])
    assert [float(weight_after(step)) for step in range(-3, 7)] == [0, 0, 0, 0, 0, 0, 1, 0, 0, 1]


def test_reset_keeps_the_references_dtype():
    old, new = {"w": jnp.zeros(1, jnp.bfloat16)}, {"w": jnp.ones(1)}
    for step in (1, 2):
        assert reference.reset_reference(old, new, step, period=2)["w"].dtype == jnp.bfloat16


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reference.adaptive_kl_coefficient(-0.1, 1.0, target=6.0), "coefficient must not be negative, got -0.1"),
        (lambda: reference.adaptive_kl_coefficient(0.1, 1.0, target=0.0), "target must be positive, got 0.0"),
        (lambda: reference.reset_reference({"w": jnp.ones(1)}, {}, 1, period=2), "params must have the structure"),
        (lambda: reference.reset_reference({}, {}, 1, period=0), "period must be at least 1, got 0"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
