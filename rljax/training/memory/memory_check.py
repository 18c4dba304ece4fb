"""Refusal of what cannot fit into the memory of the devices, before a weight is read or drawn."""

from typing import NamedTuple

import optax
from jax.sharding import Mesh

from rljax.algorithms import Algorithm
from rljax.errors import InputError
from rljax.models import Policy
from rljax.parallel import make_mesh, policy_shardings
from rljax.records import documented
from rljax.rollout.environment import Environment
from rljax.training.config import TrainConfig
from rljax.training.memory.cache_memory import USABLE, sampled_bytes
from rljax.training.memory.state_memory import (
    Change,
    WayOut,
    bytes_on_a_device,
    changes_to_try,
    parameter_shapes,
    state_bytes,
    way_out,
    with_places,
)
from rljax.training.parts.adapter import base_shapes


@documented
class Needs(NamedTuple):
    """Bytes on each device that need no compilation to be known."""

    held: int
    """What is held all the time: the state in training, the parameters otherwise."""
    weights: int = 0
    """Weights as the engine reads them."""
    cache: int = 0
    """Keys and values of the fewest rows that the settings allow."""

    @property
    def total(self) -> int:
        """All of them together."""
        return self.held + self.weights + self.cache

    def refusal(self, what: str, mesh: Mesh, room: int, note: str = "") -> str:
        """The bytes that are held and those that there is room for, in words.

        Args:
            what: is held: "training state".
            mesh: the devices.
            room: bytes of each of them.
            note: on what is held.
        """
        where = "the device" if mesh.size == 1 else f"each of {mesh.size} devices"
        drawing = (
            f", drawing responses {self.weights / 1e9:,.2f} GB more for weights and {self.cache / 1e9:,.2f} GB for keys and values"
            if self.weights + self.cache
            else ""
        )
        return (
            f"The {what} takes {self.held / 1e9:,.2f} GB on {where}{note}{drawing}, and there is room for {room / 1e9:,.2f} GB: it "
            "does not fit."
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
) -> int | None:
    """Refuse a run whose state, weights of the sampler and fewest rows of the cache are larger than the memory.

    Args:
        config: the settings.
        algorithm: the record of functions.
        policy: the model; one that does not tell its shapes is not checked.
        mesh: the devices.
        available: bytes of all devices together; None if they are not known.
        prompt_length: tokens of the longest prompt; None: responses come from another engine than the built-in one.
        optimizer: the policy's; None means the built-in one.
        environment: answers the policy turn by turn; None: responses have one turn.

    Returns:
        Bytes of each device for the cache of the built-in engine; None if they are not known.

    Raises:
        InputError: the message names changes with which it would fit.
    """
    delay = config.sampling.delay

    def needs_of(config: TrainConfig, mesh: Mesh) -> Needs:
        held = state_bytes(config, algorithm, policy, mesh, optimizer=optimizer)
        return _needs(config, policy, mesh, prompt_length, environment, held)

    def measure(config: TrainConfig) -> int:
        axes = config.devices
        return needs_of(config, make_mesh(axes.replicas, axes.fsdp, axes.tensor)).total

    if policy.shapes is None:
        return None
    needs = needs_of(config, mesh)
    if available is None:
        return None
    room = available // mesh.size
    left = room - needs.held - needs.weights
    if needs.cache <= left:
        return _left(needs, room)
    changes: list[Change] = [(f"--cache-memory {left}B", {"cache_memory": f"{left}B"})] if left > 0 else []
    for flag, settings in changes_to_try(config, mesh.size):
        changes += [(flag, settings)] if {"fsdp", "lora_rank", "quantize"} & set(settings) else []
    old = f" (with old parameters of {delay} steps, for sampler_delay={delay})" if delay else ""
    raise InputError(
        f"{needs.refusal('training state', mesh, room, old)} {_advice(way_out(config, changes, measure, room))} `rljax plan` with "
        "the same flags says what else a run needs."
    )


def _advice(out: WayOut) -> str:
    """Changes with which a run fits, in words."""
    named = " ".join(out.flags)
    last = f" with {named}: {out.needed / 1e9:,.2f} GB" if out.flags else ""
    return f"With {named} it would: {out.needed / 1e9:,.2f} GB." if out.fits else f"Nor does it{last}. Use more devices."


def check_loaded(
    config: TrainConfig,
    policy: Policy,
    mesh: Mesh,
    available: int | None,
    *,
    prompt_length: int | None = None,
    environment: Environment | None = None,
) -> int | None:
    """Refuse a model whose parameters, and what drawing from it takes, are larger than the memory.

    Args:
        config: the settings of its run.
        policy: the model; one that does not tell its shapes is not checked.
        mesh: the devices.
        available: bytes of all devices together; None if they are not known.
        prompt_length: tokens of the longest prompt; None: nothing is drawn by the built-in engine.
        environment: answers the policy turn by turn; None: responses have one turn.

    Returns:
        Bytes of each device for the cache of the built-in engine; None if they are not known.

    Raises:
        InputError: the message has the bytes.
    """
    if policy.shapes is None:
        return None
    held = bytes_on_a_device(parameter_shapes(policy, mesh))
    if config.adapter.rank is not None:
        base = base_shapes(config, policy, mesh)
        held += bytes_on_a_device(with_places(base, policy_shardings(mesh, base, base, policy.partition)))
    needs = _needs(config.replace(lora_rank=None, quantize=None), policy, mesh, prompt_length, environment, held)
    if available is None:
        return None
    room = available // mesh.size
    if needs.total > room:
        raise InputError(
            f"{needs.refusal('model', mesh, room)} It needs devices with more memory, or several of them and a run whose "
            "parameters are divided among them (--fsdp, --tensor)."
        )
    return _left(needs, room)


def _needs(
    config: TrainConfig, policy: Policy, mesh: Mesh, prompt_length: int | None, environment: Environment | None, held: int
) -> Needs:
    if prompt_length is None or policy.decoder is None:
        return Needs(held)
    sampled = sampled_bytes(config, policy, mesh, prompt_length, left=0, environment=environment)
    return Needs(held, sampled.weights, sampled.cache)


def _left(needs: Needs, room: int) -> int:
    """Bytes of a device that a cache may take."""
    return int(USABLE * room) - needs.held - needs.weights
