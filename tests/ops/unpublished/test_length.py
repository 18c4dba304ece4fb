"""Length penalties, weights, group sizes and bins: formulas, checked against loops, and refused arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops import weights
from rljax.ops.unpublished import length

N = 6
length_arrays = hnp.arrays(np.int32, (N,), elements=st.integers(0, 40))
tenths = st.integers(-30, 30).map(lambda k: k / 10)
reward_arrays = hnp.arrays(np.float64, (N,), elements=tenths)
scales = st.integers(0, 8).map(lambda k: k / 4)
long_arrays = hnp.arrays(np.int32, (6,), elements=st.integers(1, 5000))
P, G, T = 2, 3, 4
masks = hnp.arrays(bool, (P, G, T))
adaptive_length_penalty = jax.jit(length.adaptive_length_penalty)
quality_aware_length_weight = jax.jit(length.quality_aware_length_weight)
length_shaped_reward = jax.jit(length.length_shaped_reward)
token_mean = jax.jit(weights.token_mean)
sequence_mean = jax.jit(weights.sequence_mean)
median_length = jax.jit(length.median_length)
length_reweighted = jax.jit(length.length_reweighted)
adaptive_group_size = jax.jit(length.adaptive_group_size, static_argnames=("base", "reference", "floor"))


def slow_penalty(length, reward, target, threshold, alpha, beta):
    return alpha * np.log(1 + length / target) if reward > threshold else beta * (length / target) ** 2


def slow_length_weight(reward, threshold, base, gamma):
    return base * np.exp(-gamma * max(0.0, reward - threshold))


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
        shaped = length_shaped_reward(*arrays, **penalty, base=base, gamma=gamma)
        np.testing.assert_allclose(shaped, expected(base, gamma), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(length_shaped_reward(*arrays, **penalty), expected(0.05, 2.0), rtol=1e-12, atol=1e-12)


def test_length_shaped_reward_gradient_matches_the_formula(x64):
    rewards, lengths = np.array([-1.0, 0.4, 2.0]), np.array([3.0, 20.0, 9.0])
    settings = {"target": 8.0, "threshold": 0.5, "alpha": 0.75, "beta": 1.25, "base": 0.3, "gamma": 1.5}

    @jax.jit
    def total(r, n):
        return (length.length_shaped_reward(r, n, **settings) * jnp.array([1.0, -2.0, 3.0])).sum()

    gradients = jax.grad(total, argnums=(0, 1))(jnp.array(rewards), jnp.array(lengths))
    for j in range(3):
        step = np.eye(3)[j] * 1e-6
        by_reward = (total(rewards + step, lengths) - total(rewards - step, lengths)) / 2e-6
        by_length = (total(rewards, lengths + step) - total(rewards, lengths - step)) / 2e-6
        np.testing.assert_allclose([gradients[0][j], gradients[1][j]], [by_reward, by_length], atol=1e-8)


def length_list(mask):
    return [sum(1 for m in row if m) for row in mask.reshape(-1, mask.shape[-1])]


@given(masks)
def test_median_length_matches_formula(mask):
    lengths = sorted(n for n in length_list(mask) if n)
    expected = (lengths[(len(lengths) - 1) // 2] + lengths[len(lengths) // 2]) / 2 if lengths else 0.0
    assert median_length(jnp.array(mask)) == expected


@pytest.mark.parametrize(("lengths", "median"), [([3], 3.0), ([0, 4, 1], 2.5), ([5, 0, 1, 2], 2.0), ([5, 1, 2, 4], 3.0)])
def test_median_of_odd_and_even_counts(lengths, median):
    assert length.median_length(jnp.array(np.arange(6) < np.array(lengths)[:, None])) == median


@given(masks, st.sampled_from([0.0, 0.2, 0.5, 1.0]), hnp.arrays(np.float64, (P, G, T), elements=st.floats(0.5, 2)))
def test_length_reweighted_matches_formula(mask, alpha, base):
    lengths = [n for n in length_list(mask) if n]
    median = float(np.median(lengths)) if lengths else 0.0
    expected = np.zeros(mask.shape)
    for index in zip(*np.nonzero(mask), strict=True):
        expected[index] = base[index] * (sum(mask[index[:2]]) / median) ** -alpha
    dirty = np.where(mask, base, np.nan)
    with jax.enable_x64(True):
        token_mask = jnp.array(mask)
        actual = length_reweighted(jnp.array(dirty), token_mask, alpha=alpha, reference=median_length(token_mask))
        np.testing.assert_allclose(actual, expected, rtol=1e-12)
        gradient = jax.grad(lambda w: (length_reweighted(w, token_mask, alpha=alpha, reference=2.0) * base).sum())
        expected *= (2.0 / median if median else 1.0) ** alpha
        np.testing.assert_allclose(gradient(jnp.array(dirty)), expected, rtol=1e-12)


def test_length_reweighted_with_alpha_1_is_proportional_to_sequence_mean():
    mask = jnp.array(np.arange(T) < np.array([[4, 1, 2], [4, 4, 3]])[..., None])
    tilted = length_reweighted(token_mean(mask), mask, alpha=1.0, reference=1.0)
    np.testing.assert_allclose(tilted.sum(), 6 / 18, rtol=1e-6)
    np.testing.assert_allclose(tilted / tilted.sum(), sequence_mean(mask), rtol=1e-6)


def test_empty_batch_has_zero_weights():
    mask = jnp.zeros((P, G, T))
    assert not length_reweighted(token_mean(mask), mask, alpha=0.5, reference=median_length(mask)).any()


@given(long_arrays, st.integers(1, 9), st.integers(1, 600), st.integers(2, 5))
def test_adaptive_group_size_matches_formula(lengths, base, reference, floor):
    expected = [max(floor, int(np.floor(base * reference / int(n)))) for n in lengths]
    for kind in (jnp.int32, jnp.float32):
        size = length.adaptive_group_size(jnp.array(lengths, kind), base=base, reference=reference, floor=floor)
        assert size.tolist() == expected
        assert size.dtype == jnp.int32


def test_adaptive_group_size_defaults():
    assert adaptive_group_size(jnp.array([100, 512, 2048, 2049, 9000])).tolist() == [40, 8, 2, 2, 2]


def test_printed_equation_27_gives_groups_of_one():
    lengths = [512, 2048, 2049, 4096, 20480]
    printed = [max(1, (8 * 512) // length) for length in lengths]
    assert printed == [8, 2, 1, 1, 1]
    single_reward = jnp.array([[0.7]])
    assert (single_reward - single_reward.mean(-1, keepdims=True)).tolist() == [[0.0]], (
        "a group of one has no relative advantage"
    )
    assert adaptive_group_size(jnp.array(lengths)).tolist() == [8, 2, 2, 2, 2]


@given(long_arrays)
def test_length_percentiles_match_formula(lengths):
    ordered = sorted(int(n) for n in lengths)
    expected = []
    for q in (25, 50, 75, 95):
        position = (len(ordered) - 1) * q / 100
        below, fraction = int(position), position - int(position)
        above = ordered[min(below + 1, len(ordered) - 1)]
        expected.append(ordered[below] + fraction * (above - ordered[below]))
    np.testing.assert_allclose(length.length_percentiles(jnp.array(lengths.reshape(2, 3))), expected, rtol=1e-6)


def test_chosen_length_percentiles():
    assert length.length_percentiles(jnp.array([1.0, 2.0, 5.0]), percentiles=(0, 100)).tolist() == [1.0, 5.0]


@given(long_arrays, hnp.arrays(np.float32, (3,), elements=st.integers(0, 5000)))
def test_length_bins_match_formula(lengths, edges):
    edges = np.sort(edges)
    expected = [sum(1 for edge in edges if edge < n) for n in lengths]
    bins = length.length_bins(jnp.array(lengths), jnp.array(edges))
    assert bins.tolist() == expected
    assert bins.dtype == jnp.int32


def test_length_bins_do_not_round_lengths():
    assert length.length_bins(jnp.array([256, 257]), jnp.array([256.0], jnp.bfloat16)).tolist() == [0, 1]


ONES, LENGTHS = jnp.ones(2), jnp.array([3, 4])
PENALTY = {"target": 1.0, "threshold": 0.0, "alpha": 1.0, "beta": 1.0}
PAIR = jnp.ones((2, 2))


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: length.adaptive_length_penalty(LENGTHS, LENGTHS, **PENALTY), "rewards must be a floating-point array"),
        (lambda: length.adaptive_length_penalty(LENGTHS, ONES[:1], **PENALTY), "rewards must have the shape of lengths"),
        (lambda: length.adaptive_length_penalty(-LENGTHS, ONES, **PENALTY), "lengths must not be negative"),
        *[
            (lambda name=name, bad=bad: length.adaptive_length_penalty(LENGTHS, ONES, **PENALTY | {name: bad}), message)
            for name, bad, message in [
                ("target", 0.0, "target must be positive, got 0.0"),
                ("alpha", -1.0, "alpha must not be negative, got -1.0"),
                ("beta", -1.0, "beta must not be negative, got -1.0"),
            ]
        ],
        (lambda: length.quality_aware_length_weight(LENGTHS, threshold=0.0), "rewards must be a floating-point array"),
        (
            lambda: length.quality_aware_length_weight(ONES, threshold=0.0, base=-1.0),
            "base must not be negative, got -1.0",
        ),
        (lambda: length.quality_aware_length_weight(ONES, threshold=0.0, gamma=-1.0), "gamma must not be negative"),
        (lambda: length.length_shaped_reward(ONES, LENGTHS[:1], **PENALTY), "rewards must have the shape of lengths"),
        (lambda: length.median_length(PAIR / 2), "mask must contain only 0 and 1"),
        (lambda: length.length_reweighted(PAIR, PAIR, alpha=-0.1, reference=1.0), "alpha must not be negative, got -0.1"),
        (lambda: length.length_reweighted(PAIR, PAIR, alpha=0.1, reference=0.0), "reference must be positive, got 0.0"),
        (lambda: length.length_reweighted(PAIR, PAIR[0], alpha=0.1, reference=1.0), "mask must have the shape of weights"),
        (lambda: length.length_reweighted(PAIR.astype(int), PAIR, alpha=0.1, reference=1.0), "weights must be a floating"),
        (lambda: length.adaptive_group_size(jnp.array([0, 4])), "lengths must be positive"),
        (lambda: length.adaptive_group_size(PAIR > 0), "lengths must be an integer or floating-point array"),
        (lambda: length.adaptive_group_size(LENGTHS, floor=1), "floor must be at least 2, got 1"),
        (lambda: length.adaptive_group_size(LENGTHS, base=0), "base must be at least 1, got 0"),
        (lambda: length.adaptive_group_size(LENGTHS, reference=0), "reference must be at least 1, got 0"),
        (lambda: length.length_percentiles(LENGTHS[:0]), r"lengths must contain at least one length, got shape \[0\]"),
        (lambda: length.length_percentiles(-LENGTHS), "lengths must not be negative"),
        (lambda: length.length_percentiles(LENGTHS, percentiles=(101,)), r"percentiles must lie in \[0, 100\]"),
        (lambda: length.length_bins(-LENGTHS, PAIR[0]), "lengths must not be negative"),
        (lambda: length.length_bins(LENGTHS, LENGTHS), "edges must be a floating-point array"),
        (lambda: length.length_bins(LENGTHS, PAIR[0, :0]), "edges must have at least 1 non-empty axes"),
        (lambda: length.length_bins(LENGTHS, jnp.array([2.0, 1.0])), "edges must be ascending"),
        (lambda: length.length_bins(LENGTHS, PAIR), r"edges must have one axis, got shape \[2, 2\]"),
        (lambda: length.length_bins(LENGTHS, PAIR[0, 0]), r"edges must have one axis, got shape \[\]"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
