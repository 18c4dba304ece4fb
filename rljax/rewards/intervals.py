r"""Sets of real numbers: intervals, inequalities, excluded points, and their unions and intersections.

All functions take text in the canonical form of `rljax.rewards.notation.canonicalize`. Import this module only in worker processes:
it compares the ends of intervals with `rljax.rewards.algebra`.
"""

import functools
import itertools
import operator
from collections.abc import Callable
from typing import NamedTuple

from rljax.rewards.algebra import compare_reals
from rljax.rewards.answer_form import (
    FLIPPED,
    is_name,
    split_alternatives,
    split_brackets,
    split_elements,
    split_outside_brackets,
    split_relation,
)

_REALS = (r"\mathbb{R}", "R")
_MOST_INTERVALS = 50
_INFINITE = {r"-\infty": -1, r"\infty": 1, r"+\infty": 1}


class Interval(NamedTuple):
    """One interval of numbers."""

    low: str
    """The lower end of the interval."""
    low_closed: bool
    """Whether the interval contains its lower end."""
    high: str
    """The upper end of the interval."""
    high_closed: bool
    """Whether the interval contains its upper end."""


_Join = Callable[[list[Interval], list[Interval]], list[Interval] | None]


def read_intervals(text: str) -> list[Interval] | None:
    r"""Read a set of real numbers as a union of intervals.

    The text is made of intervals in brackets, inequalities in one name, and the real numbers without some points. The words "or"
    and `\cup` unite. The word "and" and commas unite intervals in brackets, but intersect inequalities.

    Returns:
        The intervals, an empty list if inequalities contradict each other; None if the text is something else, or if an
        intersection is unknown because its ends have variables.

    Example:
        >>> read_intervals(r"(-\infty,1]\cup(2,3)") == read_intervals(r"x\le 1\text{or} 2<x<3")
        True
        >>> read_intervals(r"x\ne 2,x\ne 1") == read_intervals(r"\mathbb{R}\setminus\{2,1\}")
        True
        >>> read_intervals(r"x>3\text{and} x<5") == read_intervals("(3,5)"), read_intervals(r"x<3\text{and} x>5")
        (True, [])
    """
    return _read_alternatives(text, _intersect)


def read_united_intervals(text: str) -> list[Interval] | None:
    r"""Read a set of real numbers as `read_intervals` does, but unite inequalities that "and" or a comma joins.

    Example:
        >>> read_united_intervals(r"x<3\text{and} x>5") == read_intervals(r"x<3\text{or} x>5")
        True
    """
    return _read_alternatives(text, operator.add)


def _read_alternatives(text: str, join: _Join) -> list[Interval] | None:
    found = [_read_elements(elements, join) for elements in split_alternatives(text)]
    return _unite(found) if found else None


def _read_elements(elements: list[str], join: _Join) -> list[Interval] | None:
    """Read elements that "and" or commas join."""
    names = [_find_name(element) for element in elements]
    if r"\ne" in elements[0] and not any(names[1:]):  # `x\ne 1,2` excludes both points
        elements, names = [",".join(elements)], names[:1]
    found = [_unite([_read_part(part) for part in _split_union(element)]) for element in elements]
    if not all(names):
        return _unite(found)
    if len(set(names)) > 1:
        return None
    return functools.reduce(lambda left, right: None if left is None or right is None else join(left, right), found)


def _split_union(text: str) -> list[str]:
    return split_outside_brackets(text, lambda token: token.strip() == r"\cup")[0]


def _unite(regions: list[list[Interval] | None]) -> list[Interval] | None:
    """Concatenate the regions; return None if one of them is unknown."""
    known = [region for region in regions if region is not None]
    return list(itertools.chain(*known)) if len(known) == len(regions) else None


def _find_name(text: str) -> str | None:
    """Return the name for which a relation states values; None if there is no relation or no name."""
    sides, signs = split_relation(text)
    candidates = sides[1:2] if len(sides) == 3 else sides
    return next((side for side in candidates if is_name(side)), None) if signs else None


