"""Tests that decoding agrees with the training forward pass and with the log-probabilities that it reports."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.errors import InputError
from rljax.models import Model, TransformerConfig, init_params, language_model, score_tokens, transformer_policy
from rljax.rollout import Sampling, Sequences, pack_one_per_row
from rljax.rollout.engine import seed_words
from rljax.rollout.sampling import (
    BLOCK,
    RowInputs,
    decode,
    empty_rows,
    fill_rows,
    log_total,
    read_prompts,
    running_sums,
    sample_index,
    sample_token,
    shift_right,
    token_uniforms,
)
from rljax.rollout.stratified import stratified_uniforms
from rljax.rollout.top_k_and_top_p import keep_top_k, keep_top_p

CONFIG = TransformerConfig(vocab_size=13, width=16, layers=2, heads=4, kv_heads=2, head_dim=4, hidden=24)
MODEL = Model(CONFIG)
DECODER = transformer_policy(CONFIG, eos=1).decoder
EOS, PAD, BUDGET = 1, 0, 10
SAMPLING = Sampling(BUDGET, (EOS,), temperature=0.7)
PROMPTS = jnp.array([[0, 0, 5, 6], [7, 8, 9, 10], [0, 3, 4, 5]] * 8)
PROMPT_MASK = PROMPTS != PAD
SEEDS = seed_words(range(len(PROMPTS)))


@pytest.fixture(scope="module")
def params():
    # Larger weights than usual, so that the token distribution is neither flat nor deterministic.
    return jax.tree.map(lambda x: x * 4, init_params(CONFIG, jax.random.key(0)))


class Samples(NamedTuple):
    """Sampled responses; slots without a token contain 0, as in training."""

    tokens: jax.Array
    mask: jax.Array
    behaviour_logp: jax.Array
    policy_logp: jax.Array
    truncated: jax.Array


def sample(params, prompts, attention, seeds, sampling=SAMPLING, decoder=DECODER):
    """Sample one response to each prompt, all in one batch."""
    count, length = prompts.shape
    prompt_states = read_prompts(decoder, params, prompts, attention, budget=BUDGET)
    rows = empty_rows(DECODER, params, rows=count, length=length, room=BUDGET, sampling=sampling)
    inputs = RowInputs(token_uniforms(jnp.array(seeds), sampling=sampling), jnp.full(count, BUDGET))
    rows = fill_rows(DECODER, rows, [prompt_states], jnp.arange(count), inputs, sampling=sampling)
    rows, _ = decode(DECODER, params, rows, jnp.int32(count), jnp.int32(BUDGET), sampling=sampling)
    found = rows.samples
    mask = jnp.arange(BUDGET)[None] < found.count[:, None]
    arrays = (jnp.where(mask, array, 0) for array in (found.tokens, found.behaviour_logp, found.policy_logp))
    tokens, behaviour, policy = arrays
    return Samples(tokens, mask, behaviour, policy, found.truncated)


@pytest.fixture(scope="module")
def samples(params):
    return sample(params, PROMPTS, PROMPT_MASK, SEEDS)


def rescore(params, samples, temperature):
    sequences = Sequences(*map(np.asarray, (PROMPTS, PROMPT_MASK, samples.tokens, samples.mask)))
    return score_tokens(MODEL, params, jax.tree.map(jnp.asarray, pack_one_per_row(sequences)), temperature, chunk=4)


def test_rescoring_matches_behaviour_logp(params, samples):
    logp = rescore(params, samples, SAMPLING.temperature).logp
    np.testing.assert_allclose(jnp.where(samples.mask, logp, 0.0), samples.behaviour_logp, atol=1e-4)
    np.testing.assert_allclose(samples.behaviour_logp, samples.policy_logp, atol=1e-6)


def test_rescoring_at_another_temperature_differs(params, samples):
    logp = rescore(params, samples, 1.0).logp
    assert float(jnp.abs(jnp.where(samples.mask, logp, 0.0) - samples.behaviour_logp).max()) > 0.1


def test_mask_ends_at_eos_or_budget(samples):
    for tokens, mask, truncated in zip(*map(np.asarray, (samples.tokens, samples.mask, samples.truncated)), strict=True):
        length = int(mask.sum())
        assert mask[:length].all()
        assert not (tokens[: length - 1] == EOS).any()
        assert truncated == (tokens[length - 1] != EOS)
        assert not truncated or length == BUDGET
        assert (tokens[length:] == PAD).all()
    assert 0 < int(np.sum(samples.truncated)) < len(PROMPTS), "the test needs truncated and complete responses"


def test_samples_depend_on_the_seeds(params, samples):
    repeated = sample(params, PROMPTS, PROMPT_MASK, SEEDS)
    other = sample(params, PROMPTS, PROMPT_MASK, SEEDS + 99)
    np.testing.assert_array_equal(repeated.tokens, samples.tokens)
    assert (np.asarray(other.tokens) != np.asarray(samples.tokens)).any(axis=1).mean() > 0.5


def test_row_does_not_depend_on_other_rows(params, samples):
    order = np.random.default_rng(0).permutation(len(PROMPTS))[:7]
    few = sample(params, PROMPTS[order], PROMPT_MASK[order], SEEDS[order])
    np.testing.assert_array_equal(few.tokens, samples.tokens[order])
    np.testing.assert_allclose(few.behaviour_logp, samples.behaviour_logp[order], atol=1e-5)


def test_prompts_may_be_inserted_together_or_in_turn(params):
    """The results are bitwise equal, even if a call leaves some rows unchanged."""
    count, length = 6, PROMPTS.shape[1]
    parts = [
        read_prompts(DECODER, params, PROMPTS[begin : begin + 2], PROMPT_MASK[begin : begin + 2], budget=BUDGET)
        for begin in (0, 2)
    ]
    inputs = RowInputs(token_uniforms(jnp.array(SEEDS[:count]), sampling=SAMPLING), jnp.full(count, BUDGET))

    def fill_and_decode(*fills):
        rows = empty_rows(DECODER, params, rows=count, length=length, room=BUDGET, sampling=SAMPLING)
        for prompts, source in fills:
            rows = fill_rows(DECODER, rows, prompts, jnp.array(source), inputs, sampling=SAMPLING)
        return decode(DECODER, params, rows, jnp.int32(count), jnp.int32(BUDGET), sampling=SAMPLING)[0].samples

    together = fill_and_decode((parts, [2, 0, 3, -1, 1, 2]))
    in_turn = fill_and_decode((parts[:1], [-1, 0, -1, -1, 1, -1]), (parts[1:], [0, -1, 1, -1, -1, 0]))
    assert ((together.count > 0) == (jnp.arange(count) != 3)).all()
    chex.assert_trees_all_equal(together, in_turn)


@pytest.mark.parametrize(("settings", "numbers"), [({}, 2), ({"strata": 4}, 1), ({"temperature": 0.0}, 0)])
def test_random_numbers_of_a_token(settings, numbers):
    """They depend only on the row's seed and on the number of earlier tokens, not on other rows or on the budget."""
    sampling, seeds = SAMPLING._replace(max_tokens=5, **settings), jnp.array(SEEDS[:6])
    found = token_uniforms(seeds, sampling=sampling)
    assert found.shape == (6, 5, numbers)
    assert np.unique(found).size == found.size
    assert ((found >= 0) & (found < 1)).all()
    key = jax.random.fold_in(jax.random.wrap_key_data(seeds[2]), 3)
    expected = {0: [], 2: jax.random.uniform(key, (2,))}
    if numbers == 1:
        expected[1] = stratified_uniforms(seeds, jnp.full(6, 3), 4)[2:3]
    np.testing.assert_array_equal(found[2, 3], expected[numbers])
    np.testing.assert_array_equal(token_uniforms(seeds[2:3], sampling=sampling)[0], found[2])
    np.testing.assert_array_equal(token_uniforms(seeds, sampling=sampling._replace(max_tokens=3)), found[:, :3])


