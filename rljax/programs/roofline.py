"""Operations, memory traffic and communication of a step, and the minimum time that they take on a kind of device."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax.numpy as jnp
from jax.sharding import Mesh

from rljax.algorithms import Algorithm
from rljax.errors import InputError
from rljax.models import TransformerConfig
from rljax.parallel import is_on_cpus, mesh_for_sampling, row_shards
from rljax.programs.compiled_updates import micro_batch_of, option_batch_sizes
from rljax.rollout.decode_sizes import CacheSizes, block_parts, peak_bytes
from rljax.text import nearest_first
from rljax.training.config import TrainConfig
from rljax.training.memory_plan import rows_at_once
from rljax.training.value_update import value_schedule


class Device(NamedTuple):
    """Peak figures of one device."""

    flops: float
    """Floating-point operations per second in dense bfloat16 matrix products."""
    bandwidth: float
    """Bytes per second that the device reads from or writes to its memory."""
    link: float
    """Bytes per second that the device sends to its neighbors: half of the bidirectional bandwidth."""
    memory: int
    """Memory size in bytes."""


DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "a100": Device(312e12, 2.039e12, 300e9, 80 * 10**9),
        "h100": Device(989e12, 3.35e12, 450e9, 80 * 10**9),
        "h200": Device(989e12, 4.8e12, 450e9, 141 * 10**9),
        "b200": Device(2250e12, 8.0e12, 900e9, 180 * 10**9),
        "v5e": Device(197e12, 0.819e12, 200e9, 16 * 10**9),
        "v5p": Device(459e12, 2.765e12, 600e9, 95 * 10**9),
        "v6e": Device(918e12, 1.638e12, 400e9, 32 * 10**9),
    }
)
"""Manufacturers' figures, without sparsity, from NVIDIA's data sheets for SXM boards and the pages v5e, v5p and v6e under
docs.cloud.google.com/tpu/docs."""


SCALE_BYTES = 4
"""Bytes of the scale factor per head and token, if keys and values are quantized."""


def device_of(name: str) -> Device:
    """Return the peak figures of a kind of device.

    Raises:
        InputError: the name is unknown.
    """
    if name not in DEVICES:
        advice = f"choose one of {', '.join(DEVICES)}, cpu."
        raise InputError(f"--device {name!r} is unknown{nearest_first(name, DEVICES, advice)}")
    return DEVICES[name]


class Work(NamedTuple):
    """Operations, memory traffic and communication of one phase of a step."""

    flops: float
    """Floating-point operations of all devices together; a multiply-add counts as two."""
    moved: float = 0.0
    """Minimum bytes of weights, optimizer state and cache that each device reads or writes, without activations."""
    sent: float = 0.0
    """Bytes that each device sends to other devices."""

    def seconds(self, device: Device, count: int, *, speed: float = 1.0) -> float:
        """Return the longest of the compute, memory and communication times, each at its peak rate, as if they overlapped fully.

        Args:
            device: peak figures.
            count: number of devices.
            speed: fraction of the peak that matrix products in this precision can reach; 1 for bfloat16.

        Example:
            >>> Work(2e15, 1e12, 1e9).seconds(Device(1e15, 1e12, 1e11, 10**9), 1)
            2.0
        """
        return max(self.flops / (count * speed * device.flops), self.moved / device.bandwidth, self.sent / device.link)


def speed_of(dtype: str) -> float:
    """Return the fraction of the bfloat16 peak that products of this type can reach.

    float32 products use TF32 or several bfloat16 products, at half speed or less.
    """
    return 0.5 if jnp.dtype(dtype).itemsize == 4 else 1.0


def matrix_sizes(shape: TransformerConfig) -> int:
    """Count the matrix weights of one layer that each token is multiplied by."""
    attention = 2 * shape.width * shape.head_dim * (shape.heads + shape.kv_heads)
    if shape.routing is None:
        return attention + 3 * shape.width * shape.hidden
    return attention + shape.width * (3 * shape.routing.chosen * shape.hidden + shape.routing.experts)


def forward_flops(shape: TransformerConfig, tokens: float, slots: float, *, scored: float) -> float:
    """Count the operations of the forward pass.

    Args:
        shape: shape of the transformer.
        tokens: total number of tokens, including prompts.
        slots: number of slots that each token attends to; in a layer with a window, at most the window.
        scored: number of tokens whose logits are computed.
    """
    attended = sum(slots if window is None else min(slots, window) for window in shape.windows)
    layers = shape.layers * matrix_sizes(shape) + 2 * shape.heads * shape.head_dim * attended
    return 2.0 * (tokens * layers + scored * shape.width * shape.vocab_size)


def update_flops(shape: TransformerConfig, tokens: float, slots: float, *, scored: float) -> float:
    """Count the operations of the forward and backward passes.

    `remat` recomputes layers, or only their attention; logits are always recomputed.

    Args:
        shape: shape of the transformer.
        tokens: total number of tokens, including prompts.
        slots: number of slots that each token attends to; in a layer with a window, at most the window.
        scored: number of tokens whose logits are computed.
    """
    layers = forward_flops(shape, tokens, slots, scored=0)
    head = forward_flops(shape, 0, slots, scored=scored)
    products = 2.0 * tokens * shape.layers * matrix_sizes(shape)
    recomputed = {"none": 0.0, "full": layers, "dots": 0.0, "dots_no_batch": layers - products, "sqrt": 2 * layers}[
        shape.remat
    ]
    return 3 * layers + recomputed + 4 * head


class StepMemory(NamedTuple):
    """Bytes per device that a step reads or writes, and the number of rows."""

    weights: int
    """The policy's weights in the precision of the products."""
    trained: int
    """The trained parameters and their optimizer moments."""
    critic: int
    """The critic and the moments of its optimizer."""
    cache: int
    """Keys and values of all slots of the rows decoded at once."""
    rows: int
    """Number of rows decoded at once, on all devices together."""
    sampling_weights: int
    """The policy's weights during sampling, in the precision of the products."""


