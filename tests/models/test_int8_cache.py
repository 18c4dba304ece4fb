"""Keys and values cached in 8 bits: the stored codes, attention, and the error of the sampler's log-probabilities."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import LLAMA, random_params
from small_runs import SMALL

from rljax.errors import InputError
from rljax.models import Packed, score_tokens, transformer_policy
from rljax.models.attention import LayerCache, attend_cached
from rljax.models.language_model import Model
from rljax.models.paged_cache import quantize_cache, quantize_to_int8
from rljax.parallel import make_mesh
from rljax.rollout import DecodingEngine, Request, Sampling
from rljax.rollout.cached_dialogue import CachedDialogue
from rljax.rollout.decode_sizes import row_bytes
from rljax.rollout.paged_sampling import PagedEngine
from rljax.training.parts.policy import make_transformer_config

EXACT = replace(LLAMA, layers=1, vocab_size=13, width=16, head_dim=16)
QUANTIZED = replace(EXACT, cache_dtype="int8")
KEYS, VALUES = jax.random.normal(jax.random.key(0), (2, 3, 2, 8, 5))


def quantize_by_hand(x, axis):
    """Round to the nearest multiples of max |x| / 127 along the axis, in float64."""
    x = np.asarray(x, np.float64)
    step = np.abs(x).max(axis, keepdims=True) / 127
    return np.rint(x / step) * step


def test_codes_are_the_nearest_multiples_of_the_scale():
    codes, scale = quantize_to_int8(KEYS.at[0, 0, :, 0].set(0), axis=2)
    assert codes.dtype == jnp.int8
    assert not codes[0, 0, :, 0].any(), "zeros stay zeros"
    found = np.asarray(codes, np.float64) * np.asarray(scale)[:, :, None]
    np.testing.assert_allclose(found[1:], quantize_by_hand(KEYS[1:], 2), atol=1e-6)


@pytest.mark.parametrize("block", [1, 512])
def test_attention_reads_the_quantized_values(block):
    query, segments = jax.random.normal(jax.random.key(1), (3, 2, 2, 2, 8)), jnp.ones((3, 5), int)
    layer = LayerCache(KEYS, VALUES.swapaxes(2, 3))
    exact = LayerCache(
        jnp.asarray(quantize_by_hand(layer.keys, 2), jnp.float32),
        jnp.asarray(quantize_by_hand(layer.values, 3), jnp.float32),
    )
    expected = attend_cached(query, exact, segments, 3, block=block)
    np.testing.assert_allclose(attend_cached(query, quantize_cache(layer), segments, 3, block=block), expected, atol=1e-5)
    assert not np.allclose(attend_cached(query, layer, segments, 3, block=block), expected, atol=1e-5)


def rescore(params, responses, requests):
    """Return the exact log-probabilities of the tokens of responses, one row per response."""
    found = []
    for request, response in zip(requests, responses, strict=True):
        tokens = jnp.array([[*request.prompt_tokens, *response.tokens.tolist()]] * 2)
        slots, first, new = tokens.shape[1], len(request.prompt_tokens), len(response.tokens)
        scored = jnp.broadcast_to(jnp.arange(first, slots), (2, new))
        place = jnp.arange(new)[None] + jnp.array([[0], [new]])
        positions = jnp.broadcast_to(jnp.arange(slots), (2, slots))
        packed = Packed(tokens, positions, jnp.ones((2, slots), int), scored, place)
        found.append(np.asarray(score_tokens(Model(EXACT), params, packed, 1.0).logp[0]))
    return found


def test_sampler_log_probabilities_are_close_and_pages_agree():
    mesh = make_mesh(1, 1)
    params, policy = random_params(EXACT), transformer_policy(QUANTIZED, eos=1, mesh=mesh)
    requests = [Request((3, 4 + i % 4, 5), i % 4, 0, Sampling(12, (-1,)), seed=i) for i in range(8)]
    responses = DecodingEngine(policy.decoder, mesh, 4, 8).generate(params, requests)
    gaps = [
        np.abs(response.policy_logp - exact)
        for response, exact in zip(responses, rescore(params, responses, requests), strict=True)
    ]
    assert 1e-5 < np.mean(gaps) < 0.01, "the alarm sampler_gap begins at 0.01"
    for one, other in zip(
        responses, PagedEngine(policy.decoder, mesh, 4, 8, share=0.5).generate(params, requests), strict=True
    ):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.policy_logp, other.policy_logp, atol=1e-5)


def test_a_dialogue_continues_a_quantized_cache():
    mesh = make_mesh(1, 1)
    params, policy = random_params(EXACT), transformer_policy(QUANTIZED, eos=1, mesh=mesh)
    sampling = Sampling(6, (-1,), temperature=0)
    dialogue = CachedDialogue(DecodingEngine(policy.decoder, mesh, 4, 2), params, {0: Request((3, 4), 0, 0, sampling, 0)})
    assert len(dialogue.sample_turns()[0].tokens) == 6
    assert dialogue.decoding.rows.state.state[0].keys.dtype == jnp.int8


@pytest.mark.parametrize(("dtype", "bytes_"), [("float32", 4), ("bfloat16", 2)])
def test_row_bytes_counts_a_byte_per_feature_and_a_scale_per_head(dtype, bytes_):
    mesh = make_mesh(1, 1)
    exact, quantized = (
        row_bytes(
            (policy := transformer_policy(replace(shape, compute_dtype=dtype), eos=1, mesh=mesh)).decoder,
            policy.shapes(),
            mesh,
            6,
            10,
        )
        for shape in (EXACT, QUANTIZED)
    )
    heads = 2 * 2 * 16
    assert exact - quantized == heads * (16 * bytes_ - (16 + 4))


def test_cache_dtype_reaches_the_model():
    assert make_transformer_config(SMALL.replace(cache_dtype="int8").model, 9).cache_dtype == "int8"
    with pytest.raises(InputError, match="cache_dtype is 'int4', but 'int8' or null is expected"):
        SMALL.replace(cache_dtype="int4")
    with pytest.raises(InputError, match="cache_dtype is 'int4'; choose one of None, int8"):
        replace(EXACT, cache_dtype="int4")
