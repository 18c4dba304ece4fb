"""Plain text that fits a terminal's columns: no name is cut, and a line that is too long continues, indented, on the next."""

import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import TextIO

COLUMNS_IN_A_PIPE = 80
NARROWEST, WIDEST = 60, 120
LABEL = 12
FRAME = "│╭╰├┃"
"""Characters that mark a line as part of a frame."""


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


def with_paragraphs(rows: Sequence[tuple[str, str]], columns: int) -> str:
    """Names, with a paragraph under each."""
    return "\n".join(f"  {name}\n{wrap(text, columns, indent='      ', hang='      ')}" for name, text in rows)
