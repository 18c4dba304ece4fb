"""`rljax runs`: a table of the runs in a folder."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from rljax.cli.columns import columns_of, wrapped
from rljax.errors import InputError

if TYPE_CHECKING:
    from rljax.tracking.summary import Evaluated, Summary

HEADS = ("run", "algorithm", "steps", "status", "before", "last", "best", "alarms")
NARROWEST = 6
"""Minimum width of the name column."""


@dataclass(frozen=True)
class Runs:
    """List the runs in a folder: how far each is, its held-out accuracy before RL, at last and at best, and its alarms."""

    folder: tyro.conf.Positional[Path] = field(default=Path("runs"))
    """Folder that holds the folders of runs."""
    json: bool = False
    """Print JSON."""


def run_runs(command: Runs) -> int:
    """List the runs.

    Raises:
        InputError: the folder does not exist, or holds no run.
    """
    from rljax.tracking.run_folder import RunFolder  # noqa: PLC0415  --help need not wait for JAX
    from rljax.tracking.summary import is_of_run, summarise  # noqa: PLC0415  as above

    if not command.folder.is_dir():
        raise InputError(f"There is no folder {str(command.folder)!r}. Name the folder that holds the folders of runs.")
    summaries, unread = [], []
    for path in sorted(file.parent for file in command.folder.glob("*/config.json")):
        try:
            folder = RunFolder.open(path)
            if is_of_run(folder):
                summaries.append(summarise(folder))
        except InputError as error:
            unread.append((path, str(error)))
    if not summaries and not unread:
        inside = (
            " It is the folder of a run itself: see `rljax doctor`." if (command.folder / "config.json").exists() else ""
        )
        raise InputError(f"There is no run in {str(command.folder)!r}.{inside}")
    if command.json:
        rows = [summary.to_json() for summary in summaries]
        rows += [{"run": str(path), "error": error} for path, error in unread]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return 0
    columns = columns_of(sys.stdout)
    print(table(summaries, columns))
    for _, error in unread:
        print(wrapped(error, columns, hang="    "))
    return 0


def table(summaries: Sequence["Summary"], columns: int) -> str:
    """The table; a name that is too long for its column gets its own line."""
    rows = [HEADS, *(cells(summary) for summary in summaries)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    widths[0] = max(min(widths[0], columns - sum(widths[1:]) - 2 * len(widths[1:])), NARROWEST)
    lines = []
    for row in rows:
        name = row[0]
        if len(name) > widths[0]:
            lines.append(name)
            name = ""
        rest = (f"{cell:<{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join([f"{name:<{widths[0]}}", *rest]).rstrip())
    return "\n".join(lines)


def cells(summary: "Summary") -> tuple[str, ...]:
    """The row of a run."""
    raised = sum(event.what == "raised" for event in summary.events)
    results = (percent(evaluation) for evaluation in (summary.before, summary.after, summary.best))
    return (summary.name, summary.algorithm, f"{summary.steps}/{summary.total}", summary.status, *results, str(raised))


def percent(evaluation: "Evaluated | None") -> str:
    """An accuracy as a percentage."""
    return "-" if evaluation is None or evaluation.accuracy is None else f"{evaluation.accuracy:.1%}"
