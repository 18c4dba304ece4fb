"""Estimate a run's memory and work per device from array shapes alone, without reading weights or computing anything.

The programs are compiled ahead of time for devices that need not be present; see `rljax.programs.compiled_updates`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from rljax.errors import InputError
from rljax.models import TransformerConfig, transformer_policy
from rljax.models.axes import count_sampler_weights
from rljax.models.huggingface import locate, read_config
from rljax.parallel import is_on_cpus, mesh_of
from rljax.programs.compiled_sampling import bytes_sent_sampling, bytes_sent_scoring
from rljax.programs.compiled_updates import (
    Arrange,
    MeasuredUpdates,
    arrangement,
    extrapolate,
    mask_bytes,
    measure_updates,
    shape_setup,
)
from rljax.programs.planned_algorithm import plan_algorithm
from rljax.programs.roofline import StepMemory, Work, cache_bytes, peak_cache_bytes, step_work
from rljax.text import counted
from rljax.training.config import TrainConfig
from rljax.training.memory_plan import bytes_on_a_device, parameter_shapes, rows_at_once, sampling_memory, state_shapes
from rljax.training.objective.algorithm import check_algorithm
from rljax.training.parts.policy import make_transformer_config
from rljax.training.parts.tokenizer import make_tokenizer


class Plan(NamedTuple):
    """Bytes per device, and the work of each phase of a step."""

    parameters: int
    """The policy, and the frozen model under an adapter."""
    optimizer: int
    """Moments of the policy's optimizer."""
    reference: int
    """The reference policy, if the state contains one."""
    critic: int
    """The critic and the moments of its optimizer."""
    sampler: int
    """Weights that the engine reads while it samples, including a merged copy of the model if the run trains an adapter."""
    cache: int
    """Keys and values of the rows decoded at once, of prompts waiting to be decoded, and of the copies made when a long decode
    resizes its cache. With a paged cache, rows are assumed to have the expected length."""
    temporaries: int
    """Temporaries of a policy update: activations, gradients, logits."""
    critic_temporaries: int
    """Temporaries of a critic update."""
    phases: Mapping[str, Work]
    """Work of each phase (sample, score, update, critic) of an RL step in which every response has full length."""
    options: int = 0
    """Arrays of the optional components: a Fisher anchor, older parameters for a delayed sampler."""
    rows: int = 0
    """Number of rows (sequences) decoded at once, on all devices together."""
    mask: int = 0
    """The mask that cuDNN's attention needs, and the mask's gradient, in a policy or critic update."""
    host: int = 0
    """Python modules and compiled programs of the process; 0 unless the devices are CPUs, which share the process's memory."""

    @property
    def state(self) -> int:
        """Bytes that are always in memory."""
        return self.parameters + self.optimizer + self.reference + self.critic + self.options

    @property
    def peak(self) -> int:
        """Largest total: the state plus either the temporaries of an update or everything that sampling needs."""
        updates = max(self.temporaries, self.critic_temporaries) + self.mask
        return self.host + self.state + max(updates, self.sampler + self.cache)


PROCESS_BYTES, LAYER_BYTES, ADAPTER_LAYER_BYTES = 650_000_000, 25_000_000, 10_000_000
"""Resident bytes of a process with its modules and programs, and of its programs per layer of the model and of an adapter. They
include two programs of the update, because the number of scored tokens is rounded to one of a few values."""


