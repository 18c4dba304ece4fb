"""`rljax doctor`: report what is wrong with a run, on the screen and in one HTML file."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rljax.cli.terminal_text import columns_of, wrap


@dataclass(frozen=True)
class Doctor:
    """Examine a run, finished or not: the alarms that it raised, what they mean, and which setting to change.

    Everything else about the run (curves, settings, answers before and after) goes into one HTML file that needs no network.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    out: Path | None = None
    """HTML file to write; by default report.html in the run's folder."""
    json: bool = False
    """Print JSON, and write no file unless --out is given."""


def run_doctor(command: Doctor) -> int:
    """Examine one run."""
    from rljax.cli.doctor_output import format_diagnosis, write_report  # noqa: PLC0415  --help need not wait for JAX
    from rljax.tracking.summary import open_run, summarize  # noqa: PLC0415  as above

    folder = open_run(command.run)
    summary = summarize(folder)
    out = command.out or (None if command.json else command.run / "report.html")
    if out is not None:
        write_report(folder, summary, out)
    if command.json:
        print(json.dumps(summary.to_json(), indent=2, ensure_ascii=False))
        return 0
    columns = columns_of(sys.stdout)
    print("\n".join(wrap(line, columns, hang=hang) for line, hang in format_diagnosis(folder, summary)))
    print(f"\nReport: {out}")
    return 0
