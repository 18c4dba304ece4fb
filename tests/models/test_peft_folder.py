"""Adapters in `peft`'s format are read back, opened as a model, and trained further; unreadable ones are refused by name."""

import json
from dataclasses import asdict, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_models import SHAPES, random_adapter, random_params

import rljax
from rljax.data.tokenizer import CharacterTokenizer
from rljax.data.tokenizer_files import save_tokenizer_files
from rljax.errors import InputError
from rljax.models.adapters import merge
from rljax.models.huggingface import read_config, save_pretrained
from rljax.models.peft_folder import load_adapter, save_adapter
from rljax.training.config import TrainConfig
from rljax.training.parts.adapter import with_stored_adapter


@pytest.fixture(params=[("attention", "feed_forward"), ("layers/1/attention/query", "value", "down")])
def stored(request, tmp_path):
    config = replace(SHAPES["llama"], vocab_size=18)
    params = random_params(config)
    adapter = random_adapter(params, targets=request.param)
    save_pretrained(tmp_path / "base", config, params, bos=None, eos=1)
    save_adapter(tmp_path / "adapter", config, adapter, alpha=4.5, base=str(tmp_path / "base"))
    for folder in ("base", "adapter"):
        save_tokenizer_files(CharacterTokenizer("0123456789+-*=#;"), tmp_path / folder)
    return tmp_path / "adapter", config, params, adapter


def test_an_adapter_is_read_as_it_was_written(stored):
    folder, config, _, adapter = stored
    jax.tree.map(np.testing.assert_array_equal, load_adapter(folder, config), adapter)


def test_adapters_of_fused_matrices_are_refused(stored, tmp_path):
    folder, config, _, adapter = stored
    with pytest.raises(InputError, match="Phi3 model as one matrix"):
        save_adapter(tmp_path / "fused", replace(config, fused=True), adapter, alpha=4.5, base="a/base")
    with pytest.raises(InputError, match="Phi3 model as one matrix"):
        load_adapter(folder, replace(config, fused=True))


def test_a_stored_adapter_is_opened_and_trained_further(stored, tmp_path):
    folder, _, params, adapter = stored
    settings = with_stored_adapter(TrainConfig.flat(model=str(folder)))
    assert (settings.adapter.rank, settings.adapter.alpha, settings.adapter.start) == (3, 4.5, str(folder))
    assert settings.model.path == str(tmp_path / "base")
    opened = rljax.load(str(folder), problems=[rljax.Problem("1+1=", "2")])
    merged = merge(params, adapter, jnp.float32(1.5))
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, atol=1e-6), opened.params, merged)
    small = {"prompts": 2, "group_size": 2, "max_prompt_tokens": 16, "max_response_tokens": 2, "heldout_problems": 2}
    config = TrainConfig.flat(
        model=str(folder),
        run=str(tmp_path / "run"),
        steps=0,
        train_problems=16,
        replicas=1,
        models="none",
        quiet=True,
        **small,
    )
    result = rljax.train(config)
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, atol=1e-6), result.params, merged)
    with pytest.raises(InputError, match="lora_rank is 5, but the adapter in"):
        with_stored_adapter(TrainConfig.flat(model=str(folder), lora_rank=5))
    with pytest.raises(InputError, match="contains a low-rank adapter"):
        read_config(folder)


def test_unreadable_adapters_are_refused_by_name(stored):
    folder, config, _, _ = stored
    file = folder / "adapter_config.json"
    raw = json.loads(file.read_text())
    for name, value in {
        "use_dora": True,
        "use_rslora": True,
        "bias": "all",
        "peft_type": "IA3",
        "modules_to_save": ["lm_head"],
        "rank_pattern": {"q_proj": 2},
        "fan_in_fan_out": True,
        "init_lora_weights": "pissa_niter_4",
    }.items():
        file.write_text(json.dumps({**raw, name: value}))
        with pytest.raises(InputError, match=f"has {name}"):
            load_adapter(folder, config)
    for name, value in {"init_lora_weights": "gaussian", "revision": "main"}.items():
        file.write_text(json.dumps({**raw, name: value}))
        load_adapter(folder, config)
    file.write_text(json.dumps({**raw, "revision": "v1.1", "base_model_name_or_path": "some/model"}))
    with pytest.raises(InputError, match=r"has revision 'v1\.1'"):
        load_adapter(folder, config)
    file.write_text(json.dumps({**raw, "revision": "v1.1", "base_model_name_or_path": str(folder)}))
    load_adapter(folder, config)
    file.write_text(json.dumps({**raw, "r": 0}))
    with pytest.raises(InputError, match="sets r to 0, but the rank must be at least 1"):
        load_adapter(folder, config)
    file.write_text(json.dumps(raw))
    tensors = load_file(folder / "adapter_model.safetensors")
    name = next(iter(tensors))
    for changed, message in (
        ({**tensors, "base_model.model.lm_head.lora_A.weight": np.zeros((3, 16), np.float32)}, "'lm_head.lora_A.weight'"),
        ({**tensors, name: np.zeros((2, 2), np.float32)}, "does not fit its model"),
        (
            {key: tensor for key, tensor in tensors.items() if key != name},
            "has one factor of an adapted layer but not the other, '.*'",
        ),
        ({}, "has no adapter tensors; restore the original file"),
    ):
        save_file(changed, folder / "adapter_model.safetensors")
        with pytest.raises(InputError, match=message):
            load_adapter(folder, config)


def test_every_entry_of_peft_is_used_or_refused(stored):
    peft = pytest.importorskip("peft", reason="needs the extra `parity`: pip install peft")
    folder, config, _, adapter = stored
    file = folder / "adapter_config.json"
    plain = json.loads(file.read_text())
    theirs = json.loads(json.dumps(asdict(peft.LoraConfig(r=3, lora_alpha=4.5)), default=str)) | plain
    file.write_text(json.dumps(theirs))
    jax.tree.map(np.testing.assert_array_equal, load_adapter(folder, config), adapter)
    refused = set()
    for name in theirs:
        file.write_text(json.dumps({**theirs, name: {"x": 2} if not theirs[name] else "other"}))
        try:
            load_adapter(folder, config)
        except InputError as error:
            refused |= {name} if name in str(error) else set()
    assert refused >= {
        "bias",
        "use_dora",
        "use_rslora",
        "modules_to_save",
        "rank_pattern",
        "alpha_pattern",
        "layer_replication",
    }


def test_a_run_on_a_stored_adapter_resumes_automatically(stored, tmp_path):
    folder, *_ = stored
    small = {"prompts": 2, "group_size": 2, "max_prompt_tokens": 16, "max_response_tokens": 2, "heldout_problems": 2}
    config = TrainConfig.flat(
        model=str(folder),
        run=str(tmp_path / "run"),
        steps=0,
        train_problems=16,
        replicas=1,
        models="none",
        quiet=True,
        **small,
    )
    first = rljax.train(config, resume="auto")
    again = rljax.train(config, resume="auto")
    jax.tree.map(np.testing.assert_array_equal, first.params, again.params)
