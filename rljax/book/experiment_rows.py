"""Rows of an experiment: a JSON file that is written again after every run, and the day and machine of a page of results."""

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from rljax.files import atomic_write
from rljax.machine import usable_processors


def write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as a JSON list with a row a line, so that a further run is a further line.

    The file is replaced as a whole: whoever stops an experiment finds the rows before or after a run in it.

    Args:
        file: where the rows go.
        rows: all rows so far; what JSON cannot hold is refused.

    Raises:
        TypeError: JSON cannot hold a row; the file is left as it was.
    """
    lines = ",\n".join(f" {json.dumps(row)}" for row in rows)
    atomic_write(file, f"[\n{lines}\n]\n".encode())


def made_on() -> str:
    """Describe day, machine and versions of a run, as a page of results shows them.

    Example:
        >>> made_on().count(", ")
        4
    """
    machine = f"{usable_processors()} cores, {platform.machine()}"
    return f"{datetime.now(UTC):%Y-%m-%d}, {machine}, Python {platform.python_version()}, JAX {jax.__version__}"
