"""`rljax algorithms`: the algorithms with their options, and the corrections."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tyro

from rljax.cli.wrapping import hanging, terminal_width
from rljax.records import documented, required


@documented
@dataclass(frozen=True)
class Algorithms:
    """List the algorithms and their options, and the corrections."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of the algorithms to list; by default all."""
    json: bool = False
    """Print JSON."""


def algorithm_rows(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Name, summary, options and removable parts of algorithms, of all without names.

    Raises:
        InputError: an algorithm does not exist.
    """
    from rljax.algorithms import ABLATIONS  # noqa: PLC0415  --help need not wait for JAX
    from rljax.algorithms import BY_NAME as ALGORITHMS  # noqa: PLC0415
    from rljax.training.algorithm import factory_of, option_names  # noqa: PLC0415

    return [
        {
            "name": name,
            "summary": _summary(factory_of(name), name),
            "options": option_names(name),
            "without": list(ABLATIONS[name]) if name in ABLATIONS else [],
        }
        for name in names or sorted(ALGORITHMS)
    ]


def correction_rows() -> list[dict[str, Any]]:
    """Name, summary and bounds of the corrections; a bound without a default is None."""
    from rljax.algorithms.corrections import BY_NAME as CORRECTIONS  # noqa: PLC0415

    return [
        {
            "name": name,
            "summary": _summary(correction, name),
            "bounds": {
                bound: None if parameter.default is parameter.empty else parameter.default
                for bound, parameter in inspect.signature(correction).parameters.items()
            },
        }
        for name, correction in CORRECTIONS.items()
    ]


def _summary(function: Callable[..., Any], name: str) -> str:
    return required(inspect.getdoc(function), name).splitlines()[0]


def algorithm_lines(row: Mapping[str, Any], width: int) -> Iterator[str]:
    """One algorithm: its name, and below it summary, options and parts."""
    yield row["name"]
    yield from hanging(row["summary"], width, indent=4)
    if row["options"]:
        words = [f"{option}={value}" for option, value in row["options"].items()]
        yield from hanging(" ".join(["--algorithm-options", *words]), width, indent=4, below=6)
    if row["without"]:
        yield from hanging(" ".join(["--without", *row["without"]]), width, indent=4, below=6)


def correction_lines(row: Mapping[str, Any], width: int) -> Iterator[str]:
    """One correction: its name, and below it summary and bounds."""
    bounds = (f"--correction-{bound}{'' if value is None else f' {value:g}'}" for bound, value in row["bounds"].items())
    yield f"--correction {row['name']}"
    yield from hanging(row["summary"], width, indent=4)
    yield from hanging(" ".join(bounds), width, indent=4)


def run_algorithms(command: Algorithms) -> int:
    """Print each algorithm's summary, its options and the parts that `--without` can remove; without names, the corrections too."""
    algorithms = algorithm_rows(command.names)
    corrections = [] if command.names else correction_rows()
    if command.json:
        print(json.dumps({"algorithms": algorithms, "corrections": corrections}, indent=2, default=str))
        return 0
    width = terminal_width()
    for row in algorithms:
        print("\n".join(algorithm_lines(row, width)))
    for row in corrections:
        print("\n".join(correction_lines(row, width)))
    return 0
