"""A plan's messages and memory for sampling, checked against a real engine and against hand counts."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from small_runs import SMALL, live_caches

from rljax.models import TransformerConfig, abstract_params, init_params, transformer_policy
from rljax.parallel import make_mesh, policy_shardings, put
from rljax.programs.compiled_sampling import bytes_sent_sampling, bytes_sent_scoring
from rljax.programs.compiled_updates import layout_of, sent_bytes
from rljax.programs.roofline import cache_bytes, most_cache_bytes
from rljax.rollout import DecodingEngine, Request, Sampling, decode_sizes
from rljax.rollout import engine as engine_module
from rljax.rollout import sampling as sampling_module
from rljax.training.memory_plan import bytes_on_a_device, parameter_shapes

SHAPE = TransformerConfig(vocab_size=16, width=16, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=32)
PROMPTS, GROUP, START, BUDGET, SLOTS = 4, 4, 5, 6, 8
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


def run(mesh, monkeypatch):
    """Sample the responses of a step; return the bytes that each device sends, and the most cache bytes that it holds at once."""
    before, total, held = live_caches(), [], []

    def count_calls(module, name):
        program = getattr(module, name)

        def call(*args, **keywords):
            each = sent_bytes(program.lower(*args, **keywords).compile())
            result = program(*args, **keywords)
            total.append((int(result[1]) if name == "decode" else 1) * each)
            held.append(live_caches() - before)
            return result

        call.trace = program.trace
        return call

    def grow_and_measure(decoder, rows, *, more):
        larger = grow_rows(decoder, rows, more=more)
        held.append(live_caches() - before)
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
        Request((2 + prompt,) * START, prompt, prompt, sampling, place)
        for prompt in range(PROMPTS)
        for place in range(GROUP)
    ]
    responses = DecodingEngine(policy.decoder, mesh, START, SLOTS).generate(params, requests)
    assert {len(response.tokens) for response in responses} == {BUDGET}
    return sum(total), max(held)


def test_an_engine_sends_the_planned_bytes_and_holds_the_planned_cache(monkeypatch):
    mesh = make_mesh(2, 2, 2)
    real, held = run(mesh, monkeypatch)
    assert bytes_sent_sampling(CONFIG, SHAPE, mesh, START, SLOTS) == pytest.approx(real, rel=1e-6)
    assert real > 0
    assert held == most_cache_bytes(CONFIG, SHAPE, mesh, START, SLOTS) > cache_bytes(CONFIG, SHAPE, mesh, START, SLOTS)


def test_a_growing_cache_is_held_together_with_its_copy_as_planned(monkeypatch):
    """It grows from room for 2 tokens to 4 and 6, while prompts wait."""
    monkeypatch.setattr(decode_sizes, "LONG_BUDGET", BUDGET)
    mesh = make_mesh(1, 1)
    _, held = run(mesh, monkeypatch)
    assert held == most_cache_bytes(CONFIG, SHAPE, mesh, START, SLOTS) > cache_bytes(CONFIG, SHAPE, mesh, START, SLOTS)


def test_a_layer_on_two_tensor_devices_sums_two_results_per_token():
    """One of attention and one of the feed-forward layer: for each prompt once, and for 16 responses without their last tokens."""
    mesh = make_mesh(1, 1, 2)
    one, two = (bytes_sent_sampling(CONFIG, replace(SHAPE, layers=layers), mesh, START, SLOTS) for layers in (1, 2))
    tokens = PROMPTS * START + PROMPTS * GROUP * (BUDGET - 1)
    assert two - one == pytest.approx(2 * tokens * 4 * SHAPE.width, rel=0.05)


def test_every_micro_batch_that_is_scored_gathers_the_parameters_of_each_layer():
    """GRPO with a penalty scores with its reference, and PPO with a penalty also with its critic; the embedding is not gathered."""
    mesh = make_mesh(1, 8)
    parts = len(layout_of(CONFIG, mesh, START, PROMPTS * GROUP).responses)

    def measured(layers):
        shape = replace(SHAPE, layers=layers)
        vectors = 4 * sum(leaf.size for leaf in jax.tree.leaves(abstract_params(shape)) if leaf.ndim == 1)
        held = bytes_on_a_device(parameter_shapes(transformer_policy(shape, eos=0, mesh=mesh), mesh))
        grpo, ppo = (bytes_sent_scoring(config, shape, mesh, START) for config in (CONFIG, CONFIG.replace(algorithm="ppo")))
        return np.array([7 * held, vectors, grpo, ppo - grpo])

    others, vectors, *messages = measured(layers=3) - measured(layers=1)
    for sent in messages:
        assert parts * (others - vectors) <= sent <= 1.2 * parts * others


def test_one_device_sends_nothing():
    assert bytes_sent_sampling(CONFIG, SHAPE, make_mesh(1, 1), START, SLOTS) == 0
    assert bytes_sent_scoring(CONFIG, SHAPE, make_mesh(1, 1), START) == 0


def test_weights_that_are_ready_are_not_copied():
    """A program would copy each of them, so that a second model would exist while responses are sampled."""
    for mesh in (make_mesh(1, 1), make_mesh(8, 1)):
        params = init_params(SHAPE, jax.random.key(0))
        params = put(params, policy_shardings(mesh, params, params, transformer_policy(SHAPE, eos=0, mesh=mesh).partition))
        ready = sampling_module.decode_weights(transformer_policy(SHAPE, eos=0, mesh=mesh).decoder, params)
        assert all(ours is theirs for ours, theirs in zip(jax.tree.leaves(ready), jax.tree.leaves(params), strict=True))
