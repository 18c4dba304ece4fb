"""Folders with quantized weights: their contents, what rljax and transformers read from them, and what is refused."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from small_cli import refused
from small_runs import SMALL, even_length

import rljax
from rljax.errors import InputError
from rljax.models import Model, init_params
from rljax.models.config import TransformerConfig
from rljax.models.huggingface import load_params, model_contents, read_config, save_pretrained
from rljax.models.language_model import logits
from rljax.models.model_folder import ModelContents, Tensor, read_json, write_model
from rljax.models.packed_integers import BITS, pack, packed_contents, unpack

SHAPE = TransformerConfig(40, 64, layers=2, heads=2, kv_heads=1, head_dim=32, hidden=96, qkv_bias=True)
TOKENS = jnp.array([[3, 5, 7, 11, 13, 17, 19, 2]])
POSITIONS = jnp.arange(8)[None]


@pytest.fixture(scope="module")
def exact():
    return jax.tree.map(lambda leaf: 2 * leaf, init_params(SHAPE, jax.random.key(0)))


@pytest.fixture(scope="module", params=BITS)
def folder(request, exact, tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / request.param
    write_model(path, packed_contents(model_contents(SHAPE, exact, bos=None, eos=1), request.param), max_shard_bytes=20_000)
    return request.param, path


def round_to_nearest(matrix, bits, group):
    """Round each weight to the nearest multiple of its group's scale, one weight at a time."""
    most, out = 2 ** (bits - 1) - 1, np.empty_like(matrix)
    for row in range(matrix.shape[0]):
        for begin in range(0, matrix.shape[1], group):
            part = matrix[row, begin : begin + group]
            scale = np.float32(np.abs(part).max() / most)
            steps = scale * np.arange(-most, most + 1, dtype=np.float32)
            out[row, begin : begin + group] = [steps[np.abs(steps - weight).argmin()] for weight in part]
    return out


def test_weights_are_read_as_multiples_of_their_scales(folder, exact):
    kind, path = folder
    assert read_config(path) == SHAPE
    assert len(list(path.glob("*.safetensors"))) > 2
    read = load_params(path, read_config(path))
    attention, own = (params["layers"][0]["attention"] for params in (read, exact))
    key = round_to_nearest(np.asarray(own["key"]).transpose(1, 2, 0).reshape(32, 64), BITS[kind], 32)
    np.testing.assert_allclose(np.asarray(attention["key"]).transpose(1, 2, 0).reshape(32, 64), key, rtol=1e-5)
    down = round_to_nearest(np.asarray(exact["layers"][1]["feed_forward"]["down"]).T, BITS[kind], 32)
    np.testing.assert_allclose(np.asarray(read["layers"][1]["feed_forward"]["down"]).T, down, rtol=1e-5)
    np.testing.assert_array_equal(read["embedding"], exact["embedding"])
    np.testing.assert_array_equal(attention["key_bias"], own["key_bias"])


def test_quantized_logits_match_transformers(folder):
    torch = pytest.importorskip("torch", reason="parity with transformers needs PyTorch: pip install torch")
    pytest.importorskip(
        "compressed_tensors", reason="transformers needs it to read such folders: pip install compressed-tensors"
    )
    from transformers import AutoModelForCausalLM

    _, path = folder
    theirs = AutoModelForCausalLM.from_pretrained(path)
    config = read_config(path)
    ours = logits(Model(config, None), load_params(path, config), TOKENS, POSITIONS, jnp.ones_like(POSITIONS))
    with torch.no_grad():
        np.testing.assert_allclose(theirs(torch.tensor(np.asarray(TOKENS))).logits.numpy(), ours, atol=1e-4)


def test_quantized_weights_are_saved_in_full_precision(folder, tmp_path):
    _, path = folder
    config = read_config(path)
    write_model(tmp_path / "out", model_contents(config, load_params(path, config), bos=None, eos=1, source=path))
    assert "quantization_config" not in read_json(tmp_path / "out" / "config.json")
    assert {array.dtype for array in load_file(tmp_path / "out" / "model.safetensors").values()} == {np.dtype("float32")}


@given(st.sampled_from([4, 8]), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**32))
def test_unpacking_is_the_inverse_of_packing(bits, rows, groups, seed):
    random = np.random.default_rng(seed)
    integers = random.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), size=(rows, 32 * groups)).astype(np.int32)
    words = pack(integers, bits)
    assert words.nbytes == integers.size * bits // 8
    scale = random.uniform(0.1, 2, size=(rows, groups)).astype(np.float32)
    np.testing.assert_array_equal(
        unpack(words, scale, integers.shape), integers.astype(np.float32) * scale.repeat(32, axis=1)
    )


