"""Errors in the documents from which this library started, with counterexamples that run.

None of them is a published paper: `rljax errata` lists the errata of papers and libraries.
"""

from string import ascii_lowercase

from document_errata import critic, dapo, group, other_documents
from rljax.book.errata import Erratum, Evidence


def errata() -> tuple[Erratum, ...]:
    """Collect all entries, in the order of their numbers."""
    return tuple(sorted((entry for file in (critic, dapo, group, other_documents) for entry in file.ERRATA), key=_order))


def _order(entry: Erratum) -> tuple[int, str]:
    digits = entry.number.rstrip(ascii_lowercase)
    return int(digits), entry.number.removeprefix(digits)


def run_all() -> list[tuple[Erratum, Evidence | None]]:
    """Run every counterexample, and return each entry with its evidence; None if the entry has no counterexample."""
    return [(entry, None if entry.check is None else entry.check()) for entry in errata()]
