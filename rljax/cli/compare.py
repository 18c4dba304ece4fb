"""`rljax compare`: compare runs side by side."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rljax.cli.terminal_text import columns_of
from rljax.errors import InputError


@dataclass(frozen=True)
class Compare:
    """Compare runs: settings that differ, held-out accuracy with 95 % intervals, curves, and answers to the same problems."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN RUN [RUN ...]")]
    """Folders of two or more runs."""
    out: Path | None = None
    """File (.png, .pdf or .svg) to plot the held-out curves in."""
    samples: int = 3
    """Number of problems whose answers are shown."""
    json: bool = False
    """Print JSON."""


def run_compare(command: Compare) -> int:
    """Compare the runs.

    Raises:
        InputError: there are fewer than two runs, one of them is not a run folder, or the curves cannot be plotted.
    """
    from rljax.cli.run_comparison import comparison_of, comparison_text  # noqa: PLC0415  --help need not wait for JAX
    from rljax.tracking.plots import overlay  # noqa: PLC0415  as above
    from rljax.tracking.summary import open_run  # noqa: PLC0415  as above

    if len(command.runs) < 2:
        raise InputError("Name at least two run folders to compare; `rljax doctor RUN` examines one.")
    folders = [open_run(path) for path in command.runs]
    comparison = comparison_of(folders, samples=max(command.samples, 0))
    if command.out is not None:
        overlay(
            {row["name"]: folder.metrics for row, folder in zip(comparison["runs"], folders, strict=True)},
            command.out,
            title="Held-out accuracy",
        )
    if command.json:
        print(json.dumps(comparison, indent=2, ensure_ascii=False))
        return 0
    print(comparison_text(comparison, columns_of(sys.stdout)))
    if command.out is not None:
        print(f"\nCurves: {command.out}")
    return 0
