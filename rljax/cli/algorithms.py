"""`rljax algorithms`: list the algorithms with their options and slots, as text, a table, JSON or a genealogy."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from rljax.errors import InputError


@dataclass(frozen=True)
class Algorithms:
    """List the algorithms and the corrections, list the parts, or show single algorithms slot by slot."""

    names: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[NAME ...]")] = field(default=())
    """Algorithms to show with their formulas, slots and equations; by default, all algorithms are listed."""
    parts: bool = False
    """List the parts that `rljax train --with` can put into an algorithm."""
    table: bool = False
    """Print the table of all algorithms and their slots, in Markdown."""
    genealogy: Path | None = None
    """File (.png or .svg) to draw the genealogy in: for each algorithm, the closest earlier one and the slots that differ."""
    json: bool = False
    """Print JSON."""


def run_algorithms(command: Algorithms) -> int:
    """Print the list, the named algorithms, the parts or the table, or draw the genealogy.

    Raises:
        InputError: the flags exclude each other, there is no such algorithm, or the picture's suffix is not .png or .svg.
    """
    wanted = [command.parts, command.table, command.genealogy is not None, command.json]
    if sum(wanted) > 1 or (command.names and any(wanted[:3])):
        raise InputError(
            "--parts, --table, --genealogy and --json exclude each other; names can be combined only with --json."
        )
    if command.parts:
        from rljax.cli.algorithms_text import show_parts  # noqa: PLC0415

        show_parts(sys.stdout)
    elif command.table:
        from rljax.book.slots import table  # noqa: PLC0415

        print(table())
    elif command.genealogy is not None:
        from rljax.book.genealogy_picture import draw_genealogy  # noqa: PLC0415

        draw_genealogy(command.genealogy)
        print(command.genealogy)
    else:
        from rljax.cli.algorithms_text import show_algorithms, show_algorithms_json  # noqa: PLC0415

        (show_algorithms_json if command.json else show_algorithms)(command.names, sys.stdout)
    return 0