@pytest.mark.parametrize("size", [1, 7, BLOCK, BLOCK + 1])
def test_running_sums_match_float64(size):
    values = np.random.default_rng(size).uniform(size=(3, size)).astype(np.float32)
    np.testing.assert_allclose(running_sums(jnp.asarray(values)), np.cumsum(values.astype(np.float64), -1), rtol=1e-5)


@pytest.mark.parametrize("size", [1, 5, 128, 600])
def test_log_total_matches_float64(size):
    logits = 5 * np.random.default_rng(size).normal(size=(3, size)).astype(np.float32)
    logits[:, 1::7] = -np.inf
    np.testing.assert_allclose(
        log_total(jnp.asarray(logits)), np.logaddexp.reduce(logits.astype(np.float64), axis=-1), rtol=1e-6
    )


def test_responses_to_the_same_prompt_differ(samples):
    copies = np.asarray(samples.tokens).reshape(8, 3, -1)[:, 0]
    assert len(np.unique(copies, axis=0)) > 4


def test_padding_side_does_not_change_samples(params, samples):
    order = jnp.argsort(~PROMPT_MASK, axis=-1, stable=True)
    right = (jnp.take_along_axis(array, order, axis=-1) for array in (PROMPTS, PROMPT_MASK))
    shifted = sample(params, *right, SEEDS)
    np.testing.assert_array_equal(shifted.tokens, samples.tokens)


