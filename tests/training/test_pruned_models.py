"""`keep_zeros`: the zero weights of a pruned model stay zero during training."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from run_states import first_state
from safetensors.numpy import load_file
from small_runs import SMALL, even_length

import rljax
from rljax.data.history import no_history
from rljax.errors import InputError
from rljax.options import keep_zeros
from rljax.options.remedies import NAME, revise
from rljax.programs.export import export
from rljax.training.checkpoints.checkpoint import Checkpoint
from rljax.training.config import TrainConfig

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
    if optimizer is not None:  # it reads neither
        config = config.replace(learning_rate=TrainConfig().optimization.learning_rate, weight_decay=0.0)
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


def test_zero_weights_stay_zero_after_a_remedy(pruned, tmp_path):
    """The first updates are too large, so the learning rate falls after step 5, and the run continues with a new optimizer."""
    run = tmp_path / "run"
    changes = {"minibatches": 2, "learning_rate": 0.9, "learning_rate_warmup": 0, "steps": 7, "remedy": "auto"}
    config = TINY.replace(model=str(pruned), algorithm="grpo", keep_zeros=True, run=str(run), **SHORT | changes)
    rljax.train(config, reward=even_length)
    (remedy,) = map(json.loads, (run / "remedies.jsonl").read_text().splitlines())
    assert (remedy["step"], remedy["setting"]) == (5, "learning_rate")
    export(run, run / "model", which="last")
    before, after = matrices(pruned), matrices(run / "model")
    assert np.mean([(value == 0).mean() for value in after.values()]) == pytest.approx(0.5, abs=1e-3)
    assert all(np.abs(after[name] - before[name]).max() > 1e-4 for name in before)


def test_a_run_whose_optimizer_had_another_state_is_refused_in_one_sentence(tmp_path, monkeypatch):
    """The mask once was a second transformation, with a state next to the optimizer's."""
    config = TINY.replace(**SHORT | {"steps": 1}, keep_zeros=True, run=str(tmp_path / "run"))
    with monkeypatch.context() as patch:
        patch.setattr(keep_zeros, "mask_updates", lambda optimizer: optax.chain(optimizer, optax.identity()))
        rljax.train(config, reward=even_length)
    with pytest.raises(
        InputError, match=r"^optimizer: .* if none was passed, use the version of rljax that saved the run\.$"
    ) as found:
        rljax.train(config.replace(steps=2), reward=even_length, resume=tmp_path / "run")
    assert "\n" not in str(found.value)


def test_a_remedy_wraps_the_optimizer_once_per_learning_rate(tmp_path):
    """Steps with equal settings share one optimizer object, so that JAX compiles the update once."""
    config = TINY.replace(**SHORT, keep_zeros=True, remedy="auto", learning_rate_warmup=0, run=str(tmp_path / "run"))
    setup, state = first_state(config, reward=even_length)
    slower = [[5, "large_steps", "learning_rate", 1e-2, rate] for rate in (3e-3, 1e-3)]
    journals = [[], slower[:1], slower[:1], slower]
    found = [revise(setup, Checkpoint(state, no_history(16), journal={NAME: made})).optimizer for made in journals]
    assert found[1] is found[2]
    assert len({id(optimizer) for optimizer in found}) == 3
    params, gradient = {"w": jnp.array([[0.0, 1.0]])}, {"w": jnp.ones((1, 2))}
    for optimizer, rate in zip(found[1:], (3e-3, 3e-3, 1e-3), strict=True):
        update, _ = optimizer.update(gradient, found[0].init(params), params)
        assert update["w"][0, 0] == 0
        assert update["w"][0, 1] == pytest.approx(-rate * 1.1, rel=1e-4), "AdamW's first update, with a weight decay of 0.1"


def test_zeros_that_could_not_be_kept_are_refused(pruned, tmp_path):
    config = TINY.replace(**SHORT, keep_zeros=True, run=str(tmp_path / "run"))
    with pytest.raises(InputError, match="whose product is added to all weights"):
        rljax.train(config.replace(model=str(pruned), lora_rank=2), reward=even_length)
    with pytest.raises(InputError, match="would change the zeros"):
        rljax.train(config.replace(warm_start_steps=2), reward=even_length)
