"""A plan's traffic and memory for sampling, checked against a real engine and against hand counts."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest
from small_runs import SMALL, live_caches

from rljax.models import TransformerConfig, abstract_params, init_params, transformer_policy
from rljax.parallel import make_mesh, policy_shardings, put
from rljax.parallel.collectives import collectives
from rljax.programs.compiled_sampling import bytes_sent_sampling, bytes_sent_scoring, compile_sampling
from rljax.programs.compiled_updates import layout_of, sent_bytes
from rljax.programs.roofline import cache_bytes, peak_cache_bytes
from rljax.records import required
from rljax.rollout import DecodingEngine, Request, Sampling, decode_sizes
from rljax.rollout import engine as engine_module
from rljax.rollout import sampling as sampling_module
from rljax.training.memory_plan import bytes_on_a_device, parameter_shapes

SHAPE = TransformerConfig(vocab_size=16, width=16, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=32)
PROMPTS, GROUP, LENGTH, BUDGET, SLOTS = 4, 4, 5, 6, 8
"""Prompts, responses per prompt, tokens per prompt and per response, and rows decoded at once."""
CONFIG = SMALL.replace(
    dataset="rows.jsonl",
    algorithm="grpo",
    algorithm_options={"beta": 0.1},
    prompts=PROMPTS,
    group_size=GROUP,
    max_response_tokens=BUDGET,
    top_p=0.9,
)
NEVER = -1
"""An end token that is never sampled: all responses have their full length."""


def sample_and_measure(mesh, monkeypatch):
    """Sample a step's responses; return the bytes that each device sends and the peak bytes of its caches."""
    before, sent, cache_sizes = live_caches(), [], []

    def count_calls(module, name):
        program = getattr(module, name)

        def call(*args, **keywords):
            each = sent_bytes(program.lower(*args, **keywords).compile())
            result = program(*args, **keywords)
            sent.append((int(result[1]) if name == "decode" else 1) * each)
            cache_sizes.append(live_caches() - before)
            return result

        call.trace = program.trace
        return call

    def grow_and_measure(decoder, rows, *, more):
        larger = grow_rows(decoder, rows, more=more)
        cache_sizes.append(live_caches() - before)
        return larger

    grow_rows = engine_module.grow_rows
    monkeypatch.setattr(engine_module, "grow_rows", grow_and_measure)
    monkeypatch.setattr(sampling_module, "weights_program", count_calls(sampling_module, "weights_program"))
    for name in ("read_prompts", "fill_rows", "decode"):
        monkeypatch.setattr(engine_module, name, count_calls(engine_module, name))
    policy = transformer_policy(SHAPE, eos=0, mesh=mesh)
    params = init_params(SHAPE, jax.random.key(0))
    params = put(params, policy_shardings(mesh, params, params, policy.partition))
    sampling = Sampling(BUDGET, (NEVER,), temperature=CONFIG.sampling.temperature, top_p=0.9)
    requests = [
        Request((2 + prompt,) * LENGTH, prompt, prompt, sampling, index)
        for prompt in range(PROMPTS)
        for index in range(GROUP)
    ]
    responses = DecodingEngine(policy.decoder, mesh, LENGTH, SLOTS).generate(params, requests)
    assert {len(response.tokens) for response in responses} == {BUDGET}
    return sum(sent), max(cache_sizes)


def test_engine_has_the_planned_traffic_and_cache(monkeypatch):
    mesh = make_mesh(2, 2, 2)
    sent, peak = sample_and_measure(mesh, monkeypatch)
    assert bytes_sent_sampling(CONFIG, SHAPE, mesh, LENGTH, SLOTS) == pytest.approx(sent, rel=1e-6)
    assert sent > 0
    assert peak == peak_cache_bytes(CONFIG, SHAPE, mesh, LENGTH, SLOTS) > cache_bytes(CONFIG, SHAPE, mesh, LENGTH, SLOTS)


