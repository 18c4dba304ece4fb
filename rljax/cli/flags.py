"""Checks of the commands' flags: an unknown flag or value raises an error that suggests what to use instead."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from rljax.cli.other_libraries import explain_missing, find_counterpart, normalize_name, tables
from rljax.cli.run_settings import flags_in, value_of
from rljax.errors import InputError
from rljax.settings.checks import hints_of
from rljax.settings.flat import flat_names
from rljax.tasks import TASKS, full_name
from rljax.text import did_you_mean, nearest_first
from rljax.training.config import TrainConfig

OTHER_FLAGS = ("--help", "--help-all", "--data")
"""Flags that are not fields of a record; `--data` is another name for `--replicas`."""
EQUIVALENT_VALUES: Mapping[str, str] = MappingProxyType(
    {"bf16": "bfloat16", "fp32": "float32", "flash": "blockwise", "flash_attention_2": "blockwise", "sdpa": "blockwise"}
)
"""Value in another library -> rljax's value with the same meaning."""


def known_flags(record: type, config: TrainConfig) -> set[str]:
    """Return all flags of a command that takes a run's settings; which task settings exist depends on `config`."""
    names = _all_setting_hints(record, config)
    flags = {f"--{name.replace('_', '-')}" for name in names}
    negated = {f"--no-{name.replace('_', '-')}" for name, hint in names.items() if hint is bool}
    return flags | negated | set(OTHER_FLAGS)


def _all_setting_hints(record: type, config: TrainConfig) -> dict[str, Any]:
    """Return the types of a command's own settings and of the run's settings, by flat name."""
    own, flat = get_type_hints(record), flat_names(record)
    hints = {flat[entry.name]: own[entry.name] for entry in fields(record) if entry.name != "config"}
    for name, group in config.groups().items():
        if name != "task" or config.task is not None:
            hints |= hints_of(type(group))
    return hints


def check_flags(arguments: Sequence[str], record: type, config: TrainConfig) -> None:
    """Refuse flags that do not exist, and name the flag to use instead.

    Args:
        arguments: name of the command, then its arguments.
        record: the command's record.
        config: the settings that the flags override.

    Raises:
        InputError: a flag does not exist (the message names the first such flag), or the first argument is not a flag, and the
            command has no positional arguments.
    """
    command, *arguments = arguments
    takes_words = any(
        tyro.conf.Positional in _type_and_markers(hint)[1] for hint in get_type_hints(record, include_extras=True).values()
    )
    if arguments and not arguments[0].startswith("-") and not takes_words:
        word = arguments[0]
        raise InputError(
            f"`rljax {command}` takes only flags, not {word!r}; for a dataset, write --dataset {shlex.quote(word)}."
        )
    known = known_flags(record, config)
    counterparts = tables().by_command.get(command, {})
    for flag in flags_in(arguments):
        if flag not in known:
            ours = counterparts.get(normalize_name(flag.removeprefix("--")))
            message = None if ours is None else f"There is no option {flag}; {'use ' * ours.startswith('--')}{ours}."
            raise InputError(_explain_unknown(flag, known) if message is None else message)
    check_choices(arguments, _all_setting_hints(record, config))


def flags_of(record: type) -> set[str]:
    """Return the flags of a command that does not take a run's settings."""
    hints = get_type_hints(record, include_extras=True)
    flags = {"--help", "--help-all"}
    for name, flag in flat_names(record).items():
        kind, markers = _type_and_markers(hints[name])
        if isinstance(kind, type) and is_dataclass(kind):
            flags |= flags_of(kind)
        elif tyro.conf.Positional not in markers:
            word = flag.replace("_", "-")
            aliases = [alias for marker in markers for alias in getattr(marker, "aliases", None) or ()]
            flags |= {f"--{word}", *aliases} | ({f"--no-{word}"} if kind in (bool, bool | None) else set())
    return flags


def with_values(arguments: Sequence[str], record: type) -> list[str]:
    """Replace the flags of `bool | None` settings, which Tyro reads only with a value: `--no-chat` becomes `--chat False`."""
    hints = get_type_hints(record)
    switches = [flag.replace("_", "-") for name, flag in flat_names(record).items() if hints[name] == bool | None]
    values = {f"--{no}{switch}": [f"--{switch}", str(not no)] for switch in switches for no in ("", "no-")}
    return [word for argument in arguments for word in values.get(argument, [argument])]


def check_own_flags(command: str, arguments: Sequence[str], record: type) -> None:
    """Refuse flags that a command without run settings does not have, and name the flag to use instead.

    Raises:
        InputError: a flag does not exist; the message names the first such flag.
    """
    known = flags_of(record)
    for flag in flags_in(arguments):
        if flag not in known:
            ours = tables().by_command.get(command, {}).get(normalize_name(flag.removeprefix("--")))
            advice = did_you_mean(flag, known) if ours is None else f"; {'use ' * ours.startswith('--')}{ours}."
            raise InputError(f"`rljax {command}` has no option {flag}{advice} `rljax {command} --help` lists all options.")
    check_choices(arguments, _all_hints(record))


def _all_hints(record: type) -> dict[str, Any]:
    """Return the type of each setting of a command, including settings in groups."""
    hints = dict(hints_of(record))
    for hint in list(hints.values()):
        if isinstance(hint, type) and is_dataclass(hint):
            hints |= _all_hints(hint)
    return hints


def check_choices(arguments: Sequence[str], hints: Mapping[str, Any]) -> None:
    """Refuse a value that is not among a flag's choices, and suggest the nearest choice.

    Args:
        arguments: flags and their values.
        hints: type of each setting by its flat name.

    Raises:
        InputError: a value is not a choice; the message names the first such value.
    """
    for name, hint in hints.items():
        words = _choices(hint)
        flag = f"--{name.replace('_', '-')}"
        value = value_of(flag, arguments)
        if words and value is not None and not value.startswith("--") and value not in words:
            advice = f"choose one of {', '.join(words)}."
            raise InputError(f"{flag} is {value!r}{nearest_first(EQUIVALENT_VALUES.get(value, value), words, advice)}")


def _choices(hint: Any) -> tuple[str, ...]:
    """Return the choices of a setting; empty if the setting also accepts other values."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _choices(arguments[0])
    if origin is Literal:
        return tuple(map(str, arguments))
    if origin in (Union, UnionType):
        parts = [("None",) if part is NoneType else _choices(part) for part in arguments]
        return tuple(word for part in parts for word in part) if all(parts) else ()
    return ()


def _type_and_markers(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split an annotation into its type and its markers."""
    return getattr(hint, "__origin__", hint), getattr(hint, "__metadata__", ())


def _explain_unknown(flag: str, known: set[str]) -> str:
    """Return the error message for a flag that is not one of a run's settings."""
    name = flag.removeprefix("--")
    owners = [task for task, settings in TASKS.items() if name.replace("-", "_") in flat_names(settings).values()]
    if owners:
        return (
            f"{flag} is a setting of the task {' or '.join(owners)}, which this run does not use; add --task "
            f"{full_name(owners[0])}, without a dataset."
        )
    positive = name.removeprefix("no-")
    if positive != name and f"--{positive}" in known:
        return f"There is no option {flag}: --{positive} takes a value. `rljax train --help-all` lists all options."
    ours = find_counterpart(name)
    if ours is not None:
        return f"There is no option {flag}; use {ours}."
    reason = explain_missing(name)
    if reason is not None:
        return f"There is no option {flag}. {reason}"
    return f"There is no option {flag}{did_you_mean(flag, known)} `rljax train --help-all` lists all options."
