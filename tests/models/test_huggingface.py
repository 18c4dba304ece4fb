"""Hugging Face folders: real weights, round trips, parity with transformers, and folders that cannot be read."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_models import LLAMA, ROPE_SCALING, SHAPES, random_params
from transformers import AutoConfig

from rljax.errors import InputError
from rljax.models import Model, transformer_policy
from rljax.models.huggingface import load_params, locate, read_config, save_pretrained
from rljax.models.language_model import logits
from rljax.models.transformer import rope_frequencies
from rljax.parallel import make_mesh
from rljax.rollout import DecodingEngine, Request, Sampling

FREQUENCIES = "model.layers.0.self_attn.rotary_emb.inv_freq"


@pytest.fixture(params=SHAPES)
def saved(request, tmp_path):
    config = SHAPES[request.param]
    params = random_params(config)
    save_pretrained(tmp_path / "model", config, params, bos=None, eos=1)
    return tmp_path / "model", config, params


def test_a_saved_model_is_read_back_exactly(saved):
    folder, config, params = saved
    assert read_config(folder) == config
    jax.tree.map(np.testing.assert_array_equal, load_params(folder, config), params)


def test_transformers_computes_the_same_logits(saved):
    torch = pytest.importorskip("torch", reason="parity with transformers needs PyTorch: pip install torch")
    from transformers import AutoModelForCausalLM

    folder, config, params = saved
    tokens = np.array([[3, 5, 7, 11, 13, 17, 19, 2]])
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor(tokens)).logits.numpy()
    slots = jnp.arange(tokens.size)[None]
    ours = logits(Model(config), params, jnp.array(tokens), slots, jnp.ones_like(slots))
    np.testing.assert_allclose(ours, theirs, atol=2e-4)


def test_sharded_weights_are_found_through_their_index(saved):
    folder, config, params = saved
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, names_in_file in halves.items():
        save_file({name: tensors[name] for name in names_in_file}, folder / file)
    weight_map = {name: file for file, names_in_file in halves.items() for name in names_in_file}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()
    jax.tree.map(np.testing.assert_array_equal, load_params(folder, config), params)


def test_pretrained_weights_generate_the_recorded_story(shared_data):
    folder = shared_data / "stories260k"
    config = read_config(folder)
    policy = transformer_policy(config, folder=folder, bos=1, eos=2)
    engine = DecodingEngine(policy.decoder, make_mesh(1, 1), prompt_length=1)
    request = Request((1,), prompt_id=0, group=0, sampling=Sampling(5, eos_ids=(2,), temperature=0.0), seed=0)
    (response,) = engine.generate(policy.init(jax.random.key(0)), [request])
    assert response.tokens.tolist() == [403, 407, 261, 378, 432]


def edit_config(folder, **changes):
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, **changes}))


@pytest.fixture
def llama(tmp_path):
    save_pretrained(tmp_path / "model", LLAMA, random_params(LLAMA), bos=None, eos=1)
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2", "hidden_size": None}, "family 'gpt2', which is not supported; choose among llama"),
        ({"model_type": "mamba"}, "family 'mamba', which is not supported; choose among llama"),
        ({"hidden_act": "gelu"}, "has hidden_act 'gelu'; it must be absent or \"silu\""),
        (
            {"use_sliding_window": True, "sliding_window": 8},
            "has use_sliding_window True; it must be false, because Llama models have no window",
        ),
        (
            {"model_type": "mistral", "sliding_window": 8, "layer_types": 2 * ["full_attention"]},
            "'sliding_attention' for each",
        ),
        (
            {"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]},
            "'full_attention' for each layer",
        ),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "or 'full_attention' for each layer"),
        ({"model_type": "qwen2", "layer_types": ["linear_attention"] * 2}, "has layer_types"),
        (
            {"model_type": "qwen2", "max_window_layers": -1},
            "has max_window_layers -1; it must be a whole number of at least 0",
        ),
        ({"model_type": "qwen2", "sliding_window": "8"}, "has sliding_window '8'; it must be a whole number above 0"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "has rope_parameters.factor None; it must be a number above 0"),
        (
            {"rope_parameters": {"rope_type": "proportional", "factor": 2.0}},
            "has rope_parameters.rope_type 'proportional'; it must be 'default' or",
        ),
        ({"rope_theta": None, "rope_parameters": None}, "has rope_theta None; it must be left out or a number above 0"),
        ({"rope_parameters": {"rope_theta": None}}, "has rope_theta None; it must be left out or a number above 0"),
        ({"max_position_embeddings": None}, "has max_position_embeddings None; it must be left out or have a value"),
        ({"model_type": "granite", "logits_scaling": None}, "has logits_scaling None; it must be left out or have a value"),
        ({"model_type": "gemma2", "hidden_act": None, "query_pre_attn_scalar": None}, "has query_pre_attn_scalar None"),
        ({"model_type": "olmo"}, "the nearest one is olmo2, but olmo also has norms without"),
    ],
)
def test_unknown_features_are_refused(llama, changes, message):
    edit_config(llama, **changes)
    with pytest.raises(InputError, match=message):
        read_config(llama)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "mistral"}, (4096, 4096)),
        ({"model_type": "mistral", "sliding_window": None}, (None, None)),
        ({"model_type": "mistral", "sliding_window": 8, "layer_types": 2 * ["sliding_attention"]}, (8, 8)),
        ({"model_type": "qwen2", "sliding_window": 8}, (None, None)),
        ({"model_type": "qwen3", "use_sliding_window": True}, (None, None)),
        ({"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 0}, (4096, 4096)),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, (None, 8)),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, (None, None)),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "sliding_window": 8,
                "max_window_layers": 2,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            (8, None),
        ),
    ],
)
def test_windows_match_transformers(llama, changes, windows):
    edit_config(llama, **changes)
    theirs = AutoConfig.from_pretrained(llama)
    if theirs.model_type == "mistral":
        assert windows == (theirs.sliding_window,) * 2
    else:
        assert windows == tuple(
            theirs.sliding_window if kind.startswith("sliding") else None for kind in theirs.layer_types
        )
    assert read_config(llama).windows == windows


def test_a_run_folder_is_not_a_model_folder(llama):
    (llama / "checkpoints").mkdir()
    with pytest.raises(
        InputError, match=r"is the folder of a run, not of a model; write one with `rljax export .*model MODEL`"
    ):
        read_config(llama)


def test_the_older_spelling_of_rotary_scaling_is_read(llama):
    older = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    edit_config(llama, rope_parameters=None, rope_scaling={**older, "original_max_position_embeddings": 64})
    assert read_config(llama) == replace(LLAMA, rope_scaling=ROPE_SCALING)


def test_a_folder_without_weights_is_refused(llama):
    (llama / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has a config.json but no model.safetensors"):
        load_params(llama, LLAMA)


def test_a_missing_tensor_is_named(llama):
    tensors = load_file(llama / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, llama / "model.safetensors")
    with pytest.raises(InputError, match=r"lack the tensor 'model.norm.weight'"):
        load_params(llama, LLAMA)


def test_a_tensor_of_another_shape_is_named(llama):
    message = r"'model.embed_tokens.weight' .* has shape \(20, 16\), but config.json implies \(21, 16\)"
    with pytest.raises(InputError, match=message):
        load_params(llama, replace(LLAMA, vocab_size=21))


@pytest.mark.parametrize("kind", [None, "nf4"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("embed_tokens", (20, 16)),
        ("layers.0.mlp.gate_proj", (24, 16)),
        ("layers.1.mlp.down_proj", (16, 24)),
        ("layers.0.self_attn.k_proj", (16, 16)),
        ("layers.1.self_attn.o_proj", (16, 32)),
        ("layers.1.self_attn.k_norm", (8,)),
    ],
)
def test_the_error_names_a_tensor_with_a_wrong_shape(tmp_path, name, shape, kind):
    """The stored tensor is transposed, or reshaped to one row if its transpose has the same shape."""
    config, name = SHAPES["qwen3"], f"model.{name}.weight"
    save_pretrained(tmp_path, config, random_params(config), bos=None, eos=1)
    tensors = load_file(tmp_path / "model.safetensors")
    other = tensors[name].T.copy()
    tensors[name] = other if other.shape != shape else other.reshape(1, -1)
    save_file(tensors, tmp_path / "model.safetensors")
    policy = transformer_policy(config, folder=tmp_path, eos=1)
    message = f"{name!r} in .* has shape {tensors[name].shape}, but config.json implies {shape}"
    with pytest.raises(InputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        policy.init(jax.random.key(0)) if kind is None else policy.quantized(jax.random.key(0), kind=kind)


def test_missing_folders_are_refused(tmp_path, llama):
    with pytest.raises(InputError, match="does not exist"):
        locate(str(tmp_path / "nothing"))
    assert locate(str(llama)) == llama
    (llama / "config.json").unlink()
    with pytest.raises(InputError, match=r"has no config.json"):
        read_config(llama)


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.o_proj.bias", "score.weight", "model.layers.9.mlp.up_proj.weight"]
)
def test_an_unknown_tensor_is_named(llama, name):
    tensors = load_file(llama / "model.safetensors")
    save_file(tensors | {name: np.ones(16, np.float32)}, llama / "model.safetensors")
    with pytest.raises(InputError, match=rf"contain the tensor '{name}', which this transformer does not have"):
        load_params(llama, LLAMA)
    jax.tree.map(np.testing.assert_array_equal, load_params(llama, LLAMA, also_read=[name]), random_params(LLAMA))


def test_redundant_tensors_are_ignored(llama):
    tensors = load_file(llama / "model.safetensors")
    redundant = {"lm_head.weight": np.ones((20, 16)), FREQUENCIES: np.array([1.0, 500**-0.5], np.float16)}
    save_file(tensors | redundant, llama / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, load_params(llama, LLAMA), random_params(LLAMA))


@pytest.mark.parametrize("stored", [[1.0, 1e4**-0.5], [1.0, 0.0], [1.0], [1.0, 0.1, 0.01]])
def test_contradictory_rotary_frequencies_are_refused(llama, stored):
    tensors = load_file(llama / "model.safetensors")
    save_file(tensors | {FREQUENCIES: np.array(stored, np.float32)}, llama / "model.safetensors")
    with pytest.raises(
        InputError, match=rf"'{FREQUENCIES}' in .* contains rotary frequencies that differ from those in config.json"
    ):
        load_params(llama, LLAMA)


@pytest.mark.parametrize("is_scaled", [True, False])
def test_rotary_frequencies_may_be_stored_before_or_after_scaling(llama, is_scaled):
    config = replace(LLAMA, rope_scaling=ROPE_SCALING)
    stored = rope_frequencies(config if is_scaled else LLAMA)
    tensors = load_file(llama / "model.safetensors")
    save_file(tensors | {FREQUENCIES: np.array(stored)}, llama / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, load_params(llama, config), random_params(LLAMA))


def test_saving_unsupported_windows_is_refused(tmp_path):
    for shape in (replace(LLAMA, window=3, full_layers=(0,)), replace(LLAMA, window=3, qkv_bias=True, output_bias=True)):
        with pytest.raises(InputError, match="A Mistral model has a window in all layers and no bias"):
            save_pretrained(tmp_path / "model", shape, random_params(shape), bos=None, eos=1)


def test_saving_unsupported_biases_is_refused(tmp_path):
    shape = replace(LLAMA, qkv_bias=True, qk_norm=True)
    with pytest.raises(InputError, match="qkv_bias=True and output_bias=False"):
        save_pretrained(tmp_path / "model", shape, random_params(shape), bos=None, eos=1)


def store_head(folder, change):
    """Store a head in a folder whose config says that the head is tied, and return all tensors."""
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + change
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def test_a_stored_head_is_kept_even_if_the_config_says_tied(llama, tmp_path):
    tensors = store_head(llama, np.float32(0.5))
    config = read_config(llama)
    assert not config.tied_head
    params = load_params(llama, config)
    np.testing.assert_array_equal(params["head"], tensors["lm_head.weight"])
    policy = transformer_policy(config, folder=llama, eos=1)
    policy.save(jax.device_get(params), tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["tie_word_embeddings"] is False
    np.testing.assert_array_equal(load_file(tmp_path / "saved" / "model.safetensors")["lm_head.weight"], params["head"])
    torch = pytest.importorskip("torch", reason="parity with transformers needs PyTorch: pip install torch")
    from transformers import AutoModelForCausalLM

    tokens = torch.tensor([[3, 5, 7, 11]])
    for folder in (llama, tmp_path / "saved"):
        with torch.no_grad():
            theirs = AutoModelForCausalLM.from_pretrained(folder)(tokens).logits.numpy()
        slots = jnp.arange(4)[None]
        ours = logits(Model(config), params, jnp.array(tokens.numpy()), slots, jnp.ones_like(slots))
        np.testing.assert_allclose(ours, theirs, atol=2e-4)


def test_a_head_equal_to_the_embedding_is_tied(llama, tmp_path):
    tensors = store_head(llama, np.float32(0.0))
    config = read_config(llama)
    assert config.tied_head
    del tensors["model.embed_tokens.weight"]
    save_file(tensors, llama / "model.safetensors", metadata={"format": "pt"})
    params = load_params(llama, read_config(llama))
    np.testing.assert_array_equal(params["embedding"], tensors["lm_head.weight"])
    transformer_policy(config, folder=llama, eos=1).save(jax.device_get(params), tmp_path / "saved")
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "saved", config), params)


def test_a_single_file_takes_precedence_over_an_index(llama):
    new = load_file(llama / "model.safetensors")
    old = {name: tensor + 1 for name, tensor in new.items()}
    save_file(old, llama / "model-00001-of-00001.safetensors")
    (llama / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(old, "model-00001-of-00001.safetensors")})
    )
    np.testing.assert_array_equal(load_params(llama, LLAMA)["embedding"], new["model.embed_tokens.weight"])
    (llama / "model-00001-of-00001.safetensors").unlink()
    np.testing.assert_array_equal(load_params(llama, LLAMA)["embedding"], new["model.embed_tokens.weight"])
    (llama / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-00001-of-00001\.safetensors', which is not in the folder; download it"):
        read_config(llama)


def test_a_weights_file_missing_from_the_index_is_refused(llama):
    tensors = load_file(llama / "model.safetensors")
    (llama / "model.safetensors").rename(llama / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}
    (llama / "model.safetensors.index.json").write_text(json.dumps(index))
    assert load_params(llama, LLAMA)
    save_file(tensors, llama / "model-00002-of-00002.safetensors")
    with pytest.raises(InputError, match=r"does not name the weights file 'model-00002-of-00002\.safetensors'.*delete it"):
        load_params(llama, LLAMA)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(llama, value):
    tensors = load_file(llama / "model.safetensors")
    tensors["model.norm.weight"][3] = value
    save_file(tensors, llama / "model.safetensors")
    with pytest.raises(
        InputError, match=r"'model\.norm\.weight' in .*model\.safetensors' has values that are NaN or infinite"
    ):
        load_params(llama, LLAMA)


def test_a_matrix_stored_in_full_and_quantized_is_refused(llama):
    file, name = llama / "model.safetensors", "model.layers.0.self_attn.q_proj.weight"
    tensors = load_file(file)
    quantized = {f"{name}_packed": np.ones((16, 2), np.int32), f"{name}_scale": np.ones((16, 1), np.float32)}
    save_file(tensors | quantized | {f"{name}_shape": np.array([16, 16])}, file)
    with pytest.raises(InputError, match=rf"contain '{name}' twice, in full and quantized"):
        load_params(llama, LLAMA)


def test_a_tensor_in_two_files_is_refused(llama):
    tensors = load_file(llama / "model.safetensors")
    save_file(tensors, llama / "a.safetensors")
    save_file({"model.norm.weight": tensors["model.norm.weight"] + 1}, llama / "b.safetensors")
    (llama / "model.safetensors").unlink()
    weight_map = dict.fromkeys(tensors, "a.safetensors") | {"model.norm.weight": "b.safetensors"}
    (llama / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(InputError, match=r"'model\.norm\.weight' is in both"):
        read_config(llama)


@pytest.mark.parametrize(("kind", "code"), [(np.int8, "I8"), (bool, "BOOL"), (np.int64, "I64")])
def test_a_tensor_that_is_not_floating_point_is_named(llama, kind, code):
    tensors = load_file(llama / "model.safetensors")
    name = "model.layers.0.self_attn.o_proj.weight"
    save_file(tensors | {name: (10 * tensors[name]).astype(kind)}, llama / "model.safetensors")
    with pytest.raises(InputError, match=rf"{name!r} in .* is stored as {code}; F32, BF16, F16, F64 is expected"):
        load_params(llama, LLAMA)
