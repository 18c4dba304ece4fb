"""`rljax explain`: what the numbers of a run mean."""

import json
import sys
from dataclasses import dataclass, field

import tyro

from rljax.cli.columns import columns_of, labelled, wrapped
from rljax.records import documented
from rljax.tracking.glossary import GLOSSARY, LABELS, Entry, find_entry


@documented
@dataclass(frozen=True)
class Explain:
    """Explain the numbers of a run: what each is, its unit and formula, what to expect of it, and what to do."""

    names: tyro.conf.Positional[tuple[str, ...]] = field(default=())
    """Names as in metrics.jsonl or on the screen, such as kl or "filtered groups"; by default all are listed."""
    json: bool = False
    """Print JSON."""


def entry_text(entry: Entry, columns: int) -> str:
    """One entry, as wide as the terminal."""
    rows = {
        "on screen": LABELS.get(entry.name, "not shown"),
        "unit": entry.unit or "none",
        "formula": entry.formula,
        "from": entry.source,
        "in rows of": entry.phases.replace(" ", ", "),
        "expect": entry.expect,
        "if not": entry.act,
    }
    head = wrapped(f"{entry.name}: {entry.meaning}", columns, hang="    ")
    return "\n".join([head, *(labelled(label, text, columns) for label, text in rows.items())])


def list_text(columns: int) -> str:
    """All names, each with the first sentence of its meaning."""
    lines = []
    for entry in GLOSSARY:
        sentence = entry.meaning.split(". ")[0].rstrip(".")
        lines.append(f"{entry.name}\n{wrapped(sentence, columns, indent='    ', hang='    ')}")
    hint = "`rljax explain NAME` has formula, unit, what to expect and what to do."
    return "\n".join([*lines, "", wrapped(hint, columns)])


def run_explain(command: Explain) -> int:
    """Print the named entries, or the list.

    Raises:
        InputError: a name is unknown.
    """
    entries = [find_entry(name) for name in command.names]
    columns = columns_of(sys.stdout)
    if command.json:
        rows = [entry._asdict() | {"label": LABELS.get(entry.name)} for entry in entries or GLOSSARY]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif entries:
        print("\n\n".join(entry_text(entry, columns) for entry in entries))
    else:
        print(list_text(columns))
    return 0
