"""A finished run saves its models as folders that other programs can open."""

import chex
import numpy as np
import pytest
from safetensors.numpy import load_file
from small_runs import SMALL, even_length, stopping_after

import rljax
from rljax.training.interrupt import Interrupted

TINY = SMALL.replace(
    algorithm="rloo",
    train_problems=16,
    heldout_problems=6,
    warm_start_steps=0,
    steps=2,
    prompts=4,
    group_size=2,
    learning_rate=1e-2,
    eval_every=1,
)


def read_tensors(folder):
    return load_file(folder / "model.safetensors")


def test_final_models_equal_exported_models(tmp_path):
    run = rljax.train(TINY.replace(run=str(tmp_path / "run"), models="both"), even_length).run
    for which in ("best", "last"):
        exported = rljax.export(run, tmp_path / which, which=which)
        assert {file.name for file in (run / which).iterdir()} == {file.name for file in exported.iterdir()}
        chex.assert_trees_all_equal(read_tensors(run / which), read_tensors(exported))
        opened = rljax.load(run / which, reward=even_length, max_response_tokens=12)
        assert opened.sample(["3+4="]) == rljax.load(run, which=which, reward=even_length).sample(["3+4="])
    assert f"Models: {run / 'best'}, {run / 'last'}" in (run / "log.txt").read_text()


def test_an_extended_run_replaces_its_final_models(tmp_path):
    run = rljax.train(TINY.replace(run=str(tmp_path / "run"), models="last", lora_rank=2), even_length).run
    assert not (run / "best").exists()
    before = read_tensors(run / "last")
    rljax.train(TINY.replace(run=str(run), models="last", lora_rank=2, steps=3), even_length, resume=run)
    after = read_tensors(run / "last")
    assert before.keys() == after.keys()
    assert max(np.abs(after[name] - before[name]).max() for name in before) > 0
    assert not list(run.glob(".unfinished*"))


@pytest.mark.parametrize("models", ["none", "both"])
def test_an_unfinished_run_has_no_final_models(tmp_path, models):
    with pytest.raises(Interrupted):
        rljax.train(TINY.replace(run=str(tmp_path / "run"), models=models), stopping_after(3))
    assert not {"best", "last"} & {file.name for file in (tmp_path / "run").iterdir()}
