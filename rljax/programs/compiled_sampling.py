"""The compiled programs that sample and score, and the bytes that devices send each other in them; no device is needed.

Every prompt and every response is assumed to have its maximum length, as in the rest of a plan.
`rljax.programs.compiled_updates` explains what the counts of the CPU compiler mean.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from rljax.models import TransformerConfig
from rljax.parallel import add_shardings, mesh_for_sampling, row_sharding, row_shards
from rljax.programs.compiled_updates import layout_of, measuring_options, plan_critic, plan_policy, sent_bytes
from rljax.programs.planned_algorithm import plan_algorithm
from rljax.programs.roofline import score_passes
from rljax.records import required
from rljax.rollout import Request, Sampling
from rljax.rollout.engine import Block, blocks_of
from rljax.rollout.sampling import (
    RowInputs,
    decode,
    empty_rows,
    fill_rows,
    numbers_per_token,
    read_prompts,
    rows_shardings,
    weights_program,
)
from rljax.training.config import TrainConfig
from rljax.training.memory_plan import Shapes, parameter_shapes, state_shapes
from rljax.training.scoring import make_score


def bytes_sent_sampling(config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int, slots: int) -> int:
    """Bytes that a device sends while the built-in engine samples all responses of a step.

    The engine gathers the weights once, reads prompts, puts them into rows, and samples one token per row in each round. The
    weights are those of the full model, even if an adapter is trained. Copies during a long decode, into a larger cache or
    into fewer rows, are not counted.

    Args:
        config: the settings.
        shape: shape of the model.
        mesh: the devices.
        prompt_length: number of tokens in a prompt.
        slots: number of rows decoded at once, on all devices together.
    """
    if mesh.size == 1:
        return 0
    programs, blocks = compile_sampling(config, shape, mesh, prompt_length, slots)
    reads = sum(-(-len(block.prompts) // block.rows) for block in blocks)
    count, budget = config.sampling.prompts * config.sampling.group_size, config.sampling.max_response_tokens
    tokens = math.ceil(count / slots) * (budget - 1)  # the first token is sampled when a row is filled
    return (
        sent_bytes(programs.weights)
        + reads * sent_bytes(programs.prefill)
        + count_fills(blocks, slots) * sent_bytes(programs.fill)
        + tokens * sent_bytes(programs.decode)
    )


class SamplingPrograms(NamedTuple):
    """Compiled programs of the built-in engine."""

    weights: jax.stages.Compiled
    """Prepares the weights for sampling."""
    prefill: jax.stages.Compiled
    """Reads the prompts of one block at once."""
    fill: jax.stages.Compiled
    """Puts prompts into free rows, and samples their first tokens."""
    decode: jax.stages.Compiled
    """Samples one token after another in every row."""


def compile_sampling(
    config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int, slots: int
) -> tuple[SamplingPrograms, list[Block]]:
    """Compile the programs that sample the responses of a step, and return them with the blocks of prompts."""
    policy, options = plan_policy(config, shape, mesh), measuring_options(mesh)
    params, mesh = parameter_shapes(policy, mesh), mesh_for_sampling(mesh)
    decoder = required(policy.decoder, "policy.decoder")
    budget, sampling = config.sampling.max_response_tokens, sampling_of(config)
    requests = [Request((index,), index, 0, sampling, 0) for index in range(config.sampling.prompts)]
    blocks = list(blocks_of(requests * config.sampling.group_size, slots, prompt_length, row_shards(mesh)))

    def rows_of(*sizes: int, dtype: Any = jnp.int32) -> Any:  # the shape of an array sharded by rows
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=row_sharding(mesh))

    weights = weights_program.lower(decoder, params).compile(compiler_options=options)
    ready = output_shapes(weights, jax.eval_shape(partial(weights_program, decoder), params))
    prompts = rows_of(blocks[0].rows, prompt_length), rows_of(blocks[0].rows, prompt_length, dtype=jnp.bool_)
    read = read_prompts.lower(decoder, ready, *prompts, budget=0).compile(compiler_options=options)
    part = output_shapes(read, jax.eval_shape(partial(read_prompts, decoder, budget=0), ready, *prompts))
    make = partial(empty_rows, decoder, rows=slots, length=prompt_length, room=budget, sampling=sampling)
    empty = jax.eval_shape(make, ready)
    empty = add_shardings(empty, rows_shardings(decoder, empty, mesh))
    uniforms = rows_of(slots, budget, numbers_per_token(sampling), dtype=jnp.float32)
    inputs = [part] * blocks[0].parts, rows_of(slots), RowInputs(uniforms, rows_of(slots))
    fill = fill_rows.lower(decoder, empty, *inputs, sampling=sampling).compile(compiler_options=options)
    full = output_shapes(fill, empty)
    one = jax.ShapeDtypeStruct((), jnp.int32)
    one_token = decode.lower(decoder, ready, full, one, one, sampling=sampling).compile(compiler_options=options)
    return SamplingPrograms(weights, read, fill, one_token), blocks


def bytes_sent_scoring(config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int) -> int:
    """Bytes that a device sends while a step's responses are scored: by the policy or its reference, and by the critic."""
    if mesh.size == 1:
        return 0
    algorithm, config = plan_algorithm(config)
    policy, options = plan_policy(config, shape, mesh), measuring_options(mesh)
    layout = layout_of(config, mesh, prompt_length, config.sampling.prompts * config.sampling.group_size)
    parts, rows = len(layout.responses), row_sharding(mesh)
    packed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, sharding=rows), layout.packed)
    total, passes = 0, score_passes(algorithm)
    if passes:
        score = jax.jit(make_score(policy, config.sampling.temperature))
        params = parameter_shapes(policy, mesh)
        total += passes * parts * sent_bytes(score.lower(params, packed).compile(compiler_options=options))
    if algorithm.critic is not None:
        params = required(state_shapes(config, algorithm, policy, mesh)[0].critic, "state.critic").params
        values = jax.jit(plan_critic(config, algorithm, policy).values)
        total += parts * sent_bytes(values.lower(params, packed).compile(compiler_options=options))
    return total


def sampling_of(config: TrainConfig) -> Sampling:
    """Make the sampling settings; the end token does not matter, because every response has its full length."""
    sampling = config.sampling
    return Sampling(
        sampling.max_response_tokens,
        eos_ids=(0,),
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        kept=sampling.sampling_mask,
    )


def output_shapes(program: jax.stages.Compiled, shapes: Any) -> Shapes:
    """Shapes and shardings of a program's outputs."""
    return add_shardings(shapes, program.output_shardings)


def count_fills(blocks: Sequence[Block], slots: int) -> int:
    """Number of times that prompts are put into free rows, if all responses end at the same time.

    Example:
        >>> count_fills([Block([0, 1], 2, 1, [(0, 0)] * 6), Block([2], 2, 1, [(0, 0)] * 4)], 8)
        3
    """
    count, free = 0, slots
    for block in blocks:
        waiting = len(block.waiting)
        while waiting:
            free = slots if free == 0 else free
            filled = min(free, waiting)
            free, waiting, count = free - filled, waiting - filled, count + 1
    return count
