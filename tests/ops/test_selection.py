"""Selection of prompts, checked against loops written from the formulas, and the KL formula's limits."""

from decimal import Context, Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops import group, selection

P, G = 3, 4
verdicts = hnp.arrays(np.float64, (P, G), elements=st.sampled_from([1.0, -1.0]))
grades = hnp.arrays(np.float64, (P, G), elements=st.sampled_from([0.0, 0.1, 0.3]))
valid_arrays = hnp.arrays(bool, (P, G))
has_mixed_outcomes = jax.jit(selection.has_mixed_outcomes)
pass_rate = jax.jit(selection.pass_rate)
in_difficulty_window = jax.jit(selection.in_difficulty_window)
rl_kl = jax.jit(selection.rl_kl_from_pass_rate)


@given(verdicts)
def test_has_mixed_outcomes_of_verdicts_is_dynamic_sampling(rewards):
    expected = [0 < sum(1 for r in row if r > 0) < G for row in rewards]
    assert has_mixed_outcomes(jnp.array(rewards)).tolist() == expected


@given(grades, valid_arrays)
def test_has_mixed_outcomes_compares_graded_and_ragged_rewards(rewards, valid):
    expected = [len({r for r, v in zip(*row, strict=True) if v}) > 1 for row in zip(rewards, valid, strict=True)]
    with jax.enable_x64(True):
        dirty = jnp.array(np.where(valid, rewards, np.nan))
        assert has_mixed_outcomes(dirty, valid=jnp.array(valid)).tolist() == expected


@given(grades)
def test_mixed_groups_have_nonzero_advantages(rewards):
    advantage = jax.jit(group.group_normalized)(jnp.array(rewards, jnp.float32))
    assert has_mixed_outcomes(jnp.array(rewards, jnp.float32)).tolist() == advantage.any(-1).tolist()


def test_group_with_a_nan_reward_is_kept():
    """So that the NaN appears in the loss instead of being hidden."""
    assert selection.has_mixed_outcomes(jnp.array([[jnp.nan, 1.0], [1.0, 1.0]])).tolist() == [True, False]


@given(grades, valid_arrays, st.sampled_from([-1.0, 0.0, 0.1, 0.2]))
def test_pass_rate_matches_formula(rewards, valid, threshold):
    expected = [
        sum(1 for r, v in zip(*row, strict=True) if v and r > threshold) / max(sum(row[1]), 1)
        for row in zip(rewards, valid, strict=True)
    ]
    with jax.enable_x64(True):
        dirty = jnp.array(np.where(valid, rewards, np.inf))
        np.testing.assert_allclose(pass_rate(dirty, threshold=threshold, valid=jnp.array(valid)), expected)
        without_mask = pass_rate(jnp.array(rewards))
    np.testing.assert_allclose(without_mask, [sum(1 for r in row if r > 0) / G for row in rewards])


@given(verdicts, valid_arrays, st.sampled_from([(0.0, 1.0), (0.25, 0.75), (0.5, 0.5), (0.3, 0.7)]))
def test_difficulty_window_is_closed_and_needs_two_responses(rewards, valid, window):
    low, high = window
    expected = []
    for row, row_valid in zip(rewards, valid, strict=True):
        members = [r for r, v in zip(row, row_valid, strict=True) if v]
        expected.append(len(members) > 1 and low <= sum(1 for r in members if r > 0) / len(members) <= high)
    with jax.enable_x64(True):
        kept = in_difficulty_window(jnp.array(rewards), low=low, high=high, valid=jnp.array(valid))
    assert kept.tolist() == expected


def test_difficulty_window_reads_the_threshold():
    rewards = jnp.array([[0.2, 0.4, 0.6, 0.8]])
    assert selection.in_difficulty_window(rewards, low=0.25, high=0.25, threshold=0.7).tolist() == [True]
    assert selection.in_difficulty_window(rewards, low=0.25, high=0.25).tolist() == [False]


def divergence_by_enumeration(p, beta):
    """KL(π_init ‖ π*) over two answers, where π_init answers correctly with probability p and π* ∝ π_init e^{r/β}."""
    p = np.longdouble(p)
    start = np.array([1 - p, p])
    tilted = start * np.exp(np.array([0.0, 1.0], np.longdouble) / beta)
    best = tilted / tilted.sum()
    return float((start * np.log(start / best)).sum())


@pytest.mark.parametrize("beta", [0.02, 1 / 32, 0.05, 0.5, 1.0, 3.0, 40.0])
def test_kl_matches_enumeration(beta, x64):
    p = np.array([1e-9, 0.01, 0.3, 0.5, 0.8, 0.999])
    expected = [divergence_by_enumeration(q, beta) for q in p]
    np.testing.assert_allclose(rl_kl(jnp.array(p), beta=beta), expected, rtol=1e-8, atol=1e-17)


def test_kl_of_extreme_beta_is_accurate_in_single_precision():
    p = jnp.array([0.0, 1e-6, 0.5, 1.0])
    np.testing.assert_allclose(rl_kl(p, beta=1e-3), [0.0, 1000 + np.log(1e-6) - 1e-3, 500 + np.log(0.5), 0.0], rtol=1e-6)
    np.testing.assert_allclose(rl_kl(p, beta=50.0)[2], divergence_by_enumeration(0.5, 50.0), rtol=1e-3)


