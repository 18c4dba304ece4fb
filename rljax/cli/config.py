"""`rljax config`: print the current settings, and where each comes from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import yaml

from rljax.cli.run_settings import Settings, flags_in
from rljax.programs.base_settings import DEFAULT, Start
from rljax.settings.flat import flat_names
from rljax.training.config import TrainConfig


@dataclass(frozen=True)
class Config(Settings):
    """Print the settings that `rljax train` would use with the same flags, and where each comes from.

    The output is a valid settings file: `rljax config --algorithm grpo > my.yaml`, then `rljax train --config my.yaml`.
    """

    changed: bool = False
    """Leave out the settings that have their default values."""
    json: bool = False
    """Print JSON: a value and an origin for each setting."""


def origins_in_force(start: Start, config: TrainConfig, arguments: list[str]) -> dict[str, str]:
    """Return each setting's origin: the flag that sets it, or else the origin that it had before the flags."""
    flags = set(flags_in(arguments)) | {"--replicas" for flag in flags_in(arguments) if flag == "--data"}
    origins = {}
    for name in config.to_flat():
        flag = f"--{name.replace('_', '-')}"
        negated = f"--no-{name.replace('_', '-')}"
        set_by = next((word for word in (flag, negated) if word in flags), None)
        origins[name] = start.origin(name) if set_by is None else f"flag {set_by}"
    return origins


def groups_of(config: TrainConfig) -> dict[str, dict[str, Any]]:
    """Return the settings by group and flat name; the task group begins with the task's name."""
    flat = config.to_flat()
    groups: dict[str, dict[str, Any]] = {}
    for entry in fields(config):
        group = getattr(config, entry.name)
        if group is None:
            continue
        names = list(flat_names(type(group)).values())
        groups[entry.name] = {name: flat[name] for name in (["task", *names] if entry.name == "task" else names)}
    return groups


def run_config(command: Config, start: Start, arguments: list[str]) -> int:
    """Print the settings as YAML with their origins as comments, or as JSON."""
    config = replace(command.config, task=command.config.generated_task)
    origins = {**dict.fromkeys(config.to_flat(), DEFAULT), **origins_in_force(start, command.config, arguments)}
    groups = {
        group: {name: value for name, value in settings.items() if not command.changed or origins[name] != DEFAULT}
        for group, settings in groups_of(config).items()
    }
    if command.json:
        rows = {name: {"value": value, "from": origins[name]} for group in groups.values() for name, value in group.items()}
        print(json.dumps(rows, indent=2))
    else:
        print(as_yaml(groups, origins))
    return 0


def as_yaml(groups: Mapping[str, Mapping[str, Any]], origins: Mapping[str, str]) -> str:
    """Write settings as YAML, one per line, with their origins as comments."""
    blocks = []
    for group, settings in groups.items():
        lines = [f"{name}: {_format_value(value)}" for name, value in settings.items()]
        width = max(map(len, lines), default=0)
        shown = [f"{line:<{width}}  # {origins[name]}" for line, name in zip(lines, settings, strict=True)]
        if shown:
            blocks.append("\n".join([f"# {group.replace('_', ' ')}", *shown]))
    return "\n\n".join(blocks)


def _format_value(value: Any) -> str:
    """Write one value as YAML on one line."""
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=10**6).removesuffix("\n").removesuffix("...").strip()
