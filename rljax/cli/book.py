"""`rljax algorithms`, `rljax equations` and `rljax errata`: the book of equations."""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tyro

from rljax.errors import InputError
from rljax.records import documented


@documented
@dataclass(frozen=True)
class Algorithms:
    """List the algorithms and the corrections, or show an algorithm slot by slot."""

    names: tyro.conf.Positional[tuple[str, ...]] = field(default=())
    """Names of the algorithms to show with their formulas, slots and equations; by default all are listed."""
    table: bool = False
    """Print the table of all algorithms and their slots, in Markdown."""
    genealogy: Path | None = None
    """Draw which algorithm changed which slot of which older one, into this `.png` or `.svg` file."""
    json: bool = False
    """Print JSON."""


@documented
@dataclass(frozen=True)
class Equations:
    """List every equation with its source, or search them: the best matches are printed with formula, source and links."""

    query: tyro.conf.Positional[tuple[str, ...]] = ()
    """A name, words, an arXiv id, a symbol or a question, e.g. `clip higher`, `2503.14476`, `λ`, `what bounds the ratio?`. They are
    looked up in names, ideas, summaries, sources and formulas, in this order of weight. A full name prints only that equation."""
    limit: int = 10
    """Entries to show at most; the first three are printed whole."""
    bibtex: bool = False
    """Print BibTeX of the sources: all, or those of the entries that the query finds."""
    json: bool = False
    """Print JSON: all entries, or all that the query finds."""


@documented
@dataclass(frozen=True)
class Errata:
    """Recompute the counterexample to every known error in documents about these algorithms."""

    json: bool = False
    """Print JSON."""


def run_algorithms(command: Algorithms) -> int:
    """Print the list, the named algorithms or the table, or draw the genealogy.

    Raises:
        InputError: more than one of them is wanted, a name is unknown, or the picture's suffix is.
    """
    wanted = [command.table, command.genealogy is not None, command.json]
    if sum(wanted) > 1 or (command.names and any(wanted[:2])):
        raise InputError("--table, --genealogy and --json exclude each other; names go with --json alone.")
    if command.table:
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


def run_equations(command: Equations) -> int:
    """Print the index, what the query finds, or BibTeX.

    Raises:
        InputError: the query finds nothing, or BibTeX and JSON are both wanted.
    """
    from rljax.cli.equations_text import show_bibtex, show_equations, show_equations_json  # noqa: PLC0415

    query = " ".join(command.query)
    if command.bibtex and command.json:
        raise InputError("--bibtex and --json exclude each other.")
    if command.bibtex:
        show_bibtex(query, sys.stdout)
    elif command.json:
        show_equations_json(query, sys.stdout)
    else:
        show_equations(query, sys.stdout, limit=command.limit)
    return 0


def run_errata(command: Errata) -> int:
    """Print every erratum with its evidence; return 1 if a claim was not refuted, else 0."""
    from rljax.book.errata import run_all  # noqa: PLC0415
    from rljax.cli.errata_text import show_errata  # noqa: PLC0415

    if not command.json:
        return 1 if show_errata(sys.stdout) else 0
    rows = [
        {name: value for name, value in vars(entry).items() if name != "check"}
        | {"evidence": None if evidence is None else asdict(evidence)}
        for entry, evidence in run_all()
    ]
    print(json.dumps(rows, indent=2, ensure_ascii=False))
    return 0 if all(row["evidence"] is None or row["evidence"]["holds"] for row in rows) else 1
