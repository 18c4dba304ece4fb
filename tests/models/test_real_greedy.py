"""Greedy tokens of pretrained models equal those of `transformers`. RLJAX_TEST_MODELS names the folder with the models' folders."""

import importlib.util
import json
import os
from pathlib import Path

import pytest
from models.real_greedy import LENGTH, PROMPTS, answers_of_transformers, digest_of_weights

import rljax

ROOT = os.environ.get("RLJAX_TEST_MODELS")


@pytest.mark.parametrize("name", ["gemma3"])
def test_greedy_tokens_equal_those_of_transformers(name):
    """Gemma 3 270M: 18 layers, 15 of them with a window of 512 tokens, and a vocabulary of 262,144."""
    folder = Path(ROOT or "", name)
    if ROOT is None or not (folder / "model.safetensors").is_file():
        pytest.skip(f"needs the weights of {name} in the folder {name} of the folder that RLJAX_TEST_MODELS names")
    recorded = json.loads(Path(__file__).with_name(f"{name}_greedy.json").read_text())
    if recorded["weights_sha256"] == digest_of_weights(folder):
        rows = recorded["rows"]
    elif importlib.util.find_spec("torch") is not None:
        rows = answers_of_transformers(folder)
    else:
        pytest.skip("the answers were recorded with other weights, and without PyTorch there are no new ones")
    problems = [rljax.Problem(prompt, "") for prompt in PROMPTS]
    opened = rljax.load(folder, problems=problems, max_response_tokens=LENGTH)
    assert list(opened.worker.prompts.tokens) == [row["prompt"] for row in rows]
    found = opened.sample_ids([row["prompt"] for row in rows])
    assert [answers[0] for answers in found] == [row["answer"] for row in rows]
