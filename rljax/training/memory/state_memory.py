"""Bytes of a run's training state on each device, from shapes alone, and the changes that make a run smaller."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from rljax.algorithms import Algorithm
from rljax.errors import InputError
from rljax.models import Params, Policy
from rljax.models.adapters import Base, init_adapter
from rljax.parallel import policy_shardings, replicated
from rljax.records import documented, required
from rljax.training.config import TrainConfig
from rljax.training.controller import add_entropy_bonus
from rljax.training.objective.algorithm import add_correction, make_algorithm, settings_for
from rljax.training.objective.optimizer import critic_optimizer, policy_optimizer
from rljax.training.objective.reference import check_reference, first_coefficient, keeps_reference
from rljax.training.parts.adapter import base_shapes
from rljax.training.sampler_delay import cast_of, entry_of
from rljax.training.state import CriticState, TrainState, create

Shapes = PyTree[jax.ShapeDtypeStruct]


def bytes_on_a_device(shapes: Shapes) -> int:
    """Bytes of one device's part of arrays with shardings."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def with_places(shapes: PyTree, places: PyTree) -> Shapes:
    """Shapes that also say where their arrays would lie."""
    return jax.tree.map(lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes, places)


def parameter_shapes(policy: Policy, mesh: Mesh) -> Shapes:
    """Shapes and places of all parameters of a policy."""
    shapes = required(policy.shapes, "policy.shapes")()
    return with_places(shapes, policy_shardings(mesh, shapes, shapes, policy.partition))


def planned_algorithm(config: TrainConfig) -> tuple[Algorithm, TrainConfig]:
    """The algorithm of the settings, and the settings as it lays them out.

    Raises:
        InputError: it learns from whole distributions of a teacher, beside a calculator or from images, which are not planned.
    """
    algorithm = add_entropy_bonus(add_correction(make_algorithm(config), config), config)
    check_reference(algorithm, config)
    if algorithm.teacher_divergence is not None:
        raise InputError(
            f"rljax plan cannot measure {config.algorithm.name}, whose update also reads a teacher; plan "
            "on_policy_distillation, and add 4 bytes for each parameter of the teacher."
        )
    if config.model.calculator is not None:
        raise InputError(
            f"rljax plan cannot measure calculator={config.model.calculator}, with which all logits of a micro-batch exist at "
            "once; leave it out, and add 4 bytes for each scored token of a micro-batch times the size of the vocabulary."
        )
    if config.model.images is not None:
        raise InputError(
            f"rljax plan cannot measure images={config.model.images}, with which patches have a projection in place of rows of the "
            "table; leave it out: the plan then counts 256 rows of the table too many."
        )
    return algorithm, settings_for(config, algorithm)


def state_shapes(
    config: TrainConfig,
    algorithm: Algorithm,
    policy: Policy,
    mesh: Mesh,
    *,
    optimizer: optax.GradientTransformation | None = None,
) -> tuple[TrainState, Base | None]:
    """Shapes and places of the state in RL, and of the model below an adapter.

    Args:
        config: the settings.
        algorithm: the record of functions.
        policy: the model.
        mesh: the devices.
        optimizer: the policy's; None means the built-in one.
    """
    params: Shapes = required(policy.shapes, "policy.shapes")()
    trained, base = params, None
    if config.adapter.rank is not None:
        draw = partial(init_adapter, rank=config.adapter.rank, targets=config.adapter.targets)
        trained = jax.eval_shape(lambda: draw(jax.random.key(0), params))
        below = base_shapes(config, policy, mesh)
        places = policy_shardings(mesh, below, below, policy.partition)
        scale = jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated(mesh))
        base = Base(with_places(below, places), scale)  # pyright: ignore[reportArgumentType]  shapes stand for arrays

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
        return create(
            trained,
            policy_optimizer(config) if optimizer is None else optimizer,
            0,
            with_reference=keeps_reference(config, algorithm),
            with_anchor=config.algorithm.anchor is not None,
            critic=critic(params),
            kl_coefficient=first_coefficient(config, algorithm),
        )

    state = jax.eval_shape(first, trained, params)
    return with_places(state, policy_shardings(mesh, state, trained, policy.partition, besides=params)), base


