"""Advantages and returns, checked against direct sums of the formulas, and against known identities."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from op_oracles import (
    ROWS,
    TOKENS,
    arrays,
    central_differences,
    fixed_gae_case,
    gae_by_hand,
    gae_cases,
    poisoned,
    td_by_hand,
    unit,
)

from rljax.ops import gae as ops

EXACT = {"rtol": 1e-9, "atol": 1e-11}


jit_td = jax.jit(ops.td_errors)
jit_gae = jax.jit(ops.gae)
jit_recursion = jax.jit(ops._scan_advantages)
jit_returns = jax.jit(ops.monte_carlo_returns)
jit_lambda_returns = jax.jit(ops.lambda_returns)
jit_decoupled = jax.jit(ops.decoupled_gae)
jit_last = jax.jit(ops.rewards_at_last_token)
jit_last_slope = jax.jit(jax.grad(lambda rewards, mask: ops.rewards_at_last_token(rewards, mask).sum()))


def returns_by_hand(case):
    out = np.zeros((ROWS, TOKENS))
    for i, row in enumerate(case["mask"]):
        tokens = np.flatnonzero(row)
        for k, t in enumerate(tokens):
            later = tokens[k:]
            tail = case["gamma"] ** len(later) * case["bootstrap"][i]
            out[i, t] = sum(case["gamma"] ** n * case["rewards"][i, u] for n, u in enumerate(later)) + tail
    return out


def inputs(case):
    mask = case["mask"]
    positional = poisoned(case["rewards"], mask), poisoned(case["values"], mask, np.inf), jnp.array(mask)
    return positional, {"gamma": jnp.array(case["gamma"]), "bootstrap": jnp.array(case["bootstrap"])}


@given(gae_cases)
def test_td_errors_match_formula(case):
    with jax.enable_x64(True):
        positional, keywords = inputs(case)
        np.testing.assert_allclose(jit_td(*positional, **keywords), td_by_hand(case), **EXACT)


@given(gae_cases)
def test_gae_matches_formula_with_one_lambda_per_row(case):
    with jax.enable_x64(True):
        positional, keywords = inputs(case)
        actual = jit_gae(*positional, lambda_=jnp.array(case["lambda_"]), **keywords)
        np.testing.assert_allclose(actual, gae_by_hand(case, case["lambda_"]), **EXACT)


@given(gae_cases)
def test_monte_carlo_returns_match_formula(case):
    with jax.enable_x64(True):
        (rewards, _, mask), keywords = inputs(case)
        np.testing.assert_allclose(jit_returns(rewards, mask, **keywords), returns_by_hand(case), **EXACT)


@given(gae_cases)
def test_lambda_returns_are_advantage_plus_value(case):
    with jax.enable_x64(True):
        positional, keywords = inputs(case)
        actual = jit_lambda_returns(*positional, lambda_=jnp.array(case["lambda_"]), **keywords)
        expected = gae_by_hand(case, case["lambda_"]) + np.where(case["mask"], case["values"], 0)
        np.testing.assert_allclose(actual, expected, **EXACT)


@given(gae_cases, unit)
def test_decoupled_gae_matches_formula(case, value_lambda):
    with jax.enable_x64(True):
        positional, keywords = inputs(case)
        lambdas = {"policy_lambda": jnp.array(case["lambda_"]), "value_lambda": jnp.array(value_lambda)}
        actual = jit_decoupled(*positional, **lambdas, **keywords)
        np.testing.assert_allclose(actual.advantage, gae_by_hand(case, case["lambda_"]), **EXACT)
        target = gae_by_hand(case, [value_lambda] * ROWS) + np.where(case["mask"], case["values"], 0)
        np.testing.assert_allclose(actual.value_target, target, **EXACT)


@given(gae_cases)
def test_lambda_one_is_monte_carlo_return_minus_value(case):
    with jax.enable_x64(True):
        positional, keywords = inputs(case)
        values = np.where(case["mask"], case["values"], 0)
        actual = jit_gae(*positional, lambda_=jnp.ones(ROWS), **keywords)
        np.testing.assert_allclose(actual, returns_by_hand(case) - values, **EXACT)


@given(gae_cases)
def test_lambda_zero_is_the_td_error(case):
    with jax.enable_x64(True):
        positional, keywords = inputs(case)
        np.testing.assert_allclose(jit_gae(*positional, lambda_=jnp.zeros(ROWS), **keywords), td_by_hand(case), **EXACT)


@given(gae_cases)
def test_decoupled_with_equal_lambdas_is_gae(case):
    with jax.enable_x64(True):
        positional, keywords = inputs(case)
        lambda_ = jnp.array(case["lambda_"])
        both = jit_decoupled(*positional, policy_lambda=lambda_, value_lambda=lambda_, **keywords)
        np.testing.assert_array_equal(both.advantage, jit_gae(*positional, lambda_=lambda_, **keywords))
        np.testing.assert_array_equal(both.value_target, jit_lambda_returns(*positional, lambda_=lambda_, **keywords))


@pytest.mark.usefixtures("x64")
def test_defaults_are_gamma_1_and_no_bootstrap():
    case = {**fixed_gae_case(), "gamma": 1.0, "bootstrap": np.zeros(ROWS)}
    (rewards, values, mask), _ = inputs(case)
    kept = np.where(case["mask"], case["values"], 0)

    @jax.jit
    def call_with_defaults(rewards, values, mask):
        estimators = ops.td_errors, ops.gae, ops.lambda_returns, ops.decoupled_gae
        return [estimate(rewards, values, mask) for estimate in estimators], ops.monte_carlo_returns(rewards, mask)

    (td, advantage, lambda_return, decoupled), returns = call_with_defaults(rewards, values, mask)
    np.testing.assert_allclose(td, td_by_hand(case), **EXACT)
    np.testing.assert_allclose(advantage, gae_by_hand(case, [0.95] * ROWS), **EXACT)
    np.testing.assert_allclose(lambda_return, gae_by_hand(case, [0.95] * ROWS) + kept, **EXACT)
    np.testing.assert_allclose(decoupled.advantage, gae_by_hand(case, [0.95] * ROWS), **EXACT)
    np.testing.assert_allclose(decoupled.value_target, returns_by_hand(case), **EXACT)
    np.testing.assert_allclose(returns, returns_by_hand(case), **EXACT)


def test_mixed_precision_computes_in_the_wider_dtype():
    narrow, wide, mask = jnp.ones((2, 3), jnp.bfloat16), jnp.ones((2, 3)), jnp.ones((2, 3), bool)
    assert jax.eval_shape(ops.gae, narrow, wide, mask).dtype == jnp.float32
    assert jax.eval_shape(ops.lambda_returns, wide, narrow, mask).dtype == jnp.float32


def every_estimate(rewards, values, mask):
    """Name -> estimate of a full batch, with settings under which every argument matters."""
    bootstrap = jnp.full(mask.shape[:-1], 0.7)
    return {
        "td": ops.td_errors(rewards, values, mask, gamma=0.9, bootstrap=bootstrap),
        "gae": ops.gae(rewards, values, mask, gamma=0.9, lambda_=0.7, bootstrap=bootstrap),
        "returns": ops.monte_carlo_returns(rewards, mask, gamma=0.9, bootstrap=bootstrap),
        "lambda_returns": ops.lambda_returns(rewards, values, mask, gamma=0.9, lambda_=0.7, bootstrap=bootstrap),
    }


jit_every_estimate = jax.jit(every_estimate)


@pytest.mark.usefixtures("x64")
def test_any_leading_axes_are_allowed():
    rng = np.random.default_rng(0)
    rewards, values = (jnp.array(rng.normal(size=(2, 3, TOKENS))) for _ in range(2))
    mask = jnp.array(rng.random((2, 3, TOKENS)) < 0.7)
    together = jit_every_estimate(rewards, values, mask)
    flat = jit_every_estimate(*(x.reshape(6, TOKENS) for x in (rewards, values, mask)))
    single = jit_every_estimate(rewards[1, 2], values[1, 2], mask[1, 2])
    for name, estimate in together.items():
        np.testing.assert_allclose(estimate.reshape(6, TOKENS), flat[name], err_msg=name, **EXACT)
        np.testing.assert_allclose(estimate[1, 2], single[name], err_msg=name, **EXACT)


@pytest.mark.usefixtures("x64")
@given(st.lists(st.booleans(), min_size=9, max_size=9).filter(lambda inserted: sum(inserted) == 4))
def test_observations_and_padding_do_not_affect_estimates(inserted):
    with jax.enable_x64(True):
        rng = np.random.default_rng(3)
        rewards, values = rng.normal(size=(2, 1, 5))
        positions = np.flatnonzero(~np.array(inserted))
        spaced = [np.full((1, 9), np.nan) for _ in range(2)]
        mask = np.zeros((1, 9))
        spaced[0][:, positions], spaced[1][:, positions], mask[:, positions] = rewards, values, 1
        plain = jit_every_estimate(jnp.array(rewards), jnp.array(values), jnp.ones((1, 5)))
        dirty = jit_every_estimate(jnp.array(spaced[0]), jnp.array(spaced[1]), jnp.array(mask))
        for name, estimate in dirty.items():
            np.testing.assert_allclose(np.asarray(estimate)[:, positions], plain[name], err_msg=name, **EXACT)
            assert not np.delete(np.asarray(estimate), positions, axis=1).any(), name


def test_row_without_tokens_has_zero_estimates_and_gradient():
    x, mask = jnp.full((2, 5), jnp.nan), jnp.zeros((2, 5))

    def total(rewards, values):
        return sum(estimate.sum() for estimate in every_estimate(rewards, values, mask).values())

    out, slopes = jax.jit(jax.value_and_grad(total, (0, 1)))(x, x)
    assert out == 0
    assert not np.any(slopes)


# VAPO's lambda, one per sequence


@given(hnp.arrays(np.int64, 8, elements=st.integers(0, 40_000)), st.floats(1e-3, 2))
def test_length_adaptive_lambda_matches_formula(lengths, alpha):
    with jax.enable_x64(True):
        expected = [min(1.0, max(0.0, 1 - 1 / (alpha * n))) if n else 0.0 for n in lengths.tolist()]
        actual = ops.length_adaptive_lambda(jnp.array(lengths), alpha=alpha)
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(
            actual, jax.jit(ops.length_adaptive_lambda)(jnp.array(lengths), alpha=jnp.array(alpha))
        )


def test_length_adaptive_lambda_is_0_up_to_20_tokens_with_the_default_alpha():
    lambdas = ops.length_adaptive_lambda(jnp.array([0.0, 1.0, 19.0, 20.0, 21.0, 400.0, 20000.0]))
    np.testing.assert_allclose(lambdas, [0, 0, 0, 0, 1 / 21, 0.95, 0.999], atol=1e-6)
    assert 1 - 1 / (0.05 * 19) < 0  # without the clamp, the paper's formula is negative


def test_length_adaptive_lambda_solves_the_papers_equation():
    length = 2000
    lambda_ = ops.length_adaptive_lambda(jnp.array([length])).item()
    assert sum(lambda_**t for t in range(length)) == pytest.approx(0.05 * length, rel=1e-4)


def test_length_adaptive_lambda_is_clamped_if_traced():
    assert jax.jit(ops.length_adaptive_lambda)(jnp.array([-40.0])).item() == 1.0


# Rewards on the last token


@given(arrays(ROWS), hnp.arrays(bool, (ROWS, TOKENS)))
def test_rewards_at_last_token_match_formula(rewards, mask):
    with jax.enable_x64(True):
        expected = np.zeros((ROWS, TOKENS))
        for i, row in enumerate(mask):
            if any(row):
                expected[i, max(np.flatnonzero(row))] = rewards[i]
        dirty_rewards = poisoned(rewards, mask.any(-1))
        np.testing.assert_array_equal(jit_last(dirty_rewards, jnp.array(mask)), expected)
        np.testing.assert_array_equal(jit_last_slope(dirty_rewards, jnp.array(mask)), mask.any(-1))


def test_rewards_at_last_token_of_groups():
    mask = jnp.array([[[1, 1, 0, 0], [1, 1, 1, 1]], [[0, 0, 0, 0], [1, 0, 1, 0]]])
    expected = [[[0, 1, 0, 0], [0, 0, 0, 2]], [[0, 0, 0, 0], [0, 0, 4, 0]]]
    np.testing.assert_array_equal(jit_last(jnp.array([[1.0, 2.0], [3.0, 4.0]]), mask), expected)


# Agreement with another library


@pytest.fixture(scope="module")
def peer():
    path = Path(__file__).resolve().parents[3] / "shared" / "oracles" / "peer_values.npz"
    if not path.is_file():
        pytest.skip(f"{path.name}, with another library's outputs, is not on this machine")
    return np.load(path)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "gamma", "lambda_"), [("g1_l095", 1.0, 0.95), ("g099_l09", 0.99, 0.9), ("g1_l1", 1.0, 1.0)]
)
def test_gae_agrees_with_another_library(peer, name, gamma, lambda_):
    # Both libraries leave the advantages unwhitened, and 0 outside the mask. There, the other library's returns equal the values,
    # while ours are 0.
    rewards, values, mask = (jnp.array(peer[f"in_{key}"]) for key in ("token_rewards", "values", "mask"))
    advantage = jit_gae(rewards, values, mask, gamma=gamma, lambda_=lambda_)
    np.testing.assert_allclose(advantage, peer[f"out_gae_{name}_adv"], rtol=1e-9, atol=1e-9)
    returns = jit_lambda_returns(rewards, values, mask, gamma=gamma, lambda_=lambda_)
    theirs = np.where(peer["in_mask"] > 0, peer[f"out_gae_{name}_returns"], 0.0)
    np.testing.assert_allclose(returns, theirs, rtol=1e-9, atol=1e-9)


# Invalid arguments


X, M = jnp.ones((2, 3)), jnp.ones((2, 3))
GROUPS = jnp.ones((2, 2, 3))


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.td_errors(X.astype(int), X, M), r"rewards must be a floating-point array, got int32\[2, 3\]"),
        (lambda: ops.td_errors(X, X.astype(int), M), "values must be a floating-point array"),
        (lambda: ops.td_errors(X, X, M, gamma=1.5), r"gamma must lie in \[0, 1\], got 1.5"),
        (
            lambda: ops.td_errors(X, X, M, bootstrap=jnp.ones(3)),
            r"bootstrap must have one number per row \[2\], got shape \[3\]",
        ),
        (lambda: ops.td_errors(X, X, M, bootstrap=jnp.ones(2, int)), "bootstrap must be a floating-point array"),
        (lambda: ops.gae(X, X[:, :2], M), r"values must have the shape of rewards \[2, 3\], got \[2, 2\]"),
        (lambda: ops.gae(X, X, M[:, :2]), "mask must have the shape of rewards"),
        (lambda: ops.gae(X[:, :0], X[:, :0], M[:, :0]), "mask must have at least one token"),
        (lambda: ops.gae(X, X, M * 0.5), "mask must contain only 0 and 1"),
        (lambda: ops.gae(X, X, M, gamma=-0.1), r"gamma must lie in \[0, 1\], got -0.1"),
        (lambda: ops.gae(X, X, M, lambda_=1.01), r"lambda_ must lie in \[0, 1\], got 1.01"),
        (lambda: ops.gae(X, X, M, lambda_=float("nan")), r"lambda_ must lie in \[0, 1\], got nan"),
        (lambda: ops.gae(X, X, M, lambda_=jnp.ones(3)), r"lambda_ must be one number or one per row \[2\], got \[3\]"),
        (lambda: jax.jit(ops.gae)(X, X, M, lambda_=jnp.ones((2, 3))), "lambda_ must be one number or one per row"),
        (lambda: ops.monte_carlo_returns(X, M, gamma=2), r"gamma must lie in \[0, 1\], got 2"),
        (lambda: ops.monte_carlo_returns(X.astype(int), M), "rewards must be a floating-point array"),
        (lambda: ops.lambda_returns(X, X, M, lambda_=-1.0), r"lambda_ must lie in \[0, 1\], got -1.0"),
        (lambda: ops.decoupled_gae(X, X, M, policy_lambda=1.5), r"policy_lambda must lie in \[0, 1\], got 1.5"),
        (lambda: ops.decoupled_gae(X, X, M, value_lambda=1.5), r"value_lambda must lie in \[0, 1\], got 1.5"),
        (lambda: ops.decoupled_gae(X, X, M, value_lambda=jnp.ones(3)), "value_lambda must be one number or one per row"),
        (lambda: ops.decoupled_gae(X, X, M[:, :0]), "mask must have at least one token"),
        (lambda: ops.length_adaptive_lambda(jnp.array([3]), alpha=0.0), "alpha must be positive, got 0.0"),
        (lambda: ops.length_adaptive_lambda(jnp.array([-3])), r"lengths must not be negative, got \[-3\]"),
        (lambda: ops.rewards_at_last_token(jnp.ones(2, int), M), "rewards must be a floating-point array"),
        (lambda: ops.rewards_at_last_token(X, M), r"rewards must have one number per row \[2\], got shape \[2, 3\]"),
        (lambda: ops.rewards_at_last_token(jnp.ones(2), M * 2), "mask must contain only 0 and 1"),
        (lambda: ops.rewards_at_last_token(jnp.ones(2), GROUPS), r"one number per row \[2, 2\], got shape \[2\]"),
        (
            lambda: ops.td_errors(GROUPS, GROUPS, GROUPS, bootstrap=jnp.ones(2)),
            r"one number per row \[2, 2\], got shape \[2\]",
        ),
        (
            lambda: ops.gae(GROUPS, GROUPS, GROUPS, lambda_=jnp.ones(2)),
            r"lambda_ must be .* one per row \[2, 2\], got \[2\]",
        ),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_half_precision_monte_carlo_target_is_accurate():
    rng = np.random.default_rng(0)
    length = 4096
    mask = jnp.ones((1, length), bool)
    rewards = ops.rewards_at_last_token(jnp.ones(1, jnp.bfloat16), mask)
    values = jnp.array(rng.uniform(0.0, 1.0, (1, length)), jnp.bfloat16)
    targets = ops.lambda_returns(rewards.astype(jnp.bfloat16), values, mask, lambda_=1.0)
    np.testing.assert_allclose(targets, np.ones((1, length)), atol=1e-4)


def test_length_adaptive_lambda_of_half_precision_is_accurate():
    tokens = jnp.array([4096.0], jnp.bfloat16)
    np.testing.assert_allclose(ops.length_adaptive_lambda(tokens), [1 - 1 / (0.05 * 4096)], rtol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_lambda_and_gamma_gradients_match_formula(gamma, lambda_):
    case = {**fixed_gae_case(), "gamma": gamma}
    (rewards, values, mask), _ = inputs(case)
    bootstrap = jnp.array(case["bootstrap"])

    def total(lambdas, gamma):
        return ops.gae(rewards, values, mask, gamma=gamma, lambda_=lambdas, bootstrap=bootstrap).sum()

    def by_hand(lambdas, gamma):
        return gae_by_hand({**case, "gamma": float(gamma)}, lambdas).sum()

    lambdas = np.full(ROWS, lambda_)
    by_lambda, by_gamma = jax.jit(jax.grad(total, (0, 1)))(jnp.array(lambdas), gamma)
    # A step may leave [0, 1]; the polynomial is the same outside.
    expected = central_differences(lambda x: by_hand(x, gamma), lambdas)
    np.testing.assert_allclose(by_lambda, expected, rtol=1e-6, atol=1e-8)
    expected = central_differences(lambda x: by_hand(lambdas, x), np.array(gamma))
    np.testing.assert_allclose(by_gamma, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("x64")
def test_lambda_gradient_at_0_is_the_sum_of_next_errors():
    """A_t = δ_t + λγ δ_{t+1} + ..., so for γ = 1 the derivative of Σ_t A_t at λ = 0 is the sum of all errors but the first."""
    rewards, values, mask = jnp.array([[0.0, 0.0, 1.0]]), jnp.array([[0.0, 0.2, 0.6]]), jnp.ones((1, 3))
    slope = jax.grad(lambda lambda_: ops.gae(rewards, values, mask, lambda_=lambda_).sum())(0.0)
    np.testing.assert_allclose(slope, 0.4 + 0.4)


@pytest.mark.usefixtures("x64")
def test_alpha_gradient_is_finite_with_a_short_response():
    mask = jnp.array(np.arange(40) < np.array([[10], [40]]))
    rewards, values = ops.rewards_at_last_token(jnp.ones(2), mask), jnp.full((2, 40), 0.3)

    def total(alpha, rows):
        lambda_ = ops.length_adaptive_lambda(mask[rows].sum(-1), alpha=alpha)
        return ops.gae(rewards[rows], values[rows], mask[rows], lambda_=lambda_).sum()

    both, long = (jax.grad(total)(0.05, rows) for rows in (slice(0, 2), slice(1, 2)))
    assert both > 0
    np.testing.assert_allclose(both, long)  # λ of the short response is clamped to 0


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("field", ["rewards", "values"])
@pytest.mark.parametrize("gaps", [False, True])
def test_nonfinite_input_stays_in_its_row_and_off_later_tokens(poison, field, gaps):
    length, at = 75, 40
    mask = np.ones((2, length), bool)
    mask[:, 3] = not gaps
    rng = np.random.default_rng(0)
    clean = {name: rng.normal(size=(2, length)).astype(np.float32) for name in ("rewards", "values")}
    corrupted = {**clean, field: clean[field].copy()}
    corrupted[field][0, at] = poison
    before, after = (jit_gae(x["rewards"], x["values"], jnp.array(mask)) for x in (clean, corrupted))
    assert not np.isfinite(after[0, : at + 1])[mask[0, : at + 1]].any()
    np.testing.assert_allclose(after[0, at + 1 :], before[0, at + 1 :], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(after[1], before[1], rtol=1e-5, atol=1e-5)
    returns = jax.jit(ops.monte_carlo_returns)(corrupted["rewards"], jnp.array(mask))
    assert np.isfinite(returns[0, at + 1 :]).all()
    assert np.isfinite(returns[1]).all()


@given(gae_cases)
def test_plain_recursion_matches_gae(case):
    with jax.enable_x64(True):
        kept = (np.where(case["mask"], case[name], 0) for name in ("rewards", "values"))
        bootstrap = np.where(case["mask"].any(-1), case["bootstrap"], 0)
        numbers = (jnp.array(x) for x in (case["gamma"], case["gamma"] * case["lambda_"], bootstrap))
        plain = jit_recursion(jnp.array(case["mask"]), *map(jnp.array, kept), *numbers)
        positional, keywords = inputs(case)
        np.testing.assert_allclose(jit_gae(*positional, lambda_=jnp.array(case["lambda_"]), **keywords), plain, **EXACT)
