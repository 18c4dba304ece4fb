"""Experts in MXFP4: the values of the format, and GPT-OSS folders that store them."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from ml_dtypes import float4_e2m1fn, float8_e8m0fnu
from models.families import CASES, TOKENS, write_folder
from safetensors.numpy import load_file, save_file

from rljax.errors import InputError
from rljax.models import Model
from rljax.models.huggingface import load_params, model_contents, read_config
from rljax.models.language_model import logits
from rljax.models.model_folder import write_model
from rljax.models.mxfp4 import decode_blocks

WIDE = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16}
POSITIONS = jnp.broadcast_to(jnp.arange(TOKENS.shape[1]), TOKENS.shape)


def test_all_codes_and_scales_match_ml_dtypes():
    codes, scales = np.arange(16, dtype=np.uint8), np.arange(1, 251, dtype=np.uint8)
    blocks = np.broadcast_to(codes[::2] | codes[1::2] << 4, (1, len(scales), 1, 8))
    expected = codes.view(float4_e2m1fn).astype(np.float64) * scales.view(float8_e8m0fnu).astype(np.float64)[:, None]
    np.testing.assert_array_equal(decode_blocks(blocks, scales[None, :, None])[0], expected.astype(np.float32))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A GPT-OSS folder whose experts are stored in MXFP4, and the values that they represent."""
    monkeypatch.setitem(CASES, "wide", CASES["gpt_oss"] | WIDE)
    path = write_folder(tmp_path / "wide", "wide")
    random, tensors, exact = np.random.default_rng(0), load_file(path / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        codes = random.integers(0, 16, (experts, outputs, inputs // 32, 32), np.uint8)
        scales = random.integers(124, 128, (experts, outputs, inputs // 32), np.uint8)
        tensors |= {f"{name}_blocks": codes[..., ::2] | codes[..., 1::2] << 4, f"{name}_scales": scales}
        values = codes.view(float4_e2m1fn).astype(np.float32) * scales.view(float8_e8m0fnu).astype(np.float32)[..., None]
        exact[name] = values.reshape(experts, outputs, inputs).transpose(0, 2, 1)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    raw = json.loads((path / "config.json").read_text())
    raw["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (path / "config.json").write_text(json.dumps(raw))
    return path, exact


def test_mxfp4_experts_are_read_and_written_exactly(folder, tmp_path):
    path, exact = folder
    config = read_config(path)
    params = load_params(path, config)
    for layer, expected in enumerate(exact[f"model.layers.{index}.mlp.experts.gate_up_proj"] for index in range(2)):
        np.testing.assert_array_equal(params["layers"][layer]["feed_forward"]["expert_gate"], expected[..., ::2])
        np.testing.assert_array_equal(params["layers"][layer]["feed_forward"]["expert_up"], expected[..., 1::2])
    write_model(tmp_path / "out", model_contents(config, params, bos=None, eos=1, source=path))
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    written = load_file(tmp_path / "out/model.safetensors")
    for name, expected in exact.items():
        assert written[name].dtype.name == "bfloat16"
        np.testing.assert_array_equal(written[name].astype(np.float32), expected)


def test_logits_match_transformers(folder):
    torch = pytest.importorskip("torch", reason="parity with transformers needs PyTorch: pip install torch")
    from transformers import AutoModelForCausalLM, Mxfp4Config

    path, _ = folder
    theirs = AutoModelForCausalLM.from_pretrained(path, quantization_config=Mxfp4Config(dequantize=True)).float()
    config = read_config(path)
    ours = logits(Model(config), load_params(path, config), jnp.array(TOKENS), POSITIONS, jnp.ones_like(POSITIONS))
    with torch.no_grad():
        np.testing.assert_allclose(ours, theirs(torch.tensor(TOKENS)).logits.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, name: tensors.pop(f"{name}_scales"), "is missing"),
        (
            lambda tensors, name: tensors.update({f"{name}_scales": np.zeros((4, 2, 1), np.uint8)}),
            "do not store matrices in",
        ),
        (
            lambda tensors, name: tensors.update({f"{name}_scales": np.zeros((4, 32, 1), np.float32)}),
            "do not store matrices",
        ),
    ],
)
def test_inconsistent_mxfp4_tensors_are_refused(folder, change, message):
    path, _ = folder
    tensors = load_file(path / "model.safetensors")
    change(tensors, "model.layers.1.mlp.experts.down_proj")
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(InputError, match=message):
        load_params(path, read_config(path))
