"""Runs that train a low-rank adapter: their state, updates, resumption and exports."""

import json
import shutil
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from run_states import first_state, learn_from, make_rl_state
from safetensors.numpy import load_file, save_file
from small_cli import refused
from small_runs import SMALL, even_length, stopping_after

import rljax
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models import count_parameters, transformer_policy
from rljax.models.adapters import Base
from rljax.models.huggingface import read_config
from rljax.models.model_folder import read_json
from rljax.models.peft_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from rljax.programs.batch_replay import replay
from rljax.programs.export import check_adapter_export
from rljax.programs.trained_policy import load
from rljax.rollout import lay_out_examples, sequences_of, sequences_of_demonstrations
from rljax.training.config import TrainConfig
from rljax.training.interrupt import Interrupted
from rljax.training.objective.optimizer import warm_start_optimizer
from rljax.training.parts.adapter import base_entry
from rljax.training.parts.model_folder import companions, save_model
from rljax.training.rollout_data import make_rollout_scorer, scored_rows
from rljax.training.run import StoppedBatch
from rljax.training.scoring import make_score, make_scores, policy_params
from rljax.training.update import make_supervised_step

TINY = SMALL.replace(
    width=32,
    kv_heads=2,
    train_problems=16,
    heldout_problems=4,
    algorithm="grpo",
    algorithm_options={"beta": 0.1},
    steps=2,
    prompts=4,
    group_size=4,
    minibatches=2,
    learning_rate=1e-2,
    eval_every=0,
    sample_every=0,
    lora_rank=2,
)


