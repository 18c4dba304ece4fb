"""`rljax plan`: estimate how much memory and time a run needs on each device, before it starts."""

import os
import sys
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rljax.cli.run_settings import Settings
from rljax.errors import InputError
from rljax.programs.base_settings import Start
from rljax.settings.sizes import byte_count
from rljax.training.config import TrainConfig

CPU = "cpu"
"""Value of `--device` for a run whose arrays are in the memory of the process."""


@dataclass(frozen=True)
class Plan(Settings):
    """Estimate how much memory and time `rljax train` with the same flags would need on each device, before it starts.

    The model's weights are not read, only its config.json, and the devices need not be present: programs are compiled, but not run.
    With --device-memory or --device, the exit code is 1 if the run does not fit, and the command suggests flags with which it fits.
    If the run fits but recomputes more than necessary, the command names a --remat value that recomputes less.
    With --device, the command also prints the shortest possible time of each phase of a step; with --device cpu, it instead
    adds the memory of the process and of its programs.

    With --topology, the estimate comes from the devices' own compiler, on any machine. Otherwise it comes from the compiler for
    CPUs. Kernels that exist only for accelerators (`--attention cudnn`, `splash`) are then replaced by blockwise attention, the
    memory of cuDNN's mask is added, and the estimates of memory and communication are larger than on an accelerator.
    """

    topology: str | None = None
    """Devices whose own compiler makes the estimate; the devices need not be present. TPUs, such as v5e:2x2, v5p:2x2x2 or v6e:2x4,
    or two TPU slices, such as 2xv5e:2x2, need the package libtpu; H100s, such as h100x8, need jax-cuda13-plugin. This option
    replaces --device and --device-count."""
    device_count: int = 1
    """Number of devices of the run."""
    device_memory: str | None = None
    """Memory of one device, such as 80GB; by default the memory of --device."""
    device: str | None = None
    """Kind of the devices: a100, h100, h200, b200, v5e, v5p or v6e, whose peak speeds give the shortest time of a step; or cpu, for
    this machine's memory."""
    prompt_length: int | None = None
    """Number of tokens in the longest prompt; by default --max-prompt-tokens."""


