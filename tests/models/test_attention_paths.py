"""The choice of an attention implementation, and kernels for other devices as far as a CPU can test them."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import LLAMA

from rljax.errors import InputError
from rljax.models import transformer_policy
from rljax.models.attention import (
    Facts,
    attend_cudnn,
    attend_rows,
    attend_splash,
    attend_within,
    check_implementation,
    facts_of,
    why_unsupported,
)
from rljax.parallel import make_mesh

AMPERE, HOPPER, AMD, TPU, CPU = ("gpu", (8, 0)), ("gpu", (9, 0)), ("gpu", None), ("tpu", None), ("cpu", None)


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "kernels"),
    [
        (HOPPER, "bfloat16", 128, ["cudnn"]),
        (HOPPER, "bfloat16", 256, ["cudnn"]),
        (HOPPER, "float16", 64, ["cudnn"]),
        (HOPPER, "float32", 128, []),
        (HOPPER, "bfloat16", 100, []),
        (AMPERE, "bfloat16", 128, ["cudnn"]),
        (AMPERE, "bfloat16", 256, []),
        (("gpu", (7, 5)), "float16", 64, []),
        (AMD, "bfloat16", 128, []),
        (TPU, "bfloat16", 128, ["splash"]),
        (TPU, "float32", 256, ["splash"]),
        (TPU, "bfloat16", 64, []),
        (CPU, "bfloat16", 128, []),
    ],
)
def test_each_device_lists_its_attention_paths(device, dtype, head_dim, kernels):
    facts = Facts(*device, dtype, head_dim)
    paths = ("dense", "blockwise", "cudnn", "splash")
    assert [path for path in paths if why_unsupported(path, facts) is None] == ["dense", "blockwise", *kernels]


@pytest.mark.parametrize(
    ("path", "device", "dtype", "head_dim", "reason"),
    [
        ("cudnn", CPU, "bfloat16", 128, "needs an NVIDIA GPU of compute capability 8.0 or more, but the devices are cpu"),
        ("cudnn", ("gpu", (7, 5)), "bfloat16", 128, "the devices are gpu 7.5"),
        (
            "cudnn",
            HOPPER,
            "float32",
            128,
            "computes in bfloat16 or float16, but this model's matrix products are in float32",
        ),
        ("cudnn", HOPPER, "bfloat16", 512, "a multiple of 8, at most 256, but this model has 512"),
        ("cudnn", AMPERE, "bfloat16", 192, "a multiple of 8, at most 128, but this model has 192"),
        ("splash", HOPPER, "bfloat16", 128, "a kernel for TPUs, but the devices are gpu 9.0"),
        ("splash", TPU, "bfloat16", 64, "a head_dim that is a multiple of 128, but this model has 64"),
    ],
)
def test_an_unsupported_path_is_refused_with_the_reason(path, device, dtype, head_dim, reason):
    facts = Facts(*device, dtype, head_dim)
    assert reason in why_unsupported(path, facts)
    with pytest.raises(InputError, match=f"attention='{path}' cannot run: .*{reason}"):
        check_implementation(path, facts)


@pytest.mark.parametrize(
    ("path", "shape", "reason"),
    [
        ("cudnn", {"score_cap": 30.0}, "cannot bound"),
        ("cudnn", {"sinks": True}, "does not support sinks"),
        ("splash", {"sinks": True}, "does not support sinks"),
    ],
)
def test_kernels_without_score_caps_or_sinks_are_refused(path, shape, reason):
    facts = facts_of(replace(LLAMA, compute_dtype="bfloat16", head_dim=128, **shape), None)
    device = {"cudnn": HOPPER, "splash": TPU}[path]
    assert reason in why_unsupported(path, facts._replace(platform=device[0], capability=device[1]))


def test_an_unsupported_path_is_refused_before_weights_are_read():
    config = replace(LLAMA, attention="splash")
    for mesh in (None, make_mesh(2, 2, 2)):
        with pytest.raises(InputError, match=r"attention='splash' cannot run: .* the devices are cpu"):
            transformer_policy(config, eos=1, mesh=mesh)
    assert facts_of(LLAMA, make_mesh(1, 1)) == Facts("cpu", None, "float32", 4)


def make_inputs(slots, *, dtype=jnp.float32, features=128, heads=(2, 2), rows=2):
    """Make queries, keys, values and segments; rows have several sequences, with padding at both ends and between."""
    keys = jax.random.split(jax.random.key(0), 3)
    query = jax.random.normal(keys[0], (rows, slots, *heads, features), dtype)
    key, value = (jax.random.normal(each, (rows, heads[0], slots, features), dtype) for each in keys[1:])
    segments = np.zeros((rows, slots), np.int32)
    for row in range(rows):
        segments[row, 3 : slots // 3] = 1
        segments[row, slots // 3 : slots - 40 - row] = 2
        segments[row, slots - 30 : slots - 5] = 3
    return query, key, value, jnp.asarray(segments)


def outputs_and_gradients(attend, query, keys, values, segments):
    """Return the outputs, zero at padding, and the gradients of a loss that excludes padding."""
    is_token = (segments > 0)[:, :, None, None, None]

    def loss(*parts):
        mixed = attend(*parts, segments)
        return jnp.where(is_token, jnp.sin(mixed), 0).sum(), jnp.where(is_token, mixed, 0)

    gradients, mixed = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(query, keys, values)
    return mixed, *gradients


@pytest.fixture
def allow_promotion():
    """Allow type and rank promotion, which JAX's own kernels need."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.usefixtures("allow_promotion")
