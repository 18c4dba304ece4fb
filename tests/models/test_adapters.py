"""Low-rank adapters: merging, gradients, sharding, and folders in the format of `peft`."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.families import write_folder
from safetensors.numpy import load_file
from small_models import ADAPTER_SCALE, EVERYTHING, LLAMA, SHAPES, make_packed, random_adapter, random_params

from rljax.errors import InputError
from rljax.models import score_tokens, transformer_policy
from rljax.models.adapters import (
    Base,
    LowRank,
    adapted_paths,
    effective_params,
    fingerprint,
    init_adapter,
    merge,
    unmerged_params,
)
from rljax.models.checkpoint_tensors import entries, get_at
from rljax.models.config import REMATS
from rljax.models.huggingface import read_config
from rljax.models.language_model import Model, abstract_params
from rljax.models.model_folder import read_json
from rljax.models.path_patterns import matches, select_paths
from rljax.models.peft_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS, save_adapter
from rljax.models.policy import path_names
from rljax.parallel import make_mesh, policy_shardings, put
from rljax.training.scoring import policy_params


@partial(jax.jit, static_argnames="config")
def logp_of(params, config=LLAMA):
    return score_tokens(Model(config), params, make_packed()).logp


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_new_adapter_leaves_the_model_unchanged(name):
    config = SHAPES[name]
    params = random_params(config)
    adapter = init_adapter(jax.random.key(0), params, rank=4, targets=EVERYTHING)
    merged = effective_params(Base(params, ADAPTER_SCALE), adapter)
    jax.tree.map(np.testing.assert_array_equal, merged, params)
    np.testing.assert_array_equal(logp_of(merged, config), logp_of(params, config))
    assert effective_params(Base(params, ADAPTER_SCALE), None) is params
    assert effective_params(None, params) is params


@pytest.mark.parametrize("targets", [EVERYTHING, ("query", "down"), ("output",)])
@pytest.mark.parametrize("remat", REMATS)
def test_separate_and_merged_adapters_agree(targets, remat):
    """Compare log-probabilities and the gradients with respect to every factor."""
    config = replace(LLAMA, remat=remat)
    base, adapter = Base(random_params(config), ADAPTER_SCALE), random_adapter(random_params(config), targets=targets)
    weights = jax.random.normal(jax.random.key(5), (2, 5))

    def differentiate(build_params):
        return jax.jit(jax.value_and_grad(lambda adapter: (weights * logp_of(build_params(base, adapter), config)).sum()))(
            adapter
        )

    np.testing.assert_allclose(
        logp_of(unmerged_params(base, adapter), config), logp_of(effective_params(base, adapter), config), atol=1e-5
    )
    (separate, separate_grads), (merged, merged_grads) = differentiate(unmerged_params), differentiate(effective_params)
    np.testing.assert_allclose(separate, merged, rtol=1e-5)
    assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(merged_grads)) > 1e-3
    for one, other in zip(jax.tree.leaves(separate_grads), jax.tree.leaves(merged_grads), strict=True):
        size = np.abs(other).max()
        np.testing.assert_allclose(one / size, other / size, atol=4e-5)  # 2.3e-5 with JAX 0.12, which sums in another order
    assert unmerged_params(base, None) is base.params
    assert policy_params(None, base.params) is base.params


def test_merge_adds_the_product_of_the_factors():
    params = random_params(LLAMA)
    adapter = random_adapter(params, targets=("output",))
    merged = merge(params, adapter, ADAPTER_SCALE)
    a, b = adapter["layers"][1]["attention"]["output"]
    before, after = (np.asarray(tree["layers"][1]["attention"]["output"]) for tree in (params, merged))
    for head in range(4):
        for feature in range(4):
            for width in range(16):
                change = sum(float(a[head, feature, r]) * float(b[r, width]) for r in range(3))
                assert after[head, feature, width] - before[head, feature, width] == pytest.approx(1.5 * change, abs=1e-5)
    np.testing.assert_array_equal(merged["layers"][1]["attention"]["query"], params["layers"][1]["attention"]["query"])
    assert len(jax.tree.leaves(adapter)) == 2 * LLAMA.layers


def test_factor_gradients_follow_the_chain_rule():
    """dL/dA = α/r · dL/dW · Bᵀ and dL/dB = α/r · Aᵀ · dL/dW, with dL/dW from differentiating the full model."""
    params = random_params(LLAMA)
    adapter = random_adapter(params)

    def loss(params):
        return jnp.sin(logp_of(params)).sum()

    adapter_grads = jax.jit(jax.grad(lambda adapter: loss(merge(params, adapter, ADAPTER_SCALE))))(adapter)
    matrix_grads = jax.jit(jax.grad(loss))(merge(params, adapter, ADAPTER_SCALE))
    for part, name in (("attention", "query"), ("attention", "output"), ("feed_forward", "down")):
        a, b = adapter["layers"][0][part][name]
        found, matrix = adapter_grads["layers"][0][part][name], np.asarray(matrix_grads["layers"][0][part][name])
        flat = matrix.reshape(a.size // 3, b.size // 3)
        flat_a, flat_b = np.asarray(a).reshape(-1, 3), np.asarray(b).reshape(3, -1)
        np.testing.assert_allclose(np.reshape(found.a, flat_a.shape), 1.5 * flat @ flat_b.T, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.reshape(found.b, flat_b.shape), 1.5 * flat_a.T @ flat, rtol=1e-4, atol=1e-4)
        assert np.abs(found.a).max() > 1e-3


def test_an_adapter_of_full_rank_can_express_any_change():
    params = random_params(LLAMA)
    wanted = jax.random.normal(jax.random.key(9), (16, 24))
    now = params["layers"][0]["feed_forward"]["gate"]
    change = {"layers": {0: {"feed_forward": {"gate": LowRank(jnp.eye(16), (wanted - now) / ADAPTER_SCALE)}}}}
    np.testing.assert_allclose(
        merge(params, change, ADAPTER_SCALE)["layers"][0]["feed_forward"]["gate"], wanted, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("rank", "targets", "message"),
    [
        (9, ("key",), r"lora_rank is 9, but layers/0/attention/key of shape \[16, 2, 4\] has a rank of at most 8"),
        (
            2,
            ("q_proj",),
            r"lora_targets: 'q_proj' matches no parameter; the parameters are layers/\*/attention/key, .*feed_forward/up\.",
        ),
        (2, ("query", "embedding"), "lora_targets: 'embedding' matches no parameter"),
    ],
)
def test_invalid_ranks_and_targets_are_refused(rank, targets, message):
    with pytest.raises(InputError, match=message):
        init_adapter(jax.random.key(0), random_params(LLAMA), rank=rank, targets=targets)


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "gpt_oss"])
def test_each_expert_has_its_own_adapter(tmp_path, name):
    """Each expert's matrix changes by the product of its own factors; separate and merged adapters have equal gradients."""
    config = read_config(write_folder(tmp_path / "model", name))
    params = random_params(config)
    base, adapter = Base(params, ADAPTER_SCALE), random_adapter(params, targets=("feed_forward",))
    layer = adapter["layers"][1]["feed_forward"]
    assert set(layer) == {"expert_gate", "expert_up", "expert_down"}
    merged = effective_params(base, adapter)
    for matrix, (a, b) in layer.items():
        before, after = (tree["layers"][1]["feed_forward"][matrix] for tree in (params, merged))
        for expert in range(config.routing.experts):
            change = 1.5 * np.asarray(a[expert]) @ np.asarray(b[expert])
            np.testing.assert_allclose(after[expert] - before[expert], change, atol=1e-5)
            assert np.abs(change).max() > 0.01

    weights = jax.random.normal(jax.random.key(5), (2, 5))

    def differentiate(build_params):
        return jax.jit(jax.value_and_grad(lambda adapter: (weights * logp_of(build_params(base, adapter), config)).sum()))(
            adapter
        )

    (separate, separate_grads), (merged, merged_grads) = differentiate(unmerged_params), differentiate(effective_params)
    np.testing.assert_allclose(separate, merged, rtol=1e-4)
    for one, other in zip(jax.tree.leaves(separate_grads), jax.tree.leaves(merged_grads), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 * max(1.0, np.abs(other).max()))
    assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(merged_grads)) > 1e-4


