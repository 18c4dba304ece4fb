"""`rljax explain`: what the metrics of a run mean, and which form of answer a reward reads."""

import inspect
import json
import sys
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from rljax.cli.terminal_text import columns_of, with_label, wrap
from rljax.rewards import BY_NAME
from rljax.rewards.correctness import form_of
from rljax.tracking.glossary import GLOSSARY, GROUPS, LABELS, Entry, find_entry


@dataclass(frozen=True)
class Explain:
    """Explain the metrics of a run: what each is, its unit and formula, what to expect, and what to do."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[METRIC ...]")] = field(default=())
    """Metrics, named as in metrics.jsonl or on the screen (kl, "filtered groups"), or rewards (math), to see which form of answer
    they read; by default all metrics are listed."""
    json: bool = False
    """Print JSON."""


def entry_text(entry: Entry, columns: int) -> str:
    """Format a metric's entry to the terminal's width."""
    rows = {
        "on screen": LABELS.get(entry.name, "not shown"),
        "unit": entry.unit or "none",
        "formula": entry.formula,
        "from": entry.source,
        "phases": entry.phases.replace(" ", ", "),
        "expect": entry.expect,
        "otherwise": entry.act,
    }
    head = wrap(f"{entry.name}: {entry.meaning}", columns, hang="    ")
    return "\n".join([head, *(with_label(label, text, columns) for label, text in rows.items())])


def list_text(columns: int) -> str:
    """List all metrics by group, each with the first sentence of its meaning."""
    parts = []
    for group, entries in GROUPS.items():
        lines = [f"{group}\n{'=' * len(group)}"]
        for entry in entries:
            sentence = entry.meaning.split(". ")[0].rstrip(".")
            lines.append(f"{entry.name}\n{wrap(sentence, columns, indent='    ', hang='    ')}")
        parts.append("\n".join(lines))
    hint = "`rljax explain METRIC` prints a metric's formula and unit, what to expect, and what to do."
    return "\n\n".join([*parts, wrap(hint, columns)])


def reward_text(name: str, columns: int) -> str:
    """Explain what a reward returns, and which form of answer it reads."""
    reward = BY_NAME[name]
    summary = (inspect.getdoc(reward) or "").partition("\n\n")[0]
    head = wrap(f"{name}: {summary}", columns, hang="    ")
    return "\n".join([head, with_label("reads", f"{form_of(reward)}", columns)])


def run_explain(command: Explain) -> int:
    """Print the entries of the named metrics and rewards, or the list of all metrics.

    Raises:
        InputError: a name is unknown.
    """
    rewards = [name for name in command.names if name in BY_NAME]
    entries = [find_entry(name) for name in command.names if name not in BY_NAME]
    columns = columns_of(sys.stdout)
    if command.json:
        chosen = entries if command.names else GLOSSARY
        rows = [{"name": name, "reads": form_of(BY_NAME[name])} for name in rewards]
        rows += [entry._asdict() | {"label": LABELS.get(entry.name)} for entry in chosen]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif command.names:
        texts = [*(reward_text(name, columns) for name in rewards), *(entry_text(entry, columns) for entry in entries)]
        print("\n\n".join(texts))
    else:
        print(list_text(columns))
    return 0
