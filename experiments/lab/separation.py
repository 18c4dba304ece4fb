"""Find the arms that a comparison can tell apart: those whose confidence intervals over the seeds are disjoint."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lab.claims import FEWEST_SEEDS, Interval, over_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def is_apart(one: Interval, other: Interval) -> bool:
    """Return whether two intervals are disjoint; False if the ends of either interval are NaN.

    This is stricter than a test of the paired difference: two 95 % intervals may overlap although the interval of the paired
    difference excludes 0.

    Example:
        >>> low, high = Interval(1.0, 0.9, 1.1, 5), Interval(1.5, 1.2, 1.8, 5)
        >>> is_apart(low, high), is_apart(low, low), is_apart(low, Interval(2.0, math.nan, math.nan, 1))
        (True, False, False)
    """
    return one.high < other.low or other.high < one.low


def tiers(intervals: Mapping[str, Interval]) -> list[str]:
    """Find a set of arms, as large as possible, whose intervals are pairwise disjoint, ordered from the lowest to the highest.

    The greedy search is exact: one of the largest sets starts with the interval that has the lowest upper end, continues with
    the lowest upper end among the intervals above the first one, and so on.

    Args:
        intervals: interval of each arm; an arm whose interval has NaN ends is never chosen.

    Returns:
        Names of the chosen arms: a single name if no two intervals are disjoint, no names if all intervals have NaN ends.

    Example:
        >>> ends = {"a": (0.0, 2.0), "b": (1.0, 3.0), "c": (2.5, 4.0)}
        >>> tiers({name: Interval(sum(pair) / 2, *pair, 5) for name, pair in ends.items()})
        ['a', 'c']
    """
    chosen: list[str] = []
    for name, interval in sorted(intervals.items(), key=lambda item: item[1].high):
        if not math.isnan(interval.high) and (not chosen or is_apart(intervals[chosen[-1]], interval)):
            chosen.append(name)
    return chosen


def certain_pairs(values: Mapping[str, Mapping[int, float]]) -> int:
    """Count the pairs of arms whose paired difference over the seeds has a 95 % interval that excludes 0.

    Args:
        values: a metric of each arm, by seed; a pair is compared on the seeds that both arms have.

    Example:
        >>> one = {seed: float(seed) for seed in range(5)}
        >>> certain_pairs({"one": one, "a little more": {seed: value + 0.1 for seed, value in one.items()}})
        1
    """
    differences = [
        over_seeds([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])
        for one, other in itertools.combinations(values.values(), 2)
    ]
    return sum(pair.low > 0 or pair.high < 0 for pair in differences)


def draw_comparisons(comparisons: Mapping[str, Mapping[str, Mapping[int, float]]], file: Path) -> None:
    """Plot comparisons in two columns, each with its title; a comparison is left out if any of its arms has no results.

    Args:
        comparisons: for each title, a metric of each arm, by seed.
        file: image file to write.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415  only plots need it

    shown = {title: values for title, values in comparisons.items() if all(values.values())}
    rows, arms = max(1, math.ceil(len(shown) / 2)), max(map(len, shown.values()), default=0)
    figure = Figure(figsize=(11, max(2.1, 0.5 + 0.2 * arms) * rows), dpi=100, layout="constrained")
    panels = figure.subplots(rows, 2, squeeze=False).ravel()
    for axes, (title, values) in zip(panels, shown.items(), strict=False):
        draw_arms(axes, values)
        axes.set_title(title, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    figure.savefig(file)


def draw_arms(axes: "Axes", values: Mapping[str, Mapping[int, float]]) -> None:
    """Plot one line per arm, from the lowest mean to the highest: a dot per seed, the mean, and its interval.

    Args:
        axes: axes to plot on.
        values: a metric of each arm, by seed.
    """
    intervals = {arm: over_seeds([*by_seed.values()]) for arm, by_seed in values.items()}
    order = sorted(intervals, key=lambda arm: intervals[arm].value)
    for height, arm in enumerate(order):
        value, low, high, _ = intervals[arm]
        seeds = [*values[arm].values()]
        axes.plot(seeds, [height] * len(seeds), ".", color="0.6", markersize=4)
        axes.errorbar([value], [height], xerr=[[value - low], [high - value]], fmt="o", color=f"C{height}", capsize=4)
    axes.set_yticks(range(len(order)), order)
    axes.set_ylim(-0.6, len(order) - 0.4)


Settings = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


class Case(NamedTuple):
    """Four arms on a task."""

    settings: Settings
    """Changes to the experiment's common settings, by flat name; contains `task` if the case is not named after its task."""
    arms: Mapping[str, Settings]
    """Further settings of each arm."""
    decides: str
    """Name of the metric by which the arms are compared."""
    theory: str
    """Explanation of how the arms differ and which order is expected."""
    shown: tuple[str, ...] = ()
    """Further metrics to show on the page."""
    seeds: range = range(8)
    """Seeds of RL, the same for all arms."""


def values_of(rows: Rows, task: str, case: Case, metric: str) -> dict[str, dict[int, float]]:
    """Collect the values of one metric for each arm of a task, by seed.

    Example:
        >>> case = Case({}, {"slow": {}, "fast": {}}, "accuracy", "The faster one learns more.")
        >>> row = {"task": "sums", "arm": "fast", "seed": 3, "numbers": {"accuracy": 0.5}}
        >>> values_of([row], "sums", case, "accuracy")
        {'slow': {}, 'fast': {3: 0.5}}
    """
    mine = [row for row in rows if row["task"] == task]
    return {arm: {row["seed"]: row["numbers"][metric] for row in mine if row["arm"] == arm} for arm in case.arms}


def intervals_of(rows: Rows, task: str, case: Case, metric: str) -> dict[str, Interval]:
    """Compute the mean and 95 % t interval of a metric over the seeds for each arm of a task, sorted by mean."""
    intervals = {arm: over_seeds([*values.values()]) for arm, values in values_of(rows, task, case, metric).items()}
    return dict(sorted(intervals.items(), key=lambda item: item[1].value))


def report(rows: Rows, cases: Mapping[str, Case], *, also: Sequence[str]) -> str:
    """Format the summary and the table of each task in Markdown.

    Args:
        rows: results, one row per run: its `task`, `arm`, `seed`, `curve` (held-out accuracy, starting before RL) and `numbers`
            (metrics by name).
        cases: name of a task -> its arms; tasks without rows are left out.
        also: metrics to show for every task in addition to the one by which its arms are compared.
    """
    tasks = {task: case for task, case in cases.items() if any(row["task"] == task for row in rows)}
    columns = "task | metric that decides | arms that are all apart | pairs apart | paired difference certain"
    lines, counts = ["", f"| {columns} |", f"|{' --- |' * 5}"], []
    for task, case in tasks.items():
        intervals = intervals_of(rows, task, case, case.decides)
        fewest = min(interval.seeds for interval in intervals.values())
        if fewest < FEWEST_SEEDS:
            lines.append(
                f"| `{task}` | {case.decides} | not decided: an arm has {fewest} of {FEWEST_SEEDS} seeds | - | - |"
            )
            continue
        apart, chosen = sum(itertools.starmap(is_apart, itertools.combinations(intervals.values(), 2))), tiers(intervals)
        counts.append(len(chosen))
        names = " < ".join(chosen) if len(chosen) > 1 else "none"
        certain = certain_pairs(values_of(rows, task, case, case.decides))
        lines.append(f"| `{task}` | {case.decides} | {len(chosen)}: {names} | {apart} | {certain} |")
    at_least = {least: sum(count >= least for count in counts) for least in (2, 3, 4)}
    lines[:0] = [
        "",
        "All runs of a task start from the same base model; the intervals are over seeds of RL. "
        f"Tasks that are decided: {len(counts)}; with at least two arms apart: {at_least[2]}; with three: {at_least[3]}; "
        f"with all four: {at_least[4]}. Four arms are six pairs.",
    ]
    for task, case in tasks.items():
        lines += section(rows, task, case, also=also)
    return "\n".join(lines) + "\n"


def section(rows: Rows, task: str, case: Case, *, also: Sequence[str]) -> list[str]:
    """Format the section of one task in Markdown, with a table of its arms."""
    metrics = [*dict.fromkeys((case.decides, *also, *case.shown))]
    before = over_seeds([row["curve"][0] for row in rows if row["task"] == task and row["arm"] == next(iter(case.arms))])
    lines = ["", f"## {task}", "", case.theory, "", f"{before.seeds} seeds; accuracy before RL {before.text()}.", ""]
    lines += [f"| arm | {' | '.join(metrics)} |", f"|{' --- |' * (len(metrics) + 1)}"]
    for arm in intervals_of(rows, task, case, case.decides):
        cells = [intervals_of(rows, task, case, metric)[arm].text() for metric in metrics]
        lines.append(f"| {' | '.join([arm, *cells])} |")
    return lines