def max_difference(ours, theirs):
    return max(
        float(np.abs(np.asarray(a) - np.asarray(b)).max())
        for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True)
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder with random weights."""
    setup, state = first_state(TINY.replace(lora_rank=None, seed=7))
    folder = tmp_path_factory.mktemp("base") / "model"
    save_model(folder, setup.policy, state.params, companions(setup.config, setup.tokenizer))
    return folder


@pytest.fixture(scope="module")
def config(model):
    return TINY.replace(model=str(model))


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    return rljax.train(config.replace(run=str(path)), even_length)


@pytest.fixture(scope="module")
def sampled(config):
    """A rollout whose rewards are replaced, so that each group has ones and zeros."""
    setup, state = first_state(config, reward=even_length)
    groups = setup.train.generate(setup.full_params(state.params), range(4), 4, jax.random.key(0))
    rewards = np.tile(np.array([1, 0], np.float32), (4, 2))
    return groups._replace(rollout=groups.rollout._replace(rewards=rewards))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def merged_rollout(config, request):
    """A setup, a state whose adapter changes every matrix, and a rollout sampled from the merged model."""
    config = config.replace(dtype=request.param, algorithm_options={}, minibatches=1)
    setup, state = first_state(config, reward=even_length)
    keys = iter(jax.random.split(jax.random.key(1), len(jax.tree.leaves(state.params))))
    changed = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(next(keys), x.shape), state.params)
    state = make_rl_state(setup, state._replace(params=changed))
    groups = setup.train.generate(setup.full_params(state.params), range(4), 4, jax.random.key(0))
    rewards = np.tile(np.array([1, 0], np.float32), (4, 2))
    return setup, state, groups._replace(rollout=groups.rollout._replace(rewards=rewards))


def test_sampler_gap_measures_the_rounding_in_bfloat16(merged_rollout):
    """In bfloat16, the sampler rounds the merged matrices, but the update rounds each factor. In float32, they agree."""
    setup, state, groups = merged_rollout
    rollout, mask = groups.rollout, groups.rollout.mask.reshape(-1, groups.rollout.mask.shape[-1])
    scores = make_scores(make_score(setup.policy, 1.0), setup.mesh, scored_rows(setup))
    logp = scores(policy_params(setup.base, state.params), sequences_of(groups)).logp
    largest_gap = np.abs(logp - rollout.policy_logp.reshape(logp.shape))[mask].max()
    scored_rollout = make_rollout_scorer(setup)(state, groups)
    replayed = {term.name: term for term in replay(setup, state, StoppedBatch(scored_rollout, 1, 0, None)).terms}
    assert replayed["logp"].largest == pytest.approx(np.abs(logp[mask]).max(), rel=1e-6), (
        "the replay scores as the update does"
    )
    assert replayed["log_ratio"].largest == pytest.approx(largest_gap, rel=1e-5)
    gap = learn_from(setup, state, groups)[1].sampler_gap
    if setup.config.model.dtype == "float32":
        assert largest_gap < 1e-4
        assert abs(gap) < 1e-7
    else:
        assert 1e-3 < largest_gap < 0.1
        assert 1e-7 < gap < largest_gap**2


def test_the_state_contains_the_adapter_but_no_base_weights(config):
    setup, state = first_state(config, reward=even_length)
    state = make_rl_state(setup, state)
    size = count_parameters(state.params)
    assert size < count_parameters(setup.base.params) / 2
    assert sum(leaf.size for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim) == 2 * size, "two Adam moments"
    assert state.reference is None
    assert setup.full_params(state.reference) is setup.base.params
    jax.tree.map(np.testing.assert_array_equal, setup.full_params(state.params), setup.base.params)
    saved = make_rl_state(*first_state(config.replace(warm_start_steps=1), reward=even_length)).reference
    assert count_parameters(saved) == size, "a warm start moves the reference away from the base"


def test_a_run_changes_the_adapter_and_reports_what_it_trains(finished, config):
    setup, first = first_state(config, reward=even_length)
    base = jax.device_get(setup.base.params)
    assert max_difference(finished.params, base) > 1e-4
    jax.tree.map(np.testing.assert_array_equal, finished.params["embedding"], base["embedding"])
    log = (finished.run / "log.txt").read_text()
    assert f"adapter of rank 2: {count_parameters(first.params):,} trainable parameters" in log
    opened = load(finished.run, which="last", reward=even_length)
    jax.tree.map(np.testing.assert_array_equal, opened.params, finished.params)


def test_a_resumed_run_continues_bit_for_bit(finished, config, tmp_path):
    path = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        rljax.train(config.replace(run=str(path)), stopping_after(2))
    resumed = rljax.train(None, even_length, resume=path)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, finished.params)
    with pytest.raises(InputError, match="cannot change lora_rank: 2 -> 4"):
        rljax.train(config.replace(lora_rank=4), even_length, resume=path)


@pytest.mark.parametrize("name", ["dapo", "gkd", "otb", "ppo", "t1"])
def test_each_kind_of_algorithm_trains_the_adapter(config, model, sampled, name):
    """In order: algorithms with groups, a teacher, full distributions, a critic, and a moving reference."""
    teacher = str(model) if name == "gkd" else None
    setup, state = first_state(config.replace(algorithm=name, algorithm_options={}, teacher=teacher), reward=even_length)
    state = make_rl_state(setup, state)
    if setup.critic is not None:
        jax.tree.map(np.testing.assert_array_equal, state.critic.params["trunk"], setup.base.params)
        assert count_parameters(setup.critic.trained_params(state.critic.params)) > count_parameters(setup.base.params)
    before = jax.device_get(state.params)
    state, metrics = learn_from(setup, state, sampled)
    assert np.isfinite(metrics.policy.grad_norm)
    assert name == "gkd" or max_difference(state.params, before) > 1e-4, (
        "the teacher of gkd is the base itself, so nothing changes"
    )
    if name == "t1":
        assert 0 < max_difference(state.reference, before) < max_difference(state.params, before)


def test_a_mesh_and_one_device_make_the_same_update(config, sampled):
    after = []
    for axes in ({"replicas": 1}, {"replicas": 2, "fsdp": 2, "tensor": 2}):
        setup, state = first_state(config.replace(**axes), reward=even_length)
        state = make_rl_state(setup, state)
        state, _ = learn_from(setup, state, sampled)
        after.append(jax.device_get((state.params, setup.full_params(state.params))))
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-4), *after)


def test_the_warm_start_trains_the_adapter():
    setup, state = first_state(TINY.replace(warm_start_steps=2, warm_start_batch=8))
    step = make_supervised_step(setup, warm_start_optimizer(setup.config), state)
    sequences = jax.tree.map(lambda array: array[:8], sequences_of_demonstrations(setup.demonstrations))
    losses = []
    for _ in range(6):
        state, metrics = step(state, lay_out_examples(sequences, sequences.attention, rows=8), sequences.attention)
        losses.append(float(metrics.loss))
    assert losses[-1] < losses[0]


def test_the_merged_export_is_an_ordinary_model(finished, model, tmp_path):
    folder = rljax.export(finished.run, tmp_path / "merged", which="last")
    opened = load(folder, problems=[Problem("1+1=", "2")])
    jax.tree.map(np.testing.assert_array_equal, opened.params, finished.params)
    assert read_json(folder / "config.json") == read_json(model / "config.json")


def test_the_adapter_is_exported_alone(finished, config, model, tmp_path):
    folder = rljax.export(finished.run, tmp_path / "adapter", which="last", adapter=True)
    assert {ADAPTER_CONFIG, ADAPTER_WEIGHTS, "tokenizer.json"} <= {file.name for file in folder.iterdir()}
    assert read_json(folder / ADAPTER_CONFIG)["base_model_name_or_path"] == str(model)
    tensors, base = load_file(folder / ADAPTER_WEIGHTS), load_file(model / "model.safetensors")
    merged = load_file(rljax.export(finished.run, tmp_path / "merged", which="last") / "model.safetensors")
    name = "model.layers.0.mlp.up_proj"
    product = tensors[f"base_model.model.{name}.lora_B.weight"] @ tensors[f"base_model.model.{name}.lora_A.weight"]
    np.testing.assert_allclose(merged[f"{name}.weight"], base[f"{name}.weight"] + 16 * product, rtol=1e-5, atol=1e-6)


def test_an_adapter_export_refuses_a_dtype(finished, tmp_path):
    with pytest.raises(InputError, match="dtype='bfloat16' cannot be used with an adapter"):
        rljax.export(finished.run, tmp_path / "a", which="last", adapter=True, dtype="bfloat16")


def test_an_adapter_for_another_base_is_refused(finished, config, model, tmp_path):
    """The other base differs only in its weights; its shapes are the same."""
    run = tmp_path / "run"
    shutil.copytree(finished.run, run)
    other = tmp_path / "other"
    shutil.copytree(model, other)
    tensors = load_file(other / "model.safetensors")
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"] + np.float32(1e-3)
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((run / "config.json").read_text())
    settings["model"]["path"] = str(other)
    (run / "config.json").write_text(json.dumps(settings))
    for call in (
        lambda: rljax.train(None, even_length, resume=run),
        lambda: load(run, reward=even_length),
        lambda: rljax.export(run, tmp_path / "model"),
    ):
        with pytest.raises(InputError, match=r"was trained on another base: its fingerprint .* restore the model"):
            call()


def test_a_random_base_is_recognized_on_another_kind_of_device():
    """On another kind of device, the same seed may give weights that are rounded differently."""
    weights = {"embedding": np.ones((3, 2), np.float32)}

    def entry(params, seed=0):
        return base_entry(TrainConfig.flat(seed=seed), Base(params, np.float32(1.0)))

    assert entry(weights) == entry({"embedding": weights["embedding"] + np.float32(1e-6)})
    assert entry(weights) != entry(weights, seed=1)
    assert entry(weights) != entry({"embedding": weights["embedding"] * np.float32(1.02)}), (
        "larger differences mean that the weights were sampled differently"
    )
    assert entry(weights) != entry({"embedding": np.ones((2, 3), np.float32)})
    assert entry(weights) != entry({"head": weights["embedding"]})


def test_an_adapter_on_a_custom_policy_is_refused(config):
    policy = transformer_policy(read_config(Path(config.model.path)), eos=1)
    with pytest.raises(
        InputError,
        match="lora_rank=2 adapts the built-in transformer, but this run uses a custom policy; leave lora_rank out",
    ):
        first_state(config, reward=even_length, policy=policy)


def test_a_run_without_an_adapter_has_none_to_export(config):
    for changes, message in (({"lora_rank": None}, "has no adapter"), ({"model": None}, "began with random weights")):
        with pytest.raises(InputError, match=message):
            check_adapter_export(config.replace(**changes), None)


def test_the_command_line_refuses_patterns_that_match_nothing(capsys):
    message = r"--lora-targets: 'q_proj' matches no parameter; the parameters are layers/\*/attention/key"
    small = ["--train-problems", "8", "--heldout-problems", "2", "--layers", "1", "--width", "32", "--hidden", "32"]
    refused(capsys, message, "train", *small, "--lora-rank", "2", "--lora-targets", "q_proj", "--quiet")
