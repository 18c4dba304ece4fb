"""A step's programs compile for H100s and TPUs that are not present, and their memory and traffic do not grow.

A test is skipped if the compiler is not installed. The recorded figures are from jax-cuda13-plugin 0.10.2 and libtpu 0.0.42.1.
"""

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.stages import Compiled

from rljax.models import TransformerConfig
from rljax.ops.gae import gae
from rljax.parallel import add_shardings, make_mesh, mesh_for_sampling, row_sharding
from rljax.programs.compiled_sampling import compile_sampling, output_shapes
from rljax.programs.compiled_updates import (
    compile_critic_update,
    compile_policy_update,
    layout_of,
    plan_policy,
    sent_bytes,
    temporaries,
)
from rljax.programs.topology import topology_of
from rljax.rollout import Sampling
from rljax.rollout.cached_dialogue import read_turns, row_decoder
from rljax.rollout.sampling import empty_rows, rows_shardings, weights_program
from rljax.training.config import TrainConfig
from rljax.training.memory_plan import parameter_shapes
from rljax.training.scoring import make_score

SHAPE = TransformerConfig(
    vocab_size=1024,
    width=256,
    layers=2,
    heads=4,
    kv_heads=4,
    head_dim=128,
    hidden=512,
    compute_dtype="bfloat16",
    remat="full",
)
PROMPT, RESPONSE, ROWS = 128, 128, 8
"""Tokens per prompt, tokens per response, and rows decoded at once."""
COMPILERS = {"h": "jax_cuda13_plugin", "v": "libtpu"}
"""First letter of a topology's name -> the package with its compiler."""
GRPO = {"algorithm": "grpo", "algorithm_options": {"beta": 0.04}}
LORA = {"algorithm": "grpo", "algorithm_options": {"beta": 0.0}, "lora_rank": 4}
CRITIC = {"algorithm": "ppo", "fsdp": 4}
SHARDED = {**GRPO, "fsdp": 4, "tensor": 2}
WINDOWS = {"window": 64, "full_layers": (1,)}
"""One layer attends to a window of 64 tokens, the other to all tokens."""


class Case(NamedTuple):
    """A step's programs on some devices, and what they need."""

    topology: str
    """Name of the devices; only the first one is used if the flags do not set `fsdp`."""
    flags: dict[str, Any]
    """Settings of the run."""
    programs: tuple[str, ...]
    """Keys of `PARTS` to compile."""
    shape: dict[str, Any]
    """Changes to `SHAPE`."""
    megabytes: float
    """Temporary memory of the update on each device."""
    sent: float
    """Megabytes that each device sends in the update."""


CASES = {
    "H100, blockwise": Case("h100x1", GRPO, ("update", "score", "sampling"), {}, 128.1, 0),
    "4 H100, cudnn, critic": Case("h100x4", CRITIC, ("update", "critic"), {"attention": "cudnn"}, 40.6, 13.2),
    "8 H100, windows, turns": Case("h100x8", SHARDED, ("update", "turns"), WINDOWS, 27.4, 14.9),
    "H100, LoRA": Case("h100x1", LORA, ("update",), {"attention": "cudnn"}, 70.2, 0),
    "H100, QLoRA": Case("h100x1", {**LORA, "quantize": "nf4"}, ("update",), {"attention": "cudnn"}, 64.4, 0),
    "v5e, splash": Case("v5e:2x2", GRPO, ("update", "score", "sampling"), {"attention": "splash"}, 25.0, 0),
    "4 v5e, splash, critic": Case("v5e:2x2", CRITIC, ("update", "critic"), {"attention": "splash"}, 10.8, 15.4),
    "8 v5e, windows, turns": Case("v5e:2x4", SHARDED, ("update", "turns"), WINDOWS, 9.4, 15.8),
    "v5e, LoRA": Case("v5e:2x2", LORA, ("update",), {}, 23.7, 0),
    "v5e, QLoRA": Case("v5e:2x2", {**LORA, "quantize": "nf4"}, ("update",), {}, 26.1, 0),
}


