"""What a plan says against what a run holds, and against what the compiler counts."""

import os
from dataclasses import replace

import jax
import pytest
from reopened import first_state
from small_cli import refused
from small_runs import SMALL, even_length

from rljax.cli import main
from rljax.cli.plan import pretend_devices
from rljax.errors import InputError
from rljax.models import TransformerConfig, transformer_policy
from rljax.parallel import make_mesh
from rljax.training import plan
from rljax.training.beginning import rl_state
from rljax.training.optimizer import policy_optimizer
from rljax.training.plan import (
    bytes_on_a_device,
    data_shapes,
    extrapolated,
    make_plan,
    plan_of,
    planned_algorithm,
    state_shapes,
    temporaries,
    update_flops,
)
from rljax.training.setup import make_shape
from rljax.training.state import places
from rljax.training.update import compile_policy_step, make_score, without_teacher

SHAPE = TransformerConfig(vocab_size=512, width=64, layers=6, heads=4, kv_heads=4, head_dim=16, hidden=128)
CONFIG = SMALL.replace(
    dataset="rows.jsonl",
    algorithm="grpo",
    algorithm_options={"beta": 0.1},
    width=32,
    kv_heads=2,
    max_response_tokens=12,
    prompts=4,
    group_size=4,
    minibatches=2,
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": "ppo", "algorithm_options": {}},
        {"lora_rank": 2},
        {"freeze": ("embedding",)},
        {"algorithm": "t1", "lora_rank": 2},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())) or "grpo",
)
def test_the_bytes_of_the_state_are_those_of_a_run(changes):
    """Of device 0 of eight, in RL."""
    settings = CONFIG.replace(replicas=2, fsdp=2, tensor=2, **({"algorithm_options": {}} | changes))
    real = settings.replace(task="sums", dataset=None, train_problems=16, heldout_problems=4)
    setup, state = first_state(real, reward=even_length)
    state = rl_state(setup, state)
    algorithm, settings = planned_algorithm(settings)
    shape = make_shape(settings.model, setup.tokenizer.vocab_size)
    planned, base = state_shapes(settings, algorithm, transformer_policy(shape, eos=0, mesh=setup.mesh), setup.mesh)

    def held(tree):
        first = setup.mesh.devices.flat[0]
        shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
        return sum(shard.data.nbytes for shard in shards if shard.device == first)

    for name in ("params", "opt_state", "reference", "critic"):
        assert bytes_on_a_device(getattr(planned, name)) == held(getattr(state, name)), name
    assert (base is None) == (setup.base is None)
    if base is not None:
        assert bytes_on_a_device(base.params) == held(setup.base.params)


def test_the_temporaries_of_a_deep_model_follow_from_shallow_ones():
    mesh = make_mesh(1, 2)
    direct = temporaries(CONFIG, SHAPE, mesh, 20)
    guess = extrapolated(lambda layers: temporaries(CONFIG, replace(SHAPE, layers=layers), mesh, 20), SHAPE.layers)
    assert guess == pytest.approx(direct, rel=0.1)
    assert direct > 4 * SHAPE.vocab_size * SHAPE.width


def test_the_operations_are_about_those_that_the_compiler_counts():
    """One micro-batch and one chunk of logits, so that no loop hides how often its body runs."""
    config, mesh = CONFIG.replace(minibatches=1, microbatch_rows=16), make_mesh(1, 1)
    algorithm, config = planned_algorithm(config)
    policy = transformer_policy(SHAPE, eos=0, mesh=mesh)
    state, base = state_shapes(config, algorithm, policy, mesh)
    layout, batch = data_shapes(config, algorithm, mesh, 20)
    compare = without_teacher(make_score(policy, 1.0))
    step = compile_policy_step(algorithm, compare, policy_optimizer(config), places(state), mesh)
    counted = step.lower(state, layout, batch, None, base).compile().cost_analysis()["flops"]
    rows, slots = layout.packed.tokens.shape[1:]
    assert (layout.packed.tokens.shape[0], slots) == (1, 32)
    assert update_flops(SHAPE, rows * slots, slots) == pytest.approx(counted, rel=0.25)


def test_an_adapter_and_a_cut_model_need_less():
    one, eight = (make_plan(CONFIG, replace(SHAPE, layers=2), make_mesh(1, n), 20) for n in (1, 8))
    adapted = make_plan(CONFIG.replace(lora_rank=2), replace(SHAPE, layers=2), make_mesh(1, 1), 20)
    assert eight.state < one.state / 7
    assert adapted.optimizer < one.optimizer / 4
    assert (adapted.reference, one.reference) == (0, one.parameters)
    assert one.peak == one.state + max(one.temporaries, one.sampler + one.cache)
    assert one.cache == 2 * 2 * 16 * 32 * 64 * 4, "keys and values, layers, rows, slots, features, bytes"


def test_the_command_says_what_fits_and_what_would(capsys, monkeypatch):
    for name in ("XLA_FLAGS", "JAX_PLATFORMS"):
        monkeypatch.setenv(name, os.environ[name])
    monkeypatch.setattr(plan, "temporaries", lambda *arguments: 10_000)  # compiling is tested above
    flags = ["plan", "--algorithm", "grpo", "--prompts", "4", "--group-size", "4", "--max-response-tokens", "12"]
    flags += ["--layers", "2", "--width", "64", "--kv-heads", "2", "--prompt-length", "20"]
    assert main([*flags, "--device-memory", "1GB"]) == 0
    text = capsys.readouterr().out
    assert "grpo, 4 x 4 responses of at most 12 tokens; GB on 1 device\n" in text
    assert text.endswith("It fits 1GB.\n")
    assert "  optimiser" in text
    assert main([*flags, "--device-memory", "1KB"]) == 1
    text = capsys.readouterr().out
    assert "It does not fit 1KB" in text
    assert "Nor does it with --microbatch-rows 1 --remat --dtype bfloat16 --lora-rank 16: " in text
    refused(capsys, "--device-count is 0", *flags, "--device-count", "0")
    refused(capsys, r"this process has 8 devices and the plan is for 99; .*device_count=99", *flags, "--device-count", "99")


def test_devices_are_pretended_before_jax_looks():
    environment = {"XLA_FLAGS": "--other"}
    pretend_devices(environment, 16)
    assert environment == {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--other --xla_force_host_platform_device_count=16"}


def test_an_update_beside_a_teacher_is_not_planned():
    with pytest.raises(InputError, match="cannot measure gkd, whose update also reads a teacher"):
        plan_of(CONFIG.replace(algorithm="gkd", algorithm_options={}), 1, 20)
