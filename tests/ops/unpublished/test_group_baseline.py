"""Group baselines: formulas, checked against loops, invariants, and refused arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from op_oracles import central_differences

from rljax.ops import group
from rljax.ops.unpublished import group_baseline

P, G, T = 3, 4, 5
tenths = st.integers(-30, 30).map(lambda k: k / 10)
reward_arrays = hnp.arrays(np.float64, (P, G), elements=tenths)
weight_arrays = hnp.arrays(np.float64, (P, G), elements=st.integers(0, 8).map(lambda k: k / 4))
valid_arrays = hnp.arrays(bool, (P, G))


def mean(numbers):
    return sum(numbers) / len(numbers)


def slow_std(numbers, ddof):
    return (sum((x - mean(numbers)) ** 2 for x in numbers) / (len(numbers) - ddof)) ** 0.5


def slow_rank(r):
    ordered = sorted(r)
    rank = [mean([position for position, y in enumerate(ordered, start=1) if y == x]) for x in r]
    return [(k - (len(r) + 1) / 2) / (len(r) / 2) for k in rank]


def slow_weighted(r, w):
    if sum(w) == 0:
        return [0.0] * len(r)
    return [x - sum(a * b for a, b in zip(w, r, strict=True)) / sum(w) for x in r]


def apply_to_valid(slow, valid, *columns):
    """Apply `slow` to each row's valid members; other entries, and rows with fewer than 2 valid members, are 0."""
    result = np.zeros(valid.shape)
    for p, keep in enumerate(valid):
        if keep.sum() >= 2:
            result[p, keep] = slow(*([float(x) for x in column[p, keep]] for column in columns))
    return result


type_arrays = hnp.arrays(np.int32, (P,), elements=st.sampled_from([-1, 3, 900]))
rank = jax.jit(group_baseline.rank_based)
weighted = jax.jit(group_baseline.weighted_centered)
confidence_quality = jax.jit(group_baseline.confidence_quality)
hierarchical = jax.jit(group_baseline.hierarchical)
group_centered = jax.jit(group.group_centered)


@given(reward_arrays)
def test_rank_matches_formula(rewards):
    all_valid = np.ones(rewards.shape, bool)
    with jax.enable_x64(True):
        np.testing.assert_allclose(
            rank(jnp.array(rewards)), apply_to_valid(slow_rank, all_valid, rewards), rtol=1e-9, atol=1e-9
        )


@given(reward_arrays, valid_arrays)
def test_rank_uses_only_valid_members(rewards, valid):
    dirty = np.where(valid, rewards, np.inf)
    with jax.enable_x64(True):
        actual = np.array(rank(jnp.array(dirty), valid=jnp.array(valid)))
    np.testing.assert_allclose(actual, apply_to_valid(slow_rank, valid, rewards), rtol=1e-9, atol=1e-9)
    assert not actual[~valid].any()
    assert not actual[valid.sum(-1) < 2].any()


@given(reward_arrays)
def test_rank_is_invariant_under_increasing_maps(rewards):
    with jax.enable_x64(True):
        np.testing.assert_array_equal(rank(jnp.array(np.exp(rewards))), rank(jnp.array(rewards)))


@given(reward_arrays, weight_arrays, valid_arrays)
def test_weighted_ignores_invalid_responses(rewards, weights, valid):
    expected = apply_to_valid(slow_weighted, valid, rewards, weights)
    dirty_rewards, dirty_weights = np.where(valid, rewards, np.inf), np.where(valid, weights, np.nan)
    with jax.enable_x64(True):
        actual = weighted(jnp.array(dirty_rewards), jnp.array(dirty_weights), valid=jnp.array(valid))
        np.testing.assert_allclose(actual, expected, atol=1e-12)
        all_valid = np.ones(valid.shape, bool)
        actual = weighted(jnp.array(rewards), jnp.array(weights))
        np.testing.assert_allclose(actual, apply_to_valid(slow_weighted, all_valid, rewards, weights), atol=1e-12)


