"""Output of `rljax doctor`: paragraphs for the screen, and the contents of the HTML report."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rljax.errors import InputError
from rljax.evaluation.comparison import compare, describe_measure, describe_sets, interval_of
from rljax.files import atomic_write
from rljax.options.remedies import AppliedRemedy
from rljax.settings.flat import flat_names
from rljax.text import counted
from rljax.tracking.display_text import format_duration
from rljax.tracking.html_report import ReportContents, render_report
from rljax.tracking.phase_times import time_text
from rljax.tracking.plots import plot_curves, plot_metrics
from rljax.tracking.rows import check_remedy, check_sample, check_start, json_safe, read_rows
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.summary import Summary, rows_so_far
from rljax.training.config import TrainConfig
from rljax.training.config.train_config import GROUPS
from rljax.training.parts.custom_parts import read_saved_settings

PANELS = (
    *("reward_variance", "groups_all_right", "groups_all_wrong", "advantage_variance"),
    *("kl_to_reference", "sampler_gap", "clip_fraction_low", "clip_fraction_high"),
    *("up_clipped_probability", "reward_length_correlation", "repetition", "commonest_response"),
)
"""Metrics that alarms check but that the curves do not show."""
SHOWN_ANSWERS, SHOWN_SAMPLES = 8, 8


def format_diagnosis(folder: RunFolder, summary: Summary) -> list[tuple[str, str]]:
    """Format the diagnosis as paragraphs for the screen, each with the indentation of its second and later lines."""
    raised = [event for event in summary.events if event.what == "raised"]
    lines = [(f"{summary.path}: {summary.algorithm}, step {summary.steps} of {summary.total}, {summary.status}", "    ")]
    lines += [(line, "    ") for line in describe_outcome(folder, summary)]
    lines += [(line, "    ") for line in settings_of(folder).notes]
    lines.append(("", ""))
    if raised:
        lines.append((f"{counted(len(raised), 'alarm')}:", ""))
        lines += [(f"  {event.text()}", "    ") for event in raised]
    else:
        lines.append(("No alarm was raised." if summary.steps else "RL has not begun.", ""))
    if summary.unmeasured_alarms:
        named = ", ".join(name.replace("_", " ") for name in summary.unmeasured_alarms)
        lines.append(
            (f"These alarms could not be raised, because this run does not measure their metrics: {named}.", "    ")
        )
    return lines


def describe_outcome(folder: RunFolder, summary: Summary) -> list[str]:
    """Describe the held-out evaluations in words, with their intervals if `heldout.jsonl` has them, and the time spent."""
    rows = folder.read_heldout()
    parts = []
    for name, evaluation in (("before RL", summary.before), ("last", summary.after)):
        if evaluation is None or evaluation.accuracy is None or (name == "last" and evaluation.step == 0):
            continue
        estimate = interval_of(evaluation.accuracy, rows)
        accuracy = f"{evaluation.accuracy:.1%}" if estimate is None else estimate.text()
        parts.append(f"{name}{f' (step {evaluation.step})' * (evaluation.step > 0)} {accuracy}")
    if summary.best is not None and summary.best.accuracy is not None:
        parts.append(f"best of all evaluations (step {summary.best.step}) {summary.best.accuracy:.1%}")
    has_interval = any("(" in part.rpartition("%")[2] for part in parts)
    kind = ", with 95 % intervals (none for the best, since a maximum is biased)" if has_interval else ""
    lines = [f"Held-out {describe_measure(rows)}{kind}: {'; '.join(parts)}."] if parts else []
    comparison = compare(rows)
    if comparison is not None:
        lines.append(
            f"{counted(comparison.gained, 'problem')} became right, {comparison.lost} became wrong, {comparison.kept} stayed "
            f"right, {comparison.missed} stayed wrong."
        )
    lines += describe_sets(folder.read_further_heldout())
    if summary.spent:
        lines.append(
            f"Time spent in RL, {format_duration(sum(summary.spent.values()))} in total: {time_text(summary.spent)}."
        )
    return lines


def write_report(folder: RunFolder, summary: Summary, out: Path) -> None:
    """Write the HTML file.

    Raises:
        InputError: the file's name or location cannot be used.
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"the name of the report, {str(out)!r}, must end in .html; choose another name.")
    settings = settings_of(folder)
    comparison = compare(folder.read_heldout(), shown=SHOWN_ANSWERS)
    samples = read_rows(folder.samples, check_sample)
    last = [row for row in samples if row["step"] == samples[-1]["step"]] if samples else []
    contents = ReportContents(
        summary=summary,
        outcome=describe_outcome(folder, summary),
        pictures=draw_pictures(folder),
        answers=[] if comparison is None else comparison.shown,
        samples=last[:SHOWN_SAMPLES],
        settings=settings.flat,
        overrides=settings.overrides,
        notes=settings.notes,
        starts=read_rows(folder.starts, check_start),
        time=f"{datetime.now():%Y-%m-%d %H:%M}",
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(out, render_report(contents).encode("utf-8", errors="backslashreplace"))
    except OSError as error:
        raise InputError(
            f"the report {str(out)!r} cannot be written ({error}); choose another location with --out."
        ) from error


class ShownSettings(NamedTuple):
    """Settings of a run, as shown in a report."""

    flat: Mapping[str, Any]
    """Name of the flag -> value of the setting."""
    overrides: list[str]
    """Names of the settings that differ from the defaults."""
    notes: tuple[str, ...]
    """If this version cannot read all settings, first a note on why they are shown as in `config.json`. Then one note per setting
    that an alarm changed."""


def settings_of(folder: RunFolder) -> ShownSettings:
    """Read the settings of a run; if this version cannot read them, return the contents of the run's `config.json` unchanged."""
    defaults = json_safe(TrainConfig().to_flat(), "settings")
    try:
        config, own_parts = read_saved_settings(folder.config)
    except InputError as error:
        flat, notes = flatten_settings(folder.config), (f"Settings are shown as in config.json. {error}",)
    else:
        flat, notes = json_safe(config.to_flat(), "settings"), ()
        flat |= {"custom parts": list(own_parts)} if own_parts else {}
    overrides = sorted(name for name in flat if name not in defaults or flat[name] != defaults[name])
    changes = (
        f"{AppliedRemedy(*(row[name] for name in AppliedRemedy._fields))}."
        for row in read_rows(folder.remedies, check_remedy)
    )
    return ShownSettings(flat, overrides, (*notes, *changes))


def flatten_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of a `config.json` as flag -> value; an entry without a flag is named by its path.

    Example:
        >>> flatten_settings({"optimization": {"steps": 9, "momentum": 0.5}, "seams": []})
        {'steps': 9, 'optimization.momentum': 0.5, 'seams': []}
    """
    flat: dict[str, Any] = {}
    for group, content in raw.items():
        flags = flat_names(GROUPS[group]) if group in GROUPS else {}
        if isinstance(content, Mapping):
            flat |= {flags.get(name, f"{group}.{name}"): value for name, value in content.items()}
        else:
            flat[group] = content
    return flat


def draw_pictures(folder: RunFolder) -> dict[str, bytes]:
    """Plot the curves, and the other metrics that alarms check; return title -> PNG, which is empty before the first step."""
    rows, pictures = rows_so_far(folder), {}
    if not rows:
        return pictures
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "curves.png"
        plot_curves(rows, file, title="")
        pictures["Curves"] = file.read_bytes()
        if plot_metrics(rows, PANELS, file, title=""):
            pictures["Metrics with alarms; dashed: the alarm's limit"] = file.read_bytes()
    return pictures
