"""Sharding the sampler's weights over devices changes no tokens, and decoding sends no weights."""

import functools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import LLAMA, random_params

from rljax.errors import InputError
from rljax.models import transformer_policy
from rljax.models.axes import count_sampler_weights
from rljax.models.config import Routing
from rljax.models.quantization import is_quantized, quantize_params
from rljax.parallel import make_mesh, mesh_for_sampling, policy_shardings, put
from rljax.parallel.collectives import collectives
from rljax.programs.compiled_sampling import compile_sampling
from rljax.programs.plan import plan_of
from rljax.rollout import DecodingEngine, Request, Sampling
from rljax.rollout.begin_dialogue import begin_dialogue
from rljax.rollout.paged_sampling import PagedEngine
from rljax.rollout.sampling import decode_weights
from rljax.training.config import TrainConfig
from rljax.training.memory_plan import parameter_shapes, sampler_bytes
from rljax.training.parts.policy import make_transformer_config

EVEN = replace(LLAMA, vocab_size=16, heads=8, kv_heads=4)
MODELS = {
    "even": EVEN,
    # the vocabulary size and the head counts of "odd" are not multiples of 4
    "odd": replace(LLAMA, vocab_size=13, heads=6, kv_heads=2, hidden=20, head_dim=8),
    "biased": replace(EVEN, qkv_bias=True, output_bias=True, qk_norm=True, joint_qk_norm=True, sinks=True, tied_head=False),
    "experts": replace(EVEN, routing=Routing(experts=8, chosen=2, normalized=True)),
}
MESHES = {"1x4": (1, 4), "2x2x2": (2, 2, 2), "1x8": (1, 8), "1x2x1x4": (1, 2, 1, 4)}


def make_requests(temperature, count=12):
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(2, 13, size).tolist()) for size in (1, 2, 3, 4, 5, 6)]
    sampling = Sampling(max_tokens=9, eos_ids=(1,), temperature=temperature, top_p=0.9 if temperature else None)
    return [Request(prompts[index % 6], index % 6, 0, sampling, seed=7 * index) for index in range(count)]


def make_policy(config, axes, *, shard_sampler):
    """Return the policy, its parameters on the training mesh, and the engine's mesh."""
    mesh = make_mesh(*axes)
    policy = transformer_policy(replace(config, shard_sampler=shard_sampler), eos=1, mesh=mesh)
    params = random_params(config)
    return policy, put(params, policy_shardings(mesh, params, params, policy.partition)), mesh_for_sampling(mesh)


def check_equal(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)
        np.testing.assert_allclose(ours.policy_logp, theirs.policy_logp, atol=2e-5)


@functools.cache
def sample(name, axes, *, shard_sampler):
    """Return greedy responses, followed by responses at temperature 1."""
    policy, params, mesh = make_policy(MODELS[name], axes, shard_sampler=shard_sampler)
    engine = DecodingEngine(policy.decoder, mesh, prompt_length=6, slots=8)
    return engine.generate(params, make_requests(0.0) + make_requests(1.0))


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        *[("even", axes) for axes in MESHES.values()],
        ("odd", (1, 4)),
        ("odd", (2, 2, 2)),
        ("biased", (1, 4)),
        ("experts", (2, 2, 2)),
        ("experts", (1, 8)),
    ],
)
def test_sharded_sampler_samples_the_same_tokens(name, axes):
    single_device = sample(name, (1, 1), shard_sampler=False)
    assert len({tuple(response.tokens.tolist()) for response in single_device}) >= 8
    found = sample(name, axes, shard_sampler=True)
    check_equal(found, single_device)
    check_equal(found, sample(name, axes, shard_sampler=False))


def test_paged_and_dialogue_engines_sample_the_same_tokens():
    policy, params, mesh = make_policy(EVEN, (2, 2, 2), shard_sampler=True)
    expected = sample("even", (1, 1), shard_sampler=False)[12:]
    check_equal(PagedEngine(policy.decoder, mesh, 6, 8, share=0.5).generate(params, make_requests(1.0)), expected)
    dialogue = begin_dialogue(
        DecodingEngine(policy.decoder, mesh, 6, 8), params, first := dict(enumerate(make_requests(1.0, 6)))
    )
    found = {}
    while len(found) < len(first):
        found |= dialogue.sample_turns()
    check_equal([found[index] for index in first], expected[:6])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "axes"), [("even", (1, 4)), ("even", (2, 2, 2)), ("odd", (1, 4)), ("experts", (1, 4))])