@given(reward_arrays)
def test_weighted_with_equal_weights_is_centered(rewards):
    with jax.enable_x64(True):
        equal = weighted(jnp.array(rewards), jnp.full(rewards.shape, 0.3))
        np.testing.assert_allclose(equal, group_centered(jnp.array(rewards)), atol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_identical_rewards_get_exactly_zero(dtype, x64):
    rewards = jnp.full((1, 8), 0.1, dtype)
    weights = jnp.arange(8.0, dtype=dtype)[None]
    advantages = [rank(rewards), weighted(rewards, weights)]
    for advantage in advantages:
        assert advantage.dtype == dtype
        assert not advantage.any()


def test_weighted_gradients(x64):
    rng = np.random.default_rng(2)
    rewards, cotangent = rng.normal(size=(2, P, G))
    weights = rng.uniform(0.5, 2.0, size=(P, G))
    weights[2] = 0.0

    @jax.jit
    def total(r, w):
        return (cotangent * weighted(r, w)).sum()

    by_reward, by_weight = jax.jit(jax.grad(total, argnums=(0, 1)))(jnp.array(rewards), jnp.array(weights))
    np.testing.assert_allclose(by_reward, central_differences(lambda r: total(r, weights), rewards), atol=1e-7)
    numeric = central_differences(lambda w: total(rewards, w), weights)
    np.testing.assert_allclose(by_weight[:2], numeric[:2], atol=1e-7)
    assert not by_weight[2].any(), "a group of zero weight has no baseline, so its weights have no gradient"


def test_quality_weights_match_their_formulas(x64):
    rng = np.random.default_rng(4)
    lengths = jnp.array([[1, 4, 9], [0, 16, 2]])
    expected = [[1 / n**0.5 if n else 0.0 for n in row] for row in lengths.tolist()]
    for kind in (jnp.int32, jnp.float64):
        np.testing.assert_allclose(jax.jit(group_baseline.length_quality)(lengths.astype(kind)), expected)

    logp, mask = rng.normal(size=(3, T)), np.array([[1, 1, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]], bool)
    product = [np.prod([np.exp(x) for x, m in zip(*row, strict=True) if m]) for row in zip(logp, mask, strict=True)]
    expected = [product[0] ** (1 / 3), product[1], 0.0]
    dirty = jnp.array(np.where(mask, logp, np.inf))
    np.testing.assert_allclose(confidence_quality(dirty, jnp.array(mask)), expected)
    gradient = jax.jit(jax.grad(lambda x: (confidence_quality(x, jnp.array(mask)) * jnp.array([1.0, 2.0, 3.0])).sum()))
    expected = [[c * q / n * m for m in row] for c, q, n, row in zip([1, 2, 3], expected, [3, 1, 1], mask, strict=True)]
    np.testing.assert_allclose(gradient(dirty), expected)

    scores = rng.normal(size=(P, G, 3))
    expected = [[1 / (0.5 + slow_std([float(x) for x in raters], 1) ** 2) for raters in row] for row in scores]
    np.testing.assert_allclose(jax.jit(group_baseline.reliability_quality)(jnp.array(scores), floor=0.5), expected)


@given(
    hnp.arrays(np.float64, (P, G, 4), elements=st.integers(-8, 8).map(lambda k: k / 4)),
    hnp.arrays(bool, (P, G, 4)),
)
def test_reliability_ignores_abstaining_raters(scores, valid):
    dirty = np.where(valid, scores, np.nan)
    with jax.enable_x64(True):
        actual = group_baseline.reliability_quality(jnp.array(dirty), floor=0.5, valid=jnp.array(valid))
    for p, i in np.ndindex(P, G):
        known = [float(x) for x in scores[p, i][valid[p, i]]]
        assert actual[p, i] == pytest.approx(1 / (0.5 + slow_std(known, 1) ** 2) if len(known) > 1 else 0.0)


def test_confidence_of_long_responses_does_not_underflow():
    logp = jnp.log(jnp.array([0.9, 0.8]))[:, None] * jnp.ones((2, 1000))
    assert not jnp.exp(logp.sum(-1)).all()
    np.testing.assert_allclose(confidence_quality(logp, jnp.ones((2, 1000))), [0.9, 0.8], rtol=1e-4)


def minus_mean(x, peers):
    return x - sum(peers) / len(peers) if len(peers) > 1 else 0.0


def slow_hierarchical(rewards, types, valid, alpha):
    result = np.zeros(rewards.shape)
    all_rewards = [rewards[q, j] for q, j in np.ndindex(rewards.shape) if valid[q, j]]
    for p, i in zip(*np.nonzero(valid), strict=True):
        peers = [rewards[q, j] for q, j in np.ndindex(rewards.shape) if valid[q, j] and types[q] == types[p]]
        result[p, i] = alpha * minus_mean(rewards[p, i], peers) + (1 - alpha) * minus_mean(rewards[p, i], all_rewards)
    return result


@given(reward_arrays, type_arrays, valid_arrays, st.integers(0, 4).map(lambda k: k / 4))
def test_hierarchical_matches_formula(rewards, types, valid, alpha):
    dirty = np.where(valid, rewards, np.nan)
    with jax.enable_x64(True):
        actual = hierarchical(jnp.array(dirty), jnp.array(types), local_weight=alpha, valid=jnp.array(valid))
        np.testing.assert_allclose(actual, slow_hierarchical(rewards, types, valid, alpha), atol=1e-12)
        assert not np.array(actual)[~valid].any()
        actual = hierarchical(jnp.array(rewards), jnp.array(types))
        all_valid = np.ones(valid.shape, bool)
        np.testing.assert_allclose(actual, slow_hierarchical(rewards, types, all_valid, 0.7), atol=1e-12)
        np.testing.assert_allclose(actual.sum(), 0.0, atol=1e-12)


@given(reward_arrays)
def test_hierarchical_with_one_prompt_per_type_is_group_centered(rewards):
    with jax.enable_x64(True):
        local = hierarchical(jnp.array(rewards), jnp.arange(P), local_weight=1.0)
        np.testing.assert_allclose(local, group_centered(jnp.array(rewards)), atol=1e-12)


def test_hierarchical_leading_axes_are_batch_axes(x64):
    rewards = np.random.default_rng(0).normal(size=(4, G))
    types = np.array([0, 1, 1, 0])
    shallow = hierarchical(jnp.array(rewards), jnp.array(types))
    deep = hierarchical(jnp.array(rewards.reshape(2, 2, G)), jnp.array(types.reshape(2, 2)))
    np.testing.assert_allclose(deep.reshape(4, G), shallow)


def test_hierarchical_is_zero_for_types_with_identical_rewards(x64):
    rewards = jnp.array([[0.1] * 10, [0.1] * 10, [0.7] * 10, [5.0] * 10])
    local = hierarchical(rewards, jnp.array([2, 2, 1, 1]), local_weight=1.0)
    assert not local[:2].any()
    assert local[2:].all()


def test_hierarchical_gradient(x64):
    rng = np.random.default_rng(1)
    x, cotangent = rng.normal(size=(2, 4, 3))
    mask = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 0], [0, 1, 0]], bool)
    types = jnp.array([0, 1, 1, 0])
    total = jax.jit(lambda x: (cotangent * group_baseline.hierarchical(x, types, valid=jnp.array(mask))).sum())
    gradient = jax.jit(jax.grad(total))(jnp.array(np.where(mask, x, np.nan)))
    np.testing.assert_allclose(gradient, central_differences(total, x), atol=1e-8)
    assert np.abs(gradient).max() > 0.1


