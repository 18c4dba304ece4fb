"""Tests of custom optimizers: any Optax transformation can train the policy, and checkpoints contain its state."""

import json

import jax
import numpy as np
import optax
import pytest
from run_states import read_checkpoint
from small_runs import SMALL, even_length, stopping_after
from third_party_policies import gru_policy

import rljax
from rljax.data.problem import Problem
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.programs.train import refuse_unused_settings
from rljax.training.interrupt import Interrupted
from rljax.training.parts.custom_parts import CustomParts

pytestmark = pytest.mark.usefixtures("standard_promotion")

SUMS = [Problem(f"{a}+{b}=", str(a + b)) for a in range(1, 13) for b in (1, 10)]
PARTS = {
    "policy": gru_policy(load_tokenizer("characters").vocab_size),
    "problems": (SUMS[:20], SUMS[20:]),
    "reward": even_length,
}
CONFIG = SMALL.replace(
    name="optimizer", algorithm="grpo", steps=2, prompts=4, group_size=4, eval_every=0, checkpoint_every=1, sample_every=0
)
MUON = optax.contrib.muon(1e-2)
OPTIMIZERS = {
    "muon": MUON,
    "sgd": optax.sgd(0.1),
    "chain": optax.chain(
        optax.clip(1.0), optax.inject_hyperparams(optax.adam)(learning_rate=optax.linear_schedule(0.01, 0.0, 4))
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("optimizers")
    return {
        name: rljax.train(CONFIG.replace(run=str(folder / name)), optimizer=optimizer, **PARTS)
        for name, optimizer in OPTIMIZERS.items()
    }


def rl_rows(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["phase"] == "rl"]


def test_optimizers_reach_different_parameters(runs):
    first = PARTS["policy"].init(jax.random.key(0))
    all_params = [first, *(result.params for result in runs.values())]
    for index, ours in enumerate(all_params):
        for theirs in all_params[:index]:
            gaps = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - np.asarray(b)).max(), ours, theirs)
            assert min(jax.tree.leaves(gaps)) > 0


def test_learning_rate_is_logged_if_the_state_contains_it(runs):
    assert [row["learning_rate"] for row in rl_rows(runs["chain"].run)] == pytest.approx([0.01, 0.0075])
    for name in ("muon", "sgd"):
        assert not any("learning_rate" in row for row in rl_rows(runs[name].run))
        assert all(row["grad_norm"] > 0 for row in rl_rows(runs[name].run))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resumed_run_is_bitwise_equal(runs, tmp_path, name):
    path, parts = tmp_path / "stopped", {key: part for key, part in PARTS.items() if key != "reward"}
    optimizer = OPTIMIZERS[name]
    with pytest.raises(Interrupted):
        rljax.train(CONFIG.replace(run=str(path)), stopping_after(2), optimizer=optimizer, **parts)
    assert int(read_checkpoint(CONFIG, path, optimizer=optimizer, **PARTS).state.step) == 1
    rljax.train(resume=path, optimizer=optimizer, **PARTS)
    ours, theirs = (read_checkpoint(CONFIG, run, optimizer=optimizer, **PARTS).state for run in (path, runs[name].run))
    assert jax.tree.structure(ours.opt_state) == jax.tree.structure(optimizer.init(runs[name].params))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_resuming_with_another_optimizer_is_rejected(runs):
    before = (runs["muon"].run / "metrics.jsonl").read_bytes()
    message = (
        r"^optimizer: the checkpoint in '.*last' can only be restored into a state like the one that was saved; 'opt_state/.*' is "
        r"of shape \[.*\] in the checkpoint and absent now .* Pass the same optimizer as when the run was started; if none"
    )
    with pytest.raises(InputError, match=message) as caught:
        rljax.train(resume=runs["muon"].run, optimizer=OPTIMIZERS["sgd"], **PARTS)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"^optimizer: .*'opt_state/"):
        rljax.train(resume=runs["muon"].run, optimizer=OPTIMIZERS["chain"], **PARTS)
    with pytest.raises(InputError, match=r"'opt_state/.*' is absent in the checkpoint and of shape \[.*\] now"):
        rljax.train(resume=runs["sgd"].run, optimizer=MUON, **PARTS)
    assert (runs["muon"].run / "metrics.jsonl").read_bytes() == before


def test_resuming_without_the_optimizer_is_rejected(runs):
    with pytest.raises(InputError, match="The run was started with optimizer passed"):
        rljax.train(resume=runs["muon"].run, **PARTS)


@pytest.mark.parametrize("settings", [{"learning_rate": 1e-3}, {"max_grad_norm": 0.5}, {"second_moment": "factored"}])
def test_settings_of_the_built_in_optimizer_are_refused(tmp_path, settings):
    config = CONFIG.replace(run=str(tmp_path / "refused"), **settings)
    with pytest.raises(
        InputError, match=rf"^{next(iter(settings))}=.* applies to the built-in optimizer, but an optimizer is"
    ):
        rljax.train(config, optimizer=MUON, **PARTS)
    parts = CustomParts(optimizer=MUON, **PARTS)
    refuse_unused_settings(config.replace(algorithm="ppo"), parts)  # the critic's optimizer reads them
    if "learning_rate" not in settings:
        refuse_unused_settings(config.replace(warm_start_steps=1), parts)


NEEDS_EXTRA_ARGUMENT = optax.GradientTransformationExtraArgs(
    lambda params: optax.EmptyState(), lambda updates, state, params=None, *, value: (updates, state)
)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (optax.adam, "^optimizer: expected an optax.GradientTransformation, such as .*; got <function adam"),
        (
            optax.masked(optax.sgd(0.1), {"other": True}),
            "^optimizer.init: the state must be a pytree of arrays made from the policy's parameters, .*; got ",
        ),
        (
            NEEDS_EXTRA_ARGUMENT,
            "^optimizer.update: expected a function of gradient, state and parameters .*; got TypeError: .*'value'",
        ),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_invalid_optimizer_is_rejected_before_anything_is_written(tmp_path, optimizer, message):
    path = tmp_path / "refused"
    with pytest.raises(InputError, match=message) as caught:
        rljax.train(CONFIG.replace(run=str(path)), optimizer=optimizer, **PARTS)
    assert "\n" not in str(caught.value)
    assert not path.exists()
