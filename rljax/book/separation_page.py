"""The page of an experiment that compares four arms on each of several tasks."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rljax.book.claims import FEWEST_SEEDS, Interval, over_seeds
from rljax.book.separation import certain_pairs, is_apart, tiers
from rljax.records import documented

Settings = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


@documented
class Case(NamedTuple):
    """Four arms on a task."""

    settings: Settings
    """Settings beside those of the experiment, by their flat names; `task` is among them where the case has another name."""
    arms: Mapping[str, Settings]
    """Settings of each arm beside these."""
    decides: str
    """Name of the number that decides."""
    theory: str
    """What the arms differ in, and which difference is expected."""
    shown: tuple[str, ...] = ()
    """Further numbers on the page."""
    seeds: range = range(8)
    """Seeds of RL, the same ones for all arms."""


def values_of(rows: Rows, task: str, case: Case, number: str) -> dict[str, dict[int, float]]:
    """A number of each arm of a task, by seed.

    Example:
        >>> case = Case({}, {"slow": {}, "fast": {}}, "accuracy", "The faster one learns more.")
        >>> row = {"task": "sums", "arm": "fast", "seed": 3, "numbers": {"accuracy": 0.5}}
        >>> values_of([row], "sums", case, "accuracy")
        {'slow': {}, 'fast': {3: 0.5}}
    """
    mine = [row for row in rows if row["task"] == task]
    return {arm: {row["seed"]: row["numbers"][number] for row in mine if row["arm"] == arm} for arm in case.arms}


def intervals_of(rows: Rows, task: str, case: Case, number: str) -> dict[str, Interval]:
    """Mean of a number over the seeds, with its 95 % t interval, for each arm of a task, the lowest first."""
    found = {arm: over_seeds([*values.values()]) for arm, values in values_of(rows, task, case, number).items()}
    return dict(sorted(found.items(), key=lambda item: item[1].value))


def report(rows: Rows, cases: Mapping[str, Case], *, beside: Sequence[str]) -> str:
    """The summary and the table of each task, in Markdown.

    Args:
        rows: a row has its `task`, `arm`, `seed`, `curve` of held-out accuracy from before RL on, and `numbers` by name.
        cases: the arms of each task, by its name; one without rows is left out.
        beside: numbers that are shown of every task, beside the one that decides.
    """
    tasks = {task: case for task, case in cases.items() if any(row["task"] == task for row in rows)}
    columns = "task | number that decides | arms of which every two are apart | pairs apart | paired difference certain"
    lines, counts = ["", f"| {columns} |", f"|{' --- |' * 5}"], []
    for task, case in tasks.items():
        found = intervals_of(rows, task, case, case.decides)
        fewest = min(interval.seeds for interval in found.values())
        if fewest < FEWEST_SEEDS:
            lines.append(
                f"| `{task}` | {case.decides} | not decided: an arm has {fewest} of {FEWEST_SEEDS} seeds | - | - |"
            )
            continue
        apart, chosen = sum(itertools.starmap(is_apart, itertools.combinations(found.values(), 2))), tiers(found)
        counts.append(len(chosen))
        names = " < ".join(chosen) if len(chosen) > 1 else "none"
        certain = certain_pairs(values_of(rows, task, case, case.decides))
        lines.append(f"| `{task}` | {case.decides} | {len(chosen)}: {names} | {apart} | {certain} |")
    at_least = {least: sum(count >= least for count in counts) for least in (2, 3, 4)}
    lines[:0] = [
        "",
        "All runs of a task begin with one base model; the intervals are over seeds of RL. "
        f"Tasks that are decided: {len(counts)}; with at least two arms apart: {at_least[2]}; with three: {at_least[3]}; "
        f"with all four: {at_least[4]}. Four arms are six pairs.",
    ]
    for task, case in tasks.items():
        lines += section(rows, task, case, beside=beside)
    return "\n".join(lines) + "\n"


def section(rows: Rows, task: str, case: Case, *, beside: Sequence[str]) -> list[str]:
    """The arms of a task, in Markdown."""
    numbers = [*dict.fromkeys((case.decides, *beside, *case.shown))]
    before = over_seeds([row["curve"][0] for row in rows if row["task"] == task and row["arm"] == next(iter(case.arms))])
    lines = ["", f"## {task}", "", case.theory, "", f"{before.seeds} seeds; accuracy before RL {before.text()}.", ""]
    lines += [f"| arm | {' | '.join(numbers)} |", f"|{' --- |' * (len(numbers) + 1)}"]
    for arm in intervals_of(rows, task, case, case.decides):
        cells = [intervals_of(rows, task, case, number)[arm].text() for number in numbers]
        lines.append(f"| {' | '.join([arm, *cells])} |")
    return lines
