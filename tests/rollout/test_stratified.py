"""Stratified sampling: each response is an exact sample, and the responses of a group lie in different strata."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import SMALL, STEPPED, even_length

import rljax
from rljax.errors import InputError
from rljax.rollout.engine import seed_words
from rljax.rollout.request import Sampling
from rljax.rollout.sampling import sample_token
from rljax.rollout.stratified import group_seeds, quantile_token, stratified_uniforms
from rljax.tracking.rows import read_metrics
from rljax.training.lifecycle.initial_state import first_params
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.setup import make_setup


def uniforms(groups, size, count=0):
    """The numbers of `groups` groups of `size` rows, (groups, size)."""
    words = np.random.default_rng(0).integers(0, 2**63, groups * size).tolist()
    seeds = jnp.asarray(seed_words(group_seeds(words, np.repeat(np.arange(groups), size).tolist())))
    return np.asarray(stratified_uniforms(seeds, jnp.full(len(seeds), count), size)).reshape(groups, size)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_the_rows_of_a_group_lie_in_different_strata(size):
    strata = np.sort(np.floor(uniforms(50, size) * size), axis=1)
    np.testing.assert_array_equal(strata, np.tile(np.arange(size), (50, 1)))


def test_each_row_is_uniform_and_independent_over_tokens():
    drawn = np.stack([uniforms(4_000, 4, count) for count in range(3)])
    for row in range(4):
        counts = np.histogram(drawn[0, :, row], bins=10, range=(0, 1))[0]
        assert ((counts - 400) ** 2 / 400).sum() < 27.9, "99.9 % of a chi-squared with 9 degrees of freedom"
    assert abs(np.corrcoef(drawn[0, :, 0], drawn[1, :, 0])[0, 1]) < 0.05
    assert np.corrcoef(drawn[0, :, 0], drawn[0, :, 1])[0, 1] < -0.25, "two strata of four exclude each other: -1/3 of 15/16"


def test_a_quantile_is_the_token_where_the_distribution_function_passes_it():
    logits = np.random.default_rng(1).normal(size=(200, 7)).astype(np.float32)
    logits[:, 3] = -np.inf
    uniform = np.random.default_rng(2).uniform(size=200).astype(np.float32)
    shares = np.exp(logits.astype(np.float64))
    below = np.cumsum(shares / shares.sum(1, keepdims=True), axis=1)
    expected = (below <= uniform[:, None].astype(np.float64)).sum(1)
    np.testing.assert_array_equal(quantile_token(jnp.asarray(logits), jnp.asarray(uniform)), expected)
    assert 3 not in expected


def test_the_ends_of_the_range_give_tokens_that_can_be_sampled():
    logits = jnp.array([[-jnp.inf, 0.0, 0.0, -jnp.inf]] * 2)
    almost_one = np.nextafter(np.float32(1), np.float32(0))
    assert quantile_token(logits, jnp.array([0.0, almost_one])).tolist() == [1, 2]


def test_a_group_has_each_token_as_often_as_its_probability_says():
    logits = jnp.log(jnp.array([0.5, 0.25, 0.125, 0.125]))
    own = jnp.asarray(uniforms(100, 8).reshape(-1))
    sampling = Sampling(1, (0,), strata=8)
    tokens, logp, _ = sample_token(jnp.tile(logits, (800, 1)), own, sampling)
    for group in np.asarray(tokens).reshape(100, 8):
        assert np.bincount(group, minlength=4).tolist() == [4, 2, 1, 1]
    np.testing.assert_allclose(logp, np.asarray(logits)[np.asarray(tokens)], rtol=1e-6)


def test_a_run_scores_the_tokens_as_they_were_sampled(tmp_path):
    config = STEPPED.replace(stratified=True, temperature=0.7, top_p=0.9, steps=2, run=str(tmp_path / "run"))
    result = rljax.train(config, reward=even_length)
    gaps = [row["sampler_gap"] for row in read_metrics(result.run / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(gaps) == 2
    assert max(gaps) < 1e-5


def test_the_first_tokens_of_a_group_follow_the_policy_more_closely():
    """Compares the variance, over groups, of the shares of the first tokens: independent responses have sum p (1 - p) / 8."""
    spread = {}
    for stratified in (False, True):
        setup = make_setup(STEPPED.replace(stratified=stratified, group_size=8), CustomParts(reward=even_length))
        params = first_params(setup)
        responses = setup.train.generate(params, [0] * 40, 8, jax.random.key(1)).tokens[:, :, 0]
        shares = np.stack([np.bincount(group, minlength=300) / 8 for group in responses])
        spread[stratified] = ((shares - shares.mean(0)) ** 2).sum(1).mean()
        assert setup.heldout.sampling.strata is setup.train.with_sampling().sampling.strata is None
    assert spread[True] < 0.8 * spread[False]


def test_a_group_of_one_is_refused():
    with pytest.raises(InputError, match="stratified needs a group_size of at least 2"):
        SMALL.replace(group_size=1, stratified=True)
