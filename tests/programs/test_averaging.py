"""Federated averaging: the mean is checked against NumPy, other programs open its folder, and unrelated runs are refused."""

import jax
import numpy as np
import pytest
from run_states import first_state
from small_cli import printed, refused
from small_runs import SMALL, even_length

import rljax
from rljax.data.history import no_history
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.programs.averaging import average, check_weights, start_of
from rljax.programs.trained_policy import load
from rljax.tracking.run_folder import RunFolder
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.initial_state import first_params
from rljax.training.setup import make_setup

TINY = SMALL.replace(train_problems=24, heldout_problems=6)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with runs a and b, which moved away from the same weights, and unrelated runs; the parameters of a and b."""
    root = tmp_path_factory.mktemp("runs")
    _, state = first_state(TINY)
    params = {}
    for name, shift in (("a", 0.125), ("b", -0.5)):
        folder = RunFolder.create(root / name, TINY.replace(fsdp=2).to_json() | {"seams": []})
        moved = state._replace(params=jax.tree.map(lambda leaf, shift=shift: leaf * (1 + shift), state.params))
        checkpoints.save(folder.checkpoints / "best", checkpoints.Checkpoint(moved, no_history(24)), {})
        params[name] = jax.device_get(moved.params)
    for name, settings in (("seed", {"seed": 1}), ("wide", {"width": 32}), ("bytes", {"tokenizer": "bytes"})):
        RunFolder.create(root / name, TINY.replace(**settings).to_json() | {"seams": []}).checkpoints.mkdir()
    return root, params


def load_params(folder):
    return jax.device_get(load(folder, problems=[Problem("1+1=", "2")]).params)


def test_mean_of_equal_models_is_the_model(runs, tmp_path):
    root, params = runs
    folder = average([root / "b", root / "b", root / "b"], tmp_path / "same", weights=[1, 3, 0.1])
    jax.tree.map(np.testing.assert_array_equal, load_params(folder), params["b"])


def test_mean_is_weighted_and_can_be_trained(runs, tmp_path, capsys):
    root, params = runs
    folder = tmp_path / "mean"
    words = ["average", str(root / "a"), f"{root / 'b'}/checkpoints/best", str(folder), "--weights", "3", "1"]
    assert printed(capsys, *words) == f"Model: {folder}\n"
    expected = jax.tree.map(lambda one, other: (3 * one + other) / 4, params["a"], params["b"])
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, rtol=1e-5, atol=1e-7), load_params(folder), expected)
    begun = jax.device_get(first_params(make_setup(TINY.replace(model=str(folder)))))
    jax.tree.map(np.testing.assert_array_equal, begun, load_params(folder))
    names = {file.name for file in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"} <= names, (
        "the files that transformers reads"
    )
    refused(capsys, "already exists; choose another folder", *words)


def test_mean_of_two_trained_runs_is_evaluated(tmp_path, capsys):
    """The command writes the mean of two runs that learned from different problems, and `rljax eval` evaluates it."""
    config = TINY.replace(warm_start_steps=3, warm_start_batch=8, steps=0, sample_every=0)
    trained = []
    for operator in "+-":
        settings = {"operators": operator, "run": str(tmp_path / operator)}
        result = rljax.train(config.replace(**settings), even_length)
        trained.append(jax.device_get(result.params))
    one, other = map(jax.tree.leaves, trained)
    assert all((np.abs(a - b) > 0).any() for a, b in zip(one, other, strict=True) if a.ndim > 1), (
        "the two runs have different weights"
    )
    folder = tmp_path / "mean"
    runs = [str(tmp_path / operator) for operator in "+-"]
    capsys.readouterr()
    words = ["average", *runs, str(folder), "--checkpoint", "last", "--weights", "3", "1"]
    assert printed(capsys, *words) == f"Model: {folder}\n"
    expected = jax.tree.map(lambda a, b: (3 * a + b) / 4, *trained)
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, rtol=1e-5, atol=1e-7), load_params(folder), expected)
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"prompt": "1+2=", "answer": "3"}\n{"prompt": "7-4=", "answer": "3"}\n')
    out = tmp_path / "answers.jsonl"
    words = ["eval", str(folder), "--dataset", str(problems), "--max-response-tokens", "12", "--reward", "exact"]
    assert "of 2 problems" in printed(capsys, *words, "--out", str(out))
    assert len(out.read_text().splitlines()) >= 2


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("seed", "'.*a' began with seed=0 and '.*seed' with seed=1; the mean of two models is a useful model only if"),
        ("wide", "began with width=16 and '.*wide' with width=32"),
        ("bytes", "began with tokenizer='characters' and '.*bytes' with tokenizer='bytes'"),
        ("nowhere", "nowhere' is not the folder of a run"),
    ],
)
def test_runs_with_different_starts_are_refused(runs, tmp_path, other, message):
    root, _ = runs
    with pytest.raises(InputError, match=message):
        average([root / "a", root / other], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_invalid_weights_are_refused(capsys):
    for runs, weights, message in (
        (["a"], None, "nothing to average in 1 run; give two"),
        ([], None, "nothing to average in 0 runs; give two"),
        (["a", "b"], [1.0], "weights has 1 number for 2 runs"),
        (["a", "b"], [1.0, 0.0], "weights has 0.0; each must be"),
        (["a", "b"], [float("nan"), 1.0], "weights has nan"),
    ):
        with pytest.raises(InputError, match=message):
            check_weights(runs, weights)
    refused(capsys, "give the folders of two or more runs", "average")


def test_start_does_not_depend_on_the_models_path(runs):
    root, _ = runs
    (root / "model").mkdir(exist_ok=True)
    one, other = (TrainConfig.flat(model=f"{root}/{path}") for path in ("model", "a/../model"))
    assert start_of(one) == start_of(other.replace(seed=5))
