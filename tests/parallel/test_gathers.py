"""How often compiled programs gather sharded parameters, and how many gathered parameters are in memory at once.

Nothing is run: the counts come from the CPU compiler, with the compiler options that `rljax plan` uses.
"""

from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rljax.models import TransformerConfig, transformer_policy
from rljax.models.token_scores import token_scores
from rljax.parallel import make_mesh, row_sharding
from rljax.parallel.collectives import collectives
from rljax.programs.compiled_updates import measuring_options, temporaries
from rljax.rollout import Sequences, pack_one_per_row
from rljax.training.memory_plan import parameter_shapes

ROWS, TOKENS, WIDTH, VOCAB = 8, 16, 64, 4096
DEEP = TransformerConfig(
    vocab_size=512, width=2048, layers=2, heads=16, kv_heads=8, head_dim=128, hidden=8192, remat="full"
)
MATRICES = [
    *[4 * DEEP.width * DEEP.head_dim * heads for heads in (DEEP.heads, DEEP.heads, DEEP.kv_heads, DEEP.kv_heads)],
    *[4 * DEEP.width * DEEP.hidden] * 3,
]
"""Bytes of each matrix of a layer."""


def compile_for(function, mesh, *shapes, out_shardings=None):
    program = jax.jit(function, out_shardings=out_shardings).lower(*shapes)
    return program.compile(compiler_options=measuring_options(mesh))


@pytest.mark.parametrize("chunk", [1, 16])
@pytest.mark.parametrize("axes", [(1, 8, 1), (2, 4, 1), (2, 2, 2)], ids=["1x8x1", "2x4x1", "2x2x2"])
def test_head_is_not_gathered_and_its_gradient_is_summed_once(axes, chunk):
    """A chunk is one token or 16 tokens per device; one program contains the forward and the backward pass."""
    mesh = make_mesh(*axes)
    sharding = NamedSharding(mesh, PartitionSpec("tensor", "fsdp"))
    hidden = jax.ShapeDtypeStruct((ROWS, TOKENS, WIDTH), jnp.float32, sharding=row_sharding(mesh))
    tokens = jax.ShapeDtypeStruct((ROWS, TOKENS), jnp.int32, sharding=row_sharding(mesh))
    head = jax.ShapeDtypeStruct((VOCAB, WIDTH), jnp.float32, sharding=sharding)

    def total(hidden, head, tokens):
        return token_scores(hidden, head, tokens, chunk=chunk, mesh=mesh)[0].sum()

    out_shardings = None, (row_sharding(mesh), sharding)
    gradient = jax.value_and_grad(total, (0, 1))
    found = collectives(compile_for(gradient, mesh, hidden, head, tokens, out_shardings=out_shardings).as_text())
    shard_bytes = 4 * VOCAB * WIDTH // (mesh.shape["tensor"] * mesh.shape["fsdp"])
    counts = Counter((each.kind, each.size, each.times) for each in found if each.size >= shard_bytes)
    exchanges = counts.pop(("all-to-all", shard_bytes, 1))
    assert 2 <= exchanges <= 3, (
        "the head is resharded from width to vocabulary in one or both passes, and its gradient is resharded back"
    )
    assert counts == ({("all-reduce", shard_bytes, 1): 1} if mesh.shape["data"] > 1 else {}), (
        "the gradient is summed over replicas"
    )


@pytest.fixture(scope="module")
def deep():
    """Number of layers (2 or 3) -> compiled gradient of the log-probabilities over fsdp=8."""
    mesh, tokens = make_mesh(1, 8), np.ones((ROWS, 4), np.int32)
    packed = pack_one_per_row(Sequences(tokens, tokens > 0, tokens, tokens > 0))
    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=row_sharding(mesh)), packed)

    def gradient(layers):
        policy = transformer_policy(replace(DEEP, layers=layers), eos=0, mesh=mesh)
        params = parameter_shapes(policy, mesh)
        out_shardings = None, jax.tree.map(lambda leaf: leaf.sharding, params)
        score = jax.value_and_grad(lambda params, rows: policy.score(params, rows, 1.0).logp.sum())
        return compile_for(score, mesh, params, rows, out_shardings=out_shardings)

    return {layers: gradient(layers) for layers in (2, 3)}


def test_layer_matrices_are_gathered_once_per_pass(deep):
    sizes = {
        layers: Counter(
            each.size for each in collectives(program.as_text()) if each.kind == "all-gather" and each.times == 1
        )
        for layers, program in deep.items()
    }
    per_layer = Counter({size: count for size, count in (sizes[3] - sizes[2]).items() if size >= min(MATRICES)})
    assert per_layer == Counter(2 * MATRICES), "once in the forward pass, and again when the layer is recomputed"
    assert max(sizes[3]) == max(MATRICES), "no gather contains two matrices"


def test_additional_layer_needs_little_temporary_memory(deep):
    """A layer's parameters are gathered when they are needed, and its gradient is summed and sharded as soon as it is computed."""
    layer = sum(MATRICES)
    assert temporaries(deep[2]) > max(MATRICES), "the count includes gathered matrices"
    assert temporaries(deep[3]) - temporaries(deep[2]) <= 0.01 * layer
