"""What a run needs on each device, from shapes alone: no weight is read, and nothing is computed.

The update of the policy is compiled ahead of time for devices that need not be there. Its temporaries grow linearly with the number
of layers, so two shallow models are compiled and the whole one is extrapolated. On a CPU the compiler fuses less than on an
accelerator, so the temporaries that it reports are rather too large than too small.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from rljax.algorithms import Algorithm, Batch, Rollout, prepare
from rljax.errors import InputError
from rljax.models import Params, Policy, TransformerConfig, transformer_policy
from rljax.models.adapters import Base, init_adapter
from rljax.models.huggingface import locate, read_config
from rljax.parallel import make_mesh, policy_shardings, replicated, row_sharding, row_shards
from rljax.records import documented, required
from rljax.rollout import Layout, Sequences, lay_out
from rljax.training.algorithm import corrected, laid_out, make_algorithm
from rljax.training.config import TrainConfig
from rljax.training.freezing import held
from rljax.training.optimizer import critic_optimizer, policy_optimizer
from rljax.training.reference import check_reference, first_coefficient, keeps_reference
from rljax.training.setup import make_shape, make_tokenizer, rows_at_once
from rljax.training.state import CriticState, TrainState, create, places
from rljax.training.update import compile_policy_step, make_score, without_teacher

Shapes = PyTree[jax.ShapeDtypeStruct]


@documented
class Plan(NamedTuple):
    """Bytes on each device, and floating-point operations of all devices together."""

    parameters: int
    """The policy, and the model below an adapter."""
    optimizer: int
    """Moments of the policy's optimiser."""
    reference: int
    """The reference policy, if the state holds one."""
    critic: int
    """The critic and the moments of its optimiser."""
    sampler: int
    """Weights as the engine reads them, and a merged copy of an adapter's model, while responses are drawn."""
    cache: int
    """Keys and values of the rows that are decoded at once."""
    temporaries: int
    """What an update holds for a while: activations, gradients, logits."""
    step_flops: float
    """Operations of the policy's updates in one RL step in which every response has its full length."""

    @property
    def state(self) -> int:
        """Bytes that are held all the time."""
        return self.parameters + self.optimizer + self.reference + self.critic

    @property
    def peak(self) -> int:
        """Largest sum: of the state with the temporaries of an update, or with all that sampling needs."""
        return self.state + max(self.temporaries, self.sampler + self.cache)


