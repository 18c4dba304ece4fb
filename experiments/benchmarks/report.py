"""Write the results of the comparisons as JSON, as a table and as a plot."""

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

NAMES = {"trl": "TRL", "tunix": "google-tunix", "rlax": "rlax", "transformers": "transformers.generate"}
INK, MUTED, OURS, BEHIND = "#1b1f24", "#6b7280", "#1f5fbf", "#d9480f"


def describe_machine() -> dict[str, Any]:
    """Describe the machine and its load in the last minute (a case itself adds a load of up to the number of cores)."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        model = lines[0] if lines else model
    return {"processor": model, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}


def write_results(folder: Path, key: str, row: dict[str, Any], *, order: Sequence[str]) -> None:
    """Put a case's row into results.json, and rewrite the table and the plot of all rows."""
    file = folder / "results.json"
    rows = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    rows[key] = row
    rows = {name: rows[name] for name in order if name in rows}
    file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(format_table(rows), encoding="utf-8")
    plot_ratios(rows, folder / "results.png")


def format_seconds(value: float) -> str:
    """Format a time with three significant digits, in seconds or milliseconds."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


def target_text(row: dict[str, Any]) -> str:
    """Format the target and whether it is reached."""
    if row["target"] is None:
        return "–"
    return f"≥ {row['target']:g} {'✓' if row['ratio'] >= row['target'] else 'missed'}"


def format_table(rows: dict[str, dict[str, Any]]) -> str:
    """Format the results in Markdown."""
    lines = [
        "| work | compared with | rljax | peer | speedup (peer time / rljax time), median (lowest to highest) | target "
        "| date, load |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows.values():
        spread = f"**{row['ratio']:.2f}** ({row['lowest']:.2f} to {row['highest']:.2f}, {row['rounds']} rounds)"
        times = f"{format_seconds(row['rljax_seconds'])} | {format_seconds(row['peer_seconds'])}"
        lines.append(
            f"| {row['title']} | {NAMES[row['peer']]} | {times} | {spread} | {target_text(row)} "
            f"| {row['date']}, {row['machine']['load']:g} |"
        )
    machines = sorted({f"{row['machine']['cores']} x {row['machine']['processor']}" for row in rows.values()})
    return "\n".join([*lines, "", f"Machine: {'; '.join(machines)}.", "", "Versions:", "", *versions_of_sides(rows), ""])


def versions_of_sides(rows: dict[str, dict[str, Any]]) -> list[str]:
    """List the versions of each side, with one line for each set of versions that its rows were measured with."""
    found = {
        f"- {NAMES.get(side, side)}: " + ", ".join(f"{name} {version}" for name, version in versions.items())
        for row in rows.values()
        for side, versions in row["versions"].items()
    }
    return sorted(found)


def plot_ratios(rows: dict[str, dict[str, Any]], out: Path) -> None:
    """Plot the ratios as bars, with their spread and their targets."""
    figure = Figure(figsize=(9.0, 0.8 + 0.45 * len(rows)), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for index, row in enumerate(rows.values()):
        reached = row["ratio"] >= (row["target"] or 1.0)
        axes.barh(index, row["ratio"], color=OURS if reached else BEHIND, height=0.55)
        axes.plot([row["lowest"], row["highest"]], [index, index], color=INK, linewidth=1.3)
        if row["target"] is not None:
            axes.plot([row["target"]] * 2, [index - 0.4, index + 0.4], color=INK, linewidth=2.0)
        axes.annotate(f" {row['ratio']:.2f}", (row["highest"], index), va="center", fontsize=9, color=INK)
    axes.axvline(1.0, color=MUTED, linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{row['title']}\n{NAMES[row['peer']]}" for row in rows.values()], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(
        "times faster than the peer: median, lowest to highest; a thick mark is the target", fontsize=9, color=MUTED
    )
    axes.set_xlim(left=0)
    for edge in ("top", "right", "left"):
        axes.spines[edge].set_visible(False)
    figure.savefig(out)
