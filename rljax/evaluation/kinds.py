"""Progress by kind of problem: held-out answers before and after RL, grouped by a column of the data."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from rljax.data.problem import Problem
from rljax.evaluation.comparison import Row, judged_pairs, row_is_right
from rljax.evaluation.report import by_value, chosen_columns, labels_of
from rljax.evaluation.statistics import Estimate, paired_share_difference
from rljax.records import documented

MOST_KINDS = 12
"""A column with more values than this has too many kinds to list."""
COUNTED = ("operands",)
"""Columns that count something: a problem has 4 operands, but it is of level 4."""


@documented
class Kind(NamedTuple):
    """Problems of one kind, and the change of the share whose answer is right."""

    name: str
    """What the problems have in common."""
    before: float
    """Share before RL."""
    after: float
    """Share after RL."""
    change: Estimate
    """Difference of the two, with its paired 95 % interval, and the number of problems."""

    def text(self) -> str:
        """The kind in words."""
        count = self.change.problems
        return f"{self.name} {self.before:.1%} -> {self.after:.1%} ({count} problem{'s' if count > 1 else ''})"


def kind_column(problems: Sequence[Problem]) -> str | None:
    """The first column of `KNOWN_COLUMNS` that divides problems into 2 to `MOST_KINDS` kinds; None without one.

    Example:
        >>> kind_column([Problem("1+1=", "2", columns={"operands": 2}), Problem("1+1+1=", "3", columns={"operands": 3})])
        'operands'
    """
    columns = chosen_columns(problems, None)
    return next((name for name in columns if 2 <= len(set(labels_of(problems, name))) <= MOST_KINDS), None)


def kind_numbers(problems: Sequence[Problem]) -> Int[np.ndarray, "N"] | None:
    """A number for each problem, the same for those of one kind; None where no column tells kinds apart (`kind_column`).

    Example:
        >>> sums = [Problem("1+1+1=", "3", columns={"operands": 3}), Problem("1+1=", "2", columns={"operands": 2})]
        >>> kind_numbers([*sums, sums[0]]).tolist()
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
        rows: `heldout.jsonl` of a run.
        problems: the held-out problems in their order, which `kind_column` divides.

    Returns:
        The kinds by value, numbers first; none without such a column, or without answers before and after.

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
            continue  # the answers are to other problems: the data have changed since
        right.setdefault(labels[before["problem"]], []).append((row_is_right(before), row_is_right(after)))
    return [_kind(column, label, np.array(right[label], bool)) for label in sorted(right, key=by_value)]


def _kind(column: str, label: str, right: np.ndarray) -> Kind:
    name = f"{label} {column}" if column in COUNTED else f"{column} {label}"
    before, after = map(float, right.mean(0))
    return Kind(name, before, after, paired_share_difference(*right.T))


def describe_progress(kinds: Sequence[Kind]) -> list[str]:
    """Say which kinds of problems became better, which worse, and for which neither is certain.

    Example:
        >>> sure, unsure = Estimate(0.9, 0.8, 0.95, 82), Estimate(0.1, -0.2, 0.3, 11)
        >>> describe_progress([Kind("2 operands", 0.9, 1.0, unsure), Kind("4 operands", 0.05, 0.95, sure)])[0]
        'Learned: 4 operands 5.0% -> 95.0% (82 problems).'
    """
    better = [kind for kind in kinds if kind.change.low > 0]
    worse = [kind for kind in kinds if kind.change.high < 0]
    unclear = [kind for kind in kinds if kind not in better and kind not in worse]
    parts = {
        "Learned": better,
        "Worse than before": worse,
        "No certain change": unclear,
    }
    return [f"{title}: {'; '.join(kind.text() for kind in part)}." for title, part in parts.items() if part]
