"""Selection of tokens, checked against loops written from the formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops import token_choice

SHAPE = (3, 5)
numbers_of = hnp.arrays(np.float64, SHAPE, elements=st.integers(-40, 40).map(lambda n: n / 8))
masks_of = hnp.arrays(bool, SHAPE)
shares = st.sampled_from([0.0, 0.2, 0.3, 0.75, 1.0])


def indices_of_largest(values, wanted):
    """Indices of the `wanted` largest values, including all values that tie with the smallest of these."""
    ordered = sorted(values.values(), reverse=True)
    return {index for index, value in values.items() if ordered and value >= ordered[min(wanted, len(ordered)) - 1]}


def indices_of(kept):
    return {tuple(int(i) for i in index) for index in np.argwhere(kept)}


@given(numbers_of, masks_of, shares)
def test_high_entropy_and_kl_cov_select_the_largest(x, mask, share):
    """The number of tokens is rounded for the entropy, and truncated for the covariance, as in the authors' code."""
    candidates = {index: x[index] for index in np.ndindex(SHAPE) if mask[index]}
    with jax.enable_x64(True):
        dirty = jnp.array(np.where(mask, x, np.nan))
        for function, count in ((token_choice.high_entropy_tokens, round), (token_choice.kl_cov_tokens, int)):
            expected = indices_of_largest(candidates, max(1, count(mask.sum() * share)))
            assert indices_of(function(dirty, jnp.array(mask), share=share)) == expected


@pytest.mark.parametrize(
    ("count", "share", "wanted"), [(9999, 2e-4, 1), (10000, 2e-4, 2), (14999, 2e-4, 2), (15000, 2e-4, 3), (3000, 1e-9, 1)]
)
def test_token_count_of_a_share_is_truncated(count, share, wanted):
    """The count is `max(int(share * n), 1)`, even if float32 rounds the product to just below an integer."""
    covariance = jnp.linspace(1.5, 4.5, count)
    assert wanted == max(int(share * count), 1)
    mask = jnp.ones(count, bool)
    assert token_choice.kl_cov_tokens(covariance, mask, share=share).sum() == wanted
    cut = token_choice.clip_cov_tokens(covariance, covariance, mask, lower=1.0, upper=5.0, share=share)
    assert cut.sum() == wanted


def test_tokens_are_counted_exactly_in_half_precision():
    x = jnp.arange(0x3000, 0x3000 + 1036, dtype=jnp.uint16).view(jnp.bfloat16)  # the count itself would be 1040 in bfloat16
    for function in (token_choice.high_entropy_tokens, token_choice.kl_cov_tokens):
        assert function(x, jnp.ones(x.shape, bool), share=0.25).sum() == 259
    bounds = {"lower": -1.0, "upper": 1.0}
    assert token_choice.clip_cov_tokens(x, x, jnp.ones(x.shape, bool), share=0.25, **bounds).sum() == 259


@given(numbers_of, numbers_of, masks_of)
def test_only_high_entropy_tokens_keep_their_advantage(advantage, entropy, mask):
    with jax.enable_x64(True):
        arrays = [jnp.array(np.where(mask, x, np.nan)) for x in (advantage, entropy)]
        actual = token_choice.only_high_entropy(*arrays, jnp.array(mask), share=0.3)
        kept = np.array(token_choice.high_entropy_tokens(arrays[1], jnp.array(mask), share=0.3))
    np.testing.assert_array_equal(actual, np.where(kept, advantage, 0.0))


@given(numbers_of, numbers_of, masks_of)
def test_token_covariance_matches_formula_and_sums_to_the_batchs(logp, advantage, mask):
    with jax.enable_x64(True):
        arrays = [jnp.array(np.where(mask, x, np.nan)) for x in (logp, advantage)]
        actual = np.array(token_choice.token_covariance(*arrays, jnp.array(mask)))
    tokens = [index for index in np.ndindex(SHAPE) if mask[index]]
    expected = np.zeros(SHAPE)
    for index in tokens:
        means = [sum(x[other] for other in tokens) / len(tokens) for x in (logp, advantage)]
        expected[index] = (logp[index] - means[0]) * (advantage[index] - means[1])
    np.testing.assert_allclose(actual, expected, atol=1e-12)
    if len(tokens) > 1:
        np.testing.assert_allclose(actual.sum(), len(tokens) * np.cov(logp[mask], advantage[mask], ddof=0)[0, 1], atol=1e-9)


@given(numbers_of, masks_of, shares)
def test_clip_cov_selects_tokens_between_the_bounds(covariance, mask, share):
    draw = np.random.default_rng(0).random(SHAPE)
    between = {p: draw[p] for p in np.ndindex(SHAPE) if mask[p] and -1.0 < covariance[p] < 2.0}
    with jax.enable_x64(True):
        dirty = jnp.array(np.where(mask, covariance, np.nan))
        options = {"lower": -1.0, "upper": 2.0, "share": share}
        actual = token_choice.clip_cov_tokens(dirty, jnp.array(draw), jnp.array(mask), **options)
    assert indices_of(actual) == indices_of_largest(between, max(1, int(mask.sum() * share)))


def test_clip_cov_bounds_are_exclusive():
    covariance = jnp.array([1.0, 5.0, 2.0])
    cut = token_choice.clip_cov_tokens(covariance, covariance, jnp.ones(3), lower=1.0, upper=5.0, share=1.0)
    assert cut.tolist() == [False, False, True]


def test_clip_cov_selects_candidates_equally_often():
    covariance, mask = jnp.array([2.0, 2.0, 2.0, 9.0]), jnp.ones(4)
    options = {"lower": 1.0, "upper": 5.0, "share": 0.25}
    cut = jax.vmap(lambda draw: token_choice.clip_cov_tokens(covariance, draw, mask, **options))
    frequency = np.array(cut(jax.random.uniform(jax.random.key(0), (3000, 4)))).mean(0)
    np.testing.assert_allclose(frequency, [1 / 3, 1 / 3, 1 / 3, 0.0], atol=0.04)


ROW = jnp.ones(3)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: token_choice.high_entropy_tokens(ROW, ROW, share=1.5), r"share must lie in \[0, 1\], got 1.5"),
        (lambda: token_choice.only_high_entropy(ROW[:2], ROW, ROW), "mask must have the shape of advantage"),
        (lambda: token_choice.token_covariance(ROW, ROW.astype(int), ROW), "advantage must be a floating-point array"),
        (
            lambda: token_choice.clip_cov_tokens(ROW, ROW, ROW, lower=2.0, upper=1.0, share=0.5),
            r"lower must lie in \[-inf, 1\], got 2.0",
        ),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
