"""Data types that the devices do not support are refused by name before a weight is read."""

import sys
from dataclasses import replace

import jax
import pytest
from small_models import LLAMA
from small_runs import SMALL, even_length

import rljax
from rljax.errors import InputError
from rljax.models import transformer_policy
from rljax.models.attention import Facts
from rljax.models.dtypes import check_dtype, explain_unsupported_dtype
from rljax.models.huggingface import save_pretrained
from rljax.models.language_model import init_params
from rljax.models.patches import Patches, patch_policy
from rljax.models.value_model import load_value_model

TURING, AMPERE, MAXWELL = ("gpu", (7, 5)), ("gpu", (8, 0)), ("gpu", (5, 2))
AMD, TPU, CPU = ("gpu", None), ("tpu", None), ("cpu", None)


@pytest.mark.parametrize(
    ("device", "x64", "dtypes"),
    [
        (CPU, False, ["float32", "bfloat16", "float16"]),
        (CPU, True, ["float32", "bfloat16", "float16", "float64"]),
        (AMPERE, False, ["float32", "bfloat16", "float16"]),
        (TURING, False, ["float32", "float16"]),
        (MAXWELL, True, ["float32", "float64"]),
        (AMD, False, ["float32", "bfloat16", "float16"]),
        (TPU, False, ["float32", "bfloat16"]),
    ],
)
def test_each_device_lists_its_supported_types(device, x64, dtypes):
    names = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "int4")
    assert [name for name in names if explain_unsupported_dtype(Facts(*device, name, 64), x64=x64) is None] == dtypes


@pytest.mark.parametrize(
    ("device", "dtype", "reason"),
    [
        (TURING, "bfloat16", "needs an NVIDIA GPU of compute capability 8.0 or more, but the devices are gpu 7.5"),
        (TPU, "float16", "TPUs multiply in bfloat16 and float32"),
        (CPU, "float64", "without jax_enable_x64, JAX computes in 32 bits"),
        (AMPERE, "float8_e4m3fn", "products are computed in one of float32, bfloat16, float16, float64"),
    ],
)
def test_the_error_contains_the_reason(device, dtype, reason):
    with pytest.raises(InputError, match=f"dtype='{dtype}' cannot be used: .*{reason}.* Leave out `dtype`: float32"):
        check_dtype(Facts(*device, dtype, 64), x64=False)


def turing_facts(config, mesh):
    """Return the facts of a GPU without bfloat16."""
    return Facts(*TURING, config.compute_dtype, config.head_dim)


def test_unsupported_dtypes_are_refused_before_weights_are_read(tmp_path, monkeypatch):
    shape = replace(LLAMA, norm_eps=3e-5)  # no other test uses this value, because equal settings share a policy
    half, run = (
        replace(shape, compute_dtype="bfloat16"),
        SMALL.replace(dtype="bfloat16", width=24, run=str(tmp_path / "run")),
    )
    save_pretrained(tmp_path / "model", shape, init_params(shape, jax.random.key(0)), bos=None, eos=1)
    for name in ("transformer_policy", "value_model", "patches"):
        monkeypatch.setattr(sys.modules[f"rljax.models.{name}"], "facts_of", turing_facts)
    transformer_policy(shape, eos=1)
    for refused in (
        lambda: transformer_policy(half, folder=tmp_path / "model", eos=1),
        lambda: load_value_model(tmp_path / "model", compute_dtype="bfloat16"),
        lambda: patch_policy(half, Patches((4, 5, 6, 7), rows=2, columns=2)),
        lambda: rljax.train(run, even_length),
        lambda: rljax.train(run.replace(lora_rank=2, quantize="nf4"), even_length),
    ):
        with pytest.raises(InputError, match=r"bfloat16 needs an NVIDIA GPU of compute capability 8\.0"):
            refused()
    assert not (tmp_path / "run").exists()
