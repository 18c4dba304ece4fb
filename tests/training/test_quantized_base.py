"""Runs that train an adapter on a quantized model: their state, learning, resuming and exports."""

import shutil
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_states import first_state, learn_from, make_rl_state
from safetensors.numpy import load_file, save_file
from small_runs import SMALL, even_length, stopping_after

import rljax
from rljax.cli import main
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models import count_parameters, transformer_policy
from rljax.models.adapters import effective_params
from rljax.models.model_folder import read_json
from rljax.models.peft_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from rljax.models.quantization import dequantize_params, quantize_params
from rljax.parallel import make_mesh
from rljax.programs.trained_policy import load
from rljax.rollout import sequences_of
from rljax.training.interrupt import Interrupted
from rljax.training.memory_plan import parameter_shapes, sampler_bytes
from rljax.training.parts.model_folder import companions, save_model
from rljax.training.parts.policy import make_transformer_config
from rljax.training.rollout_data import scored_rows
from rljax.training.scoring import make_score, make_scores, policy_params

TINY = SMALL.replace(
    width=128,
    heads=4,
    kv_heads=2,
    hidden=128,
    train_problems=16,
    heldout_problems=4,
    algorithm="grpo",
    algorithm_options={"beta": 0.1},
    steps=2,
    prompts=4,
    group_size=4,
    learning_rate=1e-2,
    eval_every=0,
    sample_every=0,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder with random weights."""
    setup, state = first_state(TINY.replace(seed=7))
    folder = tmp_path_factory.mktemp("base") / "model"
    save_model(folder, setup.policy, state.params, companions(setup.config, setup.tokenizer))
    return folder


@pytest.fixture(scope="module")
def config(model):
    return TINY.replace(model=str(model), lora_rank=2, quantize="nf4")


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    return rljax.train(config.replace(run=str(tmp_path_factory.mktemp("runs") / "whole")), even_length)


@pytest.fixture(scope="module")
def sampled(config):
    """A rollout whose groups contain both rewards, sampled by an untrained policy."""
    setup, state = first_state(config, reward=even_length)
    groups = setup.train.generate(setup.full_params(state.params), range(4), 4, jax.random.key(0))
    rewards = np.tile(np.array([1, 0], np.float32), (4, 2))
    return groups._replace(rollout=groups.rollout._replace(rewards=rewards))


def bytes_of(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def test_a_run_stores_four_bits_per_weight_and_trains_the_adapter(config, finished):
    setup, state = first_state(config, reward=even_length)
    plain, other = first_state(config.replace(quantize=None), reward=even_length)
    quantized_bytes, plain_bytes = (bytes_of(each.base.params["layers"]) for each in (setup, plain))
    assert quantized_bytes < plain_bytes * 5 / 32, "four bits per weight, a scale per 64 or 32 weights, and norms"
    assert bytes_of(setup.base.params["embedding"]) == bytes_of(plain.base.params["embedding"])
    assert bytes_of(make_rl_state(setup, state)) == bytes_of(make_rl_state(plain, other)), (
        "the state must not contain the base"
    )
    jax.tree.map(np.testing.assert_array_equal, state.params, other.params)
    expected = quantize_params(plain.base.params, kind="nf4", dtype="float32")
    jax.tree.map(np.testing.assert_array_equal, setup.base.params, expected)
    moved = jax.tree.map(lambda ours, base: float(np.abs(ours - base).max()), finished.params, dequantize_params(expected))
    assert max(jax.tree.leaves(moved)) > 1e-4
    log = (finished.run / "log.txt").read_text()
    assert f"{count_parameters(other.params):,} trainable parameters, on a model quantized to nf4" in log
    assert f"{count_parameters(plain.base.params):,} parameters, float32" in log


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampler_and_update_agree_up_to_rounding(config, dtype):
    """In float32 they agree; in bfloat16 the merged copy is also bfloat16, so rounding causes a difference."""
    setup, state = first_state(config.replace(dtype=dtype), reward=even_length)
    keys = iter(jax.random.split(jax.random.key(1), len(jax.tree.leaves(state.params))))
    adapter = jax.tree.map(lambda x: x + 0.02 * jax.random.normal(next(keys), x.shape), state.params)
    params = setup.full_params(adapter)
    assert {leaf.dtype for leaf in jax.tree.leaves(params) if leaf.ndim > 1} == {jnp.dtype(dtype)}
    expected = jax.tree.map(lambda ours, exact: exact.astype(ours.dtype), params, effective_params(setup.base, adapter))
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    groups = setup.train.generate(params, range(4), 4, jax.random.key(0))
    mask = groups.rollout.mask.reshape(-1, groups.rollout.mask.shape[-1])
    scores = make_scores(make_score(setup.policy, 1.0), setup.mesh, scored_rows(setup))
    logp = scores(policy_params(setup.base, adapter), sequences_of(groups)).logp
    largest_gap = np.abs(logp - groups.rollout.policy_logp.reshape(logp.shape))[mask].max()
    assert largest_gap < (1e-4 if dtype == "float32" else 0.1)


def test_gradient_equals_that_of_the_dequantized_model(config, sampled):
    setup, state = first_state(config, reward=even_length)
    plain = setup._replace(
        config=setup.config.replace(quantize=None), base=setup.base._replace(params=dequantize_params(setup.base.params))
    )
    after = []
    for each in (setup, plain):
        start = make_rl_state(each, jax.tree.map(jnp.copy, state))
        learned, metrics = learn_from(each, start, sampled)
        after.append((float(metrics.policy.grad_norm), jax.device_get(learned.params)))
    assert after[0][0] == pytest.approx(after[1][0], rel=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-4), after[0][1], after[1][1])


def test_a_critic_starts_as_a_float32_copy_of_the_policy(config):
    setup, state = first_state(config.replace(algorithm="ppo", algorithm_options={}, dtype="bfloat16"), reward=even_length)
    critic = make_rl_state(setup, state).critic.params
    assert {leaf.dtype for leaf in jax.tree.leaves(critic)} == {jnp.dtype("float32")}
    jax.tree.map(np.testing.assert_array_equal, critic["trunk"], setup.full_params(state.params))


def test_a_mesh_and_one_device_make_the_same_update(config, sampled):
    after = []
    for axes in ({"replicas": 1}, {"replicas": 2, "fsdp": 2, "tensor": 2}):
        setup, state = first_state(config.replace(**axes), reward=even_length)
        state = make_rl_state(setup, state)
        state, _ = learn_from(setup, state, sampled)
        after.append(jax.device_get((state.params, setup.base.params, setup.full_params(state.params))))
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-4), *after)


def test_a_resumed_run_continues_bit_for_bit(finished, config, tmp_path):
    path = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        rljax.train(config.replace(run=str(path)), stopping_after(2))
    resumed = rljax.train(None, even_length, resume=path)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, finished.params)
    with pytest.raises(InputError, match="cannot change quantize: nf4 -> int8"):
        rljax.train(config.replace(quantize="int8"), even_length, resume=path)


def test_the_model_and_the_adapter_are_exported(finished, config, model, tmp_path):
    """The merged model is the trained policy; the adapter alone works with any copy of the base."""
    folder = rljax.export(finished.run, tmp_path / "merged", which="last")
    jax.tree.map(np.testing.assert_array_equal, load(folder, problems=[Problem("1+1=", "2")]).params, finished.params)
    assert read_json(folder / "config.json") == read_json(model / "config.json")
    alone = rljax.export(finished.run, tmp_path / "adapter", which="last", adapter=True)
    assert read_json(alone / ADAPTER_CONFIG)["base_model_name_or_path"] == str(model)
    tensors, merged = load_file(alone / ADAPTER_WEIGHTS), load_file(folder / "model.safetensors")
    setup, _ = first_state(config, reward=even_length)
    name, base = "model.layers.0.mlp.up_proj", dequantize_params(setup.base.params)["layers"][0]["feed_forward"]["up"]
    product = tensors[f"base_model.model.{name}.lora_B.weight"] @ tensors[f"base_model.model.{name}.lora_A.weight"]
    np.testing.assert_allclose(merged[f"{name}.weight"], base.T + 16 * product, rtol=1e-5, atol=1e-6)


def test_another_base_is_recognized_by_its_quantized_weights(finished, config, model, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(model, other)
    tensors = load_file(other / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    save_file(tensors | {name: -tensors[name]}, other / "model.safetensors", metadata={"format": "pt"})
    run = tmp_path / "run"
    shutil.copytree(finished.run, run)
    settings = (run / "config.json").read_text()
    (run / "config.json").write_text(settings.replace(str(model), str(other)))
    with pytest.raises(InputError, match="was trained on another base"):
        rljax.export(run, tmp_path / "model")


def test_a_plan_counts_the_copy_for_sampling(config):
    """The sampling copy has the dtype of the matrix products; over an unquantized base, a float32 copy is made first."""
    found = {}
    for dtype in ("float32", "bfloat16"):
        shape = make_transformer_config(config.replace(dtype=dtype).model, 128)
        mesh = make_mesh(1, 1)
        params = parameter_shapes(transformer_policy(shape, eos=0, mesh=mesh), mesh)
        for kind in (None, "nf4"):
            found[dtype, kind] = sampler_bytes(config.replace(dtype=dtype, quantize=kind), params, mesh) / bytes_of(params)
    expected = {("float32", None): 1, ("float32", "nf4"): 1, ("bfloat16", None): 1.5, ("bfloat16", "nf4"): 0.5}
    assert found == expected


def test_runs_that_cannot_be_quantized_are_refused(config, capsys):
    with pytest.raises(InputError, match=r"quantize='int8' quantizes the model under an adapter.*Set lora_rank"):
        config.replace(lora_rank=None, quantize="int8")
    with pytest.raises(
        InputError, match=r"fsdp=8 cannot share the 2 blocks of the quantized layers/0/attention/key equally"
    ):
        first_state(config.replace(replicas=1, fsdp=8, prompts=8), reward=even_length)
    assert main(["train", "--quantize", "nf4", "--quiet"]) == 2
    assert "Set --lora-rank" in capsys.readouterr().err
