"""Context parallelism: memory and communication of devices that share a sequence, and training runs on such devices."""

import jax
import numpy as np
import pytest
from small_runs import STEPPED

import rljax
from rljax.models import TransformerConfig, transformer_policy
from rljax.parallel import make_mesh, mesh_for_sampling, row_sharding
from rljax.parallel.collectives import collectives
from rljax.programs.compiled_updates import measuring_options, temporaries
from rljax.rollout import Sequences, pack_one_per_row
from rljax.tracking.rows import read_metrics
from rljax.training.memory_plan import parameter_shapes

SHAPE = TransformerConfig(vocab_size=64, width=128, layers=2, heads=8, kv_heads=8, head_dim=16, hidden=512, remat="full")
SLOTS = 2048


def odd_length(completions):
    return [float(len(completion) % 2) for completion in completions]


def compile_gradient(rows, mesh):
    """Compile the gradient of the log-probabilities of `rows` sequences of `SLOTS` tokens."""
    tokens = np.ones((rows, SLOTS // 2), np.int32)
    packed = pack_one_per_row(Sequences(tokens, tokens > 0, tokens, tokens > 0))
    packed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=row_sharding(mesh)), packed)
    policy = transformer_policy(SHAPE, eos=0, mesh=mesh, chunk=64)
    params = parameter_shapes(policy, mesh)
    shardings = None, jax.tree.map(lambda leaf: leaf.sharding, params)
    score = jax.value_and_grad(lambda params, rows: policy.score(params, rows, 1.0).logp.sum())
    program = jax.jit(score, out_shardings=shardings).lower(params, packed)
    return program.compile(compiler_options=measuring_options(mesh))


def test_sharded_sequence_needs_far_less_memory():
    unsharded, sharded = compile_gradient(8, make_mesh(1, 8)), compile_gradient(1, make_mesh(1, 1, 1, 8))
    assert temporaries(sharded) < 0.25 * temporaries(unsharded), "expected an eighth, plus a constant part"


def test_attention_exchanges_tokens_for_heads():
    program = compile_gradient(1, make_mesh(1, 1, 1, 8))
    hidden_bytes = 4 * SLOTS * SHAPE.width
    found = [each for each in collectives(program.as_text()) if each.size >= hidden_bytes // 8]
    exchanges = [each for each in found if each.kind == "all-to-all" and each.size == hidden_bytes // 8]
    assert len(exchanges) >= 12 * SHAPE.layers, "query, key, value and result: forward, recomputed, and backward"
    assert [each.kind for each in found if each.size >= hidden_bytes] == ["all-gather"], (
        "only the hidden states before the head"
    )


def test_sampling_mesh_has_the_same_devices():
    mesh = make_mesh(1, 2, 1, 4)
    flat = mesh_for_sampling(mesh)
    assert dict(flat.shape) == {"data": 1, "fsdp": 8, "tensor": 1}
    assert flat.devices.flatten().tolist() == mesh.devices.flatten().tolist()
    assert mesh_for_sampling(flat) is flat


@pytest.mark.parametrize("settings", [{"algorithm": "ppo", "lora_rank": 2}], ids=["ppo-lora"])
def test_run_resumes_on_a_mesh_with_context(settings, tmp_path):
    config = STEPPED.replace(**settings, heads=4, kv_heads=4, steps=4, run=str(tmp_path / "run"), fsdp=4)
    rljax.train(config, reward=odd_length)
    expected = read_metrics(tmp_path / "run" / "metrics.jsonl")
    sharded = config.replace(run=str(tmp_path / "sharded"), steps=2, fsdp=2, context=2)
    rljax.train(sharded, reward=odd_length)
    rljax.train(sharded.replace(steps=4, fsdp=1, context=4), reward=odd_length, resume="auto")
    found = read_metrics(tmp_path / "sharded" / "metrics.jsonl")
    steps = [[row for row in rows if row["phase"] == "rl"] for rows in (found, expected)]
    assert [row["step"] for row in steps[0]] == [1, 2, 3, 4]
    assert all(0 < row["reward"] < 1 for row in steps[1])
    for actual, reference in zip(*steps, strict=True):
        for name in ("reward", "response_length", "loss", "entropy", "grad_norm"):
            np.testing.assert_allclose(actual[name], reference[name], rtol=2e-3, atol=1e-5, err_msg=name)
