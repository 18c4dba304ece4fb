"""Keep an experiment's rows in a JSON file that grows with each run, and write the page of results: date, machine and means."""

import json
import math
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from lab.claims import FEWEST_SEEDS, over_seeds, verdict_of
from rljax.files import atomic_write
from rljax.machine import usable_processors


def write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as a JSON list with one row per line, so that each further run adds a line.

    The file is replaced atomically: if the experiment is stopped while writing, the file still has all old rows or all new ones.

    Args:
        file: the JSON file to write.
        rows: all rows so far.

    Raises:
        TypeError: a row cannot be written as JSON; the file is unchanged.
    """
    lines = ",\n".join(f" {json.dumps(row)}" for row in rows)
    atomic_write(file, f"[\n{lines}\n]\n".encode())


def rows_of(file: Path, settings: Callable[[Mapping[str, Any]], str]) -> list[dict[str, Any]]:
    """Read those rows of a file that were made with the current settings; empty if there is no file.

    Args:
        file: a file that `write_rows` wrote.
        settings: row -> the hash of the settings that would make this row today.
    """
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return [row for row in rows if row["settings"] == settings(row)]


def add_missing_rows(
    file: Path,
    wanted: Iterable[Mapping[str, Any]],
    make: Callable[..., Mapping[str, Any]],
    *,
    settings: Callable[[Mapping[str, Any]], str],
) -> list[dict[str, Any]]:
    """Make the rows that are missing from a file, and write the file after each, so that a stopped experiment can continue.

    Rows that were made with other settings are ignored, and dropped when the first new row is written.

    Args:
        file: the file of rows; it need not exist.
        wanted: for each row, the entries that identify it, such as its arm and its seed.
        make: called with these entries as keyword arguments; returns the other entries.
        settings: row -> the hash of the settings that would make this row today; it may only use the entries of `wanted`.

    Returns:
        All rows: first those from the file, then the new ones.
    """
    rows = rows_of(file, settings)
    for key in wanted:
        if not any(key.items() <= row.items() for row in rows):
            rows.append({**key, "settings": settings(key), **make(**key)})
            write_rows(file, rows)
            print(json.dumps(rows[-1]), flush=True)
    return rows


def write_page(file: Path, command: str, caption: str, report: str, *, machine: str | None = None) -> None:
    """Write the page of results next to a file of rows: command, date and machine, a caption, and tables.

    Args:
        file: the file of rows; the page has the same name with `.md`.
        command: the command that writes both.
        caption: description of what the tables show.
        report: the tables, in Markdown.
        machine: date and machine of the rows, as `made_on` returns them; by default, today and this machine.
    """
    origin = made_on() if machine is None else machine
    file.with_suffix(".md").write_text(f"`{command}` ({origin}): {caption}\n\n{report}", encoding="utf-8")


def format_percent(shares: Mapping[int, float], *, fewest: int = FEWEST_SEEDS) -> str:
    """Format the mean of a fraction over seeds in percent, with its 95 % t interval if there are enough seeds and they differ.

    Args:
        shares: seed -> fraction, for example an accuracy.
        fewest: smallest number of seeds for which the interval is shown.

    Example:
        >>> format_percent({0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 4: 0.5}), format_percent({0: 0.1, 1: 0.2})
        ('30.0 % (10.4 to 49.6)', '15.0 %')
    """
    interval = over_seeds([*shares.values()], fewest=fewest)
    value, low, high, _ = interval
    if math.isnan(value):
        return "-"
    return f"{100 * value:.1f} %" + (f" ({100 * low:.1f} to {100 * high:.1f})" if interval.has_width else "")


def format_points(one: Mapping[int, float], other: Mapping[int, float]) -> str:
    """Format the mean difference of two fractions in percentage points, paired by seed, with its 95 % t interval.

    The interval is left out if there are too few seeds, or if all differences are equal.

    Args:
        one: seed -> fraction.
        other: seed -> fraction to subtract; seeds that are in only one of the two are left out.

    Example:
        >>> format_points({0: 0.5, 1: 0.6}, {0: 0.4, 1: 0.6, 2: 0.9})
        '+5.0'
        >>> format_points({seed: 0.5 for seed in range(5)}, {seed: 0.1 * seed for seed in range(5)})
        '+30.0 (+10.4 to +49.6)'
    """
    interval = over_seeds([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])
    value, low, high, _ = interval
    if math.isnan(value):
        return "-"
    return f"{100 * value:+.1f}" + (f" ({100 * low:+.1f} to {100 * high:+.1f})" if interval.has_width else "")


class Comparison(NamedTuple):
    """A claim about the difference of two fractions, for example accuracies."""

    text: str
    """The claim, as a phrase."""
    one: Mapping[int, float]
    """Seed -> fraction."""
    other: Mapping[int, float]
    """Seed -> fraction to subtract."""
    kind: Literal["above", "equal"] = "above"
    """`above`: the difference is above the margin. `equal`: it is within the margin of 0."""


def verdict_table(
    comparisons: Iterable[Comparison], *, margin: float = 0.01, when: Literal["before", "after"] = "after"
) -> list[str]:
    """Format comparisons and their verdicts, by the rule of `rljax claims`, as a sentence and a Markdown table.

    Args:
        comparisons: the claims, in the order of the table's lines.
        margin: smallest difference of fractions that would matter.
        when: whether the claims were written down before the runs or after them.

    Example:
        >>> one, other = {seed: 0.5 for seed in range(5)}, {seed: 0.1 * seed for seed in range(5)}
        >>> verdict_table([Comparison("more is right", one, other)])[-1]
        '| more is right | +30.0 (+10.4 to +49.6) | holds here |'
    """
    lines = [
        f"These claims were written down {when} the runs, and are decided by the rule of `rljax claims` with a margin of "
        f"{margin:.0%}:",
        "",
    ]
    lines += ["| claim | difference, points | verdict |", "| --- | --- | --- |"]
    for text, one, other, kind in comparisons:
        interval = over_seeds([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])
        lines.append(f"| {text} | {format_points(one, other)} | {verdict_of(interval, kind=kind, margin=margin)} |")
    return lines


def made_on() -> str:
    """Describe today and this machine for a page of results: date, processor, versions, and the accelerator if there is one.

    Example:
        >>> made_on().count(", ")
        4
    """
    count = usable_processors()
    machine = f"{count} core{'s' * (count > 1)}, {platform.machine()}"
    device = "" if jax.default_backend() == "cpu" else f", {jax.devices()[0].device_kind}"
    return f"{datetime.now(UTC):%Y-%m-%d}, {machine}, Python {platform.python_version()}, JAX {jax.__version__}{device}"
