"""Importance ratios, checked against loops written from the formulas, in values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from op_oracles import central_differences

from rljax.ops import ratio

SHAPE = (2, 3, 4)  # prompts, responses per prompt, tokens per response
RESPONSE_SHAPE = SHAPE[:2]
log_probabilities = hnp.arrays(np.float64, SHAPE, elements=st.integers(-40, 0).map(lambda k: k / 10 - 0.013))
log_ratios = hnp.arrays(np.float64, SHAPE, elements=st.integers(-40, 40).map(lambda k: k / 10 + 0.013))
masks = hnp.arrays(bool, SHAPE)
weights = np.random.default_rng(0).normal(size=SHAPE)
poisons = st.sampled_from([np.nan, np.inf, -np.inf, 1e30])


def select_tokens(row, mask):
    return [x for x, m in zip(row, mask, strict=True) if m]


def broadcast_to_tokens(per_response, mask):
    return np.where(mask, per_response[..., None], 0.0)


def token_by_loop(logp, behaviour, mask):
    out = np.zeros(SHAPE)
    for index in np.ndindex(*SHAPE):
        out[index] = logp[index] - behaviour[index] if mask[index] else 0.0
    return out


def mean_by_loop(logp, mask):
    out = np.zeros(RESPONSE_SHAPE)
    for i in np.ndindex(*RESPONSE_SHAPE):
        chosen = select_tokens(logp[i], mask[i])
        out[i] = sum(chosen) / len(chosen) if chosen else 0.0
    return out


def sum_by_loop(logp, mask):
    out = np.zeros(RESPONSE_SHAPE)
    for i in np.ndindex(*RESPONSE_SHAPE):
        out[i] = sum(select_tokens(logp[i], mask[i]))
    return out


def mean_ratio_by_loop(logp, behaviour, mask):
    return broadcast_to_tokens(mean_by_loop(logp, mask) - mean_by_loop(behaviour, mask), mask)


def sum_ratio_by_loop(logp, behaviour, mask):
    return broadcast_to_tokens(sum_by_loop(logp, mask) - sum_by_loop(behaviour, mask), mask)


def denominator_by_loop(log_q, mask):
    out = np.zeros(RESPONSE_SHAPE)
    for p in range(SHAPE[0]):
        q = [np.exp(log_q[p, g]) for g in range(SHAPE[1]) if mask[p, g].any()]
        if q:
            out[p] = np.log(sum(x * x for x in q) / sum(q))
    return broadcast_to_tokens(out, mask)


def expectation_by_loop(logp, behaviour, mask):
    log_e = denominator_by_loop(mean_by_loop(behaviour, mask), mask)
    return broadcast_to_tokens(mean_by_loop(logp, mask), mask) - log_e


def unnormalized_by_loop(logp, behaviour, mask):
    log_e = denominator_by_loop(sum_by_loop(behaviour, mask), mask)
    return broadcast_to_tokens(sum_by_loop(logp, mask), mask) - log_e


def value_and_gradient(op):
    def weighted(logp, behaviour, mask):
        value = op(logp, behaviour, mask)
        return (weights * value).sum(), value

    compiled = jax.jit(jax.value_and_grad(weighted, has_aux=True))

    def call(logp, behaviour, mask):
        (_, value), gradient = compiled(jnp.array(logp), jnp.array(behaviour), jnp.array(mask))
        return np.asarray(value), np.asarray(gradient)

    return call


CASES = {
    "token": (ratio.token_log_ratio, token_by_loop),
    "sequence": (ratio.sequence_log_ratio, mean_ratio_by_loop),
    "response": (ratio.response_log_ratio, sum_ratio_by_loop),
    "group_expectation": (ratio.group_expectation_log_ratio, expectation_by_loop),
    "group_expectation_unnormalized": (ratio.group_expectation_log_ratio_unnormalized, unnormalized_by_loop),
}
COMPILED = {name: value_and_gradient(op) for name, (op, _) in CASES.items()}
GSPO_TOKEN = value_and_gradient(ratio.sequence_token_log_ratio)


@pytest.mark.parametrize("name", CASES)
@given(logp=log_probabilities, behaviour=log_probabilities, mask=masks, poison=poisons)
def test_log_ratio_matches_formula(name, logp, behaviour, mask, poison):
    oracle = CASES[name][1]
    with jax.enable_x64(True):
        value, gradient = COMPILED[name](np.where(mask, logp, poison), np.where(mask, behaviour, poison), mask)
    np.testing.assert_allclose(value, oracle(logp, behaviour, mask), atol=1e-12)
    expected = central_differences(lambda x: (weights * oracle(x, behaviour, mask)).sum(), logp)
    np.testing.assert_allclose(gradient, expected, atol=1e-8)


@given(logp=log_probabilities, behaviour=log_probabilities, mask=masks, poison=poisons)
def test_sequence_token_ratio_has_sequence_value_and_token_gradient(logp, behaviour, mask, poison):
    with jax.enable_x64(True):
        value, gradient = GSPO_TOKEN(np.where(mask, logp, poison), np.where(mask, behaviour, poison), mask)
    np.testing.assert_allclose(value, mean_ratio_by_loop(logp, behaviour, mask), atol=1e-12)
    np.testing.assert_allclose(gradient, np.where(mask, weights, 0.0), atol=1e-15)


def compute_denominators(behaviour, mask):
    normalized, vjp = jax.vjp(lambda x: ratio.group_expectation_log_denominator(x, mask), behaviour)
    unnormalized = ratio.group_expectation_log_denominator_unnormalized(behaviour, mask)
    return normalized, unnormalized, vjp(jnp.ones_like(behaviour))[0]


DENOMINATORS = jax.jit(compute_denominators)


@given(behaviour=log_probabilities, mask=masks, poison=poisons)
def test_denominators_match_formula(behaviour, mask, poison):
    with jax.enable_x64(True):
        poisoned = jnp.array(np.where(mask, behaviour, poison))
        normalized, unnormalized, gradient = (np.asarray(x) for x in DENOMINATORS(poisoned, jnp.array(mask)))
    np.testing.assert_allclose(normalized, denominator_by_loop(mean_by_loop(behaviour, mask), mask), atol=1e-12)
    np.testing.assert_allclose(unnormalized, denominator_by_loop(sum_by_loop(behaviour, mask), mask), atol=1e-12)
    assert np.isfinite(gradient).all()
    assert not gradient[~mask].any()


@given(logp=log_probabilities, behaviour=log_probabilities, mask=masks)
def test_group_expectation_is_a_sequence_ratio_to_the_denominator(logp, behaviour, mask):
    with jax.enable_x64(True):
        logp, behaviour, m = jnp.array(logp), jnp.array(behaviour), jnp.array(mask)
        denominator = ratio.group_expectation_log_denominator(behaviour, m)
        row_by_row = [
            ratio.sequence_log_ratio(logp[p, g], denominator[p, g], m[p, g]) for p, g in np.ndindex(*RESPONSE_SHAPE)
        ]
        together = ratio.group_expectation_log_ratio(logp, behaviour, m)
    np.testing.assert_allclose(np.reshape(row_by_row, SHAPE), together, atol=1e-12)


@given(behaviour=log_probabilities, mask=masks)
def test_group_expectation_invariants(behaviour, mask):
    with jax.enable_x64(True):
        log_e = np.asarray(ratio.group_expectation_log_denominator(jnp.array(behaviour), jnp.array(mask)))
        log_w = ratio.group_expectation_log_ratio(jnp.array(behaviour), jnp.array(behaviour), jnp.array(mask))
    for p in range(SHAPE[0]):
        has_tokens = mask[p].any(-1)
        if has_tokens.any():
            q = np.exp(mean_by_loop(behaviour, mask)[p][has_tokens])
            e = np.exp(log_e[p][mask[p]])
            assert (q.mean() <= e * (1 + 1e-12)).all()
            assert (e <= q.max() * (1 + 1e-12)).all()
            w = np.exp(np.asarray(log_w)[p].sum(-1)[has_tokens] / mask[p].sum(-1)[has_tokens])
            assert (q / q.sum() * w).sum() == pytest.approx(1)


def test_group_expectation_is_not_one_on_policy():
    logq = jnp.log(jnp.array([[0.9, 0.9], [0.6, 0.6]]))
    mask = jnp.array([[1, 1], [1, 0]])
    weight = jnp.exp(ratio.group_expectation_log_ratio(logq, logq, mask))
    np.testing.assert_allclose(weight[:, 0], [0.9 / 0.78, 0.6 / 0.78], rtol=1e-6)
    assert weight[1, 1] == 1  # outside the mask the log-ratio is 0


@pytest.mark.parametrize(
    "denominator",
    [ratio.group_expectation_log_denominator, ratio.group_expectation_log_denominator_unnormalized],
)
@pytest.mark.parametrize("shift", [-1e4, -50.0])
def test_group_expectation_tolerates_underflowing_probabilities(denominator, shift):
    log_q = np.float32(np.log([0.9, 0.6, 0.3]) + shift)
    actual = denominator(jnp.array(log_q)[:, None], jnp.ones((3, 1)))
    relative = np.exp(np.float64(log_q) - shift)
    expected = np.log((relative**2).sum() / relative.sum()) + shift
    np.testing.assert_array_less(abs(np.float64(actual) - expected), np.spacing(np.float32(-shift)))


def test_group_without_tokens_has_ratio_1_and_no_gradient():
    empty = jnp.zeros((2, 3), bool)
    nothing = jnp.full((2, 3), jnp.nan)
    for op, _ in CASES.values():
        value, gradient = jax.value_and_grad(lambda x, op=op: op(x, nothing, empty).sum())(nothing)
        assert value == 0
        assert not gradient.any()


@given(
    logp=log_probabilities,
    behaviour=log_probabilities,
    which=hnp.arrays(np.int64, RESPONSE_SHAPE, elements=st.integers(0, 3)),
)
def test_sequence_ratio_of_one_token_is_the_token_ratio(logp, behaviour, which):
    mask = which[..., None] == np.arange(SHAPE[-1])
    with jax.enable_x64(True):
        token, token_gradient = COMPILED["token"](logp, behaviour, mask)
        sequence, sequence_gradient = COMPILED["sequence"](logp, behaviour, mask)
        mixed, mixed_gradient = GSPO_TOKEN(logp, behaviour, mask)
    np.testing.assert_array_equal(token, sequence)
    np.testing.assert_array_equal(token_gradient, sequence_gradient)
    np.testing.assert_allclose(token, mixed, atol=1e-15)
    np.testing.assert_array_equal(token_gradient, mixed_gradient)


def clamp_with_slope(log_ratio):
    clamped, vjp = jax.vjp(lambda x: ratio.clamp_log_ratio(x, bound=1.5), log_ratio)
    return clamped, vjp(jnp.ones_like(log_ratio))[0]


CLAMPS = jax.jit(clamp_with_slope)


@given(log_ratio=log_ratios)
def test_clamp_matches_formula(log_ratio):
    with jax.enable_x64(True):
        clamped, slope = (np.asarray(x) for x in CLAMPS(jnp.array(log_ratio)))
    for index in np.ndindex(*SHAPE):
        x = log_ratio[index]
        assert clamped[index] == max(-1.5, min(1.5, x))
        assert slope[index] == (abs(x) < 1.5)


def test_infinities_are_clamped():
    extremes = jnp.array([jnp.inf, -jnp.inf])
    assert ratio.clamp_log_ratio(extremes, bound=20.0).tolist() == [20.0, -20.0]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("mask_dtype", [bool, jnp.int32, jnp.float32])
def test_dtypes_are_kept(dtype, mask_dtype):
    with jax.enable_x64(True):
        logp, behaviour = jnp.full((2, 3), -1.0, dtype), jnp.full((2, 3), -1.5, dtype)
        mask = jnp.array([[1, 1, 0], [1, 0, 0]], mask_dtype)
        for op in [op for op, _ in CASES.values()] + [ratio.sequence_token_log_ratio]:
            assert op(logp, behaviour, mask).dtype == dtype
        assert ratio.clamp_log_ratio(logp, bound=20.0).dtype == dtype


X = jnp.zeros((2, 3))
M = jnp.ones((2, 3))
LOG_RATIOS = [
    ratio.token_log_ratio,
    ratio.response_log_ratio,
    ratio.sequence_log_ratio,
    ratio.sequence_token_log_ratio,
    ratio.group_expectation_log_ratio,
    ratio.group_expectation_log_ratio_unnormalized,
]


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("op", LOG_RATIOS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X.astype(int), X, M), r"logp must be a floating-point array, got int32\[2, 3\]"),
        ((X, X.astype(int), M), r"old_logp must be a floating-point array, got int32\[2, 3\]"),
        ((X, X[:, :2], M), r"(old_logp must have the shape of logp|mask must have the shape of old_logp) \["),
        ((X[:, :2], X, M), r"old_logp must have the shape of logp \[2, 2\], got \[2, 3\]"),
        ((X, X, M[:, :2]), r"mask must have the shape of (old_)?logp \[2, 3\], got \[2, 2\]"),
        ((X, X, M / 2), r"mask must contain only 0 and 1, got values \[0.5\]"),
        ((X[:, :0], X[:, :0], M[:, :0]), "at least (one|2)"),
    ],
)
def test_invalid_arguments_are_refused(op, arguments, message):
    with pytest.raises(ValueError, match=message):
        op(*arguments)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ratio.group_expectation_log_denominator(X[:1], M[:1]),
            r"old_logp must contain groups of at least 2 responses on its second-to-last axis, got \[1, 3\]",
        ),
        (
            lambda: jax.jit(ratio.group_expectation_log_ratio)(X[:1], X[:1], M[:1]),
            r"old_logp must contain groups of at least 2 responses",
        ),
        (
            lambda: ratio.group_expectation_log_denominator_unnormalized(X[0], M[0]),
            r"old_logp must have at least 2 non-empty axes, got shape \[3\]",
        ),
        (lambda: ratio.clamp_log_ratio(X, bound=0.0), "bound must be positive, got 0.0"),
        (lambda: ratio.clamp_log_ratio(X.astype(int), bound=1.0), "log_ratio must be a floating-point array"),
    ],
)
def test_invalid_group_and_clamp_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
