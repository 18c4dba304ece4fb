"""Off-policy weights and trust regions, checked against loops written from the formulas, in values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops import off_policy
from rljax.ops.divergence import exact_kl

B, T = 3, 4  # responses, tokens
RNG = np.random.default_rng(0)
MASK = np.array([[1, 1, 1, 0], [1, 0, 1, 1], [0, 0, 0, 0]], bool)
OLD = -np.abs(RNG.normal(size=(B, T))) - 0.1
NEW = OLD + 0.3 * RNG.normal(size=(B, T))
ADVANTAGE = RNG.normal(size=(B, T))


def nan_outside_mask(x):
    return jnp.array(np.where(MASK, x, np.nan))


def test_whole_response_ratio_and_gradient(x64):
    def total(logp):
        return (ADVANTAGE * off_policy.whole_response_token_log_ratio(logp, nan_outside_mask(OLD), jnp.array(MASK))).sum()

    value = off_policy.whole_response_token_log_ratio(nan_outside_mask(NEW), nan_outside_mask(OLD), jnp.array(MASK))
    gradient = jax.grad(total)(nan_outside_mask(NEW))
    for b, t in np.ndindex(B, T):
        response_log_ratio = sum(NEW[b, k] - OLD[b, k] for k in range(T) if MASK[b, k])
        np.testing.assert_allclose(value[b, t], response_log_ratio if MASK[b, t] else 0.0, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(gradient[b, t], ADVANTAGE[b, t] if MASK[b, t] else 0.0, rtol=1e-12)


def test_gamma_weight_is_the_gradient(x64):
    log_ratio = NEW - OLD
    gradient = jax.grad(lambda x: off_policy.gamma_weighted(x, jnp.array(ADVANTAGE)).sum())(jnp.array(log_ratio))
    for b, t in np.ndindex(B, T):
        power, decay = (2.0, 3.0) if ADVANTAGE[b, t] >= 0 else (3.0, 2.0)
        w = np.exp(log_ratio[b, t])
        np.testing.assert_allclose(gradient[b, t], w**power * np.exp(decay * (1 - w)) * ADVANTAGE[b, t], rtol=1e-12)


def test_gamma_weight_vanishes_at_both_ends_and_peaks_between():
    far = jnp.array([-200.0, 200.0, -1e4, 1e4])
    for sign in (1.0, -1.0):
        gradient = jax.grad(lambda x, sign=sign: off_policy.gamma_weighted(x, jnp.full(4, sign)).sum())(far)
        np.testing.assert_array_equal(gradient, np.zeros(4))
    near = jnp.log(jnp.array([0.6, 2 / 3, 0.75]))
    low, peak, high = jax.grad(lambda x: off_policy.gamma_weighted(x, jnp.ones(3)).sum())(near)
    assert peak > low
    assert peak > high


def test_gamma_weight_without_power_and_decay_is_reinforce(x64):
    options = {"power_positive": 0.0, "power_negative": 0.0, "decay_positive": 1e-13, "decay_negative": 1e-13}
    slope = jax.grad(lambda x: off_policy.gamma_weighted(x, jnp.array(ADVANTAGE), **options).sum())(jnp.array(NEW - OLD))
    np.testing.assert_allclose(slope, ADVANTAGE, rtol=1e-11)


def test_binary_divergences_match_formulas_and_bound_full_ones(x64):
    logits, old_logits = RNG.normal(size=(2, B, T, 5))
    logp, old = (np.array(jax.nn.log_softmax(jnp.array(x)))[..., 0] for x in (logits, old_logits))
    kl = np.array(off_policy.binary_kl(jnp.array(logp), jnp.array(old)))
    variation = np.array(off_policy.binary_total_variation(jnp.array(logp), jnp.array(old)))
    for index in np.ndindex(B, T):
        p, m = np.exp(logp[index]), np.exp(old[index])
        np.testing.assert_allclose(kl[index], m * np.log(m / p) + (1 - m) * np.log((1 - m) / (1 - p)), rtol=1e-10)
        np.testing.assert_allclose(variation[index], abs(p - m), rtol=1e-12)
    assert (kl <= np.array(exact_kl(jnp.array(old_logits), jnp.array(logits))) + 1e-12).all()
    full_variation = np.abs(np.array(jax.nn.softmax(jnp.array(logits)) - jax.nn.softmax(jnp.array(old_logits)))).sum(-1) / 2
    assert (variation <= full_variation + 1e-12).all()


@pytest.mark.parametrize("tau", [0.05, 0.7])
def test_mirror_descent_is_the_papers_squared_error(x64, tau):
    """Times -2τ, the objective is (A - τ log ρ)² minus the constant A². Its gradient is 0 at the tilted policy."""
    log_ratio = np.where(MASK, 40 * (NEW - OLD), 0.0)
    value = off_policy.mirror_descent(jnp.array(log_ratio), jnp.array(ADVANTAGE), tau=tau)
    slope = jax.grad(lambda x: off_policy.mirror_descent(x, jnp.array(ADVANTAGE), tau=tau).sum())(jnp.array(log_ratio))
    for b, t in np.ndindex(B, T):
        a, x = ADVANTAGE[b, t], log_ratio[b, t]
        np.testing.assert_allclose(-2 * tau * value[b, t], (a - tau * x) ** 2 - a**2, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(slope[b, t], a - tau * x, rtol=1e-12, atol=1e-12)
    best = jnp.array(ADVANTAGE / tau)
    flat = jax.grad(lambda x: off_policy.mirror_descent(x, jnp.array(ADVANTAGE), tau=tau).sum())(best)
    np.testing.assert_allclose(flat, 0.0, atol=1e-12)
    rewards = jnp.array(ADVANTAGE)
    np.testing.assert_array_equal(off_policy.mirror_descent(best, rewards, tau=0.0), best * rewards)


def test_binary_kl_if_a_token_is_certain_or_excluded():
    certain, never, half = 0.0, -jnp.inf, float(np.log(0.5))
    new = jnp.array([certain, certain, half, half, never, never])
    old = jnp.array([certain, half, certain, never, half, never])
    expected = [0.0, np.inf, np.log(2.0), np.log(2.0), np.inf, 0.0]
    np.testing.assert_allclose(off_policy.binary_kl(new, old), expected, rtol=1e-6)
    gradient = jax.grad(lambda x: off_policy.binary_kl(x, old[:1]).sum())(jnp.array([half]))
    assert np.isfinite(gradient).all()


def test_binary_kl_of_almost_equal_probabilities():
    """In float32, the value is 0 up to rounding, and the gradient (π - μ) / (1 - π) is kept where the value is negative."""
    random = np.random.default_rng(0)
    old = random.uniform(0.01, 0.99, 1000)
    arrays = [jnp.array(np.log(p), jnp.float32) for p in (old + 1e-4 * random.normal(size=1000), old)]
    value, slope = jax.vmap(jax.value_and_grad(lambda new, old: off_policy.binary_kl(new[None], old[None])[0]))(*arrays)
    new, old = (np.exp(np.array(x, np.float64)) for x in arrays)
    assert (value < 0).any()
    np.testing.assert_allclose(value, old * np.log(old / new) + (1 - old) * np.log((1 - old) / (1 - new)), atol=1e-6)
    np.testing.assert_allclose(slope, (new - old) / (1 - new), atol=1e-5)


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "divergence", "kept"),
    [
        *[(1.0, 0.5, 0.3, False), (1.0, 0.5, 0.2, True), (1.0, -0.5, 0.3, True)],
        *[(-1.0, -0.5, 0.3, False), (-1.0, -0.5, 0.1, True), (-1.0, 0.5, 0.3, True)],
        *[(0.0, 0.5, 0.3, True), (0.0, -0.5, 0.3, True), (1.0, 0.0, 0.3, True), (-1.0, 0.0, 0.3, True)],
    ],
)
def test_trust_region_cuts_only_tokens_that_move_away(advantage, log_ratio, divergence, kept, x64):
    for dtypes in ((jnp.float64,) * 3, (jnp.float64, jnp.float32, jnp.float16)):
        numbers = (jnp.array([x], dtype) for x, dtype in zip((log_ratio, advantage, divergence), dtypes, strict=True))
        assert off_policy.in_trust_region(*numbers, threshold=0.2).tolist() == [kept]


ONES = jnp.ones(2)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: off_policy.gamma_weighted(ONES, ONES, power_positive=-1.0), "power_positive must not be negative"),
        (lambda: off_policy.gamma_weighted(ONES, ONES, decay_negative=0.0), "decay_negative must be positive, got 0.0"),
        (lambda: off_policy.in_trust_region(ONES, ONES, ONES, threshold=-1.0), "threshold must not be negative"),
        (lambda: off_policy.mirror_descent(ONES, ONES, tau=-0.5), "tau must not be negative, got -0.5"),
        (lambda: off_policy.mirror_descent(ONES, ONES[:1], tau=0.5), "advantage must have the shape of log_ratio"),
        (lambda: off_policy.binary_kl(ONES, ONES[:1]), "old_logp must have the shape of logp"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
