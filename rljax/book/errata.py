"""Errors of documents about these algorithms, each with a counterexample that runs."""

import io
import textwrap
from collections.abc import Sequence
from string import ascii_lowercase
from typing import TextIO

from rich.text import Text

from rljax.book import errata_design_critic, errata_design_dapo, errata_design_group, errata_others
from rljax.book.equations import console_on
from rljax.book.erratum import Erratum, Evidence

__all__ = ["Erratum", "Evidence", "errata", "render", "run_all", "show"]


def errata() -> tuple[Erratum, ...]:
    """All entries, in the order of their numbers."""
    files = (errata_design_critic, errata_design_dapo, errata_design_group, errata_others)
    return tuple(sorted((entry for file in files for entry in file.ERRATA), key=_order))


def _order(entry: Erratum) -> tuple[int, str]:
    digits = entry.number.rstrip(ascii_lowercase)
    return int(digits), entry.number.removeprefix(digits)


def run_all() -> list[tuple[Erratum, Evidence | None]]:
    """Every entry with the evidence of its counterexample; None where there is nothing to compute."""
    return [(entry, None if entry.check is None else entry.check()) for entry in errata()]


def render(results: Sequence[tuple[Erratum, Evidence | None]], *, width: int = 100) -> str:
    """The entries under the titles of their documents, as plain text."""
    documents = dict.fromkeys(entry.document for entry, _ in results)
    parts = []
    for document in documents:
        blocks = [_entry_text(entry, evidence, width) for entry, evidence in results if entry.document == document]
        parts.append("\n\n".join([f"{document}\n{'=' * len(document)}", *blocks]))
    return "\n\n\n".join(parts)


def _entry_text(entry: Erratum, evidence: Evidence | None, width: int) -> str:
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


def show(stream: TextIO | io.StringIO) -> int:
    """Run every counterexample and print all entries; return how many did not refute their claim."""
    results = run_all()
    console = console_on(stream)
    console.print(Text(render(results)), soft_wrap=True)
    computed = [evidence for _, evidence in results if evidence is not None]
    failed = sum(not evidence.holds for evidence in computed)
    refuted = f"{len(computed) - failed} of {len(computed)} with a check refuted just now"
    console.print(
        Text(f"\n{len(results)} errata, {refuted}; {len(results) - len(computed)} without one name their source.")
    )
    return failed