def test_growing_cache_has_the_planned_size(monkeypatch):
    """The cache grows from room for 2 tokens to 4 and 6 while prompts wait, so old and new cache exist at once."""
    monkeypatch.setattr(decode_sizes, "LONG_BUDGET", BUDGET)
    mesh = make_mesh(1, 1)
    _, peak = sample_and_measure(mesh, monkeypatch)
    assert peak == peak_cache_bytes(CONFIG, SHAPE, mesh, LENGTH, SLOTS) > cache_bytes(CONFIG, SHAPE, mesh, LENGTH, SLOTS)


@pytest.mark.parametrize("axes", [(2, 1), (1, 2), (2, 2)])
def test_devices_with_their_own_rows_send_only_the_number_of_ended_rows(axes):
    """Per token, they sum one integer: how many rows have ended. Weights, random numbers and samples stay where they are."""
    programs, _ = compile_sampling(CONFIG, SHAPE, make_mesh(*axes), LENGTH, SLOTS)
    (count,) = collectives(required(programs.decode.as_text(), "as_text"))
    assert (count.kind, count.sent) == ("all-reduce", 2 * 4 * (1 - 1 / math.prod(axes)))


def test_tensor_layer_sums_two_results_per_token():
    """The attention and the feed-forward layer each sum one result per token, except for the last token of a response."""
    mesh = make_mesh(1, 1, 2)
    one, two = (bytes_sent_sampling(CONFIG, replace(SHAPE, layers=layers), mesh, LENGTH, SLOTS) for layers in (1, 2))
    tokens = PROMPTS * LENGTH + PROMPTS * GROUP * (BUDGET - 1)
    assert two - one == pytest.approx(2 * tokens * 4 * SHAPE.width, rel=0.05)


def test_scoring_gathers_parameters_per_micro_batch():
    """GRPO with a KL penalty scores with its reference, and PPO also with its critic; the embedding is not gathered."""
    mesh = make_mesh(1, 8)
    micro_batches = len(layout_of(CONFIG, mesh, LENGTH, PROMPTS * GROUP).responses)

    def measure(layers):
        shape = replace(SHAPE, layers=layers)
        vector_bytes = 4 * sum(leaf.size for leaf in jax.tree.leaves(abstract_params(shape)) if leaf.ndim == 1)
        shard_bytes = bytes_on_a_device(parameter_shapes(transformer_policy(shape, eos=0, mesh=mesh), mesh))
        grpo, ppo = (
            bytes_sent_scoring(config, shape, mesh, LENGTH) for config in (CONFIG, CONFIG.replace(algorithm="ppo"))
        )
        return np.array([7 * shard_bytes, vector_bytes, grpo, ppo - grpo])

    remote_bytes, vector_bytes, *totals = measure(layers=3) - measure(layers=1)
    for sent in totals:
        assert micro_batches * (remote_bytes - vector_bytes) <= sent <= 1.2 * micro_batches * remote_bytes


def test_one_device_sends_nothing():
    assert bytes_sent_sampling(CONFIG, SHAPE, make_mesh(1, 1), LENGTH, SLOTS) == 0
    assert bytes_sent_scoring(CONFIG, SHAPE, make_mesh(1, 1), LENGTH) == 0


def test_unchanged_weights_are_not_copied():
    """If the weights went through a compiled program, it would copy them, and sampling would need memory for two models."""
    for mesh in (make_mesh(1, 1), make_mesh(8, 1)):
        params = init_params(SHAPE, jax.random.key(0))
        params = put(params, policy_shardings(mesh, params, params, transformer_policy(SHAPE, eos=0, mesh=mesh).partition))
        ready = sampling_module.decode_weights(transformer_policy(SHAPE, eos=0, mesh=mesh).decoder, params)
        assert all(ours is theirs for ours, theirs in zip(jax.tree.leaves(ready), jax.tree.leaves(params), strict=True))
