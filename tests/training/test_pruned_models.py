"""`keep_zeros`: the zero weights of a pruned model stay zero during training."""

import jax
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file
from small_runs import SMALL, even_length

import rljax
from rljax.errors import InputError
from rljax.programs.export import export

TINY = SMALL.replace(train_problems=16, heldout_problems=4, prompts=4, group_size=4)
SHORT = {"steps": 2, "warm_start_steps": 0, "learning_rate": 1e-2, "weight_decay": 0.1, "eval_every": 0, "sample_every": 0}


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    """A model folder in which two of four weights are zero."""
    folder = tmp_path_factory.mktemp("pruned")
    rljax.train(TINY.replace(steps=0, warm_start_steps=1, run=str(folder / "run")), reward=even_length)
    export(folder / "run", folder / "model", which="last", prune="2:4")
    return folder / "model"


def matrices(folder):
    return {name: value for name, value in load_file(folder / "model.safetensors").items() if name.endswith("_proj.weight")}


def mixing(rate):
    """An optimizer in which one weight's update depends on other weights' gradients, as in Muon."""
    mix = optax.stateless(lambda updates, _: jax.tree.map(lambda update: update + update.sum(0, keepdims=True), updates))
    return optax.chain(mix, optax.scale(-rate))


@pytest.mark.parametrize("optimizer", [None, mixing(0.1)], ids=["adamw", "mixing"])
def test_zero_weights_stay_zero_and_the_others_learn(pruned, tmp_path, optimizer):
    config = TINY.replace(model=str(pruned), **SHORT)
    before, zeros = matrices(pruned), {}
    for kept in (True, False):
        run = tmp_path / str(kept)
        rljax.train(config.replace(keep_zeros=kept, run=str(run)), reward=even_length, optimizer=optimizer)
        rljax.train(config.replace(keep_zeros=kept, run=str(run), steps=3), even_length, optimizer=optimizer, resume=run)
        export(run, run / "model", which="last")
        after = matrices(run / "model")
        zeros[kept] = np.mean([(value == 0).mean() for value in after.values()])
        assert all(np.abs(after[name] - before[name]).max() > 1e-4 for name in before)
    assert zeros[True] == pytest.approx(0.5, abs=1e-3)
    assert zeros[False] < 0.01


def test_zeros_that_could_not_be_kept_are_refused(pruned, tmp_path):
    config = TINY.replace(**SHORT, keep_zeros=True, run=str(tmp_path / "run"))
    with pytest.raises(InputError, match="whose product is added to all weights"):
        rljax.train(config.replace(model=str(pruned), lora_rank=2), reward=even_length)
    with pytest.raises(InputError, match="would fill the zeros"):
        rljax.train(config.replace(warm_start_steps=2), reward=even_length)
