"""Text of the index of equations."""

import difflib
import io
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rljax.book.equations import Equation, equations, find
from rljax.errors import InputError

WIDTH_IN_A_PIPE = 160


def equations_text(entries: Sequence[Equation]) -> str:
    """Name, summary, formula, source and test of each entry, as plain text."""
    return "\n\n".join(_equation_text(entry) for entry in entries)


def _equation_text(entry: Equation) -> str:
    shown = "\n".join(f"    {line}".rstrip() for line in entry.equation.splitlines())
    return f"{entry.name}: {entry.summary}\n\n{shown}\n\n    {entry.source}\n    {entry.module}, {entry.test}"


def equations_table(entries: Sequence[Equation]) -> Table:
    """One row per entry: its summary, source, function and test file."""
    result = Table("equation", "source", "function", "test", box=None, pad_edge=False)
    for entry in entries:
        row = entry.summary, entry.source, f"{entry.module}.{entry.function}".removeprefix("rljax."), entry.test
        result.add_row(*map(Text, row))
    return result


def console_on(stream: TextIO | io.StringIO) -> Console:
    """Make a console with the width and colours of a terminal, or with a fixed width and no colours for any other stream."""
    return Console(file=stream, highlight=False, markup=False, width=None if stream.isatty() else WIDTH_IN_A_PIPE)


def show_equations(query: str, stream: TextIO | io.StringIO) -> None:
    """Print the index if the query is empty; otherwise print the equations that match it, with their formulas.

    Raises:
        InputError: the query finds nothing.
    """
    console = console_on(stream)
    if not query.strip():
        entries = equations()
        console.print(equations_table(entries))
        console.print(
            Text(f"\n{len(entries)} equations. Add a word to the command (gae, dapo, 2504.05118) to see the formulas.")
        )
        return
    found = find(query)
    if not found:
        names = [name for entry in equations() for name in (entry.name, entry.function)]
        near = list(dict.fromkeys(difflib.get_close_matches(query.casefold(), names, n=3)))
        hint = f"; did you mean {' or '.join(near)}?" if near else ". Without a query, all of them are listed."
        raise InputError(f"No equation has {query!r} in its name, summary, formula or source{hint}")
    console.print(Text(equations_text(found)), soft_wrap=True)
