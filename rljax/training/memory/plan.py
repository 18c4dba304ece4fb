"""Memory and work of a run on each device, from shapes alone: no weight is read, and nothing is computed.

The programs are compiled ahead of time for devices that need not be there; see `rljax.training.memory.compiled_updates`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from rljax.errors import InputError
from rljax.models import TransformerConfig, count_parameters, transformer_policy
from rljax.models.huggingface import locate, read_config
from rljax.parallel import make_mesh
from rljax.records import documented
from rljax.training.config import TrainConfig
from rljax.training.memory.cache_memory import sampled_bytes
from rljax.training.memory.compiled_sampling import bytes_sent_sampling, bytes_sent_scoring
from rljax.training.memory.compiled_updates import Measured, extrapolate, mask_bytes, measure_updates
from rljax.training.memory.roofline import Held, Work, cache_bytes, most_cache_bytes, step_work
from rljax.training.memory.state_memory import (
    bytes_on_a_device,
    parameter_shapes,
    planned_algorithm,
    ring_bytes,
    state_shapes,
)
from rljax.training.parts.policy import make_shape
from rljax.training.parts.tokenizer import make_tokenizer


@documented
class Plan(NamedTuple):
    """Bytes on each device, and the work of each phase of a step."""

    parameters: int
    """The policy, and the model below an adapter."""
    optimizer: int
    """Moments of the policy's optimiser."""
    reference: int
    """The reference policy and the Fisher anchor, if the state holds them."""
    critic: int
    """The critic and the moments of its optimiser."""
    sampler: int
    """Weights as the engine reads them, and a merged copy of an adapter's model, while responses are drawn."""
    cache: int
    """Keys and values of the rows that are decoded at once, of prompts that wait for rows, and of a long decode's copies."""
    temporaries: int
    """What an update of the policy holds for a while: activations, gradients, logits."""
    critic_temporaries: int
    """What an update of the critic holds for a while."""
    phases: Mapping[str, Work]
    """Work of each phase of one RL step in which every response has its full length: sample, score, update, critic."""
    ring: int = 0
    """Old parameters that the sampler draws with, if it is behind the learner."""
    rows: int = 0
    """Rows that are decoded at once, on all devices together."""
    mask: int = 0
    """The mask of cuDNN's attention and its gradient, in an update of the policy or of the critic."""

    @property
    def state(self) -> int:
        """Bytes that are held all the time."""
        return self.parameters + self.optimizer + self.reference + self.critic + self.ring

    @property
    def peak(self) -> int:
        """Largest sum: of the state with the temporaries of an update, or with all that sampling needs."""
        updates = max(self.temporaries, self.critic_temporaries) + self.mask
        return self.state + max(updates, self.sampler + self.cache)


def make_plan(
    config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int, *, room: int | None = None
) -> Plan:
    """Find out what a run needs.

    Args:
        config: its settings.
        shape: of its model.
        mesh: devices, which may be pretended.
        prompt_length: tokens of the longest prompt.
        room: bytes of a device that the run may fill, from which the rows of the cache follow; None if they are not known.

    Raises:
        InputError: the settings cannot work on this mesh, or cannot be planned.
    """
    algorithm, config = planned_algorithm(config)
    policy = transformer_policy(shape, eos=0, mesh=mesh)
    state, base = state_shapes(config, algorithm, policy, mesh)
    params = parameter_shapes(policy, mesh)
    itemsize = jnp.dtype(shape.compute_dtype).itemsize
    weights = count_parameters(params) * itemsize // mesh.shape["tensor"]
    sizes = {
        name: bytes_on_a_device(getattr(state, name)) for name in ("params", "opt_state", "reference", "anchor", "critic")
    }
    held = sum(sizes.values()) + (0 if base is None else bytes_on_a_device(base.params))
    ring = ring_bytes(config, policy, state.params, base)
    left = None if room is None else room - held - ring
    sampled = sampled_bytes(config, policy, mesh, prompt_length, left=left, platform="accelerator")
    # A layer with a window takes no more memory than others, so layers of both kinds are measured alike.
    alike = replace(shape, window=None, full_layers=()) if shape.full_layers else shape
    found = extrapolate(
        lambda layers: measure(config, replace(alike, layers=layers), mesh, prompt_length, sampled.rows), shape.layers
    )
    cache = cache_bytes(config, shape, mesh, prompt_length, sampled.rows)
    read = Held(weights, sizes["params"] + sizes["opt_state"], sizes["critic"], cache, sampled.rows)
    phases = step_work(config, shape, algorithm, mesh, prompt_length, read)
    messages = {
        "sample": found.sample_sent,
        "score": found.score_sent,
        "update": found.sent,
        "critic": found.critic_sent,
    }
    return Plan(
        parameters=sizes["params"] + (0 if base is None else bytes_on_a_device(base.params)),
        optimizer=sizes["opt_state"],
        reference=sizes["reference"] + sizes["anchor"],
        critic=sizes["critic"],
        sampler=sampled.weights,
        cache=most_cache_bytes(config, shape, mesh, prompt_length, sampled.rows),
        temporaries=found.temporaries,
        critic_temporaries=found.critic_temporaries,
        phases={name: work._replace(sent=float(messages[name])) for name, work in phases.items()},
        ring=ring,
        rows=sampled.rows,
        mask=mask_bytes(config, mesh, prompt_length),
    )


def measure(config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int, rows: int) -> Measured:
    """Compile the programs of a step for a model of this shape, which decodes so many rows at once, and read what they take."""
    return measure_updates(config, shape, mesh, prompt_length)._replace(
        sample_sent=bytes_sent_sampling(config, shape, mesh, prompt_length, rows),
        score_sent=bytes_sent_scoring(config, shape, mesh, prompt_length),
    )


def plan_of(config: TrainConfig, count: int, prompt_length: int, *, room: int | None = None) -> Plan:
    """Find out what a run needs on `count` devices, of which it may fill `room` bytes each; of its model only config.json is read.

    Raises:
        InputError: this process has fewer devices, the model cannot be found, or the settings cannot work on this mesh.
    """
    model, devices = config.model, jax.devices()
    if len(devices) < count:
        raise InputError(
            f"this process has {len(devices)} devices and the plan is for {count}; plan in a process of its own, where "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count} is set before the first computation."
        )
    axes = config.devices
    mesh = make_mesh(axes.replicas, axes.fsdp, axes.tensor, devices=devices[:count])
    if model.path is None:
        shape = make_shape(model, make_tokenizer(config).vocab_size)
    else:
        shape = read_config(locate(model.path, ["config.json"]), compute_dtype=model.dtype, remat=model.remat)
    # The pretended devices are CPUs, which have no fused kernel.
    attention = "dense" if model.attention == "dense" else "blockwise"
    return make_plan(config, replace(shape, attention=attention), mesh, prompt_length, room=room)
