"""Estimate a run's memory per device from shapes alone (training state and key/value cache), and suggest settings that fit.

A run that cannot fit is rejected before any weight is read or initialized.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from rljax.algorithms import Algorithm
from rljax.errors import InputError
from rljax.models import Decoder, Params, Policy
from rljax.models.adapters import Base, init_adapter
from rljax.models.axes import count_sampler_weights, count_shards, mesh_for_sampling
from rljax.parallel import add_shardings, mesh_of, policy_shardings, replicated, row_shards
from rljax.records import required
from rljax.rollout.decode_sizes import FittingSlots, compiled_rows, dialogue_peak_bytes, peak_bytes
from rljax.rollout.environment import Environment
from rljax.settings.sizes import byte_count
from rljax.training.config import MICROBATCH_TOKENS, TrainConfig
from rljax.training.objective.algorithm import keeps_reference
from rljax.training.objective.critic import CriticModel, initial_critic_state
from rljax.training.objective.optimizer import critic_optimizer, policy_optimizer
from rljax.training.parts.adapter import base_shapes
from rljax.training.state import CriticState, Option, TrainState, create, first_arrays

Shapes = PyTree[jax.ShapeDtypeStruct]


def bytes_on_a_device(shapes: Shapes) -> int:
    """Return the bytes that arrays with shardings take on one device."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def parameter_shapes(policy: Policy, mesh: Mesh) -> Shapes:
    """Return the shapes and shardings of all parameters of a policy."""
    return place_shapes(policy, mesh, required(policy.shapes, "policy.shapes")())


def place_shapes(policy: Policy, mesh: Mesh, shapes: Shapes) -> Shapes:
    """Add the shardings of a policy's parameters to their shapes."""
    return add_shardings(shapes, policy_shardings(mesh, shapes, shapes, policy.partition))


def state_shapes(
    config: TrainConfig,
    algorithm: Algorithm,
    policy: Policy,
    mesh: Mesh,
    *,
    optimizer: optax.GradientTransformation | None = None,
    options: Sequence[Option] = (),
) -> tuple[TrainState, Base | None]:
    """Return the shapes and shardings of the state in RL, and of the model under the adapter (None without an adapter).

    Args:
        config: the settings.
        algorithm: the algorithm, as a record of functions.
        policy: the model.
        mesh: the devices.
        optimizer: the policy's optimizer; None means the built-in one.
        options: the optional parts, whose arrays are in the state.
    """
    params: Shapes = required(policy.shapes, "policy.shapes")()
    trained, base = params, None
    if config.adapter.rank is not None:
        init = partial(init_adapter, rank=config.adapter.rank, targets=config.adapter.targets)
        trained = jax.eval_shape(lambda: init(jax.random.key(0), params))
        scale: Any = jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated(mesh))
        base = Base(place_shapes(policy, mesh, base_shapes(config, policy, mesh)), scale)  # shapes in place of arrays

    def make_critic(params: Params) -> CriticState | None:
        if algorithm.critic is None:
            return None
        head, blended = algorithm.critic.head, algorithm.critic.blend is not None
        function = required(policy.value_function, "policy.value_function")(head.size, config.critic.surprisal)
        critic = CriticModel(function, head, config.critic.frozen_trunk, loaded=False)
        return initial_critic_state(critic, critic_optimizer(config, algorithm), params, 0, blended=blended)

    def make_state(trained: Params, params: Params) -> TrainState:
        return create(
            trained,
            policy_optimizer(config) if optimizer is None else optimizer,
            0,
            with_reference=keeps_reference(config, algorithm),
            critic=make_critic(params),
            options=first_arrays(options, trained, from_start=True) | first_arrays(options, trained, from_start=False),
        )

    state = jax.eval_shape(make_state, trained, params)
    return add_shardings(state, policy_shardings(mesh, state, trained, policy.partition, extra_params=params)), base


def state_bytes(state: TrainState, base: Base | None) -> int:
    """Return the bytes that are in use on each device all the time: for the state, and for the model under an adapter."""
    return bytes_on_a_device(state) + (0 if base is None else bytes_on_a_device(base.params))


class TriedChanges(NamedTuple):
    """Changes to the settings of a run that does not fit, and the memory that the changed run would need."""

    flags: list[str]
    """The flags for the command line."""
    needed: int
    """Bytes that the changed run needs on each device."""
    fits: bool
    """Whether the changed run fits."""