def simulate_devices(environment: MutableMapping[str, str], count: int) -> None:
    """Make JAX simulate several devices on a CPU, by changing the environment that JAX reads at its first computation."""
    environment["JAX_PLATFORMS"] = "cpu"
    flags = environment.get("XLA_FLAGS", "")
    environment["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()


def run_plan(command: Plan, start: Start, arguments: list[str]) -> int:
    """Print the plan, and flags with which the run would fit."""
    del start, arguments
    if command.device_count < 1:
        raise InputError(f"--device-count is {command.device_count}; it must be at least 1.")
    if command.topology is not None and (command.device, command.device_count) != (None, 1):
        raise InputError("--topology sets the kind and number of devices; leave out --device and --device-count.")
    simulate_devices(os.environ, command.device_count)
    import jax  # noqa: PLC0415

    # Reading the folder of --model may have imported JAX before JAX_PLATFORMS was set.
    jax.config.update("jax_platforms", "cpu")
    from rljax.programs.plan import plan_of  # noqa: PLC0415
    from rljax.programs.roofline import device_of  # noqa: PLC0415
    from rljax.programs.topology import topology_of  # noqa: PLC0415
    from rljax.training.memory_plan import USABLE_SHARE  # noqa: PLC0415  --help need not wait for JAX

    topology = None if command.topology is None else topology_of(command.topology)
    if topology is not None:
        command = replace(command, device=topology.kind, device_count=len(topology.devices))
    config, count = command.config, command.device_count
    devices_per_copy = config.devices.fsdp * config.devices.tensor
    if devices_per_copy > count:
        more = f"plan with --device-count {devices_per_copy}"
        if topology is not None:
            more = f"{command.topology} has {count}, so name a larger topology, or lower --fsdp or --tensor"
        raise InputError(f"The parameters are sharded over {devices_per_copy} devices (--fsdp, --tensor); {more}.")
    on_cpu = command.device == CPU
    device = None if command.device is None or on_cpu else device_of(command.device)
    memory = command.device_memory
    if memory is None and command.device is not None:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // count if device is None else device.memory
        memory = f"{total / 1e9:.4g}GB"
    room = None if memory is None else int(USABLE_SHARE * byte_count(memory))
    length = config.data.max_prompt_tokens if command.prompt_length is None else command.prompt_length
    if sys.stderr.isatty():
        print("compiling the programs of a step; a large model takes minutes", file=sys.stderr, flush=True)
    devices = None if topology is None else topology.devices
    plan_with = partial(plan_of, count=count, prompt_length=length, room=room, on_cpu=on_cpu, devices=devices)
    plan = plan_with(config)
    print("\n".join([*table_of(plan, config, count), *work_table(plan, config, command, device)]))
    if topology is not None:
        print(f"Compiled by {topology.compiler} for {topology.devices[0].device_kind}.")
    elif device is not None:
        print(
            f"Compiled for CPUs, which need more memory and send more bytes than {command.device}; for an estimate by the device's "
            "own compiler, use --topology instead."
        )
    if room is None:
        return 0
    if plan.peak <= room:
        print(f"The run fits in {memory}.")
        print(_suggest_remat(config, room, lambda changed: plan_with(changed).peak), end="")
        return 0
    print(f"The run does not fit in {memory}; it may use nine tenths of that.")
    print(_suggest_flags(config, count, room, lambda changed: plan_with(changed).peak))
    return 1


def table_of(plan: Any, config: TrainConfig, count: int) -> list[str]:
    """Format the plan as lines of a table.

    Args:
        plan: a `rljax.programs.plan.Plan`.
        config: the settings.
        count: number of devices.
    """
    sampling = config.sampling
    rows = {
        "parameters": plan.parameters,
        "optimizer": plan.optimizer,
        "reference": plan.reference,
        "critic": plan.critic,
        "arrays of added options": plan.options,
        "in an update: temporaries": plan.temporaries,
        "in a critic's update": plan.critic_temporaries,
        "in an update: cuDNN's mask": plan.mask,
        "while sampling: weights": plan.sampler,
        "while sampling: cache": plan.cache,
        "process and programs": plan.host,
        "largest sum": plan.peak,
    }
    devices = "1 device" if count == 1 else f"each of {count} devices"
    lines = [
        f"{config.algorithm.name}, {sampling.prompts} x {sampling.group_size} responses of at most {sampling.max_response_tokens} "
        f"tokens; GB on {devices}",
        *(f"  {name:<28}{size / 1e9:>10.3f}" for name, size in rows.items() if size),
        f"  {'rows decoded at once':<28}{plan.rows:>10,}",
    ]
    return lines


def work_table(plan: Any, config: TrainConfig, command: Plan, device: Any) -> list[str]:
    """Format the work in each phase of a step as table rows, with the phase's shortest possible time if `device` is not None.

    Args:
        plan: a `rljax.programs.plan.Plan`.
        config: the settings.
        command: the command, for the number and kind of the devices.
        device: a `rljax.programs.roofline.Device`, or None.
    """
    from rljax.programs.roofline import speed_of  # noqa: PLC0415  --help need not wait for JAX

    count, speed = command.device_count, speed_of(config.model.dtype)
    head = f"  {'in one step':<28}{'operations':>12}{'GB moved':>10}{'GB sent':>10}"
    lines = [head if device is None else f"{head}{'seconds':>10} (minimum on {command.device})"]
    total = 0.0
    for name, work in plan.phases.items():
        line = f"  {name:<28}{work.flops:>12.2e}{work.moved / 1e9:>10.1f}{work.sent / 1e9:>10.1f}"
        seconds = 0.0 if device is None else work.seconds(device, count, speed=speed)
        total += seconds
        lines.append(line if device is None else f"{line}{seconds:>10.2f}")
    return lines if device is None else [*lines, f"  {'sum':<60}{total:>10.2f}"]


def _suggest_remat(config: TrainConfig, room: int, peak_of: Callable[[TrainConfig], int]) -> str:
    """Suggest a value of `remat` that recomputes less and also fits; return "" if there is none."""
    from rljax.programs.smaller_runs import cheaper_remat  # noqa: PLC0415  --help need not wait for JAX

    found = cheaper_remat(config, peak_of, room)
    if found is None:
        return ""
    return f"With --remat {found[0]} it would fit too ({found[1] / 1e9:.3f} GB), and an update recomputes less.\n"


def _suggest_flags(config: TrainConfig, count: int, room: int, peak_of: Callable[[TrainConfig], int]) -> str:
    """Apply changes one after another until the run fits, and suggest the flags for them."""
    from rljax.programs.smaller_runs import changes_to_try  # noqa: PLC0415  --help need not wait for JAX
    from rljax.training.memory_plan import try_changes  # noqa: PLC0415

    changes = changes_to_try(config, count)
    trial = try_changes(config, changes, peak_of, room)
    if trial.fits:
        return f"With {' '.join(trial.flags)} it would fit: {trial.needed / 1e9:.3f} GB."
    tried = f"It still does not fit with {' '.join(trial.flags)}: {trial.needed / 1e9:.3f} GB. " if trial.flags else ""
    return f"{tried}Use more devices or shorter responses."
