"""Model folders: shards, weight types, and how much of a model is in memory while it is written."""

import json
import os
import weakref
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from small_models import LLAMA, SHAPES, random_params

from rljax.errors import InputError
from rljax.models import transformer_policy
from rljax.models.huggingface import load_params, model_contents, read_config, save_pretrained
from rljax.models.model_folder import DTYPES, ModelContents, Tensor, byte_count, divide_into_shards, read_json, write_model
from rljax.models.transformer_policy import parameter_shardings
from rljax.parallel import fetch_once, make_mesh, put

PARAMS = random_params(LLAMA)


def contents(dtype="float32"):
    return model_contents(LLAMA, PARAMS, bos=None, eos=1).stored_as(dtype)


def read_dtypes(folder):
    """Return the dtype of each tensor in a folder."""
    with safe_open(folder / "model.safetensors", framework="numpy") as opened:
        return {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118  it is not a dict


def test_sizes_with_units_are_parsed():
    assert [byte_count(text) for text in ("1B", "1.5kB", "3 MB", "1GiB", "2TB")] == [1, 1500, 3 * 10**6, 2**30, 2 * 10**12]
    for text in ("", "5", "five GB", "0GB", "-1GB", "5GBB", "5iB", "5 ib", "9" * 400 + "B"):
        with pytest.raises(InputError, match="must be a positive number with a unit, such as 5GB"):
            byte_count(text)


@pytest.mark.parametrize("limit", [1, 1500, 4000, 10**9])
def test_shards_keep_the_order_and_stay_within_the_limit(limit):
    tensors = contents().tensors
    shards = divide_into_shards(tensors, limit)
    assert [tensor.name for shard in shards for tensor in shard] == [tensor.name for tensor in tensors]
    assert all(len(shard) == 1 or sum(tensor.stored_bytes for tensor in shard) <= limit for shard in shards)
    assert len(shards) == {1: len(tensors), 10**9: 1}.get(limit, len(shards))


@pytest.mark.parametrize("dtype", DTYPES)
def test_several_files_have_the_same_contents_as_one(tmp_path, dtype):
    write_model(tmp_path / "one", contents(dtype))
    write_model(tmp_path / "many", contents(dtype), max_shard_bytes=3000)
    names = sorted(file.name for file in (tmp_path / "many").iterdir())
    count = len(names) - 2
    assert count > 2
    shards = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
    assert names == ["config.json", *shards, "model.safetensors.index.json"]
    weight_index = read_json(tmp_path / "many" / "model.safetensors.index.json")
    one = load_file(tmp_path / "one" / "model.safetensors")
    assert weight_index["metadata"]["total_size"] == sum(array.nbytes for array in one.values())
    for name, array in one.items():
        assert array.dtype == DTYPES[dtype]
        np.testing.assert_array_equal(load_file(tmp_path / "many" / weight_index["weight_map"][name])[name], array)
    np.testing.assert_array_equal(one["model.norm.weight"], np.asarray(PARAMS["norm"]["scale"]).astype(DTYPES[dtype]))
    assert read_json(tmp_path / "one" / "config.json")["dtype"] == dtype
    jax.tree.map(np.testing.assert_array_equal, *(load_params(tmp_path / name, LLAMA) for name in ("one", "many")))


def test_a_model_replaces_an_earlier_one(tmp_path):
    for limit in (1000, 10**9, 3000):
        write_model(tmp_path, contents(), max_shard_bytes=limit)
        jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path, LLAMA), PARAMS)
        assert len(list(tmp_path.glob("model.safetensors"))) == (limit == 10**9)


def test_files_are_readable_by_other_users(tmp_path):
    before = os.umask(0o022)
    try:
        write_model(tmp_path / "model", contents())
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "model").iterdir()} == {0o644}