FlagChange = tuple[str, dict[str, object]]
"""Flags for the command line, and the settings that they change."""


def sharding_changes(config: TrainConfig, count: int) -> list[FlagChange]:
    """List the change that shards a run's state over all `count` devices; empty if the state is already sharded over them all."""
    shared = (config.devices.context or 1) * config.devices.tensor
    if config.devices.fsdp * shared >= count:
        return []
    copies = "" if config.devices.replicas in (None, 1) else " --replicas 1"
    return [(f"--fsdp {count // shared}{copies}", {"fsdp": count // shared, "replicas": 1})]


def adapter_changes(config: TrainConfig) -> list[FlagChange]:
    """List the changes that train an adapter and quantize the model under it, if the settings allow them."""
    can_adapt = not config.optimization.freeze and config.algorithm.anchor is None and config.model.images is None
    changes: list[FlagChange] = [("--lora-rank 16", {"lora_rank": 16})] if config.adapter.rank is None and can_adapt else []
    if config.adapter.quantize is None and (config.adapter.rank is not None or can_adapt):
        rank = 16 if config.adapter.rank is None else config.adapter.rank
        changes.append(("--quantize nf4", {"lora_rank": rank, "quantize": "nf4"}))
    return changes


def try_changes(
    config: TrainConfig, changes: list[FlagChange], measure: Callable[[TrainConfig], int], room: int
) -> TriedChanges:
    """Try changes one after the other until the run fits.

    Args:
        config: the settings.
        changes: changes to try. Each remains in effect until a later one with the same first flag replaces it; changes that cannot
            work with this model are skipped.
        measure: settings -> bytes on each device.
        room: bytes available on each device.

    Example:
        >>> changes = [("--fsdp 2", {"fsdp": 2}), ("--fsdp 4", {"fsdp": 4})]
        >>> try_changes(TrainConfig(), changes, lambda config: 80 // config.devices.fsdp, 30)
        TriedChanges(flags=['--fsdp 4'], needed=20, fits=True)
    """
    flags, needed = {}, 0
    for flag, settings in changes:
        changed = config.replace(**settings)
        try:
            needed = measure(changed)
        except InputError:  # such as a mesh that does not divide the model
            continue
        config = changed
        flags[flag.split()[0]] = flag
        if needed <= room:
            return TriedChanges([*flags.values()], needed, True)
    return TriedChanges([*flags.values()], needed, False)


USABLE_SHARE = 0.9
"""Fraction of a device's memory that a plan may fill; programs and fragmentation take the rest."""
DEFAULT_SLOTS = 256
"""Maximum number of rows if a device's memory is unknown, and on CPUs, which share their memory with everything else."""
VOCABULARY_ARRAYS = 4
"""Number of float32 arrays over the vocabulary that exist while a token is sampled: the logits, the logits divided by the
temperature, the logits truncated to the likeliest tokens, and the log-probabilities."""


def fitting_slots(decoder: Decoder, mesh: Mesh, memory: int, *, share: float | None, **options: Any) -> FittingSlots:
    """Return a `FittingSlots`, or a `PagedSlots` if `share` (the setting `paged_cache`) is not None."""
    if share is None:
        return FittingSlots(decoder, mesh, memory, **options)
    from rljax.rollout.paged_sampling import PagedSlots  # noqa: PLC0415  most runs have no pages

    return PagedSlots(decoder, mesh, memory, share=share, **options)


def decode_slots(
    config: TrainConfig, policy: Policy, mesh: Mesh, *, left: int | None, platform: str | None = None
) -> int | FittingSlots:
    """Return the maximum number of rows that the built-in engine decodes at once.

    Args:
        config: the settings.
        policy: the model, which must have a decoder.
        mesh: the devices.
        left: bytes per device that state and weights leave free; None if unknown.
        platform: platform of the devices, such as "cpu"; None means the platform of the mesh.
    """
    sampling, decoder, share = config.sampling, required(policy.decoder, "policy.decoder"), config.sampling.paged_cache
    if sampling.cache_memory is not None:
        return fitting_slots(decoder, mesh, byte_count(sampling.cache_memory), share=share, max_rows=sampling.decode_slots)
    is_bounded = left is None or (mesh.devices.flat[0].platform if platform is None else platform) == "cpu"
    most = DEFAULT_SLOTS if is_bounded and sampling.decode_slots is None else sampling.decode_slots
    if left is None:
        return required(most, "decode_slots")
    masks = 4 * sampling.max_response_tokens * (sampling.sampling_mask or 0)
    per_row = masks + 4 * VOCABULARY_ARRAYS * policy.vocab_size // mesh.shape["tensor"]
    return fitting_slots(decoder, mesh, left, share=share, max_rows=most, per_row=per_row, refuses=False)


def sampler_bytes(config: TrainConfig, params: Shapes, mesh: Mesh) -> int:
    """Return the bytes per device of the engine's weights: the prepared weights, and a copy of the model with a merged adapter.

    Args:
        config: the settings.
        params: shapes and shardings of all parameters.
        mesh: the devices.
    """
    itemsize = jnp.dtype(config.model.dtype).itemsize
    weights = itemsize * count_sampler_weights(params, mesh, is_sharded=config.model.shard_sampler)
    merged, is_gathered = bytes_on_a_device(params), count_shards("width", mesh) == 1
    if config.adapter.rank is None:
        return 0 if is_gathered and itemsize == 4 else weights
    if config.adapter.quantize is None:
        return merged + (0 if is_gathered and itemsize == 4 else weights)
    return merged * itemsize // 4 + (0 if is_gathered else weights)


class SamplingMemory(NamedTuple):
    """Memory and rows used while responses are sampled, in addition to the state."""

    weights: int
    """Bytes per device of the weights that the engine reads."""
    rows: int
    """Maximum number of rows that are decoded at once, on all devices together."""
    cache: int
    """Bytes per device of the rows' caches."""


def sampling_memory(
    config: TrainConfig,
    policy: Policy,
    mesh: Mesh,
    prompt_length: int,
    *,
    left: int | None,
    platform: str | None = None,
    has_turns: bool = False,
) -> SamplingMemory:
    """Return the memory and rows of the built-in engine if every prompt and every response has its full length.

    Args:
        config: the settings.
        policy: the model, which must have `decoder` and `shapes`.
        mesh: the devices.
        prompt_length: length of the prompts in tokens.
        left: bytes per device that the state leaves free; None if unknown; 0 for as few rows as possible.
        platform: platform of the devices, such as "cpu"; None means the platform of the mesh.
        has_turns: whether an environment answers the policy turn by turn.

    Raises:
        InputError: `cache_memory` is too small for one row on each device.
    """
    sampling, shapes = config.sampling, parameter_shapes(policy, mesh)
    budget, requests = sampling.max_response_tokens, sampling.prompts * sampling.group_size
    decoder, weights = required(policy.decoder, "policy.decoder"), sampler_bytes(config, shapes, mesh)
    ready, mesh = jax.eval_shape(decoder.weights, shapes), mesh_for_sampling(mesh)
    slots = decode_slots(config, policy, mesh, left=None if left is None else left - weights, platform=platform)
    peak = dialogue_peak_bytes if has_turns and decoder.turns is not None else peak_bytes
    wanted = (ready, requests, sampling.prompts, prompt_length, budget)
    rows = min(slots, requests) if isinstance(slots, int) else replace(slots, peak=peak)(*wanted)
    cache = fitting_slots(decoder, mesh, 0, share=sampling.paged_cache, peak=peak).cache_peak_bytes(rows, *wanted)
    return SamplingMemory(weights, compiled_rows(rows, row_shards(mesh)), cache)


class MemoryNeeds(NamedTuple):
    """Memory needs per device, in bytes, that are known without compiling anything."""

    resident: int
    """Bytes in use all the time: for the state in training, otherwise for the parameters."""
    weights: int = 0
    """Bytes of the weights that the engine reads."""
    cache: int = 0
    """Bytes of the keys and values for as few rows as the settings allow."""

    @property
    def total(self) -> int:
        """Sum of the three needs."""
        return self.resident + self.weights + self.cache

    def refusal(self, what: str, mesh: Mesh, room: int, note: str = "") -> str:
        """Return a message with the bytes that are needed and the bytes that are available.

        Args:
            what: name of what is in memory all the time, such as "training state".
            mesh: the devices.
            room: bytes available on each device.
            note: a note about `what`, in parentheses.
        """
        where = "the device" if mesh.size == 1 else f"each of {mesh.size} devices"
        sampling = (
            f", sampling takes {self.weights / 1e9:,.2f} GB more for weights and {self.cache / 1e9:,.2f} GB for keys and values"
            if self.weights + self.cache
            else ""
        )
        return (
            f"The {what} takes {self.resident / 1e9:,.2f} GB on {where}{note}{sampling}, and there is room for {room / 1e9:,.2f} "
            "GB: it does not fit."
        )


def check_room(
    config: TrainConfig,
    algorithm: Algorithm,
    policy: Policy,
    mesh: Mesh,
    available: int | None,
    *,
    prompt_length: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    environment: Environment | None = None,
    options: Sequence[Option] = (),
) -> int | None:
    """Reject a run whose state, sampler weights and smallest possible cache together do not fit into memory.

    Args:
        config: the settings.
        algorithm: the algorithm, as a record of functions.
        policy: the model; a policy without `shapes` is not checked.
        mesh: the devices.
        available: bytes of all devices together; None if unknown.
        prompt_length: length of the longest prompt in tokens; None if the built-in engine is not used.
        optimizer: the policy's optimizer; None means the built-in one.
        environment: answers the policy turn by turn; None if responses have one turn.
        options: the optional parts, whose arrays are in the state.

    Returns:
        Bytes per device for the cache of the built-in engine; None if unknown.

    Raises:
        InputError: the run does not fit; the message names changes that would help.
    """

    def needs_of(config: TrainConfig, mesh: Mesh) -> MemoryNeeds:
        resident = state_bytes(*state_shapes(config, algorithm, policy, mesh, optimizer=optimizer, options=options))
        return measure_needs(config, policy, mesh, prompt_length, environment, resident)

    if policy.shapes is None:
        return None
    needs = needs_of(config, mesh)
    if available is None:
        return None
    left = (room := available // mesh.size) - needs.resident - needs.weights
    if needs.cache <= left:
        return cache_room(needs, room)
    changes: list[FlagChange] = [(f"--cache-memory {left}B", {"cache_memory": f"{left}B"})] if left > 0 else []
    changes += [*sharding_changes(config, mesh.size), *adapter_changes(config)]
    trial = try_changes(config, changes, lambda changed: needs_of(changed, mesh_of(changed.devices)).total, room)
    note = f" (with the parameters of {lag} earlier steps, for sampler_delay={lag})" if (lag := config.sampling.lag) else ""
    raise InputError(
        f"{needs.refusal('training state', mesh, room, note)} {_advice(trial)} `rljax plan` "
        "with the same flags shows what else a run needs."
    )


def _advice(trial: TriedChanges) -> str:
    """Describe the changes that would make a run fit."""
    flags = " ".join(trial.flags)
    failure = f"It still does not fit with {flags}: {trial.needed / 1e9:,.2f} GB. " if trial.flags else ""
    return f"With {flags} it would fit: {trial.needed / 1e9:,.2f} GB." if trial.fits else f"{failure}Use more devices."


def measure_needs(
    config: TrainConfig,
    policy: Policy,
    mesh: Mesh,
    prompt_length: int | None,
    environment: Environment | None,
    resident: int,
) -> MemoryNeeds:
    """Measure the needs if `resident` bytes are in use all the time; see `check_room`."""
    if prompt_length is None or policy.decoder is None:
        return MemoryNeeds(resident)
    sampled = sampling_memory(config, policy, mesh, prompt_length, left=0, has_turns=environment is not None)
    return MemoryNeeds(resident, sampled.weights, sampled.cache)


def cache_room(needs: MemoryNeeds, room: int) -> int:
    """Return the bytes per device that the cache may take."""
    return int(USABLE_SHARE * room) - needs.resident - needs.weights


def rows_at_once(config: TrainConfig, mesh: Mesh, prompt_length: int, responses: int, *, on_cpus: bool = False) -> int:
    """Return the number of rows per micro-batch for an update on this many responses: a multiple of the number of devices.

    The number is as large as `microbatch_rows` or 16,384 tokens allow, because each micro-batch reads all weights and starts every
    kernel. On CPUs it is at most a 32nd of the responses, or 1,024 tokens if that is more, because padding costs more there. As
    several responses share a row, some micro-batches may have no response; these cost nothing.
    """
    slots, devices = prompt_length + config.sampling.max_response_tokens, row_shards(mesh)
    chosen = config.optimization.microbatch_rows
    most = MICROBATCH_TOKENS // slots if chosen is None else chosen
    useful = max(-(-responses // 32), -(-1024 // slots)) if on_cpus else responses
    return max(min(most, useful) // devices, 1) * devices