def test_padding_does_not_change_greedy_tokens(params):
    greedy = SAMPLING._replace(temperature=0.0)
    unpadded = sample(params, PROMPTS[:1, 2:], PROMPT_MASK[:1, 2:], SEEDS[:1], sampling=greedy)
    padded = sample(params, PROMPTS[:1], PROMPT_MASK[:1], SEEDS[:1], sampling=greedy)
    np.testing.assert_array_equal(unpadded.tokens, padded.tokens)


def test_reading_prompts_in_chunks_does_not_change_samples(params, samples, monkeypatch):
    """Prompts are padded on the left or right; chunks of two tokens split every prompt."""
    monkeypatch.setattr(language_model, "PREFILL_TOKENS", 2)

    def begin(*arguments):  # A new function, so that JAX compiles it with the new chunk size.
        return DECODER.begin(*arguments)

    order = jnp.argsort(~PROMPT_MASK, axis=-1, stable=True)
    right = (jnp.take_along_axis(array, order, axis=-1) for array in (PROMPTS, PROMPT_MASK))
    for prompts, attention in ((PROMPTS, PROMPT_MASK), right):
        chunked = sample(params, prompts, attention, SEEDS, decoder=DECODER._replace(begin=begin))
        for actual, expected in zip(chunked[:2], samples[:2], strict=True):
            np.testing.assert_array_equal(actual, expected)
        np.testing.assert_allclose(chunked.behaviour_logp, samples.behaviour_logp, atol=1e-5)


def test_shift_right_keeps_token_order():
    tokens, attention = shift_right(jnp.array([[1, 2, 0, 3]]), jnp.array([[True, True, False, True]]))
    assert tokens.tolist() == [[0, 1, 2, 3]]
    assert attention.tolist() == [[False, True, True, True]]


LOGITS = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32))


@pytest.mark.parametrize(("k", "kept"), [(1, [0]), (2, [0, 1]), (4, [0, 1, 2, 3]), (9, [0, 1, 2, 3])])
def test_top_k_keeps_the_k_likeliest_tokens(k, kept):
    assert np.flatnonzero(np.isfinite(keep_top_k(jnp.array(LOGITS), k)[0])).tolist() == kept


@pytest.mark.parametrize(("p", "kept"), [(0.1, [0]), (0.39, [0]), (0.5, [0, 1]), (0.71, [0, 1, 2]), (1.0, [0, 1, 2, 3])])
def test_top_p_keeps_the_smallest_set_that_reaches_p(p, kept):
    assert np.flatnonzero(np.isfinite(keep_top_p(jnp.array(LOGITS), p)[0])).tolist() == kept


