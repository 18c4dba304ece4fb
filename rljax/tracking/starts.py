"""`starts.jsonl` of a run folder: one row for its first start and one for each resume, with what it takes to repeat it."""

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import jax

import rljax
from rljax.distribution import NAME
from rljax.files import AppendFile
from rljax.tracking.rows import json_safe
from rljax.tracking.run_folder import RunFolder


def versions() -> dict[str, str]:
    """Versions of rljax, Python, and every package that rljax requires and that is installed.

    Example:
        >>> versions()["python"] == platform.python_version(), "optax" in versions()
        (True, True)
    """
    found = {"rljax": rljax.__version__, "python": platform.python_version()}
    try:
        required = requires(NAME) or []
    except PackageNotFoundError:  # a clone on the path that is not installed
        required = []
    for requirement in ["jax", "jaxlib", "numpy", "optax", "flax", "orbax-checkpoint", "transformers", *required]:
        name = _words(requirement)[0]
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # of an extra that is not installed
            continue
    return found


def _words(requirement: str) -> list[str]:
    """Name of a requirement, before its extras and its version."""
    return "".join(c if c.isalnum() or c in "-_." else " " for c in requirement).split()


def devices() -> str:
    """Devices of this process, in words."""
    kinds = sorted({device.device_kind for device in jax.devices()})
    return f"{jax.device_count()} x {', '.join(kinds)} ({jax.default_backend()})"


def record_start(folder: RunFolder, now: datetime, *, step: int, changes: Sequence[Mapping[str, Any]] = ()) -> None:
    """Append the row of this start.

    Args:
        folder: the run.
        now: the time.
        step: RL steps done.
        changes: settings that were changed on resume, each with `name`, `before` and `after`.
    """
    row = {
        "at": now.isoformat(timespec="seconds"),
        "step": step,
        "command": sys.argv,
        "folder": str(Path.cwd()),
        "devices": devices(),
        "system": platform.platform(),
        "versions": versions(),
        "changes": json_safe(list(changes), "changes"),
    }
    with closing(AppendFile(folder.starts)) as file:
        file.append(f"{json.dumps(row, ensure_ascii=False)}\n".encode(errors="backslashreplace"))
