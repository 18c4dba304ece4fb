"""Memory of the key/value cache: what the settings give it, or what everything else leaves, and the rows that follow."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from rljax.models import Policy, count_parameters
from rljax.parallel import row_shards
from rljax.records import documented, required
from rljax.rollout.engine import compiled_rows
from rljax.rollout.environment import Environment
from rljax.rollout.slots import FittingSlots, peak_bytes, turn_bytes
from rljax.settings.sizes import byte_count
from rljax.training.config import TrainConfig
from rljax.training.memory.state_memory import Shapes, bytes_on_a_device, parameter_shapes

USABLE = 0.9
"""Share of a device's memory that a plan may fill; the rest is for programs and for gaps."""
USUAL_SLOTS = 256
"""Most rows where the memory of a device is not known, and on CPUs, which share theirs with everything else."""
LOGITS = 4
"""Numbers of four bytes that the draw of a token holds for each token of the vocabulary: the logits, the same divided by the
temperature and cut to the likeliest tokens, and the log-probabilities."""


def decode_slots(
    config: TrainConfig, policy: Policy, mesh: Mesh, *, left: int | None, platform: str | None = None
) -> int | FittingSlots:
    """Most rows that the built-in engine decodes at once.

    Args:
        config: the settings.
        policy: the model; it has a decoder.
        mesh: the devices.
        left: bytes of each device that state and weights leave; None if they are not known.
        platform: of the devices, "cpu" or another; None: that of the mesh.
    """
    sampling, decoder = config.sampling, required(policy.decoder, "policy.decoder")
    if sampling.cache_memory is not None:
        return FittingSlots(decoder, mesh, byte_count(sampling.cache_memory), sampling.decode_slots)
    is_bounded = left is None or (mesh.devices.flat[0].platform if platform is None else platform) == "cpu"
    most = USUAL_SLOTS if is_bounded and sampling.decode_slots is None else sampling.decode_slots
    if left is None:
        return required(most, "decode_slots")
    beside = 4 * LOGITS * policy.vocab_size // mesh.shape["tensor"]
    return FittingSlots(decoder, mesh, left, most, beside, refuses=False)


def sampler_bytes(config: TrainConfig, params: Shapes, mesh: Mesh) -> int:
    """Bytes on each device of what the engine reads: a merged copy of an adapter's model, and the weights ready for reading.

    Args:
        config: the settings.
        params: shapes and places of all parameters.
        mesh: the devices.
    """
    itemsize = jnp.dtype(config.model.dtype).itemsize
    weights = count_parameters(params) * itemsize // mesh.shape["tensor"]
    merged, is_gathered = bytes_on_a_device(params), mesh.shape["fsdp"] == 1
    if config.adapter.rank is None:
        return 0 if is_gathered and itemsize == 4 else weights
    if config.adapter.quantize is None:
        return merged + (0 if is_gathered and itemsize == 4 else weights)
    return merged * itemsize // 4 + (0 if is_gathered else weights)


@documented
class Sampled(NamedTuple):
    """Bytes and rows of a device while responses are drawn, beside the state."""

    weights: int
    """Bytes of the weights as the engine reads them."""
    rows: int
    """Most rows that are decoded at once, on all devices together."""
    cache: int
    """Bytes of their caches."""


def sampled_bytes(
    config: TrainConfig,
    policy: Policy,
    mesh: Mesh,
    prompt_length: int,
    *,
    left: int | None,
    platform: str | None = None,
    environment: Environment | None = None,
) -> Sampled:
    """Bytes and rows of the built-in engine on each device when every prompt and every response has its full length.

    Args:
        config: the settings.
        policy: the model; it has a decoder, and tells its shapes.
        mesh: the devices.
        prompt_length: tokens of the prompts.
        left: bytes of each device that the state leaves; None if they are not known; 0: for the fewest rows.
        platform: of the devices, "cpu" or another; None: that of the mesh.
        environment: answers the policy turn by turn; None: responses have one turn.

    Raises:
        InputError: `cache_memory` does not hold a row on each device.
    """
    sampling, shapes = config.sampling, parameter_shapes(policy, mesh)
    budget, requests = sampling.max_response_tokens, sampling.prompts * sampling.group_size
    decoder, weights = required(policy.decoder, "policy.decoder"), sampler_bytes(config, shapes, mesh)
    ready = jax.eval_shape(decoder.weights, shapes)
    slots = decode_slots(config, policy, mesh, left=None if left is None else left - weights, platform=platform)
    peak = peak_bytes if environment is None or decoder.turns is None else turn_bytes
    wanted = (ready, requests, sampling.prompts, prompt_length, budget)
    rows = min(slots, requests) if isinstance(slots, int) else replace(slots, peak=peak)(*wanted)
    cache = FittingSlots(decoder, mesh, 0, peak=peak).cache(rows, *wanted)
    return Sampled(weights, compiled_rows(rows, row_shards(mesh)), cache)
