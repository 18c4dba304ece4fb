"""`rljax algorithms`, `rljax equations` and `rljax errata`: the book of equations."""

import inspect
import sys
from dataclasses import dataclass, field

import tyro

from rljax.records import documented, required


@documented
@dataclass(frozen=True)
class Algorithms:
    """List the algorithms and their options, and the corrections."""

    names: tyro.conf.Positional[tuple[str, ...]] = field(default=())
    """Names of the algorithms to list; by default all."""


@documented
@dataclass(frozen=True)
class Equations:
    """List every equation with its source, or print the formulas that match."""

    query: tyro.conf.Positional[tuple[str, ...]] = ()
    """Words to find in names, summaries, formulas and sources. The name of a function or an algorithm prints only that one."""


@dataclass(frozen=True)
class Errata:
    """Recompute the counterexample to every known error in documents about these algorithms."""


def run_algorithms(command: Algorithms) -> int:
    """Print each algorithm's summary, its options and the parts that `--without` can remove; without names, the corrections too."""
    from rljax.algorithms import ABLATIONS, BY_NAME  # noqa: PLC0415
    from rljax.algorithms.corrections import BY_NAME as CORRECTIONS  # noqa: PLC0415
    from rljax.training.algorithm import option_names  # noqa: PLC0415

    for name in command.names or sorted(BY_NAME):
        options = " ".join(f"{option}={value}" for option, value in option_names(name).items())
        print(f"{name:<20}{required(inspect.getdoc(BY_NAME[name]), name).splitlines()[0]}\n{'':<20}{options}")
        if name in ABLATIONS:
            print(f"{'':<20}--without {' '.join(ABLATIONS[name])}")
    for name, correction in () if command.names else CORRECTIONS.items():
        bounds = " ".join(
            f"--correction-{bound}{'' if parameter.default is parameter.empty else f' {parameter.default:g}'}"
            for bound, parameter in inspect.signature(correction).parameters.items()
        )
        summary = required(inspect.getdoc(correction), name).splitlines()[0]
        print(f"--correction {name:<20}{summary}\n{'':<33}{bounds}")
    return 0


def run_equations(command: Equations) -> int:
    """Print the index, or the equations that match the query with their formulas."""
    from rljax.cli.book_text import show_equations  # noqa: PLC0415

    show_equations(" ".join(command.query), sys.stdout)
    return 0


def run_errata(command: Errata) -> int:
    """Print every erratum with its evidence; return 1 if a claim was not refuted, else 0."""
    from rljax.cli.book_text import show_errata  # noqa: PLC0415

    return 1 if show_errata(sys.stdout) else 0
