"""Shaped rewards against loops written from the formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops import shaping

N, K = 6, 3
length_arrays = hnp.arrays(np.int32, (N,), elements=st.integers(0, 40))
tenths = st.integers(-30, 30).map(lambda k: k / 10)
reward_arrays = hnp.arrays(np.float64, (N,), elements=tenths)
part_arrays = hnp.arrays(np.float64, (2, N, K), elements=tenths)
scales = st.integers(0, 8).map(lambda k: k / 4)

soft_overlong_penalty = jax.jit(shaping.soft_overlong_penalty)
adaptive_length_penalty = jax.jit(shaping.adaptive_length_penalty)
quality_aware_length_weight = jax.jit(shaping.quality_aware_length_weight)
length_shaped_reward = jax.jit(shaping.length_shaped_reward)
multi_objective = jax.jit(shaping.multi_objective)
constitutional_sum = jax.jit(shaping.constitutional_sum)


def slow_overlong(length, max_length, cache):
    if length <= max_length - cache:
        return 0.0
    if length <= max_length:
        return ((max_length - cache) - length) / cache
    return -1.0


def slow_penalty(length, reward, target, threshold, alpha, beta):
    return alpha * np.log(1 + length / target) if reward > threshold else beta * (length / target) ** 2


def slow_length_weight(reward, threshold, base, gamma):
    return base * np.exp(-gamma * max(0.0, reward - threshold))


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


def test_soft_overlong_penalty_at_the_lengths_of_the_paper():
    lengths = jnp.array([16384, 16385, 18432, 20480, 20481])
    actual = shaping.soft_overlong_penalty(lengths, max_length=20480, cache=4096)
    np.testing.assert_allclose(actual, [0.0, -1 / 4096, -0.5, -1.0, -1.0], rtol=1e-6)
    everywhere = shaping.soft_overlong_penalty(jnp.array([0, 5, 10]), max_length=10, cache=10)
    assert everywhere.tolist() == [0.0, -0.5, -1.0]


def test_lengths_that_are_integers_become_the_precision_of_the_moment(x64):
    assert soft_overlong_penalty(jnp.array([3]), max_length=4, cache=2).dtype == jnp.float64
    assert soft_overlong_penalty(jnp.array([3], jnp.int32), max_length=4, cache=2).dtype == jnp.float64
    assert soft_overlong_penalty(jnp.array([3.0], jnp.float32), max_length=4, cache=2).dtype == jnp.float32


@given(length_arrays, reward_arrays, st.integers(1, 30), tenths, scales, scales)
def test_adaptive_length_penalty_matches_formula(lengths, rewards, target, threshold, alpha, beta):
    settings = {"target": target, "threshold": threshold, "alpha": alpha, "beta": beta}
    expected = [slow_penalty(int(n), r, **settings) for n, r in zip(lengths, rewards, strict=True)]
    with jax.enable_x64(True):
        actual = adaptive_length_penalty(jnp.array(lengths), jnp.array(rewards), **settings)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@given(reward_arrays, tenths, scales, scales)
def test_quality_aware_length_weight_matches_formula(rewards, threshold, base, gamma):
    expected = [slow_length_weight(r, threshold, base, gamma) for r in rewards]
    with jax.enable_x64(True):
        actual = quality_aware_length_weight(jnp.array(rewards), threshold=threshold, base=base, gamma=gamma)
        np.testing.assert_allclose(actual, expected, rtol=1e-12)
        actual = quality_aware_length_weight(jnp.array(rewards), threshold=threshold)
        np.testing.assert_allclose(actual, [slow_length_weight(r, threshold, 0.05, 2.0) for r in rewards], rtol=1e-12)


@given(length_arrays, reward_arrays, tenths, scales, scales)
def test_length_shaped_reward_matches_formula(lengths, rewards, threshold, base, gamma):
    penalty = {"target": 8, "threshold": threshold, "alpha": 0.75, "beta": 1.25}
    pairs = list(zip(lengths.tolist(), rewards.tolist(), strict=True))

    def expected(base, gamma):
        return [r - slow_length_weight(r, threshold, base, gamma) * slow_penalty(n, r, **penalty) for n, r in pairs]

    with jax.enable_x64(True):
        arrays = jnp.array(rewards), jnp.array(lengths)
        given_both = length_shaped_reward(*arrays, **penalty, base=base, gamma=gamma)
        np.testing.assert_allclose(given_both, expected(base, gamma), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(length_shaped_reward(*arrays, **penalty), expected(0.05, 2.0), rtol=1e-12, atol=1e-12)


def test_length_shaped_reward_gradient_is_that_of_the_formula(x64):
    rewards, lengths = np.array([-1.0, 0.4, 2.0]), np.array([3.0, 20.0, 9.0])
    settings = {"target": 8.0, "threshold": 0.5, "alpha": 0.75, "beta": 1.25, "base": 0.3, "gamma": 1.5}

    @jax.jit
    def total(r, n):
        return (shaping.length_shaped_reward(r, n, **settings) * jnp.array([1.0, -2.0, 3.0])).sum()

    gradients = jax.grad(total, argnums=(0, 1))(jnp.array(rewards), jnp.array(lengths))
    for j in range(3):
        step = np.eye(3)[j] * 1e-6
        by_reward = (total(rewards + step, lengths) - total(rewards - step, lengths)) / 2e-6
        by_length = (total(rewards, lengths + step) - total(rewards, lengths - step)) / 2e-6
        np.testing.assert_allclose([gradients[0][j], gradients[1][j]], [by_reward, by_length], atol=1e-8)


@given(part_arrays, hnp.arrays(np.float64, (K,), elements=tenths))
def test_weighted_sums_match_their_formulas(parts, weights):
    expected = np.zeros((2, N))
    for p, i, k in np.ndindex(parts.shape):
        expected[p, i] += weights[k] * parts[p, i, k]
    base = parts[..., 0] + 1
    with jax.enable_x64(True):
        columns, w = jnp.array(parts), jnp.array(weights)
        np.testing.assert_allclose(multi_objective(columns, w), expected, atol=1e-12)
        np.testing.assert_allclose(constitutional_sum(jnp.array(base), columns, w), base + expected, atol=1e-12)
        names = ["answer", "format", "language"]
        named = {name: columns[..., k] for k, name in enumerate(names)}
        reordered = {name: float(weights[k]) for k, name in reversed(list(enumerate(names)))}
        np.testing.assert_allclose(shaping.weighted_composite(named, reordered), expected, atol=1e-12)


ONES, LENGTHS, COLUMNS = jnp.ones(2), jnp.array([3, 4]), jnp.ones((2, 3))
PENALTY = {"target": 1.0, "threshold": 0.0, "alpha": 1.0, "beta": 1.0}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shaping.rule_reward(ONES), r"correct must be a boolean array, got float32\[2\]"),
        (lambda: shaping.soft_overlong_penalty(ONES > 0, max_length=4, cache=2), "lengths must be an integer or floating"),
        (lambda: shaping.soft_overlong_penalty(-LENGTHS, max_length=4, cache=2), "lengths must not be negative"),
        (lambda: shaping.soft_overlong_penalty(LENGTHS, max_length=0, cache=2), "max_length must be positive, got 0"),
        (lambda: shaping.soft_overlong_penalty(LENGTHS, max_length=4, cache=0), "cache must be positive, got 0"),
        (lambda: shaping.soft_overlong_penalty(LENGTHS, max_length=4, cache=5), r"cache must lie in \[0, 4\], got 5"),
        (lambda: shaping.adaptive_length_penalty(LENGTHS, LENGTHS, **PENALTY), "rewards must be a floating-point array"),
        (lambda: shaping.adaptive_length_penalty(LENGTHS, ONES[:1], **PENALTY), "rewards must have the shape of lengths"),
        (lambda: shaping.adaptive_length_penalty(-LENGTHS, ONES, **PENALTY), "lengths must not be negative"),
        *[
            (lambda name=name, bad=bad: shaping.adaptive_length_penalty(LENGTHS, ONES, **PENALTY | {name: bad}), message)
            for name, bad, message in [
                ("target", 0.0, "target must be positive, got 0.0"),
                ("alpha", -1.0, "alpha must not be negative, got -1.0"),
                ("beta", -1.0, "beta must not be negative, got -1.0"),
            ]
        ],
        (lambda: shaping.quality_aware_length_weight(LENGTHS, threshold=0.0), "rewards must be a floating-point array"),
        (
            lambda: shaping.quality_aware_length_weight(ONES, threshold=0.0, base=-1.0),
            "base must not be negative, got -1.0",
        ),
        (lambda: shaping.quality_aware_length_weight(ONES, threshold=0.0, gamma=-1.0), "gamma must not be negative"),
        (lambda: shaping.length_shaped_reward(ONES, LENGTHS[:1], **PENALTY), "rewards must have the shape of lengths"),
        (lambda: shaping.weighted_composite({}, {}), r"weights must name the parts \[\], and at least one, got \[\]"),
        (
            lambda: shaping.weighted_composite({"a": ONES, "b": ONES}, {"a": 1.0}),
            r"weights must name the parts \['a', 'b'\], and at least one, got \['a'\]",
        ),
        (lambda: shaping.weighted_composite({"a": ONES}, {"a": 1.0, "b": 1.0}), r"weights must name the parts \['a'\]"),
        (lambda: shaping.weighted_composite({"a": LENGTHS}, {"a": 1.0}), "a must be a floating-point array, got int32"),
        (lambda: shaping.weighted_composite({"a": ONES, "b": ONES[:1]}, {"a": 1, "b": 1}), "b must have the shape of a"),
        (lambda: shaping.multi_objective(COLUMNS, ONES), r"weights must have shape \[3\] to match objectives, got \[2\]"),
        (lambda: shaping.multi_objective(COLUMNS.astype(int), ONES), "objectives must be a floating-point array"),
        (lambda: shaping.multi_objective(COLUMNS, LENGTHS), "weights must be a floating-point array"),
        (lambda: shaping.multi_objective(COLUMNS[0, 0], ONES[:0]), "objectives must have at least 1 non-empty axes"),
        (lambda: shaping.constitutional_sum(LENGTHS, COLUMNS, ONES), "base must be a floating-point array"),
        (
            lambda: shaping.constitutional_sum(ONES, COLUMNS, ONES),
            r"weights must have shape \[3\] to match scores, got \[2\]",
        ),
        (
            lambda: shaping.constitutional_sum(ONES[:1], COLUMNS, jnp.ones(3)),
            r"base must have one entry for each row of scores \[2\], got \[1\]",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