def state_bytes(
    config: TrainConfig,
    algorithm: Algorithm,
    policy: Policy,
    mesh: Mesh,
    *,
    optimizer: optax.GradientTransformation | None = None,
) -> int:
    """Bytes on each device that are held all the time: the state, the model below an adapter, and old parameters of the sampler."""
    state, base = state_shapes(config, algorithm, policy, mesh, optimizer=optimizer)
    below = 0 if base is None else bytes_on_a_device(base.params)
    return bytes_on_a_device(state) + below + ring_bytes(config, policy, state.params, base)


def ring_bytes(config: TrainConfig, policy: Policy, trained: Shapes, base: Base | None) -> int:
    """Bytes on each device of the old parameters that the sampler draws with; 0 without a delay.

    Args:
        config: the settings.
        policy: the model.
        trained: shapes and places of the parameters that are trained.
        base: below an adapter, or None.
    """
    if not config.sampling.delay:
        return 0
    entry = jax.eval_shape(partial(entry_of, cast_of(policy, base)), trained)
    return config.sampling.delay * bytes_on_a_device(with_places(entry, jax.tree.map(lambda leaf: leaf.sharding, trained)))


@documented
class WayOut(NamedTuple):
    """Changes of a run that does not fit."""

    flags: list[str]
    """The flags to type."""
    needed: int
    """Bytes that the run then needs on each device."""
    fits: bool
    """Whether that is little enough."""


Change = tuple[str, dict[str, object]]
"""The flags to type, and the settings that they set."""


def changes_to_try(config: TrainConfig, count: int) -> list[Change]:
    """Changes that make a run smaller, in the order in which they cost least; each stays when the next is tried.

    Args:
        config: the settings.
        count: number of devices.

    Example:
        >>> [flag for flag, _ in changes_to_try(TrainConfig.flat(model="m", remat="full"), 4)]
        ['--fsdp 4', '--microbatch-rows 4', '--dtype bfloat16', '--lora-rank 16', '--quantize nf4']
    """
    fsdp, tensor = config.devices.fsdp, config.devices.tensor
    changes: list[Change] = []
    if fsdp * tensor < count:
        copies = "" if config.devices.replicas in (None, 1) else " --replicas 1"
        changes.append((f"--fsdp {count // tensor}{copies}", {"fsdp": count // tensor, "replicas": 1}))
    fewest = count // tensor
    if config.optimization.microbatch_rows != fewest:
        changes.append((f"--microbatch-rows {fewest}", {"microbatch_rows": fewest}))
    if config.model.remat != "full":
        changes.append(("--remat full", {"remat": "full"}))
    if config.model.dtype == "float32":
        changes.append(("--dtype bfloat16", {"dtype": "bfloat16"}))
    can_adapt = not config.optimization.freeze and config.algorithm.anchor is None and config.model.images is None
    if config.adapter.rank is None and can_adapt:
        changes.append(("--lora-rank 16", {"lora_rank": 16}))
    if config.adapter.quantize is None and (config.adapter.rank is not None or can_adapt):
        rank = 16 if config.adapter.rank is None else config.adapter.rank
        changes.append(("--quantize nf4", {"lora_rank": rank, "quantize": "nf4"}))
    return changes


def way_out(config: TrainConfig, changes: list[Change], measure: Callable[[TrainConfig], int], room: int) -> WayOut:
    """Try changes one after the other until the run fits.

    Args:
        config: the settings.
        changes: to try; each stays when the next is tried, and those that cannot work with this model are left out.
        measure: settings -> bytes on each device.
        room: bytes of a device.

    Example:
        >>> changes = [("--fsdp 2", {"fsdp": 2}), ("--fsdp 4", {"fsdp": 4})]
        >>> way_out(TrainConfig(), changes, lambda config: 80 // config.devices.fsdp, 30)
        WayOut(flags=['--fsdp 2', '--fsdp 4'], needed=20, fits=True)
    """
    flags, needed = [], 0
    for flag, settings in changes:
        changed = config.replace(**settings)
        try:
            needed = measure(changed)
        except InputError:  # such as a mesh that does not divide the model
            continue
        config = changed
        flags.append(flag)
        if needed <= room:
            return WayOut(flags, needed, True)
    return WayOut(flags, needed, False)