def bytes_on_a_device(shapes: Shapes) -> int:
    """Bytes of one device's part of arrays with shardings."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def _with_places(shapes: PyTree, places: PyTree) -> Shapes:
    return jax.tree.map(lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes, places)


@documented
class Parts(NamedTuple):
    """Everything that the compiler needs to know about a run, as shapes."""

    state: TrainState
    """The training state in RL, with its places on the mesh."""
    base: Base | None
    """The model below an adapter."""
    layout: Layout
    """The rows of one update."""
    batch: Batch
    """What the algorithm prepared for them."""


def planned_algorithm(config: TrainConfig) -> tuple[Algorithm, TrainConfig]:
    """The algorithm of the settings, and the settings as it lays them out.

    Raises:
        InputError: it learns from whole distributions of a teacher, which are not planned.
    """
    algorithm = corrected(make_algorithm(config), config)
    check_reference(algorithm, config)
    if algorithm.teacher_divergence is not None:
        raise InputError(
            f"rljax plan cannot measure {config.algorithm.name}, whose update also reads a teacher; plan "
            "on_policy_distillation, and add 4 bytes for each parameter of the teacher."
        )
    return algorithm, laid_out(config, algorithm)


def state_shapes(config: TrainConfig, algorithm: Algorithm, policy: Policy, mesh: Mesh) -> tuple[TrainState, Base | None]:
    """Shapes and places of the state in RL, and of the model below an adapter."""
    params: Shapes = required(policy.shapes, "policy.shapes")()
    trained, base = params, None
    if config.adapter.rank is not None:
        draw = partial(init_adapter, rank=config.adapter.rank, targets=config.adapter.targets)
        trained = jax.eval_shape(lambda: draw(jax.random.key(0), params))
        places = policy_shardings(mesh, params, params, policy.partition)
        scale = jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated(mesh))
        base = Base(_with_places(params, places), scale)  # pyright: ignore[reportArgumentType]  shapes stand for arrays

    def critic(params: Params) -> CriticState | None:
        if algorithm.critic is None:
            return None
        function = required(policy.value_function, "policy.value_function")(
            algorithm.critic.head.size, config.critic.surprisal
        )
        own = function.init(jax.random.key(0), params)
        learned = {"head": own["head"]} if config.critic.frozen_trunk else own
        pretrained = None if algorithm.critic.blend is None else own
        return CriticState(own, critic_optimizer(config, algorithm).init(learned), pretrained)

    def first(trained: Params, params: Params) -> TrainState:
        parts = {"with_reference": keeps_reference(config, algorithm), "critic": critic(params)}
        return create(trained, policy_optimizer(config), 0, kl_coefficient=first_coefficient(config, algorithm), **parts)

    state = jax.eval_shape(first, trained, params)
    return _with_places(state, policy_shardings(mesh, state, trained, policy.partition, besides=params)), base


def _array(shape: tuple[int, ...], dtype: Any = jnp.float32) -> Any:
    """A shape that stands for an array in the records of the trainer."""
    return jax.ShapeDtypeStruct(shape, dtype)


def data_shapes(config: TrainConfig, algorithm: Algorithm, mesh: Mesh, prompt_length: int) -> tuple[Layout, Batch]:
    """Shapes of one update in which every prompt and every response has its full length."""
    sampling, minibatches = config.sampling, config.optimization.minibatches
    groups, length = (sampling.prompts // minibatches, sampling.group_size), sampling.max_response_tokens
    tokens = (*groups, length)
    mask, numbers, responses = _array(tokens, jnp.bool_), _array(tokens), _array(groups)
    optional = {
        **dict.fromkeys(("ref_logp", "values", "step_rewards", "behaviour_entropy", "teacher_logp", "square_sum"), numbers),
        "step_end": mask,
        "truncated": _array(groups, jnp.bool_),
        "greedy_rewards": _array(groups[:1]),
        "reward_parts": {"reward": responses},
    }
    read = {name: shape for name, shape in optional.items() if algorithm.needs(name)}
    rollout = Rollout(mask, numbers, responses, numbers, **read)
    progress = _array(())
    batch = jax.eval_shape(lambda rollout, progress: prepare(algorithm, rollout, progress=progress), rollout, progress)
    count = groups[0] * groups[1]
    prompts, drawn = np.ones((count, prompt_length), np.int32), np.ones((count, length), np.int32)
    sequences = Sequences(prompts, prompts.astype(bool), drawn, drawn.astype(bool), drawn.astype(np.float32))
    layout = lay_out(sequences, drawn.astype(bool), rows=rows_at_once(config, mesh, prompt_length, count))
    everywhere, rows = replicated(mesh), row_sharding(mesh, leading=1)
    packed = _with_places(layout.packed, jax.tree.map(lambda _: rows, layout.packed))
    places = _with_places(layout.responses, everywhere)
    return Layout(packed, places), _with_places(batch, jax.tree.map(lambda _: everywhere, batch))


def temporaries(config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int) -> int:
    """Bytes of temporaries of one update of a model with this shape, as the compiler reports them for a device."""
    algorithm, config = planned_algorithm(config)
    policy = transformer_policy(shape, eos=0, mesh=mesh, chunk=config.model.score_chunk)
    policy = held(policy, config.optimization.freeze)
    state, base = state_shapes(config, algorithm, policy, mesh)
    layout, batch = data_shapes(config, algorithm, mesh, prompt_length)
    score = make_score(policy, config.sampling.temperature)
    step = compile_policy_step(algorithm, without_teacher(score), policy_optimizer(config), places(state), mesh)
    lowered = step.lower(state, layout, batch, None, base)
    return int(lowered.compile(compiler_options=for_memory(mesh)).memory_analysis().temp_size_in_bytes)


def for_memory(mesh: Mesh) -> dict[str, str]:
    """Options that stop the compiler from removing the program's barriers.

    A CPU's compiler removes the barriers before a layer is computed again, and may then compute all layers again at once: the
    temporaries that it reports would be those of a program without `remat`. A program that is compiled with these options is
    measured, and not run.
    """
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    return {"xla_disable_hlo_passes": "cse_barrier_expander"} if on_cpu else {}


def extrapolated(measure: Callable[[int], int], layers: int) -> int:
    """Measure at two small numbers of layers, and go on in a straight line.

    Example:
        >>> extrapolated(lambda layers: 10 + 3 * layers, 30)
        100
    """
    few, more = 2, 3
    if layers <= more:
        return measure(layers)
    low, high = measure(few), measure(more)
    return max(high, low + (layers - few) * (high - low))


def update_flops(shape: TransformerConfig, tokens: int, slots: int) -> float:
    """Operations of the forward and the backward pass over tokens in rows of `slots` slots; a product counts as two.

    Args:
        shape: of the transformer.
        tokens: all tokens, prompts included.
        slots: slots that each token is held against.
    """
    attention = 2 * shape.width * shape.head_dim * (shape.heads + shape.kv_heads)
    layer = attention + 3 * shape.width * shape.hidden
    mixing = 2 * shape.heads * shape.head_dim * slots
    forward = 2.0 * tokens * (shape.layers * (layer + mixing) + shape.width * shape.vocab_size)
    layers_again = 2.0 * tokens * shape.layers * (layer + mixing) if shape.remat else 0.0
    return 3 * forward + layers_again


def make_plan(config: TrainConfig, shape: TransformerConfig, mesh: Mesh, prompt_length: int) -> Plan:
    """Find out what a run needs.

    Args:
        config: its settings.
        shape: of its model.
        mesh: devices, which may be pretended.
        prompt_length: tokens of the longest prompt.

    Raises:
        InputError: the settings cannot work on this mesh, or cannot be planned.
    """
    algorithm, config = planned_algorithm(config)
    policy = transformer_policy(shape, eos=0, mesh=mesh)
    state, base = state_shapes(config, algorithm, policy, mesh)
    params = state.params if base is None else base.params
    sampling, slots = config.sampling, prompt_length + config.sampling.max_response_tokens
    itemsize = jnp.dtype(shape.compute_dtype).itemsize
    whole = sum(leaf.size for leaf in jax.tree.leaves(params))
    copies = 0 if mesh.shape["fsdp"] == 1 and itemsize == 4 else whole * itemsize // mesh.shape["tensor"]
    merged = 0 if base is None else bytes_on_a_device(params)
    rows = math.ceil(min(sampling.decode_slots, sampling.prompts * sampling.group_size) / row_shards(mesh))
    heads = shape.kv_heads // mesh.shape["tensor"]
    count = sampling.prompts * sampling.group_size
    return Plan(
        parameters=bytes_on_a_device(state.params) + (0 if base is None else bytes_on_a_device(base.params)),
        optimizer=bytes_on_a_device(state.opt_state),
        reference=bytes_on_a_device(state.reference),
        critic=bytes_on_a_device(state.critic),
        sampler=copies + merged,
        cache=2 * shape.layers * rows * slots * heads * shape.head_dim * itemsize,
        temporaries=extrapolated(
            lambda layers: temporaries(config, replace(shape, layers=layers), mesh, prompt_length), shape.layers
        ),
        step_flops=update_flops(shape, count * slots, slots),
    )


def plan_of(config: TrainConfig, count: int, prompt_length: int) -> Plan:
    """Find out what a run needs on `count` devices; of its model only config.json is read.

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
    return make_plan(config, shape, mesh, prompt_length)


