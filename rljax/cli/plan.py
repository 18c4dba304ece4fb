"""`rljax plan`: what a run needs on each device, before it is started."""

import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from rljax.cli.starting import Settings
from rljax.errors import InputError
from rljax.records import documented
from rljax.training.config import TrainConfig
from rljax.training.config.start import Start

USABLE = 0.9
"""Share of a device's memory that a plan may fill; the rest is for programs and for gaps."""


@documented
@dataclass(frozen=True)
class Plan(Settings):
    """Say what `rljax train` with the same flags would need on each device, before it is started.

    Of the model only config.json is read, and the devices may be absent. The update of the policy is compiled, not run. With
    --device-memory the command ends with the code 1 if the run does not fit, and names flags with which it would.
    """

    device_count: int = 1
    """Number of devices of the run."""
    device_memory: str | None = None
    """Memory of one device, such as 80GB."""
    prompt_length: int | None = None
    """Tokens of the longest prompt; by default --max-prompt-tokens."""


def pretend_devices(environment: MutableMapping[str, str], count: int) -> None:
    """Let JAX make a CPU look like several devices; it reads the environment at its first computation."""
    environment["JAX_PLATFORMS"] = "cpu"
    flags = environment.get("XLA_FLAGS", "")
    environment["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()


def run_plan(command: Plan, begun: Start, arguments: list[str]) -> int:
    """Print the plan, and how it would fit."""
    del begun, arguments
    if command.device_count < 1:
        raise InputError(f"--device-count is {command.device_count}; it must be at least 1.")
    pretend_devices(os.environ, command.device_count)
    from rljax.models.model_folder import byte_count  # noqa: PLC0415  --help need not wait for JAX
    from rljax.training.plan import plan_of  # noqa: PLC0415

    room = None if command.device_memory is None else int(USABLE * byte_count(command.device_memory))
    config = command.config
    length = config.data.max_prompt_tokens if command.prompt_length is None else command.prompt_length
    plan = plan_of(config, command.device_count, length)
    print("\n".join(described(plan, config, command.device_count)))
    if room is None:
        return 0
    if plan.peak <= room:
        print(f"It fits {command.device_memory}.")
        return 0
    print(f"It does not fit {command.device_memory}, of which a plan may fill nine tenths.")
    print(_way_out(config, command.device_count, length, room))
    return 1


def described(plan: Any, config: TrainConfig, count: int) -> list[str]:
    """The plan as lines of a table.

    Args:
        plan: a `rljax.training.plan.Plan`.
        config: the settings.
        count: number of devices.
    """
    sampling = config.sampling
    rows = {
        "parameters": plan.parameters,
        "optimiser": plan.optimizer,
        "reference": plan.reference,
        "critic": plan.critic,
        "in an update: temporaries": plan.temporaries,
        "while sampling: weights": plan.sampler,
        "while sampling: cache": plan.cache,
        "largest sum": plan.peak,
    }
    devices = "1 device" if count == 1 else f"each of {count} devices"
    lines = [
        f"{config.algorithm.name}, {sampling.prompts} x {sampling.group_size} responses of at most {sampling.max_response_tokens} "
        f"tokens; GB on {devices}",
        *(f"  {name:<28}{size / 1e9:>10.3f}" for name, size in rows.items() if size),
        f"  floating-point operations of the updates of a step, all devices: {plan.step_flops:.2e}",
    ]
    return lines


def _way_out(config: TrainConfig, count: int, length: int, room: int) -> str:
    """The first flags, one after the other, with which the run fits."""
    from rljax.training.plan import changes_to_try, plan_of  # noqa: PLC0415  --help need not wait for JAX

    flags: list[str] = []
    peak = 0
    for flag, settings in changes_to_try(config, count):
        changed = config.replace(**settings)
        try:
            peak = plan_of(changed, count, length).peak
        except InputError:  # such as a mesh that does not divide the model
            continue
        config = changed
        flags.append(flag)
        if peak <= room:
            return f"With {' '.join(flags)} it would: {peak / 1e9:.3f} GB."
    tried = f" with {' '.join(flags)}: {peak / 1e9:.3f} GB" if flags else ""
    return f"Nor does it{tried}. Use more devices, fewer --decode-slots or shorter responses."
