"""Quantized models from folders, runs and servers answer like models that store the dequantized weights."""

import httpx
import jax
import numpy as np
import pytest
from run_fixtures import finished  # noqa: F401  a fixture
from served_model import NAME, make_model, post, serving
from shared_run import TINY
from small_runs import even_length

import rljax
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models.huggingface import read_config, save_pretrained
from rljax.models.quantization import dequantize, dequantize_params, is_quantized, quantize_params
from rljax.programs.trained_policy import load

KINDS = ("int8", "nf4")
PROMPTS = [[6, 20, 33], [7], [9, 9, 40, 12]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("exact") / NAME)


def open_model(target, **settings):
    return load(target, **{"problems": [Problem("", "")], "max_response_tokens": 24} | settings)


def leaves(params):
    return jax.tree.leaves(params, is_leaf=is_quantized)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_equal_those_of_the_dequantized_model(folder, tmp_path, kind):
    dequantized = make_model(tmp_path / NAME)  # its weights are replaced below; its tokenizer is kept
    exact, quantized = open_model(folder), open_model(folder, quantize=kind)
    matrices = [leaf for leaf in leaves(quantized.params) if is_quantized(leaf)]
    assert len(matrices) == 7 * read_config(folder).layers
    assert all(leaf.codes.nbytes * (1 if kind == "int8" else 2) == dequantize(leaf).size for leaf in matrices)
    params = dequantize_params(quantized.params)
    changes = [float(np.abs(a - b).max()) for a, b in zip(leaves(params), leaves(exact.params), strict=True)]
    assert sum(change > 0 for change in changes) == len(matrices)
    save_pretrained(dequantized, read_config(folder), params, bos=None, eos=1)
    assert quantized.sample_ids(PROMPTS) == open_model(dequantized).sample_ids(PROMPTS)


def test_nf4_changes_these_answers(folder):
    assert open_model(folder, quantize="nf4").sample_ids(PROMPTS) != open_model(folder).sample_ids(PROMPTS)


def test_adapter_of_a_run_is_merged_before_quantization(tmp_path, folder):
    run = tmp_path / "run"
    rljax.train(TINY.replace(run=str(run), model=str(folder), lora_rank=2, steps=1, learning_rate=0.1), even_length)
    merged = open_model(run, which="last")
    found = open_model(run, which="last", quantize="int8").params
    expected = quantize_params(merged.params, kind="int8", dtype="float32")
    for ours, theirs in zip(leaves(found), leaves(expected), strict=True):
        assert is_quantized(ours) == is_quantized(theirs)
        if is_quantized(ours):
            np.testing.assert_array_equal(ours.codes, theirs.codes)
            np.testing.assert_allclose(dequantize(ours), dequantize(theirs))


def test_checkpoint_is_quantized(finished):  # noqa: F811
    codes = [leaf for leaf in leaves(open_model(finished.run, quantize="int8").params) if is_quantized(leaf)]
    assert codes
    assert all(np.abs(leaf.codes).max() == 127 for leaf in codes)


def change_weights(url, **body):
    return httpx.post(f"{url}/weights", json=body, timeout=60, trust_env=False)


def test_server_quantizes_initial_and_updated_weights(folder, tmp_path):
    other = make_model(tmp_path / NAME, seed=1)
    with serving(folder, quantize="nf4") as (url, _):
        for source, version in ((folder, 0), (other, 1)):
            if version:
                assert change_weights(url, folder=str(source), version=version).status_code == 200
            body = post(url, "/v1/completions", prompt=PROMPTS, max_tokens=24, temperature=0, return_token_ids=True).json()
            expected = [row for group in open_model(source, quantize="nf4").sample_ids(PROMPTS) for row in group]
            assert [choice["token_ids"] for choice in body["choices"]] == expected


def test_custom_policy_is_refused(finished):  # noqa: F811
    custom_policy = open_model(finished.run).policy._replace(quantized=None)
    with pytest.raises(InputError, match=r"quantize='int8' quantizes only the built-in transformer"):
        open_model(finished.run, quantize="int8", policy=custom_policy)
