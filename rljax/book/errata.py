"""Errors in documents about these algorithms, with counterexamples that run."""

from string import ascii_lowercase

from rljax.book import errata_design_critic, errata_design_dapo, errata_design_group, errata_others
from rljax.book.erratum import Erratum, Evidence

__all__ = ["Erratum", "Evidence", "errata", "run_all"]


def errata() -> tuple[Erratum, ...]:
    """Collect all entries, in the order of their numbers."""
    files = (errata_design_critic, errata_design_dapo, errata_design_group, errata_others)
    return tuple(sorted((entry for file in files for entry in file.ERRATA), key=_order))


def _order(entry: Erratum) -> tuple[int, str]:
    digits = entry.number.rstrip(ascii_lowercase)
    return int(digits), entry.number.removeprefix(digits)


def run_all() -> list[tuple[Erratum, Evidence | None]]:
    """Run every counterexample, and return each entry with its evidence; None if the entry has no counterexample."""
    return [(entry, None if entry.check is None else entry.check()) for entry in errata()]
