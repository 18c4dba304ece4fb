"""Off-policy corrections, checked against loops written from the formulas; bounds, special cases, precision and refusals."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops import correction
from rljax.ops.ratio import sequence_log_ratio

SHAPE = (2, 3, 4)
# These values avoid the logarithms of the bounds, so that rounding cannot decide a comparison.
log_probabilities = hnp.arrays(np.float64, SHAPE, elements=st.integers(-20, 0).map(lambda k: k / 10 - 0.013))
shifts = hnp.arrays(np.float64, SHAPE, elements=st.integers(-20, 20).map(lambda k: k / 10 + 0.0137))
masks = hnp.arrays(bool, SHAPE)
poisons = st.sampled_from([np.nan, np.inf, -np.inf, 1e30])


def compute_ratios(learner, sampler, mask):
    """For each token: its ratio, its response's ratio, and the geometric mean ratio of its response; all 1 outside the mask."""
    token, product, mean = np.ones(SHAPE), np.ones(SHAPE), np.ones(SHAPE)
    for p, g in np.ndindex(SHAPE[:2]):
        chosen = [t for t in range(SHAPE[2]) if mask[p, g, t]]
        response_ratio = math.prod(math.exp(learner[p, g, t]) / math.exp(sampler[p, g, t]) for t in chosen)
        for t in chosen:
            token[p, g, t] = math.exp(learner[p, g, t]) / math.exp(sampler[p, g, t])
            product[p, g, t] = response_ratio
            mean[p, g, t] = response_ratio ** (1 / len(chosen))
    return token, product, mean


def apply_to_each(f, ratio, mask):
    out = np.zeros(SHAPE)
    for index in np.ndindex(*SHAPE):
        out[index] = f(float(ratio[index])) if mask[index] else 0.0
    return out


def zero_outside(low, high):
    return lambda r: r if low <= r <= high else 0.0


TOKEN, PRODUCT, MEAN = 0, 1, 2
# Name -> two cases, with default and with other bounds: (options, index of the ratio, function applied to that ratio).
CASES = {
    "truncated_importance_weight": [({}, TOKEN, lambda r: min(r, 2.0)), ({"cap": 5.0}, TOKEN, lambda r: min(r, 5.0))],
    "masked_importance_weight": [
        ({}, TOKEN, zero_outside(0.5, 5.0)),
        ({"low": 0.8, "high": 1.3}, TOKEN, zero_outside(0.8, 1.3)),
    ],
    "two_sided_importance_weight": [
        ({"low": 0.5}, TOKEN, lambda r: max(0.5, min(r, 2.0))),
        ({"low": 0.8, "high": 3.0}, TOKEN, lambda r: max(0.8, min(r, 3.0))),
    ],
    "sequence_truncated_importance_weight": [
        ({}, PRODUCT, lambda r: min(r, 2.0)),
        ({"cap": 5.0}, PRODUCT, lambda r: min(r, 5.0)),
    ],
    "sequence_masked_importance_weight": [
        ({}, PRODUCT, zero_outside(0.0, 2.0)),
        ({"low": 0.25, "high": 4.0}, PRODUCT, zero_outside(0.25, 4.0)),
    ],
    "geometric_rejection": [
        ({}, MEAN, lambda r: float(0.999 <= r <= 1.001)),
        ({"low": 0.6, "high": 1.5}, MEAN, lambda r: float(0.6 <= r <= 1.5)),
    ],
}
WITHOUT_BOUNDS = {
    "truncated_importance_weight": {"cap": math.inf},
    "masked_importance_weight": {"low": 0.0, "high": math.inf},
    "two_sided_importance_weight": {"low": 0.0, "high": math.inf},
    "sequence_truncated_importance_weight": {"cap": math.inf},
    "sequence_masked_importance_weight": {"low": 0.0, "high": math.inf},
    "geometric_rejection": {"low": 0.0, "high": math.inf},
}


def compute_weights(name, learner, sampler, mask, **options):
    return getattr(correction, name)(jnp.asarray(learner), jnp.asarray(sampler), jnp.asarray(mask), **options)


@pytest.mark.parametrize("name", CASES)
@given(learner=log_probabilities, shift=shifts, mask=masks, poison=poisons)
def test_weights_match_the_formula(name, learner, shift, mask, poison):
    ratios = compute_ratios(learner, learner - shift, mask)
    for options, which, f in CASES[name]:
        with jax.enable_x64(True):
            actual = compute_weights(
                name, np.where(mask, learner, poison), np.where(mask, learner - shift, poison), mask, **options
            )
        np.testing.assert_allclose(actual, apply_to_each(f, ratios[which], mask), rtol=1e-9, err_msg=str(options))


@pytest.mark.parametrize("name", CASES)
@given(learner=log_probabilities, mask=masks)
def test_weights_are_1_if_the_policies_agree(name, learner, mask):
    with jax.enable_x64(True):
        for options, _, _ in CASES[name]:
            np.testing.assert_array_equal(compute_weights(name, learner, learner, mask, **options), mask.astype(float))


