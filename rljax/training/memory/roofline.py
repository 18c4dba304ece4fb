"""Operations, memory traffic and messages of a step, and the least time that a device needs for them."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax.numpy as jnp
from jax.sharding import Mesh

from rljax.algorithms import Algorithm
from rljax.errors import InputError
from rljax.models import TransformerConfig
from rljax.parallel import row_shards
from rljax.records import documented
from rljax.rollout.engine import block_parts
from rljax.rollout.slots import Caches, peak_bytes
from rljax.training.config import TrainConfig
from rljax.training.memory.microbatch import rows_at_once
from rljax.training.value_update import value_schedule


@documented
class Device(NamedTuple):
    """Peak figures of one device."""

    flops: float
    """Operations of dense bfloat16 products a second."""
    bandwidth: float
    """Bytes that it reads from or writes to its memory in a second."""
    link: float
    """Bytes that it sends to its neighbours in a second, half of a figure for both directions."""
    memory: int
    """Bytes of its memory."""


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
"""Figures of the makers: NVIDIA's data sheets of the SXM boards, without sparsity, and the pages v5e, v5p and v6e below
docs.cloud.google.com/tpu/docs."""


def device_of(name: str) -> Device:
    """Figures of a kind of device.

    Raises:
        InputError: the name is unknown.
    """
    if name not in DEVICES:
        raise InputError(f"--device {name!r} is unknown; choose one of {', '.join(DEVICES)}.")
    return DEVICES[name]


@documented
class Work(NamedTuple):
    """Operations, memory traffic and messages of one phase of a step."""

    flops: float
    """Floating-point operations of all devices together; a product counts as two."""
    moved: float = 0.0
    """Bytes of weights, optimiser and cache that each device reads or writes, at least; activations are left out."""
    sent: float = 0.0
    """Bytes that each device sends to others."""

    def seconds(self, device: Device, count: int, *, speed: float = 1.0) -> float:
        """Least time: the longest of computing, moving and sending, as if each were perfect and all went on at once.

        Args:
            device: peak figures.
            count: number of devices.
            speed: share of the peak that products of this precision can reach; 1 for bfloat16.

        Example:
            >>> Work(2e15, 1e12, 1e9).seconds(Device(1e15, 1e12, 1e11, 10**9), 1)
            2.0
        """
        return max(self.flops / (count * speed * device.flops), self.moved / device.bandwidth, self.sent / device.link)


def speed_of(dtype: str) -> float:
    """Share of the bfloat16 peak: float32 products are made of TF32 or of several bfloat16 ones, at half the speed or less."""
    return 0.5 if jnp.dtype(dtype).itemsize == 4 else 1.0


def matrix_sizes(shape: TransformerConfig) -> int:
    """Weights of the matrices of one layer."""
    attention = 2 * shape.width * shape.head_dim * (shape.heads + shape.kv_heads)
    return attention + 3 * shape.width * shape.hidden


def forward_flops(shape: TransformerConfig, tokens: float, slots: float, *, scored: float) -> float:
    """Operations of the forward pass.

    Args:
        shape: of the transformer.
        tokens: all tokens, prompts included.
        slots: slots that each token is held against; in a layer with a window, at most that many.
        scored: tokens whose logits are computed.
    """
    seen = sum(slots if window is None else min(slots, window) for window in shape.windows)
    layers = shape.layers * matrix_sizes(shape) + 2 * shape.heads * shape.head_dim * seen
    return 2.0 * (tokens * layers + scored * shape.width * shape.vocab_size)


def update_flops(shape: TransformerConfig, tokens: float, slots: float, *, scored: float) -> float:
    """Operations of the forward and the backward pass. `remat` computes layers, or their attention alone, twice; logits always are.

    Args:
        shape: of the transformer.
        tokens: all tokens, prompts included.
        slots: slots that each token is held against; in a layer with a window, at most that many.
        scored: tokens whose logits are computed.
    """
    layers = forward_flops(shape, tokens, slots, scored=0)
    head = forward_flops(shape, 0, slots, scored=scored)
    products = 2.0 * tokens * shape.layers * matrix_sizes(shape)
    again = {"none": 0.0, "full": layers, "dots": 0.0, "dots_no_batch": layers - products}[shape.remat]
    return 3 * layers + again + 4 * head


@documented
class Held(NamedTuple):
    """Bytes on each device that a step reads or writes."""

    weights: int
    """The policy's weights as products read them."""
    trained: int
    """What the policy's optimiser changes: trained parameters and moments."""
    critic: int
    """The critic and the moments of its optimiser."""
    cache: int
    """Keys and values of all slots of the rows that are decoded at once."""
    rows: int
    """Rows that are decoded at once, on all devices together."""


