r"""Strict text patterns that recognize the kind of a reference answer: a number, a tuple, a list, a quantity and others."""

import random
import re
from collections.abc import Callable
from fractions import Fraction

Rewrite = Callable[[str, random.Random], str | None]
"""A function that rewrites a reference answer, or returns None if the rewrite might not have the intended effect on its value."""

INTEGER = re.compile(r"-?\d+")
DECIMAL = re.compile(r"-?\d+\.\d+")
FRACTION = re.compile(r"(-?)\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
BRACKETED = re.compile(r"(\(|\[)([^()\[\]]*)(\)|\])")
INTERVAL = re.compile(r"([(\[])([^()\[\],]*),([^()\[\],]*)([)\]])")
QUANTITY = re.compile(r"(-?\d+(?:\.\d+)?)(?:\\ |~)?\\text\{ ?([a-z ]+)\}")
DEGREES = re.compile(r"(-?\d+(?:\.\d+)?)\^(?:\{\\circ\}|\\circ)")
MONEY = re.compile(r"\\\$(\d+(?:\.\d+)?)")
PERCENT = re.compile(r"(-?\d+(?:\.\d+)?)\\?%")
BASE = re.compile(r"(\d+)_\{?(\d)\}?")
WORD = re.compile(r"\\text\{([A-Za-z]+)\}")
MATRIX = re.compile(r"\\begin\{pmatrix\}(.*)\\end\{pmatrix\}")
NOT_SCALAR = re.compile(
    r"\\text|\\mbox|\.$|:|\\begin|_|\\%|\\\$|\\circ|%|[=<>]|\\[lg]e|\\in|\\cup|\\pm|\\ldots|\\emptyset|\d!\d|\\mathbb|\\infty"
)
THOUSANDS_SEPARATORS = (",", "{,}", r"\,", " ", r",\!")
UNITS = ("apples", "marbles", "cm", "kg", "miles", "hours", "square feet", "points", "ways")


def is_scalar(text: str) -> bool:
    """True if a reference is a single number or expression, not a list, tuple, set, quantity with a unit, relation or word."""
    bare = re.sub(r"\\(?:left|right)(?![a-z])", "", text)
    if not bare or NOT_SCALAR.search(bare) or re.fullmatch(r"[(\[].*,.*[)\]]", bare):
        return False
    words = re.search(r"[a-zA-Z]{4,}", re.sub(r"\\[a-zA-Z]+", "", bare))
    return not words and "," not in re.sub(r"\\[,!]|\{,\}", "", bare) and "[" not in bare.replace(r"\sqrt[", "")


def parse_number(text: str) -> Fraction | None:
    """Parse a reference that is an integer, a decimal or a fraction; return None for anything else."""
    if INTEGER.fullmatch(text) or DECIMAL.fullmatch(text):
        return Fraction(text)
    found = FRACTION.fullmatch(text)
    if found and int(found[3]):
        return Fraction(int(found[2]), int(found[3])) * (-1 if found[1] else 1)
    return None


def split_tuple(text: str) -> tuple[str, list[str], str] | None:
    """Split a flat tuple or interval into its opening bracket, components and closing bracket; return None for anything else."""
    found = BRACKETED.fullmatch(re.sub(r"\\(?:left|right)(?![a-z])", "", text).replace(r"\!", "").strip())
    if not found or "," not in found[2] or ";" in found[2]:
        return None
    return found[1], [component.strip() for component in found[2].split(",")], found[3]


def split_list(text: str) -> list[str] | None:
    """Split a list without brackets into its elements; return None if the reference is not such a list."""
    if (
        re.search(r"[()\[\]:]|\\text|\\begin|\\\{|\{,\}|\\!|\d,\d{3}|[=<>]|\\[lg]e|\\in|\\cup|\\pm|\\ldots|;", text)
        or "," not in text
    ):
        return None
    found = [re.sub(r"\\[, ;]", "", element).strip() for element in re.sub(r"\\,|\\ ", "", text).split(",")]
    return found if all(found) and len(found) > 1 else None


def exact_decimal(value: Fraction) -> str | None:
    """Return the exact decimal form of a fraction, or None if it needs more than 6 decimal places or is 10**9 or more."""
    for places in range(7):
        if (value * 10**places).denominator == 1:
            return f"{float(value):.{max(places, 1)}f}" if abs(value) < 10**9 else None
    return None