def test_zeros_stay_zero_and_rounding_uses_the_bfloat16_scales():
    matrix = np.zeros((2, 64), np.float32)
    matrix[0, :32] = np.linspace(-1, 1, 32)
    tensor = Tensor("model.layers.0.mlp.up_proj.weight", (matrix,), np.dtype(jnp.bfloat16), lambda x: x)
    words, scale, shape = packed_contents(ModelContents({}, (tensor,)), "int8").tensors
    assert (words.shape, scale.shape, shape.shape, words.stored_bytes) == ((2, 16), (2, 1), (2,), 128)
    stored = scale.layout(matrix).astype(scale.dtype)
    assert stored.dtype == jnp.bfloat16
    found = unpack(words.layout(matrix), stored.astype(np.float32), (2, 64))
    assert np.abs(found - matrix).max() <= 0.5 * float(stored[0, 0]) * 1.001
    assert not found[1].any()


@pytest.mark.parametrize("end", ["_packed", "_scale", "_shape"])
def test_a_missing_or_misshapen_tensor_is_named(folder, tmp_path, end):
    _, path = folder
    broken = shutil.copytree(path, tmp_path / "broken")
    name = "model.layers.1.mlp.up_proj.weight" + end
    index = read_json(broken / "model.safetensors.index.json")
    file = broken / index["weight_map"][name]
    tensors = load_file(file)
    save_file(tensors | {name: tensors[name][:1]}, file)
    with pytest.raises(InputError, match="up_proj"):
        load_params(broken, SHAPE)
    del tensors[name]
    save_file(tensors, file)
    with pytest.raises(InputError, match="up_proj"):
        load_params(broken, SHAPE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "gptq"}, "quant_method 'gptq'"),
        ({"format": "float-quantized"}, "the format 'float-quantized'"),
        ({"config_groups": None}, "no config_groups"),
    ],
)
def test_other_formats_are_refused(folder, tmp_path, change, message):
    _, path = folder
    other = shutil.copytree(path, tmp_path / "other")
    raw = read_json(other / "config.json")
    raw["quantization_config"] |= change
    (other / "config.json").write_text(json.dumps(raw))
    with pytest.raises(InputError, match=message):
        read_config(other)


@pytest.mark.parametrize(
    ("name", "value"), [("symmetric", False), ("num_bits", 3), ("type", "float"), ("actorder", "group")]
)
def test_unsupported_quantization_settings_are_refused(folder, tmp_path, name, value):
    _, path = folder
    other = shutil.copytree(path, tmp_path / "other")
    raw = read_json(other / "config.json")
    raw["quantization_config"]["config_groups"]["group_0"]["weights"][name] = value
    (other / "config.json").write_text(json.dumps(raw))
    with pytest.raises(InputError, match=f"weights with {name}"):
        read_config(other)


def test_weights_that_cannot_be_quantized_are_refused(exact):
    contents = model_contents(SHAPE, exact, bos=None, eos=1)
    with pytest.raises(InputError, match="quantize='int3' is unknown"):
        packed_contents(contents, "int3")
    odd = TransformerConfig(40, 20, layers=1, heads=1, kv_heads=1, head_dim=20, hidden=32)
    with pytest.raises(InputError, match=r"q_proj.weight has 20 inputs"):
        packed_contents(model_contents(odd, init_params(odd, jax.random.key(0)), bos=None, eos=1), "int8")


def test_an_exported_run_can_be_sampled_from(tmp_path, capsys):
    save_pretrained(tmp_path / "model", SHAPE, init_params(SHAPE, jax.random.key(1)), bos=None, eos=1)
    settings = {
        "model": str(tmp_path / "model"),
        "tokenizer": "characters",
        "run": str(tmp_path / "run"),
        "steps": 1,
        "lora_rank": 2,
    }
    rljax.train(SMALL.replace(**settings, train_problems=24, heldout_problems=6), even_length)
    out = rljax.export(tmp_path / "run", tmp_path / "out", quantize="int8")
    assert read_json(out / "config.json")["quantization_config"]["format"] == "pack-quantized"
    assert rljax.load(out, problems=[rljax.Problem("1+1=", "2")], max_response_tokens=4).sample(["1+1="])
    flags = ("--adapter", "--quantize", "int4")
    refused(
        capsys,
        "--quantize 'int4' cannot be used with an adapter",
        "export",
        str(tmp_path / "run"),
        str(tmp_path / "no"),
        *flags,
    )