def step_work(
    config: TrainConfig, shape: TransformerConfig, algorithm: Algorithm, mesh: Mesh, prompt_length: int, held: Held
) -> dict[str, Work]:
    """Work of each phase of an RL step in which every prompt and every response has its full length.

    What devices send to each other is for the compiler to count.

    Args:
        config: the settings.
        shape: of the model.
        algorithm: what it learns with.
        mesh: the devices.
        prompt_length: tokens of the prompts.
        held: bytes on each device, and rows.
    """
    sampling, drawn = config.sampling, config.sampling.max_response_tokens
    count, slots = sampling.prompts * sampling.group_size, prompt_length + drawn
    rounds = math.ceil(count / held.rows)
    read = forward_flops(shape, sampling.prompts * prompt_length, prompt_length, scored=sampling.prompts)
    written = forward_flops(shape, count * drawn, prompt_length + drawn / 2, scored=count * drawn)
    seen = held.cache * (prompt_length + drawn / 2) / slots
    work = {"sample": Work(read + written, rounds * drawn * (held.weights + seen))}
    forward = forward_flops(shape, count * slots, slots, scored=count * drawn)
    passes = score_passes(algorithm)
    values = 0.0 if algorithm.critic is None else forward_flops(shape, count * slots, slots, scored=0)
    if passes or values:
        work["score"] = Work(passes * forward + values, (passes + (values > 0)) * held.weights)
    updates, repeats = config.optimization.minibatches, config.optimization.passes
    read = 3 if shape.remat == "full" else 2

    def parts(minibatches: int) -> int:
        responses = count // minibatches
        return minibatches * math.ceil(responses / rows_at_once(config, mesh, prompt_length, responses))

    examples = updates * config.warm_start.batch if config.optimization.auxiliary else 0
    rows, reads = count + examples, parts(updates) + (updates if examples else 0)
    flops = update_flops(shape, rows * slots, slots, scored=rows * drawn)
    moved = reads * read * held.weights + 2 * updates * held.trained
    work["update"] = Work(repeats * flops, repeats * moved)
    if algorithm.critic is not None:
        schedule = value_schedule(algorithm, config)
        repeats *= schedule.passes
        flops = update_flops(shape, count * slots, slots, scored=0)
        moved = parts(schedule.minibatches) * read * held.weights + 2 * schedule.minibatches * held.critic
        work["critic"] = Work(repeats * flops, repeats * moved)
    return work


def score_passes(algorithm: Algorithm) -> int:
    """Number of times that a rollout is scored by the policy or its reference before the updates."""
    return sum(algorithm.needs(name) for name in ("ref_logp", "behaviour_entropy", "square_sum"))


def cache_bytes(config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int, rows: int) -> int:
    """Bytes of keys and values on each device.

    Args:
        config: the settings.
        shape: of the model.
        mesh: the devices.
        prompt_length: tokens of the prompts.
        rows: that are decoded at once, on all devices together.
    """
    heads, slots = shape.kv_heads // mesh.shape["tensor"], prompt_length + config.sampling.max_response_tokens
    each = rows // row_shards(mesh)
    return 2 * shape.layers * each * slots * heads * shape.head_dim * jnp.dtype(shape.compute_dtype).itemsize


def most_cache_bytes(config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int, rows: int) -> int:
    """The most bytes of caches that a device holds at once, with prompts and copies; see `cache_bytes` and `peak_bytes`."""
    sampling, devices = config.sampling, row_shards(mesh)
    count, budget = sampling.prompts * sampling.group_size, sampling.max_response_tokens
    whole = cache_bytes(config, shape, mesh, prompt_length, rows)
    prompts = math.prod(block_parts(rows, count, sampling.prompts, prompt_length, devices))
    read = whole * prompts * prompt_length // (rows * (prompt_length + budget))
    return peak_bytes(Caches(whole, read, rows, prompt_length, budget, devices))
