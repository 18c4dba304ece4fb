"""`rljax errata`: errors and ambiguities in papers and libraries, with recomputed counterexamples."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rljax.cli.terminal_text import columns_of, wrap

if TYPE_CHECKING:
    from rljax.book.errata import Erratum, Evidence


@dataclass(frozen=True)
class Errata:
    """Recompute the example for every known error, ambiguity or contradiction in published papers, their code, and libraries."""

    json: bool = False
    """Print JSON."""


def errata_text(results: "Sequence[tuple[Erratum, Evidence | None]]", *, width: int = 100) -> str:
    """Format the entries as plain text, under their documents' titles."""
    documents = dict.fromkeys(entry.document for entry, _ in results)
    parts = []
    for document in documents:
        blocks = [_erratum_text(entry, evidence, width) for entry, evidence in results if entry.document == document]
        title = wrap(document, width)
        parts.append("\n\n".join([f"{title}\n{'=' * max(map(len, title.splitlines()))}", *blocks]))
    return "\n\n\n".join(parts)


def _erratum_text(entry: "Erratum", evidence: "Evidence | None", width: int) -> str:
    lines = {
        "claim": entry.claim,
        "correction": f"{entry.correction} ({entry.source})",
        "computed": _verdict(entry, evidence),
    }
    shown = [wrap(f"{label + ':':<12}{text}", width, indent=" " * 4, hang=" " * 16) for label, text in lines.items()]
    return "\n".join([wrap(f"{entry.number}. {entry.where}", width, hang=" " * 4), *shown])


VERDICTS = {
    "ambiguity": ("The readings differ.", "They do NOT differ."),
    "difference": ("They differ.", "They do NOT differ."),
}
"""Kind of an entry -> the verdict if the numbers confirm the entry, and if they do not. Entries of other kinds refute a claim."""


def _verdict(entry: "Erratum", evidence: "Evidence | None") -> str:
    if evidence is None:
        return "nothing to compute; compare with the source"
    yes, no = VERDICTS.get(entry.kind, ("Refuted.", "NOT refuted."))
    return f"{evidence.numbers}. {yes if evidence.confirms else no}"


def errata_rows(results: "Sequence[tuple[Erratum, Evidence | None]]") -> list[dict[str, Any]]:
    """Return the entries as JSON objects.

    `confirmed`: whether the numbers confirm the entry; None without numbers. `refuted` is the earlier name of `confirmed`, which
    stays for one more version.
    """
    names = ("number", "document", "where", "claim", "correction", "source", "kind")
    rows = []
    for entry, evidence in results:
        numbers, confirmed = (None, None) if evidence is None else (evidence.numbers, evidence.confirms)
        found = {"computed": numbers, "confirmed": confirmed, "refuted": confirmed}
        rows.append({name: getattr(entry, name) for name in names} | found)
    return rows


def run_errata(command: Errata) -> int:
    """Run every counterexample and print all entries; return 1 if an example does not confirm its entry, else 0."""
    from rljax.book.errata import run_all  # noqa: PLC0415 - imported here so that --help does not load JAX

    results = run_all()
    computed = [evidence for _, evidence in results if evidence is not None]
    failed = sum(not evidence.confirms for evidence in computed)
    if command.json:
        print(json.dumps(errata_rows(results), indent=2, ensure_ascii=False))
    else:
        width = columns_of(sys.stdout)
        confirmed = f"{len(computed) - failed} of {len(computed)} examples confirm their entries"
        total = f"{len(results)} errata: {confirmed}; {len(results) - len(computed)} entries have only a source."
        print(errata_text(results, width=width), wrap(total, width), sep="\n\n")
    return 1 if failed else 0