def make_plan(
    config: TrainConfig,
    shape: TransformerConfig,
    mesh: Mesh,
    prompt_length: int,
    *,
    room: int | None = None,
    on_cpu: bool = False,
) -> Plan:
    """Compute the memory and the work that a run needs per device.

    Args:
        config: settings of the run.
        shape: shape of its model.
        mesh: the devices, which may be simulated.
        prompt_length: number of tokens in the longest prompt.
        room: bytes per device that the run may use, which limit the number of rows decoded at once; None if unknown.
        on_cpu: whether the devices are CPUs, which share the memory of the process.

    Raises:
        InputError: the settings cannot work on this mesh, or cannot be planned.
    """
    algorithm, config = plan_algorithm(config)
    check_algorithm(algorithm, config)
    if on_cpu:
        rows = rows_at_once(config, mesh, prompt_length, config.minibatch_rows, on_cpus=True)
        config = config.replace(microbatch_rows=rows)
    policy = transformer_policy(shape, eos=0, mesh=mesh)
    options = shape_setup(config, algorithm, mesh, policy).options
    state, base = state_shapes(config, algorithm, policy, mesh, options=options)
    params = parameter_shapes(policy, mesh)
    itemsize = jnp.dtype(shape.compute_dtype).itemsize
    weights = itemsize * count_sampler_weights(params, mesh, is_sharded=False)
    sampling_weights = itemsize * count_sampler_weights(params, mesh, is_sharded=shape.shard_sampler)
    sizes = {
        name: bytes_on_a_device(getattr(state, name)) for name in ("params", "opt_state", "reference", "critic", "options")
    }
    state_bytes = sum(sizes.values()) + (0 if base is None else bytes_on_a_device(base.params))
    layer = LAYER_BYTES + (0 if config.adapter.rank is None else ADAPTER_LAYER_BYTES)
    host = (PROCESS_BYTES + layer * shape.layers) // mesh.size if on_cpu else 0
    free_bytes = None if room is None else room - state_bytes - host
    platform, has_turns = "cpu" if on_cpu else "accelerator", config.reward.environment is not None
    sampled = sampling_memory(config, policy, mesh, prompt_length, left=free_bytes, platform=platform, has_turns=has_turns)
    # A layer with a window needs no more memory than others, so layers of both kinds are measured the same way.
    uniform = replace(shape, window=None, full_layers=()) if shape.full_layers else shape
    arrange = arrangement(config, shape, mesh)
    measured = extrapolate(
        lambda layers: measure(config, replace(uniform, layers=layers), mesh, prompt_length, sampled.rows, arrange),
        shape.layers,
    )
    if shape.remat == "sqrt":  # its memory is not linear in the layers; with `full` it is, and is never smaller
        full = replace(uniform, remat="full")
        bound = extrapolate(
            lambda layers: measure_updates(config, replace(full, layers=layers), mesh, prompt_length, arrange), shape.layers
        )
        measured = measured._replace(temporaries=bound.temporaries, critic_temporaries=bound.critic_temporaries)
    cache = cache_bytes(config, shape, mesh, prompt_length, sampled.rows)
    contiguous = peak_cache_bytes(config, shape, mesh, prompt_length, sampled.rows)
    trained = sizes["params"] + sizes["opt_state"]
    step_memory = StepMemory(weights, trained, sizes["critic"], cache, sampled.rows, sampling_weights)
    phases = step_work(config, shape, algorithm, mesh, prompt_length, step_memory)
    sent_bytes = {
        "sample": measured.sample_sent,
        "score": measured.score_sent,
        "update": measured.sent,
        "critic": measured.critic_sent,
    }
    return Plan(
        parameters=sizes["params"] + (0 if base is None else bytes_on_a_device(base.params)),
        optimizer=sizes["opt_state"],
        reference=sizes["reference"],
        critic=sizes["critic"],
        sampler=sampled.weights,
        cache=sampled.cache if has_turns or config.sampling.paged_cache is not None else contiguous,
        temporaries=measured.temporaries,
        critic_temporaries=measured.critic_temporaries,
        phases={name: work._replace(sent=float(sent_bytes[name])) for name, work in phases.items()},
        options=sizes["options"],
        rows=sampled.rows,
        mask=mask_bytes(config, shape, mesh, prompt_length),
        host=host,
    )


def measure(
    config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int, rows: int, arrange: Arrange
) -> MeasuredUpdates:
    """Compile a step's programs for a model of this shape, with `rows` decoded at once, and measure what they need.

    The policy's update lays out its responses with `arrange`.
    """
    return measure_updates(config, shape, mesh, prompt_length, arrange)._replace(
        sample_sent=bytes_sent_sampling(config, shape, mesh, prompt_length, rows),
        score_sent=bytes_sent_scoring(config, shape, mesh, prompt_length),
    )


def plan_of(
    config: TrainConfig,
    count: int,
    prompt_length: int,
    *,
    room: int | None = None,
    on_cpu: bool = False,
    devices: list[Any] | None = None,
) -> Plan:
    """Compute what a run needs on `count` devices with `room` bytes each, reading only the config.json of its model.

    Args:
        config: settings of the run.
        count: number of devices.
        prompt_length: number of tokens in the longest prompt.
        room: bytes per device that the run may use; None if unknown.
        on_cpu: whether the devices are CPUs, which share the memory of the process.
        devices: devices to compile the programs for, which may be absent (see `rljax.programs.topology`); None means this
            process's devices.

    Raises:
        InputError: fewer than `count` devices are available, the model cannot be found, or the settings cannot work on this mesh.
    """
    model, devices = config.model, jax.devices() if devices is None else devices
    if len(devices) < count:
        raise InputError(
            f"this process has {counted(len(devices), 'device')} and the plan is for {count}; plan in a separate process, where "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count} is set before the first computation."
        )
    mesh = mesh_of(config.devices, devices=devices[:count])
    if model.path is None:
        shape = make_transformer_config(model, make_tokenizer(config).vocab_size)
    else:
        shape = read_config(locate(model.path, ["config.json"]), compute_dtype=model.dtype, remat=model.remat)
        shape = replace(shape, cache_dtype=model.cache_dtype, shard_sampler=model.shard_sampler)
    if is_on_cpus(mesh):  # CPUs have no fused attention kernel
        shape = replace(shape, attention="dense" if model.attention == "dense" else "blockwise")
    else:
        shape = replace(shape, attention=model.attention)
    return make_plan(config, shape, mesh, prompt_length, room=room, on_cpu=on_cpu)