@pytest.mark.parametrize(("name", "value"), [("top_k", 0), ("top_p", 0.0), ("top_p", 1.5), ("top_p", float("nan"))])
def test_invalid_top_k_and_top_p_are_rejected(name, value):
    sampling = Sampling(4, (1,), **{name: value})
    with pytest.raises(InputError, match=rf"^{name}.* must be .*; got {value}\.$"):
        sample_token(jnp.array(LOGITS), jnp.full((1, 2), 0.5), sampling)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_top_k_and_top_p_match_sorting(temperature):
    """The reference is NumPy's sort in float64. The logits have ties, and some are huge or infinite."""
    random = np.random.default_rng(1)
    logits = (random.normal(size=(6, 500)) / temperature).astype(np.float32)
    logits[1, 7:12], logits[2, 100:300], logits[3, 5], logits[4] = 2.5, -np.inf, 3e38, 0.0
    for row, k in zip(logits, (1, 9, 200, 3, 5, 500), strict=True):
        kept = np.isfinite(keep_top_k(jnp.array(row[None]), k)[0])
        np.testing.assert_array_equal(kept, (row >= np.sort(row)[-k]) & np.isfinite(row))
    for row, p in zip(logits, (0.9, 0.5, 0.99, 0.3, 0.7, 0.123), strict=True):
        weights = np.exp(row.astype(np.float64) - row.max())
        probability = weights / weights.sum()
        order = np.argsort(-row, kind="stable")
        smallest_kept = row[order[np.searchsorted(np.cumsum(probability[order]), p)]]
        np.testing.assert_array_equal(
            np.isfinite(keep_top_p(jnp.array(row[None]), p)[0]), (row >= smallest_kept) & np.isfinite(row)
        )


@pytest.mark.parametrize("count", [3, 128, 600])
def test_sampled_indices_have_the_softmax_distribution(count):
    """Shares of 200,000 samples are within five standard errors (and three samples) of softmax(logits); -inf is never sampled."""
    logits = 3 * np.random.default_rng(count).normal(size=count)
    logits[count // 2 :: 5] = -np.inf
    samples = 200_000
    uniforms = jax.random.uniform(jax.random.key(count), (20, samples // 20, 2))
    indices = jax.lax.map(lambda part: sample_index(jnp.tile(logits, (len(part), 1)), part), uniforms)
    share, expected = np.bincount(np.ravel(indices), minlength=count) / samples, np.exp(logits) / np.exp(logits).sum()
    assert np.all(np.abs(share - expected) <= 5 * np.sqrt(expected * (1 - expected) / samples) + 3 / samples)


@pytest.mark.parametrize(
    "sampling",
    [
        SAMPLING._replace(temperature=1.0),
        SAMPLING._replace(temperature=0.5),
        SAMPLING._replace(temperature=1.0, top_k=2),
        SAMPLING._replace(temperature=2.0, top_p=0.6),
        SAMPLING._replace(temperature=1.0, top_k=3, top_p=0.5),
    ],
)
def test_sampled_frequencies_match_reported_probabilities(sampling):
    """Frequencies of 20,000 samples are within five standard errors of exp(behaviour_logp)."""
    count = 20_000
    token, behaviour, policy = sample_token(
        jnp.tile(jnp.array(LOGITS), (count, 1)), jax.random.uniform(jax.random.key(3), (count, 2)), sampling
    )
    scaled = np.exp(LOGITS[0] / sampling.temperature)
    full_probability = scaled / scaled.sum()
    for index in np.unique(token):
        reported = float(np.exp(np.asarray(behaviour)[np.asarray(token) == index][0]))
        frequency = float((np.asarray(token) == index).mean())
        assert abs(frequency - reported) <= 5 * np.sqrt(reported * (1 - reported) / count)
        np.testing.assert_allclose(
            np.exp(np.asarray(policy)[np.asarray(token) == index]), full_probability[index], rtol=1e-5
        )
    reported_probabilities = {
        int(index): float(np.exp(np.asarray(behaviour)[np.asarray(token) == index][0])) for index in np.unique(token)
    }
    np.testing.assert_allclose(sum(reported_probabilities.values()), 1.0, rtol=1e-5)
