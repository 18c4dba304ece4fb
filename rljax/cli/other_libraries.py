"""Names of settings in TRL, verl, Tunix and verifiers, with rljax's names, for error messages and notebooks/coming_from.md."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from rljax.files import read_toml

LIBRARIES = ("TRL", "verl", "Tunix", "verifiers")


class SettingNames(NamedTuple):
    """A setting's name in rljax and in other libraries; an empty name means that the library has no such setting."""

    ours: str
    """What to type: a flag, a command, or a call in Python."""
    trl: str = ""
    """Argument of TRL's GRPOConfig, ModelConfig, ScriptArguments or GRPOTrainer."""
    verl: str = ""
    """Key of verl's configuration."""
    tunix: str = ""
    """Field of Tunix's GRPOConfig, RolloutConfig or RLTrainingConfig."""
    verifiers: str = ""
    """Field of verifiers' EvalConfig, AgentConfig, SamplingConfig or TaskConfig."""
    note: str = ""
    """How the meaning differs between the libraries."""


class Tables(NamedTuple):
    """The tables of `other_libraries.toml`."""

    settings: tuple[SettingNames, ...]
    """Training settings, in the order in which a first run needs them."""
    short: Mapping[str, str]
    """Other common name of a setting -> what to type."""
    by_command: Mapping[str, Mapping[str, str]]
    """Command other than `train` -> name under which people look for an option -> what to type."""
    absent: tuple[tuple[str, str, str], ...]
    """Settings without a counterpart: a pattern for their names, the reason, and the page in notebooks/ about it."""


@cache
def tables() -> Tables:
    """Read the tables."""
    read = read_toml("rljax.cli", "other_libraries.toml")
    absent = tuple((row["pattern"], row["reason"], row["page"]) for row in read["absent"])
    return Tables(tuple(SettingNames(**row) for row in read["setting"]), read["short"], read["command"], absent)


def foreign_names(row: SettingNames) -> Iterator[tuple[str, str]]:
    """Yield the library and the name for each library that has the setting."""
    for library, name in zip(LIBRARIES, (row.trl, row.verl, row.tunix, row.verifiers), strict=True):
        if name:
            yield library, name


def find_counterpart(flag: str) -> str | None:
    """Find what to type instead of another library's flag; None if the flag is in no table.

    Args:
        flag: name without leading hyphens. Hyphens, underscores and dots are equivalent; a dotted key's last part is enough.

    Example:
        >>> find_counterpart("num_generations"), find_counterpart("actor_rollout_ref.rollout.n"), find_counterpart("stepz")
        ('--group-size (num_generations in TRL and Tunix)', '--group-size (actor_rollout_ref.rollout.n in verl)', None)
    """
    wanted = normalize_name(flag)
    for shortened in (False, True):
        for row in tables().settings:
            names = [
                (library, name, name.rpartition(".")[2] if shortened else name) for library, name in foreign_names(row)
            ]
            hits = [(library, name) for library, name, shown in names if normalize_name(shown) == wanted]
            if hits:
                libraries = " and ".join(library for library, name in hits if name == hits[0][1])
                return f"{row.ours} ({hits[0][1]} in {libraries})"
    return tables().short.get(wanted)


@cache
def peer_settings() -> Mapping[str, frozenset[str]]:
    """Return the normalized names of each library's settings, from a file that tests/cli/make_peer_settings.py writes."""
    text = files("rljax.cli").joinpath("peer_settings.json").read_text(encoding="utf-8")
    return {library: frozenset(map(normalize_name, names)) for library, names in json.loads(text).items()}


def explain_missing(flag: str) -> str | None:
    """Explain another library's setting that has no counterpart; None if no library has it.

    Example:
        >>> explain_missing("vllm_mode")
        'TRL has it; rljax has no such setting: the built-in engine shares the mesh; another engine is a server with its own settings; see notebooks/your_sampler.md.'
        >>> explain_missing("stepz")
    """  # noqa: E501
    wanted = normalize_name(flag)
    libraries = [library for library, names in peer_settings().items() if wanted in names]
    if not libraries:
        return None
    _, reason, page = next(
        (row for row in tables().absent if re.search(row[0].replace(".", "[-.]"), wanted)),
        ("", "a table lists the settings that have a counterpart", "coming_from.md"),
    )
    have = "has" if len(libraries) == 1 else "have"
    return f"{' and '.join(libraries)} {have} it; rljax has no such setting: {reason}; see notebooks/{page}."


def normalize_name(name: str) -> str:
    """Convert a name to lower case, with hyphens instead of underscores and dots."""
    return name.replace("_", "-").replace(".", "-").lower()