@pytest.mark.parametrize("name", SHAPES)
def test_types_and_config_of_a_checkpoint_are_kept(tmp_path, name):
    """A bfloat16 checkpoint stays bfloat16, except for its float32 tensors; keys that rljax does not read are kept too."""
    shape = SHAPES[name]
    save_pretrained(tmp_path / "first", shape, random_params(shape), bos=None, eos=1)
    tensors = load_file(tmp_path / "first" / "model.safetensors")
    half = {key: array.astype(jnp.bfloat16) for key, array in tensors.items() if "layernorm" not in key}
    save_file(tensors | half, tmp_path / "first" / "model.safetensors")
    raw = read_json(tmp_path / "first" / "config.json")
    raw |= {"dtype": "bfloat16", "max_position_embeddings": 77, "vendor": {"note": "as it was"}, "eos_token_id": [1, 5]}
    (tmp_path / "first" / "config.json").write_text(json.dumps(raw))

    policy = transformer_policy(shape, folder=tmp_path / "first", bos=None, eos=1)
    params = policy.init(jax.random.key(0))
    policy.save(jax.device_get(params), tmp_path / "second")
    assert read_json(tmp_path / "second" / "config.json") == raw
    types = read_dtypes(tmp_path / "second")
    assert types == read_dtypes(tmp_path / "first")
    assert set(types.values()) == {"BF16", "F32"}
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "second", read_config(tmp_path / "second")), params)

    critic = policy.value_function(1, False)
    critic.save(jax.device_get(critic.init(jax.random.key(1), params)), tmp_path / "critic")
    assert read_dtypes(tmp_path / "critic")["score.weight"] == "BF16"
    config = read_json(tmp_path / "critic" / "config.json")
    assert (config["num_labels"], config["max_position_embeddings"]) == (1, 77)
    assert config["architectures"][0].endswith("ForSequenceClassification")


class WatchedArray(np.ndarray):
    """An array whose deallocation can be observed."""


def test_at_most_two_neighboring_tensors_are_in_memory(tmp_path):
    """The fetched arrays that exist at one time take at most the bytes of two neighbors, whatever the shard size."""
    alive, most = {}, 0

    def fetch(array):
        nonlocal most
        host = np.asarray(array).copy().view(WatchedArray)
        alive[id(host)] = host.nbytes
        weakref.finalize(host, alive.pop, id(host))
        most = max(most, sum(alive.values()))
        return host

    parts = contents()
    write_model(tmp_path, parts, max_shard_bytes=10**9, fetch=fetch)
    sizes = [tensor.stored_bytes for tensor in parts.tensors]
    assert most <= max(a + b for a, b in pairwise(sizes))
    assert most < sum(sizes) / 3
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path, LLAMA), PARAMS)


def test_a_sharded_model_is_written_the_same_way(tmp_path):
    mesh = make_mesh(2, 2, 2)
    sharded = put(PARAMS, parameter_shardings(LLAMA, mesh))
    parts = transformer_policy(LLAMA, bos=None, eos=1, mesh=mesh).contents(sharded)
    write_model(tmp_path / "spread", parts, fetch=fetch_once)
    write_model(tmp_path / "one", contents())
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("spread", "one")]
    assert files[0] == files[1]
    kept = [leaf for leaf in jax.tree.leaves(sharded) if leaf._npy_value is not None]
    assert not kept, "JAX would keep a host copy of every array until the end"


def test_a_value_outside_the_stored_dtype_is_refused(tmp_path):
    large = {**PARAMS, "embedding": PARAMS["embedding"].at[0, 0].set(70_000.0)}
    tensors = model_contents(LLAMA, large, bos=None, eos=1)
    with pytest.raises(
        InputError, match=r"'model\.embed_tokens\.weight' has values that float16 cannot represent; .* bfloat16"
    ):
        write_model(tmp_path / "model", tensors.stored_as("float16"))
    write_model(tmp_path / "model", tensors.stored_as("bfloat16"))


def test_a_host_that_cannot_write_does_not_block_the_others(tmp_path):
    """Every host fetches all tensors, even one whose disk is full."""
    fetched = []
    tensors = tuple(Tensor(f"t{n}", (np.ones(2, np.float32),), DTYPES["float32"], lambda x: x) for n in range(4))

    def fetch(array):
        fetched.append(len(fetched))
        return np.asarray(array)

    broken = tensors[1]._replace(layout=lambda x: x.missing)
    parts = ModelContents({}, (tensors[0], broken, *tensors[2:]))
    with pytest.raises(AttributeError):
        write_model(tmp_path / "a", parts, max_shard_bytes=8, fetch=fetch)
    assert fetched == [0, 1, 2, 3]
    write_model(tmp_path / "b", ModelContents({}, tensors), max_shard_bytes=8, fetch=fetch, writes=False)
    assert len(fetched) == 8
    assert not (tmp_path / "b").exists()


def test_unknown_types_and_broken_configs_are_refused(tmp_path):
    with pytest.raises(InputError, match="dtype 'int8' is unknown; choose one of float32, bfloat16"):
        contents("int8")
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(InputError, match=r"config.json must contain one JSON object, got \[1\]"):
        read_json(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config.json is not valid JSON"):
        read_json(tmp_path / "config.json")
    (tmp_path / "config.json").write_text('{"rope_theta": 1, "rope_theta": 2}')
    with pytest.raises(InputError, match=r"config.json is not valid JSON .*the name 'rope_theta' occurs twice"):
        read_json(tmp_path / "config.json")
