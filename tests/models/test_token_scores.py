"""Scores over a large vocabulary, computed in chunks: they match the plain log-softmax, and memory stays constant."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.models.token_scores import choose_chunk, default_chunk, token_scores
from rljax.parallel import make_mesh

ROWS, LENGTH, WIDTH, VOCAB = 4, 7, 5, 11
RANDOM = np.random.default_rng(0)
HIDDEN = RANDOM.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32)
HEAD = RANDOM.normal(size=(VOCAB, WIDTH)).astype(np.float32)
MESHES = {1: None, 2: make_mesh(1, 2), 4: make_mesh(2, 2)}
TOKENS = RANDOM.integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)


def score_by_loops(temperature, cap=None):
    """Compute log-probability and entropy one token at a time, in float64."""
    logp, entropy = np.zeros((2, ROWS, LENGTH))
    for row in range(ROWS):
        for index in range(LENGTH):
            logits = HEAD.astype(float) @ HIDDEN[row, index].astype(float)
            logits = (logits if cap is None else cap * np.tanh(logits / cap)) / temperature
            probability = np.exp(logits) / np.exp(logits).sum()
            logp[row, index] = np.log(probability[TOKENS[row, index]])
            entropy[row, index] = -sum(p * np.log(p) for p in probability)
    return logp, entropy


@pytest.mark.parametrize(("chunk", "shards"), [(1, 1), (3, 1), (8, 2), (100, 1), (5, 4), (28, 4)])
def test_scores_match_the_full_softmax(chunk, shards):
    score = partial(token_scores, temperature=0.7, chunk=chunk, mesh=MESHES[shards])
    actual = jax.jit(score)(jnp.array(HIDDEN), jnp.array(HEAD), jnp.array(TOKENS))
    chex.assert_trees_all_close(actual, score_by_loops(0.7), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk", [28, 5])
def test_sums_in_blocks_match_the_full_softmax(monkeypatch, chunk):
    """Blocks of 3 tokens do not divide a chunk of 28 or 5 tokens, so the last block overlaps the one before."""
    monkeypatch.setattr("rljax.models.token_scores.SUMMED_AT_ONCE", 3 * VOCAB)
    actual = token_scores(jnp.array(HIDDEN), jnp.array(HEAD), jnp.array(TOKENS), temperature=0.7, chunk=chunk)
    chex.assert_trees_all_close(actual, score_by_loops(0.7), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("chunk", "shards"), [(3, 1), (5, 4)])
def test_scores_match_those_of_capped_logits(chunk, shards):
    score = partial(token_scores, cap=1.5, temperature=0.7, chunk=chunk, mesh=MESHES[shards])
    actual = jax.jit(score)(jnp.array(HIDDEN), jnp.array(HEAD), jnp.array(TOKENS))
    chex.assert_trees_all_close(actual, score_by_loops(0.7, 1.5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("chunk", "shards", "cap"), [(3, 1, None), (8, 2, None), (100, 1, None), (3, 1, 1.5), (8, 2, 1.5)])
def test_the_gradient_matches_the_full_softmax(chunk, shards, cap):
    weights = RANDOM.normal(size=(2, ROWS, LENGTH)).astype(np.float32)

    def from_all_logits(hidden, head):
        logits = jnp.einsum("RKD,VD->RKV", hidden, head)
        logp = jax.nn.log_softmax((logits if cap is None else cap * jnp.tanh(logits / cap)) / 0.7)
        chosen = jnp.take_along_axis(logp, TOKENS[..., None], axis=-1)[..., 0]
        return (weights[0] * chosen - weights[1] * (jnp.exp(logp) * logp).sum(-1)).sum()

    def in_chunks(hidden, head):
        options = {"cap": cap, "temperature": 0.7, "chunk": chunk, "mesh": MESHES[shards]}
        logp, entropy = token_scores(hidden, head, jnp.array(TOKENS), **options)
        return (weights[0] * logp + weights[1] * entropy).sum()

    expected = jax.grad(from_all_logits, (0, 1))(jnp.array(HIDDEN), jnp.array(HEAD))
    chex.assert_trees_all_close(
        jax.jit(jax.grad(in_chunks, (0, 1)))(jnp.array(HIDDEN), jnp.array(HEAD)), expected, rtol=1e-4, atol=1e-5
    )


def test_bfloat16_gradients_are_summed_in_float32():
    """The head's gradient over 2,048 equal tokens; a running sum in bfloat16 would stop growing after 256 of them."""
    hidden = jnp.ones((1, 2048, 1), jnp.bfloat16)
    head = jnp.zeros((2, 1))

    def total(head):
        return token_scores(hidden, head, jnp.zeros((1, 2048), jnp.int32), chunk=1)[0].sum()

    np.testing.assert_allclose(jax.grad(total)(head)[:, 0], [1024, -1024])


def compile_gradient(rows, length, *, chunk=32):
    """Compile the gradient of log-probabilities and entropies."""
    shapes = ((rows, length, 64), jnp.float32), ((8192, 64), jnp.float32), ((rows, length), jnp.int32)

    def total(hidden, head, tokens):
        logp, entropy = token_scores(hidden, head, tokens, chunk=chunk)
        return (logp + entropy).sum()

    lowered = jax.jit(jax.grad(total, (0, 1))).lower(*(jax.ShapeDtypeStruct(*shape) for shape in shapes))
    return lowered.compile()


def gradient_bytes(rows, length, *, chunk=32):
    """Bytes of temporaries that the gradient of log-probabilities and entropies needs."""
    return compile_gradient(rows, length, chunk=chunk).memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(("chunk", "products"), [(128, 3), (64, 4)])
def test_the_logits_of_a_single_chunk_are_kept(chunk, products):
    """The gradient needs three products: the logits, and the gradients of both factors. Several chunks compute the logits again."""
    text = compile_gradient(1, 128, chunk=chunk).as_text()
    assert text.count(" dot(") == products


def test_gradient_of_one_chunk_needs_two_arrays_of_logits():
    """One array contains the logits, and one their gradient."""
    assert gradient_bytes(1, 1024, chunk=1024) < 2.2 * 1024 * 8192 * 4


def test_memory_does_not_grow_with_the_number_of_chunks_or_rows():
    chunk_bytes = 32 * 8192 * 4
    few = gradient_bytes(1, 64)
    for rows, length in ((1, 1024), (128, 8), (1024, 1)):
        assert gradient_bytes(rows, length) - few < 2 * chunk_bytes < rows * length * 8192 * 4


def test_a_mesh_that_does_not_divide_the_rows_is_refused():
    with pytest.raises(ValueError, match="the 4 rows must be a multiple of the 3 devices"):
        token_scores(jnp.array(HIDDEN), jnp.array(HEAD), jnp.array(TOKENS), chunk=4, mesh=make_mesh(3, 1))


def test_default_chunk_depends_on_the_platform_and_is_never_empty():
    assert [default_chunk(size, "cpu") for size in (1, 151_936, 10**9)] == [40_000_000, 263, 1]
    for platform in ("tpu", "gpu"):
        assert [default_chunk(size, platform) for size in (1, 151_936, 10**9)] == [4_096, 2_106, 1]


def test_a_chosen_chunk_is_kept():
    mesh = make_mesh(1, 1)
    assert choose_chunk(7, 151_936, mesh) == choose_chunk(7, 151_936, None) == 7
    assert choose_chunk(None, 151_936, mesh) == choose_chunk(None, 151_936, None) == 263