def step_work(
    config: TrainConfig, shape: TransformerConfig, algorithm: Algorithm, mesh: Mesh, prompt_length: int, memory: StepMemory
) -> dict[str, Work]:
    """Compute the work of each phase of an RL step in which every prompt and every response has its full length.

    Communication between devices is not included, because it is measured in the compiled programs.

    Args:
        config: the settings.
        shape: shape of the model.
        algorithm: the algorithm.
        mesh: the devices.
        prompt_length: number of tokens in a prompt.
        memory: bytes per device, and the number of rows.
    """
    sampling, generated = config.sampling, config.sampling.max_response_tokens
    count, slots = sampling.prompts * sampling.group_size, prompt_length + generated
    rounds = math.ceil(count / memory.rows)
    prompt_flops = forward_flops(shape, sampling.prompts * prompt_length, prompt_length, scored=sampling.prompts)
    response_flops = forward_flops(shape, count * generated, prompt_length + generated / 2, scored=count * generated)
    cache_reads = memory.cache * (prompt_length + generated / 2) / slots
    work = {"sample": Work(prompt_flops + response_flops, rounds * generated * (memory.sampling_weights + cache_reads))}
    forward = forward_flops(shape, count * slots, slots, scored=count * generated)
    passes = score_passes(algorithm)
    values = 0.0 if algorithm.critic is None else forward_flops(shape, count * slots, slots, scored=0)
    if passes or values:
        work["score"] = Work(passes * forward + values, (passes + (values > 0)) * memory.weights)
    updates, repeats = config.optimization.minibatches, config.optimization.passes
    weight_reads = {"full": 3, "sqrt": 4}.get(shape.remat, 2)

    part, further = micro_batch_of(config, shape, mesh, prompt_length), option_batch_sizes(config)
    flops = update_flops(shape, count * part.slots / part.shared, part.slots, scored=count * generated)
    micro_steps = updates * math.ceil(count / updates / (part.rows * part.shared * row_shards(mesh)))
    rows, microbatches = updates * sum(further), micro_steps + updates * len(further)
    flops += update_flops(shape, rows * slots, slots, scored=rows * generated)
    moved = microbatches * weight_reads * memory.weights + 2 * updates * memory.trained
    work["update"] = Work(repeats * flops, repeats * moved)
    if algorithm.critic is not None:
        schedule = value_schedule(algorithm, config)
        repeats *= schedule.passes
        flops = update_flops(shape, count * slots, slots, scored=0)
        responses = count // schedule.minibatches
        micro_steps = schedule.minibatches * math.ceil(responses / rows_at_once(config, mesh, prompt_length, responses))
        moved = micro_steps * weight_reads * memory.weights + 2 * schedule.minibatches * memory.critic
        work["critic"] = Work(repeats * flops, repeats * moved)
    return work


def score_passes(algorithm: Algorithm) -> int:
    """Count how often the policy or its reference scores a rollout before the updates."""
    return sum(algorithm.needs(name) for name in ("ref_logp", "behaviour_entropy", "square_sum"))


def cache_bytes(config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int, rows: int) -> int:
    """Count the bytes of keys and values per device.

    Args:
        config: the settings.
        shape: shape of the model.
        mesh: the devices.
        prompt_length: number of tokens in a prompt.
        rows: number of rows decoded at once, on all devices together.
    """
    mesh = mesh_for_sampling(mesh)
    heads, slots = shape.kv_heads // mesh.shape["tensor"], prompt_length + config.sampling.max_response_tokens
    each = rows // row_shards(mesh)
    itemsize = jnp.dtype(shape.compute_dtype).itemsize
    head = shape.head_dim * itemsize if shape.cache_dtype is None else shape.head_dim + SCALE_BYTES
    return 2 * shape.layers * each * slots * heads * head


def peak_cache_bytes(config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int, rows: int) -> int:
    """Compute the caches' peak bytes per device, including prompts and copies; see `cache_bytes` and `peak_bytes`."""
    sampling, devices = config.sampling, row_shards(mesh_for_sampling(mesh))
    count, budget = sampling.prompts * sampling.group_size, sampling.max_response_tokens
    full = cache_bytes(config, shape, mesh, prompt_length, rows)
    prompts = math.prod(block_parts(rows, count, sampling.prompts, prompt_length, devices))
    read = full * prompts * prompt_length // (rows * (prompt_length + budget))
    return peak_bytes(CacheSizes(full, read, rows, prompt_length, budget, devices, is_on_cpus(mesh)))