@pytest.mark.parametrize("beta", [0.02, 0.5, 5.0, 9.7, 10.0, 30.0, 1e3, 1e6, 1e9])
def test_kl_is_nonnegative_and_accurate_in_single_precision(beta):
    p = np.array([1e-6, 1e-3, 0.3, 0.5, 0.501, 0.9, 1 - 1e-3, 1 - 1e-6], np.float32)
    kl = np.asarray(rl_kl(jnp.asarray(p), beta=beta))
    assert (kl >= 0).all()
    exact, gain = p.astype(np.longdouble), np.longdouble(1) / np.longdouble(beta)
    expected = np.log1p(exact * np.expm1(gain)) - exact * gain
    if beta > 1e2:  # here even the long double is inaccurate, and two cumulants are enough
        expected = exact * (1 - exact) * gain**2 / 2 * (1 + (1 - 2 * exact) * gain / 3)
    np.testing.assert_allclose(kl, expected.astype(float), rtol=5e-5)


@pytest.mark.parametrize(("beta", "error"), [(8, 1e-12), (180, 2e-14)])
def test_cumulants_are_used_where_they_are_more_accurate(beta, error, x64):
    """Checked against 50 decimal digits. In double precision, cumulants are used for beta ≥ 173."""
    with localcontext(Context(prec=50)):
        gain = 1 / Decimal(beta)
        rates = [Decimal(rate) for rate in (0.3, 0.5, 0.9)]
        expected = [float((1 + p * (gain.exp() - 1)).ln() - p * gain) for p in rates]
    kl = selection.rl_kl_from_pass_rate(jnp.array([0.3, 0.5, 0.9]), beta=float(beta))
    np.testing.assert_allclose(kl, expected, rtol=error)


def test_kl_gradient_with_cumulants_matches_formula(x64):
    p = np.array([0.2, 0.5, 0.7])
    for beta in (1e3, 2.0):
        gradient = jax.grad(lambda p, beta=beta: selection.rl_kl_from_pass_rate(p, beta=beta).sum())(jnp.array(p))
        gain = 1 / beta
        expected = np.expm1(gain) / (1 + p * np.expm1(gain)) - gain
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("beta", [0.02, 2.0])
def test_kl_gradient_matches_formula(beta, x64):
    p = np.array([0.0, 0.2, 0.7, 1.0])
    total = jax.jit(lambda p: selection.rl_kl_from_pass_rate(p, beta=beta).sum())
    gradient = jax.grad(total)(jnp.array(p))
    steps = [divergence_by_enumeration(q + 1e-6, beta) - divergence_by_enumeration(q - 1e-6, beta) for q in p[1:3]]
    np.testing.assert_allclose(gradient, [0.0, *(np.array(steps) / 2e-6), 0.0], rtol=1e-6)


def test_traced_pass_rate_is_clipped_to_its_range():
    assert rl_kl(jnp.array([-1e-7, 1 + 1e-6]), beta=0.5).tolist() == [0.0, 0.0]


def test_best_pass_rate_is_one_half_only_for_large_beta(x64):
    p = np.linspace(0.001, 0.999, 999)
    peaks = []
    for beta in (0.05, 0.5, 20.0):
        peaks.append(p[np.argmax(rl_kl(jnp.array(p), beta=beta))])
        np.testing.assert_allclose(peaks[-1], beta - 1 / np.expm1(1 / beta), atol=0.001)
    np.testing.assert_allclose(peaks, [0.05, 0.343, 0.496], atol=0.0011)
    second_order = p * (1 - p) / (2 * 20.0**2)
    np.testing.assert_allclose(rl_kl(jnp.array(p), beta=20.0), second_order, rtol=0.03)
    exact = rl_kl(jnp.array([0.1, 0.9]), beta=1.0)
    assert exact[0] > 0.1 * 0.9 / 2 > exact[1], "p (1 - p) / (2 β²) bounds the divergence from below only for p < 1/2"


ONES, LENGTHS = jnp.ones((2, 2)), jnp.array([3, 4])


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: selection.has_mixed_outcomes(ONES[:, :1]), "rewards must contain groups of at least 2"),
        (lambda: selection.has_mixed_outcomes(ONES > 0), "rewards must be a floating-point array, got bool"),
        (lambda: selection.has_mixed_outcomes(ONES, valid=ONES[0]), "valid must have the shape of rewards"),
        (lambda: selection.pass_rate(ONES.astype(int)), "rewards must be a floating-point array"),
        (lambda: selection.in_difficulty_window(ONES, low=-0.1, high=1.0), r"low must lie in \[0, 1\], got -0.1"),
        (lambda: selection.in_difficulty_window(ONES, low=0.1, high=1.1), r"high must lie in \[0, 1\], got 1.1"),
        (lambda: selection.in_difficulty_window(ONES, low=0.6, high=0.4), r"high must lie in \[0.6, 1\], got 0.4"),
        (lambda: selection.rl_kl_from_pass_rate(LENGTHS, beta=1.0), "pass_rate must be a floating-point array"),
        (lambda: selection.rl_kl_from_pass_rate(2 * ONES, beta=1.0), r"pass_rate must lie in \[0, 1\]"),
        (lambda: selection.rl_kl_from_pass_rate(ONES, beta=0.0), "beta must be positive, got 0.0"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
