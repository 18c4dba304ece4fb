"""Records of bad rows: what is wrong with each row, where it is, and whether it was kept."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

OnError = Literal["fatal", "drop", "keep"]
"""What to do with bad rows: stop with an error, drop them, or keep those with a usable prompt (a bad answer becomes empty)."""


class Fault(NamedTuple):
    """A defect that prevents a row from being used unchanged."""

    source: str
    """The file, or the hub dataset and its split."""
    place: str
    """`line 3` of a .jsonl file, `entry 3` of a .json list, `row 3` of a table."""
    column: str | None
    """The bad column; None if the row is not an object with columns."""
    problem: str
    """The problem, as a clause."""
    remedy: str
    """The fix, as an imperative."""
    kept: bool = False
    """Whether the row was kept nevertheless."""

    def __str__(self):
        column = f", column {self.column!r}" if self.column is not None else ""
        return f"{self.source}, {self.place}{column}: {self.problem}; {self.remedy}."


class BadRowError(ValueError):
    """The error for a row that cannot be used. A caller that knows the row's location turns the error into a `Fault`."""

    def __init__(self, problem: str, remedy: str, *, column: str | None = None):
        super().__init__(problem)
        self.problem, self.remedy, self.column = problem, remedy, column

    def at(self, source: str, place: str, *, kept: bool = False) -> Fault:
        """Turn the error into a fault with the row's location."""
        return Fault(source, place, self.column, self.problem, self.remedy, kept)


def describe_faults(faults: Sequence[Fault], *, shown: int = 3) -> str:
    """Summarize faults in one paragraph: how many rows were dropped and kept, and the first few in full.

    Args:
        faults: the faults that `read_problems` found.
        shown: how many faults to write in full.

    Returns:
        Text without line breaks; empty if there are no faults.

    Example:
        >>> describe_faults([Fault("a.jsonl", "line 3", "answer", "the answer is empty", "fill it in")])
        "1 bad row left out. a.jsonl, line 3, column 'answer': the answer is empty; fill it in."
    """
    if not faults:
        return ""
    counts = Counter(fault.kept for fault in faults)
    done = {False: "left out", True: "kept, with an empty answer or without the demonstration"}
    total = ", ".join(f"{n} bad row{'s' * (n > 1)} {done[kept]}" for kept, n in sorted(counts.items()))
    rest = f" And {len(faults) - shown} more." if len(faults) > shown else ""
    return f"{total}. {' '.join(map(str, faults[:shown]))}{rest}"


def describe_value(value: object) -> str:
    """Name the JSON type of a value; a number is written out instead.

    Example:
        >>> describe_value(None), describe_value([1]), describe_value(3.5)
        ('null', 'a list', '3.5')
    """
    names = {type(None): "null", dict: "an object", list: "a list", str: "text", bool: "a boolean"}
    return names[type(value)] if type(value) in names else short_repr(value)


def short_repr(value: object) -> str:
    """Write a value as `repr` does; a text of more than 80 characters is cut.

    Example:
        >>> short_repr("a" * 100) == repr("a" * 100)[:80] + "…"
        True
    """
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
