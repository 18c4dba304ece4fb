"""Plain text that fits a terminal's columns: no name is cut, and a line that is too long continues, indented, on the next."""

import re
import shutil
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import TextIO

COLUMNS_IN_A_PIPE = 80
NARROWEST, WIDEST = 60, 120
LABEL = 12
FRAME = "│╭╰├┃"
"""Characters that mark a line as part of a frame."""
LEAST_INDENT = 8
"""Minimum indentation of the descriptions of flags in Tyro's help."""
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def columns_of(stream: TextIO) -> int:
    """Columns to fill: a terminal's own, but between 60 and 120; 80 for any other stream."""
    if not stream.isatty():
        return COLUMNS_IN_A_PIPE
    return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)


def wrap(text: str, columns: int, *, indent: str = "", hang: str = "") -> str:
    """Wrap a paragraph; no word is broken.

    Args:
        text: one paragraph.
        columns: columns to fill.
        indent: put before the first line.
        hang: put before each further line.
    """
    return textwrap.fill(
        text, columns, initial_indent=indent, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
    )


def with_label(label: str, text: str, columns: int) -> str:
    """A paragraph, with a label in a column to its left."""
    return wrap(text, columns, indent=f"    {label:<{LABEL}}", hang=" " * (LABEL + 4))


def formula_lines(formula: str, columns: int) -> list[str]:
    """Lines of a formula, indented by 4; a line that is too long is broken first at wide gaps, then at spaces.

    Args:
        formula: lines; equations on the same line are separated by four spaces or more.
        columns: columns to fill.
    """
    fitted: list[str] = []
    for line in formula.splitlines():
        parts = [line] if len(line) + 4 <= columns else re.split(r" {4,}", line.strip())
        for part in parts:
            fits = len(part) + 4 <= columns
            fitted += [f"    {part}".rstrip()] if fits else wrap(part, columns, indent="    ", hang=" " * 8).splitlines()
    return fitted


def fit_lines(text: str, columns: int) -> str:
    """Wrap the lines of a text that are too long; framed lines stay unchanged.

    Example:
        >>> print(fit_lines("one two three\\n│ a frame of │", 8))
        one two
        three
        │ a frame of │
    """
    lines = [line if len(line) <= columns or set(line) & set(FRAME) else wrap(line, columns) for line in text.split("\n")]
    return "\n".join(lines)


def rewrap_descriptions(text: str, columns: int) -> str:
    """Rewrap the descriptions of flags in Tyro's help, which breaks lines wherever their docstrings do.

    A description is a column of text to the right of a flag, or below it. One without such line breaks stays unchanged.

    Example:
        >>> print(rewrap_descriptions("  --steps INT  A short\\n               line, and more", 30))
          --steps INT  A short line,
                       and more
    """
    lines, done = text.split("\n"), []
    while lines:
        first = _visible(lines[0])
        indent = _indent(lines[1]) if len(lines) > 1 else 0
        rows = [lines.pop(0)]
        if indent >= LEAST_INDENT and first[indent - 2 : indent].isspace() and first[indent : indent + 1].strip():
            while lines and _indent(lines[0]) == indent:
                rows.append(lines.pop(0))
        done += _rewrapped(rows, indent, columns) if len(rows) > 1 else rows
    return "\n".join(done)


def _rewrapped(rows: Sequence[str], indent: int, columns: int) -> Sequence[str]:
    """Rewrap a description if the first word of a line fits into the line before it."""
    shown = [_visible(row) for row in rows]
    if all(len(above) + 1 + len(below.split()[0]) > columns for above, below in pairwise(shown)):
        return rows
    start = next(place for place in range(len(rows[0])) if len(_COLOR.sub("", rows[0][:place])) == indent)
    wrapped, gap = [rows[0][:start]], ""
    for word in " ".join([rows[0][start:], *rows[1:]]).split():
        if not _visible(word):  # colors alone
            wrapped[-1] += word
        elif len(_visible(f"{wrapped[-1]}{gap}{word}")) > columns:
            wrapped.append(" " * indent + word)
        else:
            wrapped[-1] += gap + word
        gap = " " if _visible(word) else gap
    return wrapped


def _visible(line: str) -> str:
    """A line without colors and without spaces at its end."""
    return _COLOR.sub("", line).rstrip()


def _indent(line: str) -> int:
    """Number of spaces before the text of a line; 0 for an empty line."""
    shown = _visible(line)
    return len(shown) - len(shown.lstrip(" "))


def with_paragraphs(rows: Sequence[tuple[str, str]], columns: int) -> str:
    """Names, with a paragraph under each."""
    return "\n".join(f"  {name}\n{wrap(text, columns, indent='      ', hang='      ')}" for name, text in rows)