@pytest.mark.parametrize(("slots", "window", "cap"), [(200, None, None), (200, 20, None), (300, 130, None), (200, 20, 0.7)])
def test_splash_attention_matches_dense_attention(slots, window, cap):
    """Run the kernel in interpret mode, also on a mesh; compare outputs and the gradients of queries, keys and values."""
    parts = make_inputs(slots)
    dense = outputs_and_gradients(partial(attend_within, window=window, cap=cap), *parts)
    for mesh in (None, make_mesh(1, 2, 2)):
        found = outputs_and_gradients(partial(attend_splash, mesh=mesh, window=window, cap=cap, interpret=True), *parts)
        for one, other in zip(found, dense, strict=True):
            assert np.abs(other).max() > 0.1
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.usefixtures("allow_promotion")
@pytest.mark.parametrize("window", [None, 100])
def test_splash_lowers_for_a_tpu(window):
    parts = make_inputs(600, dtype=jnp.bfloat16)
    traced = jax.jit(lambda *a: outputs_and_gradients(partial(attend_splash, window=window), *a)).trace(*parts)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("tpu_custom_call") >= 3, (
        "one forward kernel, and backward kernels for queries and for keys and values"
    )


@pytest.mark.parametrize("window", [None, 30])
def test_dense_and_blockwise_attention_agree(window):
    parts = make_inputs(1_100, features=4)
    found = [
        outputs_and_gradients(partial(attend_rows, config=replace(LLAMA, attention=path), mesh=None, window=window), *parts)
        for path in ("dense", "blockwise")
    ]
    for one in found[1:]:
        for part, other in zip(one, found[0], strict=True):
            np.testing.assert_allclose(part, other, atol=1e-5)


@pytest.mark.usefixtures("allow_promotion")
@pytest.mark.parametrize(("slots", "window"), [(200, None), (333, None), (200, 20)])
def test_cudnn_lowers_for_a_gpu(monkeypatch, slots, window):
    """Skip JAX's check of the installed cuDNN. An odd number of slots is padded, and a window becomes part of the mask."""
    from jax._src.cudnn import fused_attention_stablehlo as kernel

    monkeypatch.setattr(kernel, "check_cudnn_version", lambda: 91_000)
    parts = make_inputs(slots, dtype=jnp.bfloat16)
    traced = jax.jit(lambda *a: outputs_and_gradients(partial(attend_cudnn, window=window), *a)).trace(*parts)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "__cudnn$fmha" in line]
    assert any("Backward" in line for line in calls)
    assert any("Backward" not in line for line in calls)
    assert f"tensor<2x{slots + slots % 2}x4x128xbf16>" in calls[0]
    assert "CAUSAL" in text
