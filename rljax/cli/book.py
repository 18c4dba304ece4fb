"""`rljax equations`: the book of equations."""

import sys
from dataclasses import dataclass

import tyro

from rljax.records import documented


@documented
@dataclass(frozen=True)
class Equations:
    """List every equation with its source, or print the formulas that match."""

    query: tyro.conf.Positional[tuple[str, ...]] = ()
    """Words to find in names, summaries, formulas and sources. The name of a function or an algorithm prints only that one."""


def run_equations(command: Equations) -> int:
    """Print the index, or the equations that match the query with their formulas."""
    from rljax.cli.book_text import show_equations  # noqa: PLC0415

    show_equations(" ".join(command.query), sys.stdout)
    return 0
