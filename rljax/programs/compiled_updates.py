"""Memory and communication of the updates of a run, as counted by the compiler, without the devices.

Temporaries and messages between devices grow linearly with the number of layers, so the counts of the full model are extrapolated
from those of two shallow models. If the mesh has accelerators, present or absent (`rljax.programs.topology`), the counts come from
their own compiler, otherwise from the CPU compiler. The CPU compiler fuses less than an accelerator's compiler, multiplies and
sends bfloat16 as float32, and all-reduces gradients instead of reduce-scattering them, so its counts are too large rather than too
small.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rljax.algorithms import Algorithm, Batch, Rollout, prepare
from rljax.models import TransformerConfig, transformer_policy
from rljax.models.policy import Policy
from rljax.options import INSTALLERS, auxiliary_loss
from rljax.parallel import add_shardings, check_rows, is_on_cpus, replicated, row_sharding, row_shards
from rljax.parallel.collectives import collectives
from rljax.programs.planned_algorithm import plan_algorithm
from rljax.records import required
from rljax.rollout import Layout, Sequences, lay_out, pack_one_per_row
from rljax.rollout.layout import full_responses_per_row, lay_out_shared, layout_for, row_slots
from rljax.training.config import TrainConfig
from rljax.training.memory_plan import rows_at_once, state_shapes
from rljax.training.objective.algorithm import blank_rollout
from rljax.training.objective.critic import CriticModel
from rljax.training.objective.optimizer import critic_optimizer, policy_optimizer, stop_frozen_gradients
from rljax.training.setup import Setup, plan_setup
from rljax.training.state import shardings_of
from rljax.training.update import policy_program
from rljax.training.value_update import make_value_step, value_schedule

Arrange = Callable[..., Layout]
"""Lays out responses in rows: `lay_out` or `lay_out_shared`."""


class MeasuredUpdates(NamedTuple):
    """Memory that one device needs for updates, and bytes that it sends in a step, as counted by the compiler."""

    temporaries: int
    """Bytes of temporaries in a policy update: activations, gradients, logits."""
    sent: int
    """Bytes that the device sends in all policy updates of a step."""
    critic_temporaries: int = 0
    """Bytes of temporaries in a critic update."""
    critic_sent: int = 0
    """Bytes that the device sends in all critic updates of a step."""
    sample_sent: int = 0
    """Bytes that the device sends while the responses of a step are sampled."""
    score_sent: int = 0
    """Bytes that the device sends while the responses of a step are scored."""


def data_shapes(
    config: TrainConfig,
    algorithm: Algorithm,
    mesh: Mesh,
    prompt_length: int,
    *,
    minibatches: int,
    arrange: Arrange = lay_out,
) -> tuple[Layout, Batch]:
    """Shapes of an update's inputs, if a step has `minibatches` updates and all prompts and responses have full length.

    The update lays out its responses with `arrange`.
    """
    sampling = replace(config.sampling, prompts=config.sampling.prompts // minibatches)
    everything = jax.eval_shape(partial(blank_rollout, sampling, rewards=2))
    unneeded = [name for name in Rollout._field_defaults if not algorithm.needs(name)]
    rollout = everything._replace(**dict.fromkeys(unneeded))
    progress = jax.ShapeDtypeStruct((), jnp.float32)
    batch = jax.eval_shape(lambda rollout, progress: prepare(algorithm, rollout, progress=progress), rollout, progress)
    layout = layout_of(config, mesh, prompt_length, sampling.prompts * sampling.group_size, arrange=arrange)
    everywhere, rows = replicated(mesh), row_sharding(mesh, leading=1)
    packed = add_shardings(layout.packed, jax.tree.map(lambda _: rows, layout.packed))
    responses = add_shardings(layout.responses, everywhere)
    return Layout(packed, responses), add_shardings(batch, jax.tree.map(lambda _: everywhere, batch))


def option_data_shapes(config: TrainConfig, mesh: Mesh, prompt_length: int) -> dict[str, Any]:
    """Shapes of the inputs that options add to an update: full-length examples for the auxiliary loss."""
    if not config.optimization.auxiliary:
        return {}
    check_rows(mesh, warm_start_batch=config.warm_start.batch)
    sequences = _full_sequences(config.warm_start.batch, prompt_length, config.sampling.max_response_tokens)
    examples, rows = (pack_one_per_row(sequences), sequences.attention), row_sharding(mesh)
    return {auxiliary_loss.NAME: add_shardings(examples, jax.tree.map(lambda _: rows, examples))}


def option_batch_sizes(config: TrainConfig) -> tuple[int, ...]:
    """Sizes of the batches that options add to each update: examples for the auxiliary loss, and responses to changed prompts.

    The rows that pad a batch to a multiple of the number of devices are not counted.
    """
    examples = config.warm_start.batch if config.optimization.auxiliary else 0
    changed = len(config.optimization.prompt_consistency) * config.sampling.prompts
    return tuple(rows for rows in (examples, changed) if rows)


def layout_of(config: TrainConfig, mesh: Mesh, prompt_length: int, count: int, *, arrange: Arrange = lay_out) -> Layout:
    """Lay out `count` responses with `arrange`; every prompt and every response has its full length."""
    length = config.sampling.max_response_tokens
    most = config.sampling.sampling_mask
    kept = None if most is None else np.zeros((count, length, most), np.int32)
    sequences = _full_sequences(count, prompt_length, length)._replace(
        policy_logp=np.zeros((count, length), np.float32), kept=kept
    )
    sequences.prompt_tokens[:, 0] = np.arange(count) // config.sampling.group_size  # each group has its own prompt
    rows = rows_at_once(config, mesh, prompt_length, count)
    return arrange(sequences, sequences.attention, rows=rows, devices=row_shards(mesh))


def arrangement(config: TrainConfig, shape: TransformerConfig, mesh: Mesh) -> Arrange:
    """Return the function that lays out the responses of the policy's update, in a run with a model of this shape."""
    algorithm, config = plan_algorithm(config)
    if config.model.attention == "splash":  # a plan for CPUs compiles another kind of attention
        return lay_out
    return layout_for(plan_policy(config, shape, mesh).score, "teacher" if algorithm.needs("teacher_logp") else None)