ONES, SINGLE = jnp.ones((2, 2)), jnp.ones((2, 1))


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: group_baseline.rank_based(SINGLE),
            r"rewards must contain groups of at least 2 responses on its last axis, got \[2, 1\]",
        ),
        (
            lambda: group_baseline.rank_based(jnp.ones((2, 2), int)),
            r"rewards must be a floating-point array, got int32\[2, 2\]",
        ),
        (lambda: group_baseline.weighted_centered(SINGLE, SINGLE), "rewards must contain groups of at least 2"),
        (lambda: group_baseline.weighted_centered(ONES, ONES.astype(int)), "weights must be a floating-point array"),
        (
            lambda: group_baseline.weighted_centered(ONES, ONES[0]),
            r"weights must have the shape of rewards \[2, 2\], got \[2\]",
        ),
        (lambda: group_baseline.weighted_centered(ONES, -ONES), "weights must not be negative"),
        (lambda: group_baseline.length_quality(jnp.array([-1])), "lengths must not be negative"),
        (lambda: group_baseline.length_quality(ONES > 0), "lengths must be an integer or floating-point array, got bool"),
        (lambda: group_baseline.confidence_quality(ONES.astype(int), ONES), "logp must be a floating-point array"),
        (lambda: group_baseline.confidence_quality(ONES, ONES[0]), "mask must have the shape of logp"),
        (
            lambda: group_baseline.reliability_quality(SINGLE, floor=1.0),
            r"scores must contain at least 2 scores per response .* got \[2, 1\]",
        ),
        (lambda: group_baseline.reliability_quality(ONES[0], floor=1.0), "scores must have at least 2 non-empty axes"),
        (lambda: group_baseline.reliability_quality(ONES.astype(int), floor=1.0), "scores must be a floating-point array"),
        (lambda: group_baseline.reliability_quality(ONES, floor=0.0), "floor must be positive, got 0.0"),
        (lambda: group_baseline.hierarchical(ONES[:, :1], jnp.arange(2)), "rewards must contain groups of at least 2"),
        (lambda: group_baseline.hierarchical(ONES, ONES[0]), "types must be an integer array, got float32"),
        (lambda: group_baseline.hierarchical(ONES, jnp.arange(3)), r"types must have one entry for each row .* got \[3\]"),
        (
            lambda: group_baseline.hierarchical(ONES, jnp.arange(2), local_weight=1.5),
            r"local_weight must lie in \[0, 1\], got 1.5",
        ),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