def _read_part(text: str) -> list[Interval] | None:
    sides, signs = split_relation(text)
    if not signs:
        return _read_set(text)
    if len(sides) == 2:
        return _read_relation(sides, signs[0])
    if (
        len(sides) == 3
        and is_name(sides[1])
        and set(signs) <= set(FLIPPED)
        and len({sign in ("<", r"\le") for sign in signs}) == 1
    ):
        (low, _, high), (first, second) = sides, signs
        if first in (">", r"\ge"):
            low, high, first, second = high, low, second, first
        return [Interval(low, "e" in first, high, "e" in second)]  # of these signs, only `\le` and `\ge` contain an "e"
    return None


def _read_set(text: str) -> list[Interval] | None:
    """Read an interval in brackets or the real numbers, possibly without some points."""
    (text, *removed), _ = split_outside_brackets(text, lambda token: token.strip() == r"\setminus")
    bracketed, points = split_brackets(text), [split_brackets(one) for one in removed]
    found = None
    if text in _REALS:
        found = [Interval(r"-\infty", False, r"\infty", False)]
    elif bracketed is not None and bracketed[0] in ("(", "["):
        ends = split_elements(bracketed[1])
        found = [Interval(ends[0], bracketed[0] == "[", ends[1], bracketed[2] == "]")] if len(ends) == 2 else None
    for one in points:
        excepted = _all_except(one[1]) if one is not None and one[0] == r"\{" else None
        found = None if found is None or excepted is None else _intersect(found, excepted)
    return found


def _read_relation(sides: list[str], sign: str) -> list[Interval] | None:
    name, end = sides
    if not is_name(name) and is_name(end) and sign in FLIPPED:
        name, end, sign = end, name, FLIPPED[sign]
    if not is_name(name) or not end:
        return None
    if sign == r"\in":
        return _read_set(end)
    if sign == r"\ne":
        return _all_except(end)
    if sign in ("<", r"\le"):
        return [Interval(r"-\infty", False, end, sign == r"\le")]
    return [Interval(end, sign == r"\ge", r"\infty", False)] if sign in (">", r"\ge") else None


def _all_except(points: str) -> list[Interval] | None:
    """Return the real numbers without the points in a list; None if the order of the points is unknown."""
    found: list[Interval] | None = [Interval(r"-\infty", False, r"\infty", False)]
    for point in split_elements(points):
        others = [Interval(r"-\infty", False, point, False), Interval(point, False, r"\infty", False)]
        found = None if found is None else _intersect(found, others)
    return found


def _intersect(left: list[Interval], right: list[Interval]) -> list[Interval] | None:
    """Intersect two sets; return None if the order of their ends is unknown, or if they have too many intervals."""
    if len(left) + len(right) > _MOST_INTERVALS:
        return None
    return _unite([_overlap(one, other) for one in left for other in right])


def _overlap(left: Interval, right: Interval) -> list[Interval] | None:
    """Return the common part of two intervals, if any; None if the order of their ends is unknown."""
    low, high = _select_end(left[:2], right[:2], 1), _select_end(left[2:], right[2:], -1)
    if low is None or high is None:
        return None
    order = _compare_ends(low[0], high[0])
    is_empty = order == 1 or (order == 0 and not (low[1] and high[1]))
    return [] if is_empty else [Interval(*low, *high)]


def _select_end(left: tuple[str, bool], right: tuple[str, bool], order: int) -> tuple[str, bool] | None:
    """Return the larger of two ends, for `order` 1, or the smaller one, for -1; None if their order is unknown."""
    found = _compare_ends(left[0], right[0])
    if found == 0:
        return left[0], left[1] and right[1]
    return None if found is None else left if found == order else right


def _compare_ends(left: str, right: str) -> int | None:
    """Return -1, 0 or 1 if the left end is smaller, equal or larger; None if their order is unknown."""
    signs = _INFINITE.get(left, 0), _INFINITE.get(right, 0)
    if left == right or any(signs):
        return (signs[0] > signs[1]) - (signs[0] < signs[1])
    return compare_reals(left, right)