@pytest.mark.parametrize("name", CASES)
@given(learner=log_probabilities, shift=shifts, mask=masks)
def test_weights_without_bounds_are_the_ratios(name, learner, shift, mask):
    which = CASES[name][0][1]
    expected = compute_ratios(learner, learner - shift, mask)[which] if which != MEAN else np.ones(SHAPE)
    with jax.enable_x64(True):
        actual = compute_weights(name, learner, learner - shift, mask, **WITHOUT_BOUNDS[name])
    np.testing.assert_allclose(actual, np.where(mask, expected, 0), rtol=1e-9)


@given(learner=log_probabilities, shift=shifts, mask=masks)
def test_two_sided_weight_without_lower_bound_is_truncated_weight(learner, shift, mask):
    arrays = learner, learner - shift, mask
    with jax.enable_x64(True):
        ours = compute_weights("two_sided_importance_weight", *arrays, low=0.0, high=1.5)
        np.testing.assert_array_equal(ours, compute_weights("truncated_importance_weight", *arrays, cap=1.5))


@pytest.mark.parametrize(
    ("token_op", "response_op", "bounds"),
    [
        ("truncated_importance_weight", "sequence_truncated_importance_weight", {"cap": 1.5}),
        ("masked_importance_weight", "sequence_masked_importance_weight", {"low": 0.7, "high": 1.5}),
    ],
)
@given(learner=log_probabilities, shift=shifts, position=st.integers(0, 3))
def test_response_weight_of_one_token_is_the_token_weight(token_op, response_op, bounds, learner, shift, position):
    arrays = learner, learner - shift, np.broadcast_to(np.arange(4) == position, SHAPE)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(
            compute_weights(response_op, *arrays, **bounds), compute_weights(token_op, *arrays, **bounds)
        )
        mean = compute_weights("geometric_rejection", *arrays, low=0.7, high=1.5)
        outside = correction.ratio_outside_bounds(jnp.asarray(shift), jnp.asarray(arrays[2]), low=0.7, high=1.5)
    np.testing.assert_array_equal(mean, (arrays[2] & ~np.asarray(outside)).astype(float))


@given(log_ratio=shifts, mask=masks, poison=poisons)
def test_ratio_outside_bounds_matches_the_formula(log_ratio, mask, poison):
    with jax.enable_x64(True):
        poisoned = jnp.asarray(np.where(mask, log_ratio, poison))
        actual = correction.ratio_outside_bounds(poisoned, jnp.asarray(mask), low=0.5, high=5.0)
    for index in np.ndindex(*SHAPE):
        assert actual[index] == (mask[index] and not 0.5 <= math.exp(log_ratio[index]) <= 5.0)


def test_ratio_on_a_bound_is_not_outside():
    on_bounds = jnp.log(jnp.array([0.5, 5.0]))
    assert not correction.ratio_outside_bounds(on_bounds, jnp.ones(2), low=0.5, high=5.0).any()


def slow_off_policy_mask(logp, behaviour_logp, advantage, mask, delta):
    out = np.zeros(SHAPE, bool)
    for p, g in np.ndindex(SHAPE[:2]):
        chosen = [t for t in range(SHAPE[2]) if mask[p, g, t]]
        drift = sum(behaviour_logp[p, g, t] - logp[p, g, t] for t in chosen) / len(chosen) if chosen else 0.0
        for t in chosen:
            out[p, g, t] = not (advantage[p, g, t] < 0 and drift > delta)
    return out


@given(
    logp=log_probabilities, shift=shifts, advantage=shifts, mask=masks, poison=poisons, delta=st.sampled_from([0.0, 0.5])
)
def test_off_policy_mask_matches_formula(logp, shift, advantage, mask, poison, delta):
    with jax.enable_x64(True):
        arrays = (jnp.asarray(np.where(mask, x, poison)) for x in (logp, logp - shift, advantage))
        actual = correction.off_policy_sequence_mask(*arrays, jnp.asarray(mask), delta=delta)
    np.testing.assert_array_equal(actual, slow_off_policy_mask(logp, logp - shift, advantage, mask, delta))


@given(logp=log_probabilities, shift=shifts, advantage=shifts, mask=masks)
def test_off_policy_mask_keeps_on_policy_or_good_responses(logp, shift, advantage, mask):
    with jax.enable_x64(True):
        logp, shift, advantage, mask = map(jnp.asarray, (logp, shift, advantage, mask))
        for behaviour_logp, a, delta in (
            (logp, advantage, 0.0),
            (logp - shift, abs(advantage), 0.0),
            (logp - shift, advantage, np.inf),
        ):
            kept = correction.off_policy_sequence_mask(logp, behaviour_logp, a, mask, delta=delta)
            np.testing.assert_array_equal(kept, mask)


