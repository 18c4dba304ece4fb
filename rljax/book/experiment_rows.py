"""Rows of an experiment: a JSON file that is written again after every run, and the day and machine of a page of results."""

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
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


def settings_hash(*settings: Any) -> str:
    """Hash of the settings of a row, which stands in it; rows of others are not read, but made again.

    Args:
        settings: what the row depends on; a value that JSON cannot hold counts as its text.

    Example:
        >>> settings_hash({"steps": 40}, 0.5) == settings_hash({"steps": 40}, 0.5) != settings_hash({"steps": 41}, 0.5)
        True
    """
    return hashlib.sha256(json.dumps([*settings], default=str).encode()).hexdigest()[:16]


def rows_of(file: Path, settings: Callable[[Mapping[str, Any]], str]) -> list[dict[str, Any]]:
    """Read the rows of a file that were made with the present settings; none if there is no file.

    Args:
        file: as `write_rows` writes it.
        settings: row -> the hash that a row of its kind has now.
    """
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return [row for row in rows if row["settings"] == settings(row)]


def made_on() -> str:
    """Describe day, machine and versions of a run, as a page of results shows them.

    Example:
        >>> made_on().count(", ")
        4
    """
    machine = f"{usable_processors()} cores, {platform.machine()}"
    return f"{datetime.now(UTC):%Y-%m-%d}, {machine}, Python {platform.python_version()}, JAX {jax.__version__}"
