"""Shaped rewards, checked against loops written from the formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops import shaping

N, K = 6, 3  # responses, reward parts
length_arrays = hnp.arrays(np.int32, (N,), elements=st.integers(0, 40))
tenths = st.integers(-30, 30).map(lambda k: k / 10)
part_arrays = hnp.arrays(np.float64, (2, N, K), elements=tenths)
soft_overlong_penalty = jax.jit(shaping.soft_overlong_penalty)


def slow_overlong(length, max_length, cache):
    if length <= max_length - cache:
        return 0.0
    if length <= max_length:
        return ((max_length - cache) - length) / cache
    return -1.0


def test_rule_reward():
    reward = shaping.rule_reward(jnp.array([[True, False], [False, False]]))
    assert reward.tolist() == [[1.0, -1.0], [-1.0, -1.0]]
    assert reward.dtype == jnp.float32


@given(length_arrays, st.integers(10, 30), st.integers(1, 10))
def test_soft_overlong_penalty_matches_formula(lengths, max_length, cache):
    expected = [slow_overlong(int(n), max_length, cache) for n in lengths]
    for kind in (np.int32, np.float32):
        penalty = soft_overlong_penalty(jnp.array(lengths.astype(kind)), max_length=max_length, cache=cache)
        assert penalty.dtype == jnp.float32
        np.testing.assert_allclose(penalty, expected, rtol=1e-6)


def test_soft_overlong_penalty_at_the_papers_lengths():
    lengths = jnp.array([16384, 16385, 18432, 20480, 20481])
    actual = shaping.soft_overlong_penalty(lengths, max_length=20480, cache=4096)
    np.testing.assert_allclose(actual, [0.0, -1 / 4096, -0.5, -1.0, -1.0], rtol=1e-6)
    everywhere = shaping.soft_overlong_penalty(jnp.array([0, 5, 10]), max_length=10, cache=10)
    assert everywhere.tolist() == [0.0, -0.5, -1.0]


def test_integer_lengths_get_the_default_float_precision(x64):
    assert soft_overlong_penalty(jnp.array([3]), max_length=4, cache=2).dtype == jnp.float64
    assert soft_overlong_penalty(jnp.array([3], jnp.int32), max_length=4, cache=2).dtype == jnp.float64
    assert soft_overlong_penalty(jnp.array([3.0], jnp.float32), max_length=4, cache=2).dtype == jnp.float32


@given(part_arrays, hnp.arrays(np.float64, (K,), elements=tenths))
def test_weighted_composite_matches_formula(parts, weights):
    expected = np.zeros((2, N))
    for p, i, k in np.ndindex(parts.shape):
        expected[p, i] += weights[k] * parts[p, i, k]
    with jax.enable_x64(True):
        columns = jnp.array(parts)
        names = ["answer", "format", "language"]
        named = {name: columns[..., k] for k, name in enumerate(names)}
        reordered = {name: float(weights[k]) for k, name in reversed(list(enumerate(names)))}
        np.testing.assert_allclose(shaping.weighted_composite(named, reordered), expected, atol=1e-12)


ONES, LENGTHS, COLUMNS = jnp.ones(2), jnp.array([3, 4]), jnp.ones((2, 3))
PENALTY = {"target": 1.0, "threshold": 0.0, "alpha": 1.0, "beta": 1.0}


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shaping.rule_reward(ONES), r"correct must be a boolean array, got float32\[2\]"),
        (lambda: shaping.soft_overlong_penalty(ONES > 0, max_length=4, cache=2), "lengths must be an integer or floating"),
        (lambda: shaping.soft_overlong_penalty(-LENGTHS, max_length=4, cache=2), "lengths must not be negative"),
        (lambda: shaping.soft_overlong_penalty(LENGTHS, max_length=0, cache=2), "max_length must be positive, got 0"),
        (lambda: shaping.soft_overlong_penalty(LENGTHS, max_length=4, cache=0), "cache must be positive, got 0"),
        (lambda: shaping.soft_overlong_penalty(LENGTHS, max_length=4, cache=5), r"cache must lie in \[0, 4\], got 5"),
        (lambda: shaping.weighted_composite({}, {}), r"at least one: expected \[\], got \[\]"),
        (
            lambda: shaping.weighted_composite({"a": ONES, "b": ONES}, {"a": 1.0}),
            r"the same names as parts, at least one: expected \['a', 'b'\], got \['a'\]",
        ),
        (lambda: shaping.weighted_composite({"a": ONES}, {"a": 1.0, "b": 1.0}), r"expected \['a'\], got \['a', 'b'\]"),
        (lambda: shaping.weighted_composite({"a": LENGTHS}, {"a": 1.0}), "a must be a floating-point array, got int32"),
        (lambda: shaping.weighted_composite({"a": ONES, "b": ONES[:1]}, {"a": 1, "b": 1}), "b must have the shape of a"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
