"""Text of the book: the index of equations, and the errata with the results of their counterexamples."""

import difflib
import io
import textwrap
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rljax.book.equations import Equation, equations, find
from rljax.book.errata import Erratum, Evidence, run_all
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


def errata_text(results: Sequence[tuple[Erratum, Evidence | None]], *, width: int = 100) -> str:
    """The entries under the titles of their documents, as plain text."""
    documents = dict.fromkeys(entry.document for entry, _ in results)
    parts = []
    for document in documents:
        blocks = [_erratum_text(entry, evidence, width) for entry, evidence in results if entry.document == document]
        parts.append("\n\n".join([f"{document}\n{'=' * len(document)}", *blocks]))
    return "\n\n\n".join(parts)


def _erratum_text(entry: Erratum, evidence: Evidence | None, width: int) -> str:
    lines = {"claim": entry.claim, "correction": f"{entry.correction} ({entry.source})", "computed": _verdict(evidence)}
    shown = [
        textwrap.fill(text, width, initial_indent=f"    {label + ':':<12}", subsequent_indent=" " * 16)
        for label, text in lines.items()
    ]
    return "\n".join([f"{entry.number}. {entry.where}", *shown])


def _verdict(evidence: Evidence | None) -> str:
    if evidence is None:
        return "nothing to compute; compare with the source"
    return f"{evidence.numbers}. {'Refuted.' if evidence.holds else 'NOT refuted.'}"


def show_errata(stream: TextIO | io.StringIO) -> int:
    """Run every counterexample and print all entries; return the number of counterexamples that do not refute their claim."""
    results = run_all()
    console = console_on(stream)
    console.print(Text(errata_text(results)), soft_wrap=True)
    computed = [evidence for _, evidence in results if evidence is not None]
    failed = sum(not evidence.holds for evidence in computed)
    refuted = f"{len(computed) - failed} of {len(computed)} counterexamples refute their claims"
    console.print(Text(f"\n{len(results)} errata: {refuted}; {len(results) - len(computed)} entries have only a source."))
    return failed
