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
    """Only these."""


@documented
@dataclass(frozen=True)
class Equations:
    """List every equation with its source, or print the formulas that match."""

    query: tyro.conf.Positional[tuple[str, ...]] = ()
    """Words that name, formula or source must hold; a function's or an algorithm's name prints just it."""


@dataclass(frozen=True)
class Errata:
    """Recompute the counterexample to every known error of the documents about these algorithms."""


def run_algorithms(command: Algorithms) -> int:
    """Print each algorithm's first line, its options and the parts it can do without; without names, the corrections too."""
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
    """Print the index, or the formulas asked for."""
    from rljax.cli.book_text import show_equations  # noqa: PLC0415

    show_equations(" ".join(command.query), sys.stdout)
    return 0


def run_errata(command: Errata) -> int:
    """Print every erratum with its evidence; exit with 1 when a claim was not refuted."""
    from rljax.cli.book_text import show_errata  # noqa: PLC0415

    return 1 if show_errata(sys.stdout) else 0
