"""Text of the errata, with the results of their counterexamples."""

import textwrap
from collections.abc import Sequence
from typing import TextIO

from rljax.book.errata import Erratum, Evidence, run_all


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


def show_errata(stream: TextIO) -> int:
    """Run every counterexample and print all entries; return the number of counterexamples that do not refute their claim."""
    results = run_all()
    computed = [evidence for _, evidence in results if evidence is not None]
    failed = sum(not evidence.holds for evidence in computed)
    refuted = f"{len(computed) - failed} of {len(computed)} counterexamples refute their claims"
    summary = f"{len(results)} errata: {refuted}; {len(results) - len(computed)} entries have only a source."
    stream.write(f"{errata_text(results)}\n\n{summary}\n")
    return failed
