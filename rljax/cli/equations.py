"""`rljax equations`: list or search the index of equations."""

import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from rljax.errors import InputError


@dataclass(frozen=True)
class Equations:
    """List all equations with their sources, or search them: the best matches are printed with formula, source and links."""

    query: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[WORD ...]")] = ()
    """A name, words, an arXiv id, a symbol or a question, e.g. `clip higher`, `2503.14476`, `λ`, `what bounds the ratio?`. Names,
    ideas, summaries, sources and formulas are searched, in order of decreasing weight. A full name prints only that equation."""
    limit: int = 10
    """Maximum number of entries to show; the first three are printed in full."""
    bibtex: bool = False
    """Print BibTeX for all sources, or for the sources of the entries that the query finds."""
    json: bool = False
    """Print all entries, or all that the query finds, as JSON."""


def run_equations(command: Equations) -> int:
    """Print the index, the query's matches, or BibTeX.

    Raises:
        InputError: the query finds nothing, or BibTeX and JSON are both requested.
    """
    from rljax.cli.equations_text import show_bibtex, show_equations, show_equations_json  # noqa: PLC0415

    query = " ".join(command.query)
    if command.bibtex and command.json:
        raise InputError("--bibtex and --json exclude each other; leave one of them out.")
    if command.bibtex:
        show_bibtex(query, sys.stdout)
    elif command.json:
        show_equations_json(query, sys.stdout)
    else:
        show_equations(query, sys.stdout, limit=command.limit)
    return 0
