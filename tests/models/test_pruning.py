"""Pruned model folders: the smallest weights of each matrix are zero, and everything else is unchanged."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from small_runs import SMALL

import rljax
from rljax.cli import main
from rljax.errors import InputError
from rljax.models.pruning import ZeroPattern, prune_matrix, read_pattern
from rljax.programs.export import export
from rljax.programs.trained_policy import load


def prune_by_loop(matrix, share, group):
    """Zero the smallest weights one by one."""
    rows = (
        [matrix.reshape(-1)] if group is None else [row[i : i + group] for row in matrix for i in range(0, len(row), group)]
    )
    pruned = []
    for row in rows:
        kept = row.copy()
        for index in sorted(range(len(row)), key=lambda index: abs(row[index]))[: int(share * len(row) + 1e-9)]:
            kept[index] = 0
        pruned.append(kept)
    return np.concatenate(pruned).reshape(matrix.shape)


@pytest.mark.parametrize("text", ["0.3", "0.5", "2:4", "1:4", "7:8"])
def test_the_smallest_weights_become_zero(text):
    matrix = np.random.default_rng(0).normal(size=(6, 16)).astype(np.float32)
    before, pattern = matrix.copy(), read_pattern(text)
    pruned = prune_matrix(matrix, pattern)
    np.testing.assert_array_equal(pruned, prune_by_loop(matrix, *pattern))
    np.testing.assert_array_equal(matrix, before)
    assert (pruned == 0).mean() == pytest.approx(pattern.share, abs=1 / 96)


def test_a_fraction_below_one_weight_changes_nothing():
    assert prune_matrix(np.ones((1, 3), np.float32), ZeroPattern(0.1)).all()


@pytest.mark.parametrize("text", ["0", "1", "1.5", "nan", "4:2", "0:4", "2:4:8", "half", ""])
def test_invalid_patterns_are_refused(text):
    with pytest.raises(InputError, match=r"prune is .*; give a fraction"):
        read_pattern(text)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train a run for one step."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = SMALL.replace(
        run=str(folder), steps=1, train_problems=64, heldout_problems=4, width=64, hidden=64, heads=4, kv_heads=2
    )
    rljax.train(config, reward=lambda completions: [float(len(text) % 2) for text in completions])
    return folder


def matrices(folder):
    return {name: value for name, value in load_file(folder / "model.safetensors").items() if name.endswith("_proj.weight")}


def test_a_pruned_export_changes_only_the_smallest_weights(run, tmp_path, capsys):
    export(run, tmp_path / "exact", which="last")
    assert main(["export", str(run), str(tmp_path / "pruned"), "--checkpoint", "last", "--prune", "2:4"]) == 0
    exact, pruned = (load_file(tmp_path / name / "model.safetensors") for name in ("exact", "pruned"))
    assert len(matrices(tmp_path / "pruned")) == 7 * SMALL.model.layers
    for name, value in exact.items():
        expected = prune_by_loop(value, 0.5, 4) if name.endswith("_proj.weight") else value
        np.testing.assert_array_equal(pruned[name], expected, err_msg=name)


def test_a_pruned_folder_can_be_sampled_pruned_and_quantized(run, tmp_path):
    """A model folder is exported like a run; int8 keeps the zeros."""
    export(run, tmp_path / "half", which="last", prune="0.5")
    export(tmp_path / "half", tmp_path / "more", prune="0.75")
    export(tmp_path / "half", tmp_path / "rounded", quantize="int8")
    for name, least in (("half", 0.5), ("more", 0.75)):
        shares = [(value == 0).mean() for value in matrices(tmp_path / name).values()]
        assert min(shares) == pytest.approx(least, abs=0.01)
        assert max(shares) == pytest.approx(least, abs=0.01)
    config = json.loads((tmp_path / "rounded" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert json.loads((tmp_path / "more" / "generation_config.json").read_text()) == json.loads(
        (tmp_path / "half" / "generation_config.json").read_text()
    )
    for name in ("half", "more", "rounded"):
        texts = load(tmp_path / name, max_response_tokens=4, tokenizer=str(tmp_path / "half")).sample(["1+2="])
        assert len(texts) == 1


def test_unsupported_pruning_is_refused(run, tmp_path):
    with pytest.raises(InputError, match="has 64 inputs, which groups of 7 do not divide"):
        export(run, tmp_path / "new", which="last", prune="3:7")
    with pytest.raises(InputError, match="has no adapter"):
        export(run, tmp_path / "new", which="last", prune="0.5", adapter=True)
    with pytest.raises(InputError, match="is not the folder of a run with checkpoints, nor of a model"):
        export(tmp_path, tmp_path / "new", prune="0.5")
    assert not (tmp_path / "new").exists()
