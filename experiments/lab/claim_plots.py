"""Plots of claims: for one claim, the curves of its arms and the statistic of every seed; for all claims, their intervals."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.claims import Claim, over_seeds
from rljax.book.claims import VERDICTS, ClaimResult

if TYPE_CHECKING:
    from lab.results import Outcome

COLORS = dict(zip(VERDICTS, ("C2", "C3", "0.45", "C1"), strict=True))
"""Verdict -> Matplotlib color."""


def plot_claim(claim: Claim, outcome: "Outcome", file: Path) -> None:
    """Plot a claim's results: the curves of its arms, if there are any, and the statistic of every seed.

    Args:
        claim: the claim.
        outcome: the claim's results, with at least one seed.
        file: image file to write.
    """
    curves = {arm: numbers["curve"] for arm, numbers in outcome.arms.items() if "curve" in numbers}
    figure = Figure(figsize=(7.5 if curves else 3.5, 3), dpi=100, layout="constrained")
    panels = figure.subplots(1, 2 if curves else 1, width_ratios=[2, 1] if curves else [1], squeeze=False)[0]
    if curves:
        _draw_curves(panels[0], curves)
    _draw_statistic(panels[-1], claim, outcome)
    figure.savefig(file)


def plot_all(claims: Sequence[ClaimResult], file: Path) -> None:
    """Plot the statistic of every claim with its interval, in units of the claim's margin, grouped by verdict.

    The axis is linear within the margin and logarithmic beyond. A square marks a claim that two arms are equal; other claims have
    a circle.

    Args:
        claims: the claims, each with at least `FEWEST_SEEDS` seeds.
        file: image file to write.
    """
    ordered = sorted(claims, key=lambda claim: (-VERDICTS.index(claim.verdict), claim.statistic.value / claim.margin))
    figure = Figure(figsize=(7.5, 1.2 + 0.155 * len(ordered)), dpi=100, layout="constrained")
    axes = figure.subplots()
    axes.axvspan(-1, 1, color="0.92", zorder=0)
    axes.axvline(0, color="0.6", linewidth=0.8)
    for row, claim in enumerate(ordered):
        value, low, high = (number / claim.margin for number in claim.statistic[:3])
        marker, color = "s" if claim.kind == "equal" else "o", COLORS[claim.verdict]
        axes.errorbar(
            [value], [row], xerr=[[value - low], [high - value]], fmt=marker, color=color, markersize=3, linewidth=1
        )
    for verdict in VERDICTS:
        count = sum(claim.verdict == verdict for claim in claims)
        axes.plot([], [], "o", color=COLORS[verdict], markersize=4, label=f"{verdict} ({count})")
    axes.set_xscale("symlog", linthresh=1)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.tick_params(axis="x", labelsize=8)
    axes.set_yticks(range(len(ordered)), [claim.name for claim in ordered], fontsize=6)
    axes.set_ylim(-1, len(ordered))
    axes.set_xlabel("statistic over the smallest size that would matter, 95 % interval", fontsize=8)
    axes.legend(frameon=False, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(VERDICTS))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def _draw_curves(axes: Axes, curves: dict[str, np.ndarray]) -> None:
    for color, (arm, curve) in enumerate(curves.items()):
        intervals = [over_seeds(column) for column in curve.T]
        x = np.linspace(0, 1, len(intervals))
        axes.plot(x, [each.value for each in intervals], color=f"C{color % 10}", label=arm, linewidth=1.2)
        axes.fill_between(
            x,
            [each.low for each in intervals],
            [each.high for each in intervals],
            color=f"C{color % 10}",
            alpha=0.2,
            linewidth=0,
        )
    axes.set(xlabel="share of the training", ylabel="pass rate")
    axes.legend(frameon=False, fontsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_statistic(axes: Axes, claim: Claim, outcome: "Outcome") -> None:
    seeds = np.asarray(claim.statistic(outcome.arms))
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.axhspan(-claim.margin, claim.margin, color="0.92", zorder=0)
    axes.plot(np.linspace(-0.2, 0.2, len(seeds)), seeds, ".", color="0.5", markersize=4)
    value, low, high, _ = outcome.statistic
    axes.errorbar([0.4], [value], yerr=[[value - low], [high - value]], fmt="o", color="C3", capsize=3, markersize=4)
    axes.set(xlim=(-0.4, 0.6), xticks=[])
    axes.set_title(f"statistic: {outcome.verdict}", fontsize=8)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
