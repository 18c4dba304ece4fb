"""What `rljax doctor` shows and writes: paragraphs for the screen, and the contents of the HTML report."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rljax.errors import InputError
from rljax.evaluation.comparison import compare, interval_of
from rljax.files import atomic_write
from rljax.tracking.html_report import Contents, page
from rljax.tracking.plots import plot_curves, plot_numbers
from rljax.tracking.rows import check_step, json_safe, lines_of, parse_row
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.summary import Summary, rows_so_far
from rljax.training.config import TrainConfig
from rljax.training.seams import saved_settings

PANELS = (
    *("reward_variance", "groups_all_right", "groups_all_wrong", "advantage_variance"),
    *("kl_to_reference", "sampler_gap", "clip_fraction_low", "clip_fraction_high"),
    *("up_clipped_probability", "reward_length_correlation", "repetition", "commonest_response"),
)
"""Numbers that alarms look at and that are not among the curves."""
SHOWN_ANSWERS, SHOWN_SAMPLES = 8, 8


def examination(folder: RunFolder, summary: Summary) -> list[tuple[str, str]]:
    """What the screen shows: paragraphs, each with what stands before its second line."""
    raised = [event for event in summary.events if event.what == "raised"]
    lines = [(f"{summary.path}: {summary.algorithm}, step {summary.steps} of {summary.total}, {summary.status}", "    ")]
    lines += [(line, "    ") for line in outcome(folder, summary)]
    lines.append(("", ""))
    if raised:
        lines.append((f"{len(raised)} alarm{'s' * (len(raised) > 1)}:", ""))
        lines += [(f"  {event.text()}", "    ") for event in raised]
    else:
        lines.append(("No alarm was raised." if summary.steps else "RL has not begun.", ""))
    if summary.lacking:
        named = ", ".join(name.replace("_", " ") for name in summary.lacking)
        lines.append((f"Not measured in this run, so never raised: {named}.", "    "))
    return lines


def outcome(folder: RunFolder, summary: Summary) -> list[str]:
    """The held-out evaluations in words, with their intervals."""
    rows = folder.read_heldout()
    parts = []
    for name, evaluation in (("before RL", summary.before), ("last", summary.after), ("best", summary.best)):
        estimate = None if evaluation is None else interval_of(evaluation.accuracy, rows)
        if evaluation is not None and estimate is not None:
            parts.append(f"{name}{f' (step {evaluation.step})' * (evaluation.step > 0)} {estimate.text()}")
    lines = [f"Held-out share of rewards above 0, with 95 % intervals: {'; '.join(parts)}."] if parts else []
    comparison = compare(rows)
    if comparison is not None:
        lines.append(
            f"{comparison.gained} problems became right, {comparison.lost} became wrong, {comparison.kept} stayed right, "
            f"{comparison.missed} stayed wrong."
        )
    return lines


def write_report(folder: RunFolder, summary: Summary, out: Path) -> None:
    """Write the HTML file.

    Raises:
        InputError: its name or its place cannot be used.
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"the report {str(out)!r} must end in .html; choose another name.")
    settings, overrides = settings_of(folder)
    comparison = compare(folder.read_heldout(), shown=SHOWN_ANSWERS)
    samples = rows_of(folder.samples)
    last = [row for row in samples if row["step"] == samples[-1]["step"]] if samples else []
    contents = Contents(
        summary=summary,
        outcome=outcome(folder, summary),
        pictures=pictures(folder),
        answers=[] if comparison is None else comparison.shown,
        samples=last[:SHOWN_SAMPLES],
        settings=settings,
        overrides=overrides,
        starts=rows_of(folder.starts),
        time=f"{datetime.now():%Y-%m-%d %H:%M}",
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(out, page(contents).encode("utf-8", errors="backslashreplace"))
    except OSError as error:
        raise InputError(
            f"the report {str(out)!r} cannot be written ({error}); choose another place with --out."
        ) from error


def settings_of(folder: RunFolder) -> tuple[Mapping[str, Any], list[str]]:
    """Settings of a run by flag, and the names of those that are not the defaults."""
    config, own_parts = saved_settings(folder.config)
    flat, defaults = (json_safe(settings.to_flat(), "settings") for settings in (config, TrainConfig()))
    flat |= {"own parts": list(own_parts)} if own_parts else {}
    return flat, sorted(name for name in flat if name not in defaults or flat[name] != defaults[name])


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Whole rows of a file of the run folder that has steps; none if it is missing.

    Raises:
        InputError: a row cannot be read.
    """
    if not path.is_file():
        return []
    *lines, _ = lines_of(path)
    return [parse_row(line, path, number, check_step) for number, line in enumerate(lines, 1)]


def pictures(folder: RunFolder) -> dict[str, bytes]:
    """The curves, and the other numbers that alarms look at; none before the first step."""
    rows, found = rows_so_far(folder), {}
    if not rows:
        return found
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "curves.png"
        plot_curves(rows, file, title="")
        found["Curves"] = file.read_bytes()
        if plot_numbers(rows, PANELS, file, title=""):
            found["What the alarms look at"] = file.read_bytes()
    return found
