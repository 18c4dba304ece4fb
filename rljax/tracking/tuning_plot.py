"""Plot of a search by successive halving: each candidate's held-out accuracy at the end of each rung that it trained in."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rljax.tracking.plots import COLORS, INK, MUTED, _make_figure, _save, _show_percent, _style


def plot_tuning(
    curves: Mapping[str, Sequence[tuple[int, float]]], out_path: Path | str, *, winner: str, title: str
) -> None:
    """Plot the candidates' curves; each ends where the candidate was eliminated.

    Args:
        curves: candidate -> (RL steps, mean held-out accuracy) at step 0 and at the end of each rung that it trained in.
        out_path: path of the plot file, `.png`, `.pdf` or `.svg`; its folder is created.
        winner: the candidate that is emphasized.
        title: title of the plot.
    """
    figure = _make_figure(9.0, 4.6, title)
    axes = figure.add_subplot()
    longest = max(points[-1][0] for points in curves.values())
    ranked = sorted(curves, key=lambda name: curves[name][-1])
    for index, name in enumerate(ranked):
        steps, values = zip(*curves[name], strict=True)
        wins = name == winner
        color = COLORS[0] if wins else MUTED
        axes.plot(
            steps, values, "o-", color=color, linewidth=2.4 if wins else 1.2, markersize=5 if wins else 3.5, clip_on=False
        )
        label_at = (longest * 1.02, (index + 0.5) / len(ranked))
        axes.annotate(
            f"{name}: {values[-1]:.1%} after {steps[-1]} steps",
            (steps[-1], values[-1]),
            xytext=label_at,
            textcoords=("data", "axes fraction"),
            fontsize=8,
            fontweight="bold" if wins else "normal",
            color=INK if wins else MUTED,
            verticalalignment="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.5, "linestyle": ":", "relpos": (0, 0.5)},
            parse_math=False,
        )
    _style(axes)
    _show_percent(axes, "held-out accuracy")
    axes.set_xlabel("RL step", fontsize=9.5, color=MUTED)
    axes.set_xlim(0, longest)
    _save(figure, out_path)