def compile_score(config: TrainConfig, shape: TransformerConfig, mesh: Any) -> Compiled:
    """Compile the program that scores a micro-batch."""
    policy = plan_policy(config, shape, mesh)
    packed = layout_of(config, mesh, PROMPT, config.sampling.prompts * config.sampling.group_size).packed
    packed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, sharding=row_sharding(mesh)), packed
    )
    return jax.jit(make_score(policy, 1.0)).lower(parameter_shapes(policy, mesh), packed).compile()


def compile_turns(config: TrainConfig, shape: TransformerConfig, mesh: Any) -> Compiled:
    """Compile the program that reads the next turn of every dialogue."""
    policy = plan_policy(config, shape, mesh)
    params, mesh = parameter_shapes(policy, mesh), mesh_for_sampling(mesh)
    weights = weights_program.lower(policy.decoder, params).compile()
    params = output_shapes(weights, jax.eval_shape(partial(weights_program, policy.decoder), params))
    decoder = row_decoder(policy.decoder.turns)
    empty = partial(empty_rows, decoder, rows=ROWS, length=PROMPT, room=RESPONSE, sampling=Sampling(RESPONSE, ()))
    rows = jax.eval_shape(empty, params)
    rows = add_shardings(rows, rows_shardings(decoder, rows, mesh)).state
    per_row = jax.ShapeDtypeStruct((ROWS,), jnp.int32, sharding=row_sharding(mesh))
    tokens = jax.ShapeDtypeStruct((ROWS, 16), jnp.int32, sharding=row_sharding(mesh))
    return read_turns.lower(policy.decoder.turns, params, rows, per_row, tokens, per_row, per_row).compile()


PARTS = {
    "update": lambda *run: [compile_policy_update(*run, PROMPT)],
    "critic": lambda *run: [compile_critic_update(*run, PROMPT)],
    "score": lambda *run: [compile_score(*run)],
    "sampling": lambda *run: list(compile_sampling(*run, PROMPT, ROWS)[0]),
    "turns": lambda *run: [compile_turns(*run)],
}
"""Part of a step -> a function from configuration, shape and mesh to its compiled programs."""


def compile_parts(case: Case) -> dict[str, list[Compiled]]:
    """Compile the programs of a case."""
    config = TrainConfig.flat(
        task="sums",
        prompts=4,
        group_size=4,
        max_response_tokens=RESPONSE,
        dtype="bfloat16",
        remat="full",
        attention=case.shape.get("attention", "blockwise"),
        **case.flags,
    )
    mesh_shape = config.devices.fsdp, config.devices.tensor
    devices = topology_of(case.topology).devices[: (mesh_shape[0] or 1) * (mesh_shape[1] or 1)]
    run = config, replace(SHAPE, **case.shape), make_mesh(1, *mesh_shape, devices=devices)
    return {name: PARTS[name](*run) for name in case.programs}


def skip_without_compiler(topology: str) -> None:
    """Skip a test if the compiler for these devices is not installed."""
    compiler = COMPILERS[topology[0]]
    if find_spec(compiler) is None:
        pytest.skip(f"{compiler} is not installed: nothing compiles for {topology}")


@pytest.mark.parametrize("name", CASES)
def test_step_needs_no_more_than_recorded(name):
    case = CASES[name]
    skip_without_compiler(case.topology)
    programs = compile_parts(case)
    assert [len(programs[part]) for part in case.programs] == [4 if part == "sampling" else 1 for part in case.programs]
    (update,) = programs["update"]
    assert temporaries(update) / 1e6 <= 1.1 * case.megabytes
    assert sent_bytes(update) / 1e6 <= 1.1 * case.sent


@pytest.mark.parametrize("topology", ["h100x1", "v5e:2x2"])
def test_gae_compiles(topology):
    skip_without_compiler(topology)
    sharding = jax.sharding.SingleDeviceSharding(topology_of(topology).devices[0])
    row = jax.ShapeDtypeStruct((ROWS, RESPONSE), jnp.float32, sharding=sharding)
    assert jax.jit(gae).lower(row, row, row).compile().as_text()