def test_expert_adapters_are_sharded_like_the_experts(tmp_path):
    config, mesh = read_config(write_folder(tmp_path / "model", "qwen3_moe")), make_mesh(1, 2, 2)
    params = random_params(config)
    adapter = random_adapter(params, targets=("feed_forward",))
    shardings = policy_shardings(mesh, adapter, adapter, transformer_policy(config, eos=1, mesh=mesh).partition)
    specs = jax.tree.map(lambda sharding: tuple(sharding.spec), shardings["layers"][0]["feed_forward"])
    assert specs["expert_up"] == (("tensor", "fsdp", None), ("tensor", None, None))
    assert specs["expert_down"] == (("tensor", None, None), ("tensor", None, "fsdp"))

    def loss(adapter, mesh=None):
        return score_tokens(
            Model(config, mesh), unmerged_params(Base(params, ADAPTER_SCALE), adapter), make_packed()
        ).logp.sum()

    found = jax.jit(jax.grad(partial(loss, mesh=mesh)))(put(adapter, shardings))
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-4), found, jax.jit(jax.grad(loss))(adapter))


def test_unsupported_adapters_of_expert_models_are_refused(tmp_path):
    config = read_config(write_folder(tmp_path / "model", "qwen3_moe"))
    with pytest.raises(InputError, match=r"lora_targets: 'router' matches no parameter; .*feed_forward/expert_up"):
        init_adapter(jax.random.key(0), abstract_params(config), rank=2, targets=("attention", "router"))
    adapter = init_adapter(jax.random.key(0), abstract_params(config), rank=2, targets=("expert_up",))
    with pytest.raises(InputError, match="peft adapts the experts' gate and up matrices as one parameter"):
        save_adapter(tmp_path / "adapter", config, adapter, alpha=3.0, base="a/base")


