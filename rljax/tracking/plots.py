"""Plots: the curves of one run, and the held-out accuracy of several runs.

The functions do not use pyplot, so they change no global state and open no windows.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from rljax.errors import InputError
from rljax.tracking.alarms import LIMITS
from rljax.tracking.display_text import ACCURACY_PREFIX, METRICS, accuracies_by_set
from rljax.tracking.glossary import find_entry
from rljax.tracking.phase_times import NOUNS
from rljax.tracking.rows import Row, read_complete_rows
from rljax.tracking.seeds import SeedMean, over_seeds

INK, MUTED, GRID, WARM = "#1b1f24", "#6b7280", "#e5e7eb", "#fdf1dc"
HELD_OUT = "#1f5fbf"
COLORS = ("#1f5fbf", "#d9480f", "#2b8a3e", "#9c36b5", "#c2255c", "#0b7285", "#5f3dc4", "#866118")
OVERLAY_COLORS = (*COLORS, "#e8a700", "#74b816", "#4dabf7", INK)
"""Colors of runs in one plot."""
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
"""Line styles of runs in one plot; once all colors have been used, the colors repeat with the next style."""
MAX_LABELS_ABOVE, MAX_LABEL_LENGTH = 6, 24
"""Maximum number and length of labels in a legend above a plot; a larger legend is placed to the right of the plot."""
PANELS = {
    "rl": {
        "reward": COLORS[2],
        "response_length": COLORS[5],
        "turns": COLORS[7],
        "episode_tool_calls": COLORS[0],
        "episode_tool_errors": COLORS[4],
        "episode_malformed_calls": COLORS[1],
        "judge_seconds": COLORS[3],
        "truncated_share": MUTED,
        "filtered_ratio": COLORS[6],
        "entropy": COLORS[3],
        "kl": COLORS[4],
        "grad_norm": COLORS[1],
        "clip_fraction": COLORS[7],
        "teacher_kl": COLORS[0],
        "teacher_divergence": COLORS[1],
        "correction_cut": COLORS[3],
        "surrogate_masked": COLORS[5],
        "router_balance": COLORS[2],
        "router_entropy": COLORS[6],
        "explained_variance": COLORS[0],
        "value_loss": COLORS[6],
        "advantage_correlation": COLORS[4],
    },
    "value": {"explained_variance": COLORS[0], "value_loss": COLORS[6]},
    "warm_start": {"heldout_loss": HELD_OUT, "loss": COLORS[2], "grad_norm": COLORS[1]},
}
TITLES = {
    "episode_tool_calls": "tool calls per episode",
    "episode_tool_errors": "tool errors per episode",
    "episode_malformed_calls": "malformed calls per episode",
    "judge_seconds": "waiting for the environment (s)",
}
"""Metric -> title of its panel, for metrics of an environment, whose panel titles differ from their labels."""
STEP_LABELS = {"rl": "RL step", "value": "step of value pretraining", "warm_start": "warm-start step"}
COLUMNS = 4
WARM_SHARE = 0.25
DOTS_PER_INCH = 150
SUFFIXES = (".png", ".pdf", ".svg")
LABELS = {metric.key: metric for metric in METRICS}
Z = 1.959964
"""Half-width of a 95 % interval, in standard deviations."""


class HeldOutCurve(NamedTuple):
    """Held-out accuracy over steps."""

    steps: np.ndarray
    """Steps in rising order, `[N]`."""
    values: np.ndarray
    """The accuracy at each step, `[N]`."""
    judged: np.ndarray
    """Number of judged answers behind each accuracy, `[N]`; NaN if the run did not record this number."""

    def interval(self) -> np.ndarray:
        """Return the 95 % Wilson interval of each accuracy, `[2, N]`; NaN if the number of answers is unknown.

        ::

            (p + z²/2n ± z √(p (1 - p) / n + z²/4n²)) / (1 + z²/n)        p = k/n, k of n answers are right

        Source:
            Wilson 1927, J. Am. Stat. Assoc. 22(158). SciPy implements it, but takes half a second to import.
        """
        n = np.where((self.judged > 0) & (self.values >= 0), self.judged, np.nan)
        p = np.round(self.values * n) / n
        middle, half = p + Z**2 / (2 * n), Z * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
        bounds = np.stack([middle - half, middle + half]) / (1 + Z**2 / n)
        return np.clip(bounds, 0.0, 1.0)


class Curve(NamedTuple):
    """A metric over steps; NaN for a value that was not finite."""

    steps: np.ndarray
    """Steps in rising order, `[N]`."""
    values: np.ndarray
    """Value at each step, `[N]`."""


def plot_curves(metrics: Path | str | Sequence[Row], out_path: Path | str, *, title: str) -> None:
    """Plot one run.

    The top panel shows the held-out accuracy (`eval` rows) and, for RL, the accuracy of the sampled training responses. A
    warm start is shaded, to the left of RL step 0, and has its own step axis. Below are panels for single metrics, each with a
    faint raw curve and a smoothed curve. They show RL, or the warm start if RL has not begun; panels of value pretraining
    come first. A supervised run without evaluations has no top panel.

    Args:
        metrics: a `metrics.jsonl` file, or its rows.
        out_path: path of the plot file, `.png`, `.pdf` or `.svg`; its folder is created.
        title: title of the plot.

    Raises:
        InputError: the metrics file is missing, empty or malformed (the message names file and line), or the suffix is unknown.
    """
    rows = read_complete_rows(metrics) if isinstance(metrics, Path | str) else metrics
    last = "rl" if any(row["phase"] == "rl" for row in rows) else "warm_start"
    by_phase = {phase: [row for row in rows if row["phase"] == phase] for phase in ("value", last)}
    named = {(phase, key): curve_of(trained, key) for phase, trained in by_phase.items() for key in PANELS[phase]}
    curves = {name: curve for name, curve in named.items() if _needs_panel(name[1], curve)}
    if (last, "turns") not in curves:  # without an environment, judging time is shown only among the times of a step
        curves.pop((last, "judge_seconds"), None)
    phases = phase_curves(by_phase[last])
    columns = max(1 + bool(phases), min(COLUMNS, len(curves)))
    # The panel of times needs the cell to its right for its legend, so it cannot be in the last column.
    times_at = len(curves) + (len(curves) % columns == columns - 1)
    panels = times_at + 2 if phases else len(curves)
    panel_rows = -(-panels // columns)
    top = int(last == "rl" or not curves or any("accuracy" in row for row in rows))
    figure = _make_figure(13.0, 0.6 + 3.6 * top + 2.2 * panel_rows, title)
    grid = figure.add_gridspec(panel_rows + top, columns, height_ratios=[3.6] * top + [2.0] * panel_rows)
    if top:
        _draw_accuracy(figure.add_subplot(grid[0, :]), rows)
    for index, ((phase, key), curve) in enumerate(curves.items()):
        axes = figure.add_subplot(grid[top + index // columns, index % columns])
        _draw_panel(axes, key, PANELS[phase][key], curve)
        has_panel_below = index + columns < len(curves) or (phases and times_at == index + columns)
        if phase != last or not has_panel_below:
            axes.set_xlabel(STEP_LABELS[phase], fontsize=9.5, color=MUTED)
    if phases:
        axes = figure.add_subplot(grid[top + times_at // columns, times_at % columns])
        _draw_phases(axes, phases)
        axes.set_xlabel(STEP_LABELS[last], fontsize=9.5, color=MUTED)
    _save(figure, out_path)


def plot_metrics(rows: Sequence[Row], names: Sequence[str], out_path: Path | str, *, title: str) -> bool:
    """Plot RL metrics, each in its own panel with its unit and the limit of its alarm; metrics without values are omitted.

    Returns:
        Whether there was anything to plot; otherwise no file is written.
    """
    trained = [row for row in rows if row["phase"] == "rl"]
    found = {name: curve_of(trained, name) for name in names}
    curves = {name: curve for name, curve in found.items() if _needs_panel(name, curve)}
    if not curves:
        return False
    panel_rows = -(-len(curves) // COLUMNS)
    figure = _make_figure(13.0, 0.6 + 2.1 * panel_rows, title)
    grid = figure.add_gridspec(panel_rows, COLUMNS)
    for index, (name, curve) in enumerate(curves.items()):
        axes = figure.add_subplot(grid[index // COLUMNS, index % COLUMNS])
        _draw_panel(axes, name, COLORS[index % len(COLORS)], curve)
    _save(figure, out_path)
    return True


def overlay(runs: Mapping[str, Path | str | Sequence[Path]], out_path: Path | str, *, title: str) -> None:
    """Plot the held-out accuracy of several runs together, or means over seeds with their 95 % intervals.

    Args:
        runs: label -> `metrics.jsonl` of a run, or of several runs that differ in their seeds; at least one.
        out_path: path of the plot file, `.png`, `.pdf` or `.svg`; its folder is created.
        title: title of the plot.

    Raises:
        InputError: `runs` is empty; or a metrics file is missing, empty, malformed (the message names the file and line), or
            contains no evaluation.
    """
    if not runs:
        raise InputError("there is no run to plot; name at least one run folder.")
    margin = 0.5 + 0.085 * max(map(len, runs)) if _needs_side_legend(list(runs)) else 0.0
    figure = _make_figure(8.5 + margin, max(4.6, 0.8 + 0.22 * len(runs)), title)
    draw_overlay(figure.add_subplot(), runs)
    _save(figure, out_path)


def draw_overlay(axes: Axes, runs: Mapping[str, Path | str | Sequence[Path]]) -> None:
    """Draw the plot of `overlay` on existing axes; see `overlay` for `runs`."""
    lines = []
    for index, paths in enumerate(runs.values()):
        several = [paths] if isinstance(paths, Path | str) else paths
        curves = [_accuracy_of(path) for path in several]
        color, dashes = OVERLAY_COLORS[index % len(OVERLAY_COLORS)], DASHES[index // len(OVERLAY_COLORS) % len(DASHES)]
        if len(curves) == 1:
            lines += _draw_held_out(axes, curves[0], color, band=len(runs) <= MAX_LABELS_ABOVE)
        else:
            lines += _draw_mean(axes, curves, color)
        lines[-1].set_linestyle(dashes)
    _style(axes)
    _show_percent(axes, "held-out accuracy")
    axes.set_xlabel(STEP_LABELS["rl"], fontsize=9.5, color=MUTED)
    axes.set_xlim(0, max(1.0, *(line.get_xdata()[-1] for line in lines)))
    _add_legend(axes, lines, list(runs))


def plot_ablation(
    arms: Mapping[str, Sequence[Path]], differences: Mapping[str, SeedMean], out_path: Path | str, *, title: str
) -> None:
    """Plot each arm's mean curve with its 95 % interval, and its final difference from the first arm.

    Args:
        arms: arm -> the `metrics.jsonl` files of its runs; the first arm is the complete algorithm.
        differences: arm -> its final accuracy minus the first arm's, from -1 to 1.
        out_path: path of the plot file, `.png`, `.pdf` or `.svg`; its folder is created.
        title: title of the plot.

    Raises:
        InputError: a run has no evaluation with an accuracy, or the suffix is unknown.
    """
    figure = _make_figure(13.0, max(4.6, 1.4 + 0.4 * len(arms)), title)
    left, right = figure.subplots(1, 2, width_ratios=[1.5, 1.0])
    draw_overlay(left, arms)
    legend = left.get_legend()
    if legend is not None:
        legend.remove()  # the labels of the right plot, in the same colors, replace it
    colors = dict(zip(arms, OVERLAY_COLORS * (1 + len(arms) // len(OVERLAY_COLORS)), strict=False))
    for index, name in enumerate(arms):
        change = differences.get(name)
        right.plot(0.0 if change is None else 100 * change.value, -index, "o", color=colors[name], markersize=7, zorder=3)
        if change is not None and math.isfinite(change.low):
            right.plot([100 * change.low, 100 * change.high], [-index, -index], color=colors[name], linewidth=2.2)
    _style(right)
    right.axvline(0, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
    right.set_yticks([-index for index in range(len(arms))], list(arms))
    for label, name in zip(right.get_yticklabels(), arms, strict=True):
        label.set(color=colors[name], fontsize=10, parse_math=False)
    right.set_ylim(-len(arms) + 0.4, 0.6)
    right.set_xlabel(f"final difference from {next(iter(arms))}, percentage points", fontsize=9.5, color=MUTED)
    _save(figure, out_path)


def _accuracy_of(path: Path | str) -> HeldOutCurve:
    held_out = held_out_accuracy(read_complete_rows(path), warm_scale=None)
    if not held_out.steps.size:
        raise InputError(f"{path} has no held-out accuracy from RL; evaluate during the run, or omit this run.")
    return held_out


def mean_curve(curves: Sequence[HeldOutCurve]) -> tuple[np.ndarray, list[SeedMean]]:
    """Average curves over seeds at the steps that all curves have in common.

    Raises:
        InputError: the curves have no step in common.
    """
    by_step = [dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True)) for curve in curves]
    steps = sorted(set.intersection(*map(set, by_step)))
    if not steps:
        raise InputError("the runs of a group have no evaluation step in common; plot them without --group.")
    return np.array(steps), [over_seeds([values[step] for values in by_step]) for step in steps]


def _draw_mean(axes: Axes, curves: Sequence[HeldOutCurve], color: str) -> list[Line2D]:
    """Draw the mean over seeds, with its intervals as a band if there are enough seeds."""
    steps, means = mean_curve(curves)
    axes.fill_between(steps, [m.low for m in means], [m.high for m in means], color=color, alpha=0.15, linewidth=0)
    style = {"linewidth": 2.2, "marker": "o", "markersize": 4, "markeredgecolor": "white"}
    return axes.plot(steps, [m.value for m in means], color=color, **style, clip_on=False, zorder=3)


def curve_of(rows: Sequence[Row], key: str) -> Curve:
    """Extract the curve of one metric from the rows that have it.

    Args:
        rows: rows of one phase.
        key: the metric's name.

    Returns:
        The steps in rising order. If a step occurs twice, the later row counts; null becomes NaN.
    """
    by_step = {row["step"]: row[key] for row in rows if key in row}
    steps = sorted(by_step)
    return Curve(np.array(steps, float), np.array([by_step[step] for step in steps], float))


def phase_curves(rows: Sequence[Row]) -> dict[str, Curve]:
    """Extract how many seconds each phase of a step took, for the steps that recorded times; 0 if a phase did not occur.

    Args:
        rows: RL rows.

    Returns:
        Name of the phase -> seconds, in the order of a step; phases that no row has are omitted.
    """
    keys = {name: f"{name}_seconds" for name in NOUNS if any(f"{name}_seconds" in row for row in rows)}
    timed = [row | {key: row.get(key) or 0.0 for key in keys.values()} for row in rows if row.keys() & keys.values()]
    return {NOUNS[name]: curve_of(timed, key) for name, key in keys.items()}


def moving_average(values: np.ndarray, *, span: float) -> np.ndarray:
    """Compute an exponential moving average without initialization bias.

    ::

        y_t = Σ_{s<=t} β^{t-s} x_s / Σ_{s<=t} β^{t-s}        β = 1 - 2 / (span + 1)

    Args:
        values: `[N]`; NaN is excluded from both sums.
        span: effective number of values averaged, at least 1; 1 changes nothing.

    Returns:
        `[N]`; NaN before the first finite value.

    Example:
        >>> moving_average(np.array([1.0, 4.0]), span=3).tolist()
        [1.0, 3.0]
    """
    keep = 1.0 - 2.0 / (span + 1.0)
    total, weight, result = 0.0, 0.0, []
    for value in values:
        is_finite = math.isfinite(value)
        total = keep * total + (value if is_finite else 0.0)
        weight = keep * weight + is_finite
        result.append(total / weight if weight > 0 else math.nan)
    return np.array(result)


def held_out_accuracy(rows: Sequence[Row], *, warm_scale: float | None, name: str | None = None) -> HeldOutCurve:
    """Extract the accuracy of the `eval` rows.

    Args:
        rows: all rows of a run in file order, because an `eval` row belongs to the training row before it.
        name: name of an additional held-out set; None means the problems that every run holds out.
        warm_scale: width of a warm-start step on the axis, in RL steps; warm-start steps are to the left of 0. With None, the
            evaluations of the warm start are omitted, except the last, which is at RL step 0.

    Returns:
        Steps in rising order; RL steps start at 0.
    """
    warm_steps = max((row["step"] for row in rows if row["phase"] == "warm_start"), default=0)
    accuracy, judged = ("accuracy", "judged") if name is None else (f"{ACCURACY_PREFIX}{name}", f"judged_on_{name}")
    by_step, at, in_warm_start = {}, 0, warm_steps > 0
    for row in rows:
        if row["phase"] == "warm_start":
            at, in_warm_start = row["step"], True
        elif row["phase"] == "rl":
            in_warm_start = False
        elif accuracy in row:
            before_rl = warm_steps - at if in_warm_start else 0
            if before_rl == 0:
                by_step[0 if in_warm_start else row["step"]] = row
            elif warm_scale is not None:
                by_step[-before_rl * warm_scale] = row
    steps = sorted(by_step)
    values, counts = (np.array([by_step[step].get(key) for step in steps], float) for key in (accuracy, judged))
    return HeldOutCurve(np.array(steps, float), values, counts)


def _make_figure(width: float, height: float, title: str) -> Figure:
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, wspace=0.03, hspace=0.03)
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, facecolor="white", layout=layout)
    FigureCanvasAgg(figure)
    # The title is plain text: a dollar sign in it does not start a formula.
    figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold", color=INK, parse_math=False)
    return figure


def _save(figure: Figure, out_path: Path | str) -> None:
    out_path = Path(out_path)
    if out_path.suffix not in SUFFIXES:
        raise InputError(f"the plot {out_path} must end in {' or '.join(SUFFIXES)}; choose another name.")
    out_path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out_path)


def _style(axes: Axes) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, labelsize=9, length=0)
    axes.tick_params(axis="x", length=3)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 2.5, 5, 10]))


def _show_percent(axes: Axes, label: str) -> None:
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
    axes.set_ylabel(label, fontsize=10.5, color=INK)


def _needs_side_legend(labels: list[str]) -> bool:
    """True if the labels need a legend to the right of the plot."""
    return len(labels) > MAX_LABELS_ABOVE or (len(labels) > 2 and max(map(len, labels)) > MAX_LABEL_LENGTH)


def _add_legend(axes: Axes, handles: list[Line2D], labels: list[str]) -> None:
    # A legend above the plot or to its right hides no curve.
    position = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2, "ncols": min(len(labels), 3)}
    if _needs_side_legend(labels):
        position = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.2, "handlelength": 3.0}
    legend = axes.legend(handles, labels, **position, frameon=False, fontsize=9.5)
    for text in legend.get_texts():
        text.set_color(INK)
        text.set_parse_math(False)


def _draw_accuracy(axes: Axes, rows: Sequence[Row]) -> None:
    trained = [row for row in rows if row["phase"] == "rl"]
    rl_steps = max((row["step"] for row in trained), default=0)
    warm_steps = max((row["step"] for row in rows if row["phase"] == "warm_start"), default=0)
    # A warm start takes at most a quarter of the width, because the plot is about RL.
    room = WARM_SHARE / (1 - WARM_SHARE) * rl_steps
    warm_scale = min(1.0, room / warm_steps) if warm_steps and rl_steps else 1.0
    training, held_out = curve_of(trained, "accuracy"), held_out_accuracy(rows, warm_scale=warm_scale)
    _style(axes)
    _show_percent(axes, "accuracy")
    handles, labels = [], []
    if training.steps.size:
        axes.plot(*training, color=COLORS[1], alpha=0.18, linewidth=1.0)
        handles += axes.plot(training.steps, _smooth(training), color=COLORS[1], alpha=0.55, linewidth=1.6)
        labels.append("training, sampled (smoothed)")
    if held_out.steps.size:
        handles += _draw_held_out(axes, held_out, HELD_OUT)
        labels.append("held-out, 95 % interval" if np.isfinite(held_out.judged).any() else "held-out")
        _label_last_point(axes, held_out)
    for index, name in enumerate({name: None for row in rows if row["phase"] == "eval" for name in accuracies_by_set(row)}):
        color = OVERLAY_COLORS[2 + index % (len(OVERLAY_COLORS) - 2)]  # the first two are held-out and training accuracy
        handles += _draw_held_out(axes, held_out_accuracy(rows, warm_scale=warm_scale, name=name), color, band=False)
        labels.append(name)
    axes.set_xlim(-warm_steps * warm_scale, rl_steps if warm_steps else max(rl_steps, 1))
    axes.set_xlabel(STEP_LABELS["rl" if rl_steps or not warm_steps else "warm_start"], fontsize=9.5, color=MUTED)
    if warm_steps:
        _shade_warm_start(axes, warm_steps, warm_scale, rl_steps)
    if handles:
        _add_legend(axes, handles, labels)


def _draw_held_out(axes: Axes, held_out: HeldOutCurve, color: str, *, band: bool = True) -> list[Line2D]:
    """Draw the accuracies, with their intervals as a band if the intervals are known."""
    if band and np.isfinite(held_out.judged).any():
        axes.fill_between(held_out.steps, *held_out.interval(), color=color, alpha=0.15, linewidth=0)
    style = {"linewidth": 2.2, "marker": "o", "markersize": 5, "markeredgecolor": "white"}
    # Clipping is off, because the first and the last point are on the plot's edges.
    return axes.plot(held_out.steps, held_out.values, color=color, **style, clip_on=False, zorder=3)


def _label_last_point(axes: Axes, held_out: HeldOutCurve) -> None:
    """Label the last point with its held-out accuracy."""
    step, value = held_out.steps[-1], held_out.values[-1]
    if math.isfinite(value):
        name = f" {value:.1%}"
        place = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(name, (step, value), **place, fontsize=11, fontweight="bold", color=HELD_OUT)


def _shade_warm_start(axes: Axes, warm_steps: int, warm_scale: float, rl_steps: int) -> None:
    """Shade the warm start. Its steps are not RL steps, so they are numbered only in a run without RL."""
    left = -warm_steps * warm_scale
    axes.axvspan(left, 0, color=WARM, linewidth=0, zorder=0)
    name = f"warm start\n{warm_steps:,} supervised steps"
    place = {"xytext": (8, -6), "textcoords": "offset points", "va": "top"}
    axes.annotate(name, (left, 1.0), **place, fontsize=9, color="#92660e", linespacing=1.3)
    counted, offset = (rl_steps, 0) if rl_steps else (warm_steps, warm_steps)
    ticks = [tick for tick in axes.xaxis.get_major_locator().tick_values(0, counted) if 0 <= tick <= counted]
    axes.set_xticks([tick - offset for tick in ticks], [f"{tick:g}" for tick in ticks])


def panel_title(name: str) -> tuple[str, float]:
    """Return the title of a metric's panel with its unit, and the factor that converts values to that unit.

    Example:
        >>> panel_title("clip_fraction_low"), panel_title("kl_to_reference"), panel_title("truncated_share")
        (('clip fraction low (%)', 100.0), ('KL to reference (nats/token)', 1.0), ('truncated (%)', 100.0))
    """
    if name in LABELS:
        metric = LABELS[name]
        return f"{metric.label} ({metric.unit})" if metric.unit else metric.label, metric.scale
    entry = find_entry(name)
    unit, scale = ("%", 100.0) if "0 to 1" in entry.unit else (entry.unit.replace(" per ", "/"), 1.0)
    words = re.sub(r"\bkl\b", "KL", name.replace("_", " "))
    return f"{words} ({unit})" if unit not in ("", words) else words, scale


def _draw_limit(axes: Axes, limit: float) -> None:
    """Draw the limit of an alarm; if it is far above the curve, write it as text, so that the curve is not flattened."""
    low, high = axes.get_ylim()
    if limit <= low + 3 * (high - low):
        axes.axhline(limit, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.set_ylim(min(low, limit), max(high, 1.08 * limit))
        return
    place: Any = {"xycoords": "axes fraction", "ha": "right", "va": "top"}
    axes.annotate(f"limit {limit:g}", (1.0, 1.0), **place, fontsize=8.5, color=MUTED)


def _needs_panel(name: str, curve: Curve) -> bool:
    """True if a metric needs a panel: it has a value, and it is not the number of turns in a single-turn run."""
    finite = curve.values[np.isfinite(curve.values)]
    return bool(finite.size) and not (name == "turns" and (finite == 1).all())


def _draw_panel(axes: Axes, name: str, color: str, curve: Curve) -> None:
    """Draw a metric with a title, its unit, and the limit of its alarm."""
    title, scale = (TITLES[name], 1.0) if name in TITLES else panel_title(name)
    _draw_curve(axes, Curve(curve.steps, curve.values * scale), color, title)
    if name in LIMITS:
        _draw_limit(axes, LIMITS[name] * scale)


def _draw_phases(axes: Axes, phases: Mapping[str, Curve]) -> None:
    """Draw the time of each phase as a stacked area. Slow steps, such as those that compile, may be cut off at the top."""
    steps = next(iter(phases.values())).steps
    heights = np.stack([_smooth(curve) for curve in phases.values()])
    axes.stackplot(
        steps, heights, labels=list(phases), colors=[COLORS[i % len(COLORS)] for i in range(len(phases))], alpha=0.75
    )
    _style(axes)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    axes.set_title("time of a step (s)", loc="left", fontsize=10.5, color=INK)
    axes.set_xlim(min(0.0, steps[0]), max(steps[-1], 1.0))
    totals = heights.sum(axis=0)
    axes.set_ylim(0, min(totals.max(), 3 * np.median(totals)) or 1.0)
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9, reverse=True)
    legend.set_in_layout(False)  # the legend is in the next cell, which is empty


def _draw_curve(axes: Axes, curve: Curve, color: str, title: str) -> None:
    steps, values = curve
    axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.9)
    axes.plot(steps, _smooth(curve), color=color, linewidth=1.9)
    _style(axes)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    # This formatter writes no common factor, such as 1e-3, above the axis.
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_title(title, loc="left", fontsize=10.5, color=INK)
    axes.set_xlim(min(0.0, steps[0]), max(steps[-1], 1.0))
    finite = values[np.isfinite(values)]
    # Start at zero, unless the curve is far above zero and would look flat. A constant is a flat line anyway.
    if finite.size and not finite.any():
        axes.set_ylim(0, 1)  # for zeros only, because an axis in thousandths would look like a measurement
    elif finite.size and (0 <= finite.min() <= 0.6 * finite.max() or 0 < finite.min() == finite.max()):
        axes.set_ylim(bottom=0)


def _smooth(curve: Curve) -> np.ndarray:
    """Smooth a curve over a thirtieth of its length, so that short and long runs look similar."""
    return moving_average(curve.values, span=max(1.0, curve.values.size / 30))