Change = tuple[str, dict[str, object]]
"""The flags to type, and the settings that they set."""


def changes_to_try(config: TrainConfig, count: int) -> list[Change]:
    """Changes that make a run smaller, in the order in which they cost least; each stays when the next is tried.

    Args:
        config: the settings.
        count: number of devices.

    Example:
        >>> [flag for flag, _ in changes_to_try(TrainConfig.flat(model="m", remat=True), 4)]
        ['--fsdp 4', '--microbatch-rows 4', '--dtype bfloat16', '--lora-rank 16']
    """
    fsdp, tensor = config.devices.fsdp, config.devices.tensor
    changes: list[Change] = []
    if fsdp * tensor < count:
        changes.append((f"--fsdp {count // tensor}", {"fsdp": count // tensor, "replicas": 1}))
    fewest = count // tensor
    if config.optimization.microbatch_rows != fewest:
        changes.append((f"--microbatch-rows {fewest}", {"microbatch_rows": fewest}))
    if not config.model.remat:
        changes.append(("--remat", {"remat": True}))
    if config.model.dtype == "float32":
        changes.append(("--dtype bfloat16", {"dtype": "bfloat16"}))
    if config.adapter.rank is None and not config.optimization.freeze:
        changes.append(("--lora-rank 16", {"lora_rank": 16}))
    return changes