class MicroBatch(NamedTuple):
    """Part of a micro-batch on one device, in an update of the policy with responses of full length."""

    rows: int
    """Number of rows."""
    slots: int
    """Number of slots per row."""
    shared: int
    """Number of responses per row; they share a prompt."""


def micro_batch_of(config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int) -> MicroBatch:
    """Return the size of a micro-batch on one device; see `lay_out_shared`."""
    sampling, length = config.sampling, config.sampling.max_response_tokens
    responses = sampling.prompts // config.optimization.minibatches * sampling.group_size
    rows = rows_at_once(config, mesh, prompt_length, responses) // row_shards(mesh)
    shared = 1
    if arrangement(config, shape, mesh) is lay_out_shared:
        shared = full_responses_per_row(prompt_length, length, sampling.group_size, rows)
    return MicroBatch(-(-rows // shared), row_slots(prompt_length, length, shared), shared)


def mask_bytes(config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int) -> int:
    """Bytes per device of the 16-bit mask that cuDNN's attention reads instead of segments, and of the mask's gradient.

    The mask covers a micro-batch of the policy or of the critic, or the largest batch that an option adds if that is larger. The
    result is 0 for other kinds of attention, and for programs compiled for GPUs, whose temporaries include the mask; CPUs lack
    this kernel.
    """
    if config.model.attention != "cudnn" or not is_on_cpus(mesh):
        return 0
    algorithm, config = plan_algorithm(config)
    slots, devices = prompt_length + config.sampling.max_response_tokens, row_shards(mesh)
    part, others = (
        micro_batch_of(config, shape, mesh, prompt_length),
        [-(-rows // devices) for rows in option_batch_sizes(config)],
    )
    if algorithm.critic is not None:
        others.append(part.rows * part.shared)
    return 4 * max(part.slots**2 * part.rows, slots**2 * max(others, default=0))


def _full_sequences(count: int, prompt_length: int, length: int) -> Sequences:
    """Make sequences without padding."""
    prompts, responses = np.ones((count, prompt_length), np.int32), np.ones((count, length), np.int32)
    return Sequences(prompts, prompts.astype(bool), responses, responses.astype(bool))


def compile_policy_update(
    config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int, arrange: Arrange | None = None
) -> jax.stages.Compiled:
    """Compile an update of a policy of this shape, for measuring; by default, it lays out responses as a run with it does."""
    algorithm, config = plan_algorithm(config)
    config = replace(config, data=replace(config.data, max_prompt_tokens=prompt_length))
    setup = shape_setup(config, algorithm, mesh, plan_policy(config, shape, mesh))
    state, base = state_shapes(config, algorithm, setup.policy, mesh, options=setup.options)
    arrange, minibatches = arrange or arrangement(config, shape, mesh), config.optimization.minibatches
    layout, batch = data_shapes(config, setup.algorithm, mesh, prompt_length, minibatches=minibatches, arrange=arrange)
    frozen = {} if base is None else {"base": base}
    program = policy_program(setup, shardings_of(state))
    data = option_data_shapes(config, mesh, prompt_length)
    return program.lower(state, frozen, layout, batch, data).compile(compiler_options=measuring_options(mesh))


def shape_setup(config: TrainConfig, algorithm: Algorithm, mesh: Mesh, policy: Policy) -> Setup:
    """Setup of a run without its data, with the built-in options."""
    return plan_setup(config, algorithm, mesh, policy, policy_optimizer(config), INSTALLERS)


def compile_critic_update(
    config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int
) -> jax.stages.Compiled:
    """Compile an update of a critic of this shape, for measuring."""
    algorithm, config = plan_algorithm(config)
    policy, minibatches = plan_policy(config, shape, mesh), value_schedule(algorithm, config).minibatches
    state, _ = state_shapes(config, algorithm, policy, mesh)
    layout, batch = data_shapes(config, algorithm, mesh, prompt_length, minibatches=minibatches)
    critic = plan_critic(config, algorithm, policy)
    step: Any = make_value_step(algorithm, critic, critic_optimizer(config, algorithm), state, mesh)
    return step.lower(state, layout, batch).compile(compiler_options=measuring_options(mesh))


def plan_critic(config: TrainConfig, algorithm: Algorithm, policy: Policy) -> CriticModel:
    """Make the critic of a run, without its parameters."""
    head = required(algorithm.critic, "algorithm.critic").head
    function = required(policy.value_function, "policy.value_function")(head.size, config.critic.surprisal)
    return CriticModel(function, head, config.critic.frozen_trunk, loaded=False)


def plan_policy(config: TrainConfig, shape: TransformerConfig, mesh: Mesh) -> Policy:
    """Make the policy of a run with a model of this shape."""
    policy = transformer_policy(shape, eos=0, mesh=mesh, chunk=config.model.score_chunk)
    return stop_frozen_gradients(policy, config.optimization.freeze)


def temporaries(program: jax.stages.Compiled) -> int:
    """Bytes of a program's temporaries on each device."""
    return int(required(program.memory_analysis(), "memory_analysis").temp_size_in_bytes)


def sent_bytes(program: jax.stages.Compiled) -> int:
    """Bytes that each device sends when a program runs."""
    return round(sum(each.sent for each in collectives(required(program.as_text(), "as_text"))))


def measure_updates(
    config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int, arrange: Arrange | None = None
) -> MeasuredUpdates:
    """Compile the updates of a model with this shape, and read their memory and communication; see `compile_policy_update`."""
    algorithm, planned = plan_algorithm(config)
    program = compile_policy_update(config, shape, mesh, prompt_length, arrange)
    passes = planned.optimization.passes
    policy_counts = temporaries(program), passes * planned.optimization.minibatches * sent_bytes(program)
    if algorithm.critic is None:
        return MeasuredUpdates(*policy_counts)
    program, schedule = compile_critic_update(config, shape, mesh, prompt_length), value_schedule(algorithm, planned)
    updates = passes * schedule.minibatches * schedule.passes
    return MeasuredUpdates(*policy_counts, temporaries(program), updates * sent_bytes(program))


def memory_options(mesh: Mesh) -> dict[str, str]:
    """Compiler options that prevent arrays from being in memory at the same time unless they are needed at the same time.

    Without these options, the CPU compiler removes the barriers that delay the recomputation of a layer, and may then recompute
    all layers at once: the reported temporaries would be those of a program without `remat`. With several devices it would also
    gather the parameters of all layers first, and sum the gradients of all layers last, in one operation. A program compiled with
    these options is only measured, never run.
    """
    if not is_on_cpus(mesh):
        return {}
    barriers = "cse_barrier_expander"
    if mesh.size == 1:
        return {"xla_disable_hlo_passes": barriers}
    order = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
    return {"xla_disable_hlo_passes": f"{barriers},cpu-all-reduce-combiner", **order}


CHEAP_CODE = MappingProxyType({"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True})
"""Compiler options for code that is never run. Memory is assigned before code generation, and does not depend on them."""


def measuring_options(mesh: Mesh) -> dict[str, Any]:
    """Compiler options for a program that is only measured, never run; none for accelerators."""
    return {**CHEAP_CODE, **memory_options(mesh)} if is_on_cpus(mesh) else {}


def extrapolate(measure: Callable[[int], MeasuredUpdates], layers: int) -> MeasuredUpdates:
    """Measure at two small numbers of layers in parallel, and extrapolate linearly.

    Example:
        >>> extrapolate(lambda layers: MeasuredUpdates(10 + 3 * layers, 7), 30)
        MeasuredUpdates(temporaries=100, sent=7, critic_temporaries=0, critic_sent=0, sample_sent=0, score_sent=0)
    """
    few, more = 2, 3
    if layers <= more:
        return measure(layers)
    with ThreadPoolExecutor(2) as pool:
        low, high = pool.map(measure, (few, more))
    return MeasuredUpdates(
        *(max(end, begin + (layers - few) * (end - begin)) for begin, end in zip(low, high, strict=True))
    )