def test_shard_sizes_match_the_planned_size(name, axes, dtype):
    config = replace(MODELS[name], compute_dtype=dtype)
    policy, params, mesh = make_policy(config, axes, shard_sampler=True)
    ready = decode_weights(policy.decoder, params)
    shard_sizes = jax.tree.map(lambda leaf: math.prod(leaf.sharding.shard_shape(leaf.shape)), ready)
    vectors = sum(leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim == 1)  # norms are replicated
    planned = count_sampler_weights(policy.shapes(), mesh, is_sharded=True)
    assert sum(jax.tree.leaves(shard_sizes)) == planned
    if name == "even":
        matrix_size = sum(leaf.size for leaf in jax.tree.leaves(params)) - vectors
        assert planned == matrix_size // (axes[1] * math.prod(axes[2:])) + vectors
    unsharded = decode_weights(make_policy(config, axes, shard_sampler=False)[0].decoder, params)
    np.testing.assert_array_equal(ready["embedding"].astype(jnp.float32), unsharded["embedding"].astype(jnp.float32))


def test_quantized_weights_are_sharded():
    policy, params, mesh = make_policy(replace(EVEN, width=64), (1, 4), shard_sampler=True)
    quantized = jax.jit(lambda params: quantize_params(params, kind="int8", dtype="float32"))(params)
    ready = decode_weights(policy.decoder, quantized)
    codes = jax.tree.leaves(ready["layers"], is_leaf=is_quantized)[0].codes
    assert codes.shape == (64, 4, 4)
    assert codes.sharding.shard_shape(codes.shape) == (64, 1, 4)
    engine = DecodingEngine(policy.decoder, mesh, 6, 8)
    single_policy, single_params, single_mesh = make_policy(replace(EVEN, width=64), (1, 1), shard_sampler=False)
    expected = DecodingEngine(single_policy.decoder, single_mesh, 6, 8).generate(
        quantize_params(single_params, kind="int8", dtype="float32"), make_requests(0.0)
    )
    check_equal(engine.generate(quantized, make_requests(0.0)), expected)


SETTINGS = {"prompts": 4, "group_size": 4, "max_response_tokens": 8, "fsdp": 4, "task": "sums"}


def test_decoding_sends_no_weights():
    mesh = make_mesh(1, 4)
    shape = replace(EVEN, width=256, hidden=1024, vocab_size=512, head_dim=32, shard_sampler=True)
    programs, _ = compile_sampling(TrainConfig.flat(**SETTINGS), shape, mesh, 6, 16)
    smallest = 4 * 256 * 8 * 32 // 4
    for program in (programs.decode, programs.prefill):
        found = collectives(program.as_text())
        assert found
        assert not [each for each in found if each.size >= smallest], (
            "a program must not send anything as large as a device's shard of a matrix"
        )


def test_plan_counts_sharded_weights():
    config = TrainConfig.flat(**SETTINGS, width=64, heads=8, kv_heads=4, hidden=128, layers=1, shard_sampler=True)
    plan, mesh = plan_of(config, 4, 6), make_mesh(1, 4)
    params = parameter_shapes(transformer_policy(make_transformer_config(config.model, 20), eos=1, mesh=mesh), mesh)
    weights = 4 * count_sampler_weights(params, mesh, is_sharded=True)
    assert plan.sampler == weights < 0.3 * sampler_bytes(config.replace(shard_sampler=False), params, mesh)
    cache = 2 * 4 * (6 + 8) * 64 * 4 // 2  # keys and values of four rows per device, four of eight heads
    assert plan.phases["sample"].moved == 8 * (weights + cache * (6 + 8 / 2) / (6 + 8)), (
        "each token must move the weights and the cache"
    )


def test_shard_sampler_with_images_is_refused():
    from rljax.models.patches import Patches, patch_policy

    shape = replace(LLAMA, shard_sampler=True)
    with pytest.raises(InputError, match="shard_sampler cannot be combined with images"):
        patch_policy(shape, Patches(tuple(range(4, 20)), rows=2, columns=2))
