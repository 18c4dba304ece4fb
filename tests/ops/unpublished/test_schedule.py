"""Schedules, checked against their formulas, and a check that the design document's printed warmup is wrong."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.ops.unpublished import schedule


def expected_rate(step, peak, warmup_steps, total_steps):
    warm = min(1.0, step / warmup_steps) if warmup_steps else 1.0
    return peak * warm * math.cos(math.pi * step / (2 * total_steps)) if step < total_steps else 0.0


def printed_rate(step, peak, warmup_steps, total_steps):
    """Eq. 57 of the design document as printed."""
    return peak * min(1.0, warmup_steps / step) * math.cos(math.pi * step / (2 * total_steps))


@given(st.integers(0, 300), st.floats(1e-6, 2), st.integers(0, 100), st.integers(100, 200))
def test_warmup_cosine_matches_formula(step, peak, warmup_steps, total_steps):
    with jax.enable_x64(True):
        settings = {"peak": peak, "warmup_steps": warmup_steps, "total_steps": total_steps}
        actual = schedule.warmup_cosine(step, **settings).item()
        assert actual == pytest.approx(expected_rate(step, **settings), rel=1e-9, abs=1e-15)


def test_warmup_cosine_is_never_negative_and_stays_at_zero():
    rates = schedule.warmup_cosine(jnp.arange(40), peak=1.0, warmup_steps=3, total_steps=20)
    assert rates.dtype == jnp.float32
    assert (rates[1:20] > 0).all()
    assert rates[0] == 0
    assert not rates[20:].any()


def test_printed_warmup_formula_does_not_warm_up():
    settings = {"peak": 1.0, "warmup_steps": 10, "total_steps": 1000}
    ours = [schedule.warmup_cosine(t, **settings).item() for t in (0, 1, 5, 10, 100)]
    np.testing.assert_allclose(ours, [0, 0.1, 0.5, 1.0, 0.988], atol=2e-3)
    printed = [printed_rate(t, **settings) for t in (1, 5, 10, 100)]
    np.testing.assert_allclose(printed, [1, 1, 1, 0.099], atol=2e-3)
    with pytest.raises(ZeroDivisionError):
        printed_rate(0, **settings)


def test_first_rate_with_0_or_1_warmup_steps():
    first = [schedule.warmup_cosine(0, peak=0.5, warmup_steps=n, total_steps=9).item() for n in (0, 1)]
    assert first == [0.5, 0.0]


def test_warmup_cosine_is_an_optax_schedule():
    settings = {"peak": 0.5, "warmup_steps": 2, "total_steps": 5}
    optimizer = optax.sgd(partial(schedule.warmup_cosine, **settings))
    state, steps = optimizer.init(jnp.array(0.0)), []
    update = jax.jit(optimizer.update)
    for _ in range(7):
        step, state = update(jnp.array(1.0), state)
        steps.append(-step)
    np.testing.assert_allclose(steps, [expected_rate(t, **settings) for t in range(7)], atol=1e-7)


@given(st.integers(0, 300), st.floats(0, 1), st.floats(0, 5), st.integers(1, 200))
def test_decays_match_formula(step, initial, decay, total_steps):
    with jax.enable_x64(True):
        settings = {"initial": initial, "decay": decay, "total_steps": total_steps}
        expected = initial * math.exp(-decay * step / total_steps)
        assert schedule.hybrid_weight(step, **settings).item() == pytest.approx(expected, rel=1e-12)
        assert schedule.exponential_decay(step, **settings).item() == pytest.approx(expected, rel=1e-12)


def test_decays_accept_traced_arrays_of_steps():
    weight = partial(schedule.hybrid_weight, initial=0.5, decay=2.0, total_steps=10)
    expected = [0.5, 0.5 * math.exp(-1), 0.5 * math.exp(-2), 0.5 * math.exp(-4)]
    np.testing.assert_allclose(jax.jit(weight)(jnp.array([0, 5, 10, 20])), expected, rtol=1e-6)


RATE = {"peak": 1.0, "warmup_steps": 2, "total_steps": 5}
WEIGHT = {"initial": 0.5, "decay": 1.0, "total_steps": 5}


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: schedule.warmup_cosine(-1, **RATE), "step must not be negative, got -1"),
        (lambda: schedule.warmup_cosine(1, **{**RATE, "peak": 0.0}), "peak must be positive, got 0.0"),
        (lambda: schedule.warmup_cosine(1, **{**RATE, "warmup_steps": -1}), "warmup_steps must not be negative, got -1"),
        (
            lambda: schedule.warmup_cosine(1, **{**RATE, "warmup_steps": 6}),
            "warmup_steps must not exceed total_steps 5, got 6",
        ),
        (
            lambda: schedule.warmup_cosine(1, peak=1.0, warmup_steps=0, total_steps=0),
            "total_steps must be at least 1, got 0",
        ),
        (lambda: schedule.exponential_decay(-1, **WEIGHT), "step must not be negative"),
        (lambda: schedule.exponential_decay(1, **{**WEIGHT, "initial": -0.5}), "initial must not be negative, got -0.5"),
        (lambda: schedule.exponential_decay(1, **{**WEIGHT, "decay": -0.5}), "decay must not be negative, got -0.5"),
        (lambda: schedule.exponential_decay(1, **{**WEIGHT, "total_steps": 0}), "total_steps must be at least 1, got 0"),
        (lambda: schedule.hybrid_weight(1, **{**WEIGHT, "initial": 1.5}), r"initial must lie in \[0, 1\], got 1.5"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_warmup_may_take_the_entire_run():
    assert schedule.warmup_cosine(5, peak=1.0, warmup_steps=10, total_steps=10).item() == pytest.approx(
        0.5 * math.cos(math.pi / 4)
    )
