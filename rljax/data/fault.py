"""What is said about a row that cannot be used, and what becomes of it."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

OnError = Literal["fatal", "drop", "keep"]
"""Bad rows end the reading, are left out, or stay with an empty answer where at least their prompt can be used."""


class Fault(NamedTuple):
    """One row that cannot be used as it is."""

    source: str
    """The file, or the hub dataset and its split."""
    place: str
    """`line 3` of a .jsonl file, `entry 3` of a .json list, `row 3` of a table."""
    column: str | None
    """The column that is wrong; None where the row is no object with columns at all."""
    what: str
    """What is wrong with it."""
    mend: str
    """What to do about it."""
    kept: bool = False
    """Whether the row is among the problems nevertheless."""

    def __str__(self):
        column = f", column {self.column!r}" if self.column is not None else ""
        return f"{self.source}, {self.place}{column}: {self.what}; {self.mend}."


class BadRowError(ValueError):
    """Raised where a row is read and caught where its place is known, to become a `Fault`."""

    def __init__(self, what: str, mend: str, *, column: str | None = None):
        super().__init__(what)
        self.what, self.mend, self.column = what, mend, column

    def at(self, source: str, place: str, *, kept: bool = False) -> Fault:
        """Say where it is."""
        return Fault(source, place, self.column, self.what, self.mend, kept)


def describe(faults: Sequence[Fault], *, shown: int = 3) -> str:
    """Sum faults up in a paragraph: how many rows were left out, how many kept, and the first few by name.

    Args:
        faults: what `read_problems` found.
        shown: how many are told in full.

    Returns:
        Text without line breaks; empty without faults.

    Example:
        >>> describe([Fault("a.jsonl", "line 3", "answer", "the answer is empty", "write it in")])
        "1 bad row left out. a.jsonl, line 3, column 'answer': the answer is empty; write it in."
    """
    if not faults:
        return ""
    counts = Counter(fault.kept for fault in faults)
    done = {False: "left out", True: "kept with an empty answer or without its demonstration"}
    total = ", ".join(f"{n} bad row{'s' * (n > 1)} {done[kept]}" for kept, n in sorted(counts.items()))
    rest = f" And {len(faults) - shown} more." if len(faults) > shown else ""
    return f"{total}. {' '.join(map(str, faults[:shown]))}{rest}"


def kind(value: object) -> str:
    """Name what a value is, in the words of JSON; a number is shown itself.

    Example:
        >>> kind(None), kind([1]), kind(3.5)
        ('null', 'a list', '3.5')
    """
    names = {type(None): "null", dict: "an object", list: "a list", str: "text", bool: "a truth value"}
    return names[type(value)] if type(value) in names else shown(value)


def shown(value: object) -> str:
    """Write a value out, cut where it gets long.

    Example:
        >>> shown("a" * 100) == repr("a" * 100)[:80] + "…"
        True
    """
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
