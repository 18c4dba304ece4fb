"""Unread entries and files of a model folder are reported, and a model of another class is refused."""

import json
from dataclasses import replace

import pytest
from small_models import LLAMA, random_params
from transformers import AutoConfig

from rljax.cli import main
from rljax.data.tokenizer import ByteTokenizer
from rljax.data.tokenizer_files import save_tokenizer_files
from rljax.errors import InputError
from rljax.models.config_json import entries_that_are_read
from rljax.models.families import FAMILIES
from rljax.models.folder_notes import CONFIG_WITHOUT_NOTE, notes_on_folder
from rljax.models.huggingface import load_params, model_contents, read_config, save_pretrained
from rljax.models.model_folder import INDEX, write_model
from rljax.models.value_model import load_value_model

BYTES = replace(LLAMA, vocab_size=ByteTokenizer().vocab_size)


@pytest.fixture
def folder(tmp_path):
    save_pretrained(tmp_path / "model", BYTES, random_params(BYTES), bos=None, eos=1)
    return tmp_path / "model"


def edit_config(file, **entries):
    raw = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(raw | entries))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_entry_of_a_family_in_transformers_is_known(family):
    known = entries_that_are_read(FAMILIES[family]) | CONFIG_WITHOUT_NOTE
    assert set(AutoConfig.for_model(family).to_dict()) <= known


def test_a_folder_written_by_rljax_has_no_notes(folder, capsys):
    load_params(folder, read_config(folder))
    assert capsys.readouterr().err == ""


def test_the_index_of_shards_is_checked(folder, capsys):
    contents = model_contents(BYTES, random_params(BYTES), bos=None, eos=1)
    write_model(folder, contents, max_shard_bytes=9000)
    load_params(folder, read_config(folder))
    assert capsys.readouterr().err == ""
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.layers.9.mlp.up_proj.weight"] = next(iter(index["weight_map"].values()))
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(
        InputError, match=r"names the tensor 'model\.layers\.9\.mlp\.up_proj\.weight' .* does not contain it"
    ):
        load_params(folder, read_config(folder))


@pytest.mark.parametrize(
    ("entries", "note"),
    [
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "a different rope_parameters; rope_scaling is read"),
        ({"rope_theta": 77.0}, f"rope_theta=77.0; {BYTES.rope_theta} in rope_parameters is read"),
        ({"rope_theta": 77.0, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}, None),
    ],
)
def test_contradictory_rotary_entries_are_read_as_in_transformers(folder, capsys, entries, note):
    edit_config(folder / "config.json", **entries)
    config, theirs = read_config(folder), AutoConfig.from_pretrained(folder).rope_parameters
    assert config.rope_theta == theirs["rope_theta"]
    assert (1.0 if config.rope_scaling is None else config.rope_scaling.factor) == theirs.get("factor", 1.0)
    load_params(folder, config)
    printed = capsys.readouterr().err
    assert printed == "" if note is None else note in printed


def test_unread_entries_are_reported(folder, capsys):
    edit_config(folder / "config.json", my_new_scale=2.0, embedding_multiplier=12, nothing=None, use_cache=False)
    load_params(folder, read_config(folder))
    note = "has embedding_multiplier=12, my_new_scale=2.0; no Llama model reads these, so they have no effect"
    assert note in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entries", "note"),
    [
        ({"sliding_window": 4}, "has sliding_window=4; no Llama model reads that"),
        ({"no_rope_layers": [1, 0]}, "has no_rope_layers=[1, 0]; no Llama model reads that"),
        ({"num_local_experts": 8}, "has num_local_experts=8; no Llama model reads that"),
        ({"norm_topk_prob": True}, "has norm_topk_prob=True; no Llama model reads that"),
        ({"rope_scaling": {"type": "dynamic", "rope_type": "linear", "factor": 2.0}}, "the latter is read"),
    ],
)
def test_entries_that_only_other_families_read_are_reported(folder, capsys, entries, note):
    edit_config(folder / "config.json", **entries)
    load_params(folder, read_config(folder))
    assert note in capsys.readouterr().err


@pytest.mark.parametrize(
    "file",
    [
        *("consolidated.safetensors", "extra.safetensors", "pytorch_model.bin", "adapter_model.safetensors"),
        *("consolidated.00.pth", "model.safetensors.index.json", "model-00001-of-00001.safetensors", "tf_model.h5"),
    ],
)
def test_unread_weight_files_are_reported(folder, capsys, file):
    (folder / file).write_bytes(b"")
    load_params(folder, read_config(folder))
    assert f"also has {file}; only model.safetensors is read." in capsys.readouterr().err
    several = notes_on_folder(folder, [folder / "a.safetensors", folder / "b.safetensors"])
    assert several[0].endswith("only a.safetensors, b.safetensors are read")


@pytest.mark.parametrize("name", ["LlamaForSequenceClassification", "LlamaForQuestionAnswering", "LlamaModel"])
def test_a_model_of_another_class_is_refused(folder, name):
    edit_config(folder / "config.json", architectures=[name])
    with pytest.raises(
        InputError, match=rf"has architectures \['{name}'\]; it must be a list of class names that end in ForCausalLM"
    ):
        read_config(folder)


def test_a_classifier_is_read_only_as_a_reward_model(folder):
    edit_config(folder / "config.json", architectures=["LlamaForSequenceClassification"])
    with pytest.raises(InputError, match=r"has no 'score.weight'"):
        load_value_model(folder)
    edit_config(folder / "config.json", architectures=["LlamaModel"])
    with pytest.raises(InputError, match=r"architectures \['LlamaModel'\]"):
        load_value_model(folder)


def test_a_language_model_of_another_family_is_reported(folder, capsys):
    edit_config(folder / "config.json", architectures=["MistralForCausalLM"])
    load_params(folder, read_config(folder))
    assert (
        "architecture MistralForCausalLM; it is read as LlamaForCausalLM because of its model_type"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["eval"], "temperature=0.6, top_p=0.9"),
        (["eval", "--samples", "2", "--temperature", "0.6"], "top_p=0.9"),
        (["eval", "--samples", "2", "--temperature", "0.6", "--top-p", "0.9"], None),
        (["generate"], "temperature=0.6, top_p=0.9"),
    ],
)
def test_commands_report_unused_generation_settings(folder, tmp_path, capsys, words, named):
    edit_config(folder / "generation_config.json", temperature=0.6, top_p=0.9, eos_token_id=1)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    command, *rest = words
    if command == "generate":
        save_tokenizer_files(ByteTokenizer(), folder)
        rest = [str(tmp_path / "out.jsonl"), "--samples", "2"]
    else:
        rest = ["--tokenizer", "bytes", *rest]
    main([command, str(folder), "--dataset", str(rows), "--reward", "math", "--max-response-tokens", "2", *rest])
    errors = capsys.readouterr().err
    assert (named is None) == ("generation_config.json" not in errors)
    assert named is None or f"sets {named}" in errors
