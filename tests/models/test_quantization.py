"""Matrices in 8 and 4 bits: quantization, products, gradients, sharding and memory."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm
from small_models import ADAPTER_SCALE, LLAMA, SHAPES, make_packed, random_adapter, random_params

from rljax.errors import InputError
from rljax.models import abstract_params, count_parameters, score_tokens, transformer_policy
from rljax.models.adapters import Base, effective_params, unmerged_params
from rljax.models.huggingface import save_pretrained
from rljax.models.language_model import Model, product_copies
from rljax.models.policy import with_copies
from rljax.models.quantization import (
    LEVELS,
    Quantized,
    check_blocks,
    choose_block,
    dequantize,
    dequantize_params,
    is_quantized,
    matrix_shapes,
    quantize_int8,
    quantize_nf4,
    quantize_params,
    quantized_product,
)
from rljax.parallel import make_mesh, policy_shardings, put

KINDS = ("int8", "nf4")
WIDE = replace(LLAMA, width=128, head_dim=32, hidden=256)


def make_matrix(*shape, seed=0):
    """Normally distributed weights; the first block is all zeros, the second has an outlier."""
    matrix = np.array(jax.random.normal(jax.random.key(seed), shape))
    matrix[:64, ..., 0] = 0
    matrix[64, ..., 0] = 40
    return jnp.asarray(matrix)


def test_the_levels_are_quantiles_of_a_normal_distribution():
    """Appendix E: eight levels above 0 and seven below, each half evenly spaced in probability after cutting off a tail."""
    tail = (1 / 32 + 1 / 30) / 2
    above = norm.ppf(np.linspace(1 - tail, 0.5, 9)[:-1])
    below = -norm.ppf(np.linspace(1 - tail, 0.5, 8)[:-1])
    levels = np.sort([*above, *below, 0])
    np.testing.assert_allclose(LEVELS, levels / levels.max(), atol=2e-7)


@pytest.mark.parametrize("shape", [(128, 3), (192, 2, 2)])
def test_nf4_rounds_to_the_nearest_level_of_the_block(shape):
    matrix = make_matrix(*shape)
    found, matrix = np.asarray(dequantize(quantize_nf4(matrix, axis=0))), np.asarray(matrix)
    for index in np.ndindex(*shape):
        begin = index[0] // 64 * 64
        scale = float(np.abs(matrix[(slice(begin, begin + 64), *index[1:])]).max())
        nearest = min((level * scale for level in LEVELS), key=lambda x: abs(x - float(matrix[index])))
        assert found[index] == pytest.approx(nearest, abs=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_error_is_at_most_half_a_step(axis):
    """Half an integer for int8 and half the widest gap for NF4; int8 errors have the root mean square of a uniform error."""
    matrix = make_matrix(128, 64, 3)
    blocks = np.moveaxis(np.asarray(matrix), axis, 0).reshape(-1, 64, *np.delete(matrix.shape, axis))
    scale = np.abs(blocks).max(1, keepdims=True)
    gap = max(high - low for low, high in pairwise(LEVELS))
    for quantize, most in ((quantize_int8, 1 / 254), (quantize_nf4, gap / 2)):
        found = np.moveaxis(np.asarray(dequantize(quantize(matrix, axis=axis))), axis, 0).reshape(blocks.shape)
        error = np.abs(found - blocks)
        assert (error <= scale * most * (1 + 1e-5)).all()
        assert (found[np.broadcast_to(scale == 0, found.shape)] == 0).all()
        largest = np.abs(blocks) == scale
        np.testing.assert_allclose(np.abs(found[largest]), np.abs(blocks[largest]), rtol=1e-6)
        if quantize is quantize_int8:
            ordinary = (scale > 0) & (scale < 10)
            ratio = (error / np.where(ordinary, scale / 127, 1))[np.broadcast_to(ordinary, error.shape)]
            assert np.sqrt(np.square(ratio).mean()) == pytest.approx(12**-0.5, rel=0.05)


@pytest.mark.parametrize(("kind", "bits"), [("int8", 8.5), ("nf4", 4.5)])
def test_scales_add_half_a_bit_per_weight(kind, bits):
    params = random_params(WIDE)
    quantized = quantize_params(params, kind=kind, dtype="bfloat16")
    matrices = [leaf for leaf in jax.tree.leaves(quantized, is_leaf=is_quantized) if is_quantized(leaf)]
    assert len(matrices) == 7 * WIDE.layers, "all matrices of the layers"
    for leaf in matrices:
        size = np.prod(leaf.shape)
        extra = 32 * (1 / choose_block(leaf.shape[leaf.axis]) - 1 / 64)  # heads of 32 have smaller blocks
        assert 8 * (leaf.codes.nbytes + leaf.scale.nbytes) == (bits + extra) * size
    assert quantized["embedding"].dtype == jnp.bfloat16
    assert quantized["norm"]["scale"] is params["norm"]["scale"]
    shapes = jax.tree.map(lambda leaf: leaf.shape, (matrix_shapes(quantized), params))
    assert shapes[0] == shapes[1]
    assert dequantize_params(params) is params


@pytest.mark.parametrize(("axis", "shape"), [(0, (64, 3, 4)), (1, (3, 64, 5)), (0, (64, 5))])
@pytest.mark.parametrize("quantize", [quantize_int8, quantize_nf4])
def test_products_and_derivatives_match_the_dequantized_matrix(axis, shape, quantize):
    matrix = jax.random.normal(jax.random.key(0), shape)
    x = jax.random.normal(jax.random.key(1), (2, 3, *shape[: axis + 1]))
    quantized = quantize(matrix, axis=axis)

    def loss(product):
        return jax.value_and_grad(lambda x: jnp.sin(product(x)).sum())(x)

    ours = loss(lambda x: quantized_product(x, quantized))
    plain = loss(lambda x: jnp.tensordot(x, dequantize(quantized), axes=axis + 1))
    for one, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "name", "targets"),
    [("int8", "llama-biased", ("attention", "down")), ("nf4", "qwen3", ("feed_forward",))],
)
def test_an_adapter_learns_the_same_as_on_the_dequantized_model(kind, name, targets):
    """Compare log-probabilities, every factor's gradient and the sampler's merged copy; some matrices have no adapter."""
    config = replace(SHAPES[name], remat="full" if name == "qwen3" else "none")
    params = random_params(config)
    quantized = Base(quantize_params(params, kind=kind, dtype="float32"), ADAPTER_SCALE)
    plain, adapter = Base(dequantize_params(quantized.params), ADAPTER_SCALE), random_adapter(params, targets=targets)
    weights = jax.random.normal(jax.random.key(5), (2, 5))

    @jax.jit
    def both(base):
        def loss(adapter):
            return (weights * score_tokens(Model(config), unmerged_params(base, adapter), make_packed()).logp).sum()

        return jax.value_and_grad(loss)(adapter)

    (found, by_factor), (expected, by_plain) = both(quantized), both(plain)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=5e-6)  # a float32 sum of ten terms of a few nats each
    for one, other in zip(jax.tree.leaves(by_factor), jax.tree.leaves(by_plain), strict=True):
        size = np.abs(other).max()
        assert size > 1e-4
        np.testing.assert_allclose(one / size, other / size, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, effective_params(quantized, adapter), effective_params(plain, adapter))


@pytest.mark.parametrize("kind", KINDS)
def test_loading_a_folder_quantizes_each_tensor(tmp_path, kind):
    params = random_params(WIDE)
    save_pretrained(tmp_path / "model", WIDE, params, bos=None, eos=1)
    expected = quantize_params(params, kind=kind, dtype="float32")
    for mesh in (None, make_mesh(2, 2, 2)):
        policy = transformer_policy(WIDE, folder=tmp_path / "model", eos=1, mesh=mesh)
        found = policy.quantized(jax.random.key(0), kind=kind)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_codes_and_scales_are_sharded_like_their_matrix():
    mesh = make_mesh(2, 2, 2)
    params = random_params(WIDE)
    policy = transformer_policy(WIDE, eos=1, mesh=mesh)
    quantized, adapter = quantize_params(params, kind="nf4", dtype="float32"), random_adapter(params)
    check_blocks(quantized, mesh)
    shardings = policy_shardings(mesh, quantized, quantized, policy.partition)
    layer = jax.tree.map(lambda sharding: tuple(sharding.spec), shardings["layers"][0])
    assert layer["attention"]["query"] == Quantized(("fsdp", "tensor", None), ("fsdp", "tensor", None))
    assert layer["attention"]["output"] == Quantized(("tensor", None, "fsdp"), ("tensor", None, "fsdp"))
    assert layer["feed_forward"]["down"] == Quantized(("tensor", "fsdp"), ("tensor", "fsdp"))
    on_mesh = put(quantized, shardings)
    down = on_mesh["layers"][0]["feed_forward"]["down"]
    assert {shard.data.shape for shard in down.codes.addressable_shards} == {(64, 64)}
    assert {shard.data.shape for shard in down.scale.addressable_shards} == {(2, 64)}

    twice = jax.tree.map(lambda array: jnp.concatenate([array, array]), make_packed())  # one row per device
    twice = twice._replace(place=twice.place + jnp.repeat(jnp.array([0, 10]), 2)[:, None])

    @partial(jax.jit, static_argnames="on")
    def score(params, *, on):
        return score_tokens(Model(WIDE, on), unmerged_params(Base(params, ADAPTER_SCALE), adapter), twice).logp

    np.testing.assert_allclose(score(on_mesh, on=mesh), score(quantized, on=None), atol=1e-4)


def test_a_backward_pass_keeps_one_layer_of_full_matrices():
    """Compare memory for one layer and for two; if full matrices were kept, the second layer would add their size."""

    def temporaries(layers):
        config = replace(WIDE, width=256, hidden=1024, layers=layers, remat="full")
        params = abstract_params(config)
        quantized = jax.eval_shape(partial(quantize_params, kind="nf4", dtype="float32"), params)
        adapter = jax.eval_shape(lambda: random_adapter(params))

        def loss(adapter, params):
            return score_tokens(
                Model(config), unmerged_params(Base(params, ADAPTER_SCALE), adapter), make_packed()
            ).logp.sum()

        options = {"xla_disable_hlo_passes": "cse_barrier_expander", "xla_backend_optimization_level": 0}
        program = jax.jit(jax.grad(loss)).lower(adapter, quantized).compile(compiler_options=options)
        return program.memory_analysis().temp_size_in_bytes, 4 * count_parameters(params["layers"][0])

    (few, matrices), (more, _) = temporaries(1), temporaries(2)
    assert few > matrices / 4
    assert more - few < matrices / 10


def test_an_update_makes_no_copy_of_quantized_matrices():
    config = replace(WIDE, compute_dtype="bfloat16")
    quantized = quantize_params(random_params(config), kind="int8", dtype="bfloat16")
    copies = product_copies(Model(config), quantized)
    assert not jax.tree.leaves(copies)
    assert jax.tree.structure(with_copies(quantized, copies)) == jax.tree.structure(quantized)


def test_matrices_that_cannot_be_split_into_blocks_are_refused():
    params = random_params(replace(LLAMA, head_dim=6))
    with pytest.raises(
        InputError, match=r"quantize='nf4' divides .* layers/0/attention/output of shape \[4, 6, 16\] has 6"
    ):
        quantize_params(params, kind="nf4", dtype="float32")
    quantized = quantize_params(random_params(WIDE), kind="int8", dtype="float32")
    with pytest.raises(
        InputError, match="fsdp=4 cannot share the 2 blocks of the quantized layers/0/attention/key equally"
    ):
        check_blocks(quantized, make_mesh(1, 4, 2))
