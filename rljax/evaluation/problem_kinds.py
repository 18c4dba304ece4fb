"""Progress by kind of problem: held-out answers before and after RL, grouped by a column of the data."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.evaluation.comparison import Row, judged_pairs, row_is_right
from rljax.evaluation.statistics import Estimate, paired_share_difference
from rljax.text import printable, shorten

MAX_KINDS = 12
"""Maximum number of values of a column that defines kinds; more kinds would be too many to list."""
KNOWN_COLUMNS = ("subject", "type", "level", "difficulty", "operands")
"""Columns by which problems are grouped by default, if the data has them."""
COUNT_COLUMNS = ("operands",)
"""Columns whose values are counts; a description puts a count before its column ("4 operands"), other values after ("level 4")."""

_LABEL_WIDTH = 40


class Kind(NamedTuple):
    """Problems of one kind, and the change in accuracy."""

    name: str
    """Column and value that the problems have in common, as text."""
    before: float
    """Accuracy before RL."""
    after: float
    """Accuracy after RL."""
    change: Estimate
    """Accuracy after RL minus accuracy before, with its paired 95 % interval, and the number of problems."""

    def text(self) -> str:
        """Describe the kind in words."""
        count = self.change.problems
        return f"{self.name} {self.before:.1%} -> {self.after:.1%} ({count} problem{'s' if count > 1 else ''})"


def choose_columns(problems: Sequence[Problem], names: Sequence[str] | None) -> list[str]:
    """Choose the columns that problems are grouped by.

    Args:
        problems: the problems of the evaluation.
        names: names of columns; None selects the columns of `KNOWN_COLUMNS` that the data has.

    Returns:
        Names of columns that at least one problem has.

    Raises:
        InputError: no problem has one of the named columns.

    Example:
        >>> choose_columns([Problem("1+1=", "2", columns={"level": 1, "id": 7})], None)
        ['level']
    """
    known = dict.fromkeys(name for problem in problems for name in problem.columns)
    if names is None:
        return [name for name in KNOWN_COLUMNS if name in known]
    missing = [name for name in names if name not in known]
    if missing:
        choice = f"choose among {', '.join(known)}" if known else "they have no columns at all"
        raise InputError(f"--by {missing[0]}: the problems have no such column; {choice}.")
    return list(dict.fromkeys(names))


def labels_of(problems: Sequence[Problem], column: str) -> list[str]:
    """Return a column's value as text for each problem; "-" if a problem lacks it."""
    return [_label(problem.columns.get(column)) for problem in problems]


def _label(value: object) -> str:
    return "-" if value is None else shorten(printable(str(value)), _LABEL_WIDTH)


def by_value(label: str) -> tuple[int, float, str]:
    """Return the sort key of a label: numbers come first, ordered by value, then other texts in alphabetical order."""
    try:
        number = float(label)
    except ValueError:
        return 1, 0.0, label
    return (0, number, label) if math.isfinite(number) else (1, 0.0, label)


def kind_column(problems: Sequence[Problem]) -> str | None:
    """Return the first of `KNOWN_COLUMNS` that divides the problems into 2 to `MAX_KINDS` kinds; None if no column does.

    Example:
        >>> kind_column([Problem("1+1=", "2", columns={"operands": 2}), Problem("1+1+1=", "3", columns={"operands": 3})])
        'operands'
    """
    columns = choose_columns(problems, None)
    return next((name for name in columns if 2 <= len(set(labels_of(problems, name))) <= MAX_KINDS), None)


def kind_indices(problems: Sequence[Problem]) -> Int[np.ndarray, "N"] | None:
    """Return the index of each problem's kind; None if no column defines kinds (see `kind_column`).

    Example:
        >>> sums = [Problem("1+1+1=", "3", columns={"operands": 3}), Problem("1+1=", "2", columns={"operands": 2})]
        >>> kind_indices([*sums, sums[0]]).tolist()
        [1, 0, 1]
    """
    column = kind_column(problems)
    if column is None:
        return None
    labels = labels_of(problems, column)
    return np.unique(labels, return_inverse=True)[1].astype(np.int32)


def kinds_of(rows: Sequence[Row], problems: Sequence[Problem]) -> list[Kind]:
    """Compare the held-out answers before and after RL by kind of problem.

    Args:
        rows: rows of a run's `heldout.jsonl`.
        problems: the held-out problems in order; `kind_column` divides them into kinds.

    Returns:
        The kinds, sorted by value, numbers first; empty if no column defines kinds, or without answers before or after RL.

    Example:
        >>> problems = [Problem("1+1=", "2", columns={"operands": 2}), Problem("1+1+1=", "3", columns={"operands": 3})]
        >>> row = {"step": 0, "problem": 0, "prompt": "1+1=", "completion": "2", "answer": "2", "reward": 1.0}
        >>> other = row | {"problem": 1, "prompt": "1+1+1=", "reward": 0.0}
        >>> [kind.text() for kind in kinds_of([row, other, row | {"step": 5}, other | {"step": 5, "reward": 1.0}], problems)]
        ['2 operands 100.0% -> 100.0% (1 problem)', '3 operands 0.0% -> 100.0% (1 problem)']
    """
    pairs, column = judged_pairs(rows), kind_column(problems)
    if not pairs or column is None:
        return []
    labels = labels_of(problems, column)
    right: dict[str, list[tuple[bool, bool]]] = {}
    known = dict(enumerate(problem.prompt for problem in problems))
    for before, after in pairs:
        if known.get(before["problem"]) != before["prompt"]:
            continue  # the data has changed since, so these answers belong to other problems
        right.setdefault(labels[before["problem"]], []).append((row_is_right(before), row_is_right(after)))
    return [_kind(column, label, np.array(right[label], bool)) for label in sorted(right, key=by_value)]


def _kind(column: str, label: str, right: np.ndarray) -> Kind:
    name = f"{label} {column}" if column in COUNT_COLUMNS else f"{column} {label}"
    before, after = map(float, right.mean(0))
    return Kind(name, before, after, paired_share_difference(*right.T))


def describe_progress(kinds: Sequence[Kind]) -> list[str]:
    """Describe which kinds of problems improved, which became worse, and which changed too little to tell.

    Example:
        >>> sure, unsure = Estimate(0.9, 0.8, 0.95, 82), Estimate(0.1, -0.2, 0.3, 11)
        >>> describe_progress([Kind("2 operands", 0.9, 1.0, unsure), Kind("4 operands", 0.05, 0.95, sure)])[0]
        'Learned: 4 operands 5.0% -> 95.0% (82 problems).'
    """
    better = [kind for kind in kinds if kind.change.low > 0]
    worse = [kind for kind in kinds if kind.change.high < 0]
    unclear = [kind for kind in kinds if kind not in better and kind not in worse]
    sections = {
        "Learned": better,
        "Worse than before": worse,
        "No certain change": unclear,
    }
    return [f"{title}: {'; '.join(kind.text() for kind in section)}." for title, section in sections.items() if section]
