"""Tests of stratified sampling: each response follows the policy exactly, and a group's responses use different strata."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import SMALL, STEPPED, even_length

import rljax
from rljax.errors import InputError
from rljax.rollout.engine import seed_words
from rljax.rollout.engine_protocols import Sampling
from rljax.rollout.sampling import quantile_token, sample_token
from rljax.rollout.stratified import group_seeds, stratified_uniforms
from rljax.tracking.rows import read_metrics
from rljax.training.lifecycle.initial_state import first_params
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.setup import make_setup


def sample_uniforms(groups, size, count=0):
    """Sample uniform numbers for token number `count` (from 0) of each row: `groups` groups with `size` rows each."""
    row_seeds = np.random.default_rng(0).integers(0, 2**63, groups * size).tolist()
    seeds = jnp.asarray(seed_words(group_seeds(row_seeds, np.repeat(np.arange(groups), size).tolist())))
    return np.asarray(stratified_uniforms(seeds, jnp.full(len(seeds), count), size)).reshape(groups, size)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_rows_of_a_group_use_different_strata(size):
    strata = np.sort(np.floor(sample_uniforms(50, size) * size), axis=1)
    np.testing.assert_array_equal(strata, np.tile(np.arange(size), (50, 1)))


def test_uniforms_are_uniform_and_independent_across_tokens():
    uniforms = np.stack([sample_uniforms(4_000, 4, count) for count in range(3)])
    for row in range(4):
        counts = np.histogram(uniforms[0, :, row], bins=10, range=(0, 1))[0]
        assert ((counts - 400) ** 2 / 400).sum() < 27.9, (
            "the uniforms fail the chi-squared test at 99.9% (27.9 for 9 degrees of freedom)"
        )
    assert abs(np.corrcoef(uniforms[0, :, 0], uniforms[1, :, 0])[0, 1]) < 0.05
    assert np.corrcoef(uniforms[0, :, 0], uniforms[0, :, 1])[0, 1] < -0.25, (
        "two rows never share one of four strata, so their correlation should be -1/3 * 15/16"
    )


def test_quantile_token_inverts_the_cumulative_distribution():
    logits = np.random.default_rng(1).normal(size=(200, 7)).astype(np.float32)
    logits[:, 3] = -np.inf
    uniform = np.random.default_rng(2).uniform(size=200).astype(np.float32)
    weights = np.exp(logits.astype(np.float64))
    cumulative = np.cumsum(weights / weights.sum(1, keepdims=True), axis=1)
    expected = (cumulative <= uniform[:, None].astype(np.float64)).sum(1)
    np.testing.assert_array_equal(quantile_token(jnp.asarray(logits), jnp.asarray(uniform)), expected)
    assert 3 not in expected


def test_quantile_token_never_returns_impossible_tokens():
    logits = jnp.array([[-jnp.inf, 0.0, 0.0, -jnp.inf]] * 2)
    almost_one = np.nextafter(np.float32(1), np.float32(0))
    assert quantile_token(logits, jnp.array([0.0, almost_one])).tolist() == [1, 2]


def test_group_token_frequencies_match_probabilities():
    logits = jnp.log(jnp.array([0.5, 0.25, 0.125, 0.125]))
    uniforms = jnp.asarray(sample_uniforms(100, 8).reshape(-1, 1))
    sampling = Sampling(1, (0,), strata=8)
    tokens, logp, _ = sample_token(jnp.tile(logits, (800, 1)), uniforms, sampling)
    for group in np.asarray(tokens).reshape(100, 8):
        assert np.bincount(group, minlength=4).tolist() == [4, 2, 1, 1]
    np.testing.assert_allclose(logp, np.asarray(logits)[np.asarray(tokens)], rtol=1e-6)


def test_scored_logp_matches_the_sampler_in_a_stratified_run(tmp_path):
    config = STEPPED.replace(stratified=True, temperature=0.7, top_p=0.9, steps=2, run=str(tmp_path / "run"))
    result = rljax.train(config, reward=even_length)
    gaps = [row["sampler_gap"] for row in read_metrics(result.run / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(gaps) == 2
    assert max(gaps) < 1e-5


def test_stratification_reduces_first_token_variance():
    """Compares the variance of first-token frequencies across groups; for independent responses it is Σ p (1 - p) / 8."""
    variance = {}
    for stratified in (False, True):
        setup = make_setup(STEPPED.replace(stratified=stratified, group_size=8), CustomParts(reward=even_length))
        params = first_params(setup)
        responses = setup.train.generate(params, [0] * 40, 8, jax.random.key(1)).tokens[:, :, 0]
        frequencies = np.stack([np.bincount(group, minlength=300) / 8 for group in responses])
        variance[stratified] = ((frequencies - frequencies.mean(0)) ** 2).sum(1).mean()
        assert setup.heldout.sampling.strata is setup.train.with_sampling().sampling.strata is None
    assert variance[True] < 0.8 * variance[False]


def test_group_size_of_one_is_rejected():
    with pytest.raises(InputError, match="stratified needs a group_size of at least 2"):
        SMALL.replace(group_size=1, stratified=True)