def test_patterns_match_consecutive_parts_of_a_path():
    paths = adapted_paths(random_params(LLAMA), ("attention/query", "layers/1/feed_forward/d*"))
    assert [path[1:] for path in paths] == [
        ("0", "attention", "query"),
        ("1", "attention", "query"),
        ("1", "feed_forward", "down"),
    ]
    assert not matches("attention", ("attention_norm", "scale"))
    assert select_paths([], [("a",)], setting="freeze") == ()


def test_an_adapter_is_sharded_like_its_matrices():
    mesh = make_mesh(2, 2, 2)
    params = random_params(LLAMA)
    policy = transformer_policy(LLAMA, eos=1, mesh=mesh)
    adapter = random_adapter(params)
    shardings = policy_shardings(mesh, adapter, adapter, policy.partition)
    specs = jax.tree.map(lambda sharding: tuple(sharding.spec), shardings["layers"][0])
    assert specs["attention"]["query"] == (("fsdp", None), (None, "tensor", None))
    assert specs["attention"]["output"] == (("tensor", None, None), (None, "fsdp"))
    assert specs["feed_forward"]["down"] == (("tensor", None), (None, "fsdp"))
    on_mesh = put(params, policy_shardings(mesh, params, params, policy.partition))
    merged = jax.jit(merge)(on_mesh, put(adapter, shardings), ADAPTER_SCALE)
    jax.tree.map(
        partial(np.testing.assert_allclose, atol=1e-6),
        jax.device_get(merged),
        jax.jit(merge)(params, adapter, ADAPTER_SCALE),
    )


def test_fingerprint_depends_on_config_and_weights():
    params = random_params(LLAMA)
    one = fingerprint(LLAMA, params)
    assert one != fingerprint(SHAPES["qwen2"], params)
    assert one != fingerprint(LLAMA, params | {"norm": {"scale": params["norm"]["scale"] + 1e-6}})
    assert one != fingerprint(LLAMA, params | {"embedding": params["embedding"].at[3, 5].add(1e-6)})
    tuned = jax.tree_util.tree_map_with_path(lambda path, leaf: leaf + 1e-6 * ("gate" in path_names(path)), params)
    assert one != fingerprint(LLAMA, tuned), "a merged adapter must change the fingerprint"


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_peft_tensors_give_the_merged_checkpoint(tmp_path, name):
    """In a checkpoint's layout, W + α/r · lora_B · lora_A is the tensor that a merged export writes."""
    config = SHAPES[name]
    params = random_params(config)
    adapter = random_adapter(params)
    save_adapter(tmp_path / "adapter", config, adapter, alpha=4.5, base="a/base")
    settings = read_json(tmp_path / "adapter" / ADAPTER_CONFIG)
    assert settings["target_modules"] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert (settings["r"], settings["lora_alpha"], settings["base_model_name_or_path"]) == (3, 4.5, "a/base")
    tensors = load_file(tmp_path / "adapter" / ADAPTER_WEIGHTS)
    merged = merge(params, adapter, ADAPTER_SCALE)
    matrices = 0
    for entry in entries(config):
        module = f"base_model.model.{entry.name.removesuffix('.weight')}"
        before, after = (np.asarray(entry.write(np.asarray(get_at(tree, entry.path)))) for tree in (params, merged))
        if f"{module}.lora_A.weight" in tensors:
            matrices += 1
            product = tensors[f"{module}.lora_B.weight"] @ tensors[f"{module}.lora_A.weight"]
            np.testing.assert_allclose(after, before + 1.5 * product, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(after, before)
    assert 2 * matrices == len(tensors) == 2 * 7 * config.layers


def test_matrices_adapted_in_some_layers_are_named_per_layer(tmp_path):
    adapter = random_adapter(random_params(LLAMA), targets=("layers/1/attention/query", "value"))
    save_adapter(tmp_path, LLAMA, adapter, alpha=3.0, base="a/base")
    assert read_json(tmp_path / ADAPTER_CONFIG)["target_modules"] == [
        "model.layers.0.self_attn.v_proj",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.self_attn.v_proj",
    ]
