"""Flags of the commands: which exist, and an answer to each that does not."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import tyro

from rljax.cli.elsewhere import IN_COMMAND, ours_for, plain
from rljax.cli.starting import flags_in
from rljax.errors import InputError
from rljax.settings.flat import flat_names
from rljax.tasks import TASKS, full_name
from rljax.text import did_you_mean
from rljax.training.config import TrainConfig
from rljax.training.config.typed import hints_of

FURTHER = ("--help", "--help-all", "--data")
"""Flags that are no field of a record; `--data` is another name of `--replicas`."""


def known_flags(record: type, config: TrainConfig) -> set[str]:
    """Flags of a command that changes these settings."""
    own = get_type_hints(record)
    names = dict(_bare_names(record, own))
    for name, group in config.groups().items():
        if name != "task" or config.task is not None:
            names |= hints_of(type(group))
    flags = {f"--{name.replace('_', '-')}" for name in names}
    negated = {f"--no-{name.replace('_', '-')}" for name, hint in names.items() if hint is bool}
    return flags | negated | set(FURTHER)


def _bare_names(record: type, hints: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Flag and type of each field of a command's record, without the settings of the run."""
    flat = flat_names(record)
    for entry in fields(record):
        if entry.name != "config":
            yield flat[entry.name], hints[entry.name]


def check_flags(arguments: Sequence[str], record: type, config: TrainConfig) -> None:
    """Refuse flags that do not exist, with the flag to use instead.

    Raises:
        InputError: names the first such flag.
    """
    known = known_flags(record, config)
    for flag in flags_in(arguments):
        if flag not in known:
            raise InputError(_answer(flag, known, config))


def flags_of(record: type) -> set[str]:
    """Flags of a command that changes no settings of a run."""
    hints = get_type_hints(record, include_extras=True)
    flags = {"--help", "--help-all"}
    for name, flag in flat_names(record).items():
        kind, markers = _parts(hints[name])
        if isinstance(kind, type) and is_dataclass(kind):
            flags |= flags_of(kind)
        elif tyro.conf.Positional not in markers:
            word = flag.replace("_", "-")
            aliases = [alias for marker in markers for alias in getattr(marker, "aliases", None) or ()]
            flags |= {f"--{word}", *aliases} | ({f"--no-{word}"} if kind is bool else set())
    return flags


def check_own_flags(command: str, arguments: Sequence[str], record: type) -> None:
    """Refuse flags that a command without settings of a run does not have, with the flag to use instead.

    Raises:
        InputError: names the first such flag.
    """
    known = flags_of(record)
    for flag in flags_in(arguments):
        if flag not in known:
            ours = IN_COMMAND.get(command, {}).get(plain(flag.removeprefix("--")))
            advice = did_you_mean(flag, known) if ours is None else f"; {'use ' * ours.startswith('--')}{ours}."
            raise InputError(f"`rljax {command}` has no option {flag}{advice} `rljax {command} --help` lists all options.")


def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Type and markers of an annotation."""
    return getattr(hint, "__origin__", hint), getattr(hint, "__metadata__", ())


def _answer(flag: str, known: set[str], config: TrainConfig) -> str:
    name = flag.removeprefix("--")
    owners = [task for task, settings in TASKS.items() if name.replace("-", "_") in flat_names(settings).values()]
    if owners:
        return (
            f"{flag} is a setting of the task {' or '.join(owners)}, which this run does not have; add --task "
            f"{full_name(owners[0])}, without a dataset."
        )
    if name.replace("-", "_") in config.to_flat():
        return f"{flag} takes no `no-`; see `rljax train --help-all`."
    ours = ours_for(name)
    if ours is not None:
        return f"There is no option {flag}; use {ours}."
    return f"There is no option {flag}{did_you_mean(flag, known)} `rljax train --help-all` lists all options."