def test_off_policy_mask_agrees_with_geometric_rejection():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        logp, behaviour_logp = jnp.asarray(rng.normal(size=(2, 6, 5)))
        mask = jnp.asarray(rng.random((6, 5)) < 0.7)
        kept = correction.off_policy_sequence_mask(logp, behaviour_logp, -jnp.ones_like(logp), mask, delta=0.3)
        mean = correction.geometric_rejection(logp, behaviour_logp, mask, low=math.exp(-0.3), high=math.inf)
        assert (sequence_log_ratio(logp, behaviour_logp, mask) < -0.3).any()
    np.testing.assert_array_equal(kept, np.asarray(mean, bool))


def test_extreme_ratios():
    up, down = (jnp.zeros(1), jnp.full(1, -1e4)), (jnp.full(1, -jnp.inf), jnp.zeros(1))
    for name, (above, below) in {
        "truncated_importance_weight": (2.0, 0.0),
        "masked_importance_weight": (0.0, 0.0),
        "two_sided_importance_weight": (2.0, 0.5),
        "sequence_truncated_importance_weight": (2.0, 0.0),
        "sequence_masked_importance_weight": (0.0, 0.0),
        "geometric_rejection": (0.0, 0.0),
    }.items():
        options = CASES[name][0][0]
        assert compute_weights(name, *up, jnp.ones(1), **options).tolist() == [above], name
        assert compute_weights(name, *down, jnp.ones(1), **options).tolist() == [below], name


def test_response_without_tokens_has_weight_0():
    for name in CASES:
        assert not compute_weights(
            name, jnp.full((1, 3), jnp.nan), jnp.ones((1, 3)), jnp.zeros((1, 3)), **CASES[name][0][0]
        ).any()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
@pytest.mark.parametrize("mask_dtype", [bool, jnp.int32, jnp.float32])
def test_results_are_at_least_float32(dtype, mask_dtype):
    with jax.enable_x64(True):
        learner, sampler = jnp.full((2, 3), -1.0, dtype), jnp.full((2, 3), -1.5, dtype)
        mask = jnp.array([[1, 1, 0], [1, 0, 0]], mask_dtype)
        expected = jnp.float32 if dtype == jnp.bfloat16 else dtype
        for name in CASES:
            assert compute_weights(name, learner, sampler, mask, **CASES[name][0][0]).dtype == expected
            if dtype != jnp.float64:
                assert (
                    compute_weights(name, learner, sampler.astype(jnp.float32), mask, **CASES[name][0][0]).dtype == expected
                )
        assert correction.off_policy_sequence_mask(learner, sampler, learner, mask, delta=0.5).dtype == bool


def test_long_half_precision_responses_are_summed_in_float32():
    learner, sampler = jnp.full(4096, -1.0, jnp.bfloat16), jnp.full(4096, -1.0001220703125, jnp.float32)
    weight = correction.sequence_truncated_importance_weight(learner, sampler, jnp.ones(4096))
    np.testing.assert_allclose(weight, math.exp(0.5), rtol=1e-5)


X = jnp.zeros((2, 3))
M = jnp.ones((2, 3))


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X.astype(int), X, M), r"policy_logp must be a floating-point array, got int32\[2, 3\]"),
        ((X, X.astype(int), M), r"behaviour_logp must be a floating-point array, got int32\[2, 3\]"),
        ((X, X[:1], M), r"behaviour_logp must have the shape of policy_logp \[2, 3\], got \[1, 3\]"),
        ((X, X, M[:, :2]), r"mask must have the shape of policy_logp \[2, 3\], got \[2, 2\]"),
        ((X, X, M / 2), r"mask must contain only 0 and 1, got values \[0.5\]"),
    ],
)
def test_invalid_arguments_are_refused(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(correction, name)(*arguments, **CASES[name][0][0])


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        *((name, {"cap": 0.0}, "cap must be positive, got 0.0") for name in CASES if "truncated" in name),
        *((name, {"low": -0.1}, r"low must lie in \[0, .*\], got -0.1") for name in CASES if "truncated" not in name),
        *(
            (name, {"low": 3.0, "high": 2.0}, r"low must lie in \[0, 2\], got 3.0")
            for name in CASES
            if "truncated" not in name
        ),
        *((name, {"low": 0.0, "high": 0.0}, "high must be positive, got 0.0") for name in CASES if "truncated" not in name),
    ],
)
def test_invalid_bounds_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        compute_weights(name, X, X, M, **options)


@pytest.mark.usefixtures("without_type_checks")
def test_invalid_off_policy_mask_arguments_are_refused():
    with pytest.raises(ValueError, match=r"delta must not be negative, got -0\.1"):
        correction.off_policy_sequence_mask(X, X, X, M, delta=-0.1)
    with pytest.raises(ValueError, match=r"advantage must have the shape of logp \[2, 3\], got \[2\]"):
        correction.off_policy_sequence_mask(X, X, X[:, 0], M, delta=0.1)
    with pytest.raises(ValueError, match="advantage must be a floating-point array"):
        correction.off_policy_sequence_mask(X, X, X.astype(int), M, delta=0.1)
    with pytest.raises(ValueError, match="log_ratio must be a floating-point array"):
        correction.ratio_outside_bounds(X.astype(int), M, low=0.5, high=2.0)
