"""The rollouts of a run as one HTML page that needs no network. Text that a model wrote is escaped.

The page embeds each rollout as a block of JSON, which the page's script parses when the rollout is shown. The security policy
of the page contains the script's digest, so a browser executes no other script.
"""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.errors import InputError
from rljax.files import atomic_write
from rljax.text import html_text
from rljax.tracking.rollout_rows import Rollouts, evenly_spaced, outcomes_of
from rljax.tracking.rows import Row
from rljax.tracking.run_folder import RunFolder

NAME = "rollouts.html"
"""Name of the page in the run's folder."""
MOST_BYTES = 32_000_000
"""Maximum total size of the embedded rollouts. If all are larger, only evenly spaced steps are shown."""
LISTED_CHARACTERS = 90
"""Number of characters of a problem that are shown in the list."""
STRONGEST_LOGP = 5.0
"""Negated log-probability, in nats, at or above which a token gets the strongest color."""
MIN_STRONGEST_RATIO, MAX_STRONGEST_RATIO = 1.01, 2.0
"""Bounds of the ratio at or above which a token gets the strongest color."""


class Heading(NamedTuple):
    """Description of the run at the top of the page."""

    name: str
    """Name of the run."""
    path: str
    """Folder of the run."""
    algorithm: str
    """Name of the algorithm."""
    time: str
    """When the page was written."""


def write_page(folder: RunFolder, rollouts: Rollouts, out: Path | None = None) -> Path:
    """Write the page of a run, and return its path.

    Args:
        folder: the run.
        rollouts: the run's logged rollouts.
        out: the file to write; None means `rollouts.html` in the run's folder.

    Raises:
        InputError: the file's name does not end in .html, or it cannot be written.
    """
    out = folder.path / NAME if out is None else out
    if out.suffix != ".html":
        raise InputError(f"the page {str(out)!r} must end in .html; choose another name with --out.")
    name = folder.path.name or str(folder.path)
    text = render_page(Heading(name, str(folder.path), folder.algorithm_name, f"{datetime.now():%Y-%m-%d %H:%M}"), rollouts)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(out, text.encode())
    except OSError as error:
        raise InputError(f"the page {str(out)!r} cannot be written ({error}); choose another path with --out.") from error
    return out


def render_page(heading: Heading, rollouts: Rollouts) -> str:
    """Render the rollouts as HTML.

    Args:
        heading: description of the run.
        rollouts: the logged rollouts, at least one.
    """
    bodies = [_script_json(row) for row in rollouts.rows]
    body_of = {id(row): body for row, body in zip(rollouts.rows, bodies, strict=True)}
    rows = evenly_spaced(rollouts.rows, map(len, bodies), MOST_BYTES)
    notes = [] if rollouts.note is None else [rollouts.note]
    steps, logged = (len({row["step"] for row in some}) for some in (rows, rollouts.rows))
    if steps < logged:
        notes.append(
            f"The page has {steps} of the {logged} logged steps, evenly spaced, because all would be too large for a browser."
        )
    blocks = {"index": _script_json([_make_entry(row) for row in rows]), "scales": _script_json(scales(rows))}
    blocks |= {f"r{number}": body_of[id(row)] for number, row in enumerate(rows)}
    script = _read_resource("rollout_page.js")
    values = {
        "digest": f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        "title": html_text(f"{heading.name}: rollouts"),
        "path": html_text(heading.path),
        "summary": html_text(f"{heading.algorithm}; {len(rows)} rollouts of {_step_range(rows)}; written {heading.time}"),
        "notes": "".join(f'<p class="note">{html_text(note)}</p>' for note in notes),
        "data": "\n".join(
            f'<script type="application/json" id="{name}">{block}</script>' for name, block in blocks.items()
        ),
        "script": script,
    }
    # The page is filled in one pass, so that inserted text is not searched for placeholders.
    parts = [piece.partition("}}") for piece in _read_resource("rollout_page.html").split("{{")]
    return parts[0][0] + "".join(values[name] + rest for name, _, rest in parts[1:])


def scales(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the values from which tokens get the strongest color.

    For advantages and ratios, this is the 90th percentile over rollouts of the largest |advantage| and the largest |log ratio|.

    Example:
        >>> scales([{"advantage": [None, -2.0, 1.0], "ratio": [1.25, None, 0.8]}])
        {'logp': 5.0, 'advantage': 2.0, 'ratio': 1.25}
    """
    advantages = [max((abs(value) for value in row["advantage"] if value is not None), default=0.0) for row in rows]
    ratios = [max((abs(math.log(value)) for value in row["ratio"] if value), default=0.0) for row in rows]
    advantage = _percentile([value for value in advantages if value])
    ratio = min(max(math.exp(_percentile([value for value in ratios if value])), MIN_STRONGEST_RATIO), MAX_STRONGEST_RATIO)
    return {"logp": STRONGEST_LOGP, "advantage": advantage or 1.0, "ratio": float(f"{ratio:.3g}")}


def _percentile(values: Sequence[float]) -> float:
    return float(f"{np.percentile(values, 90):.3g}") if values else 0.0


def _step_range(rows: Sequence[Row]) -> str:
    steps = sorted({row["step"] for row in rows})
    return f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps from {steps[0]} to {steps[-1]}"


def _make_entry(row: Row) -> dict[str, Any]:
    """Make the entry of a rollout in the page's list."""
    named = {name: row[name] for name in ("step", "problem", "reward", "length", "turns")}
    return named | {"outcomes": outcomes_of(row), "start": " ".join(row["question"].split())[:LISTED_CHARACTERS]}


def _script_json(value: object) -> str:
    """Return JSON with `<`, `>` and `&` escaped, so that no text in it can end the script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    escaped = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    # A lone surrogate is not a character, so it is replaced.
    return escaped.encode("utf-8", errors="surrogatepass").decode("utf-8", errors="replace")


def _read_resource(name: str) -> str:
    return (resources.files("rljax.tracking") / name).read_text(encoding="utf-8")
