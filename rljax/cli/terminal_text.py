"""Fit plain text to a terminal's columns: long lines continue, indented, on the next line, and no word is broken."""

import re
import shutil
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import TextIO

COLUMNS_IN_A_PIPE = 80
MIN_COLUMNS, MAX_COLUMNS = 60, 120
LABEL_WIDTH = 12
FRAME = "│╭╰├┃"
"""Characters that mark a line as part of a frame."""
MIN_INDENT = 8
"""Minimum indentation of flag descriptions in Tyro's help."""
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_INDENT = re.compile(rf"^((?:{_COLOR.pattern})*) +")
_END = re.compile(rf" +((?:{_COLOR.pattern})*)$")


def columns_of(stream: TextIO) -> int:
    """Return the number of columns to fill: a terminal's width, clipped to the range 60 to 120; 80 for any other stream."""
    if not stream.isatty():
        return COLUMNS_IN_A_PIPE
    return min(max(shutil.get_terminal_size().columns, MIN_COLUMNS), MAX_COLUMNS)


def wrap(text: str, columns: int, *, indent: str = "", hang: str = "") -> str:
    """Wrap a paragraph without breaking words.

    Args:
        text: one paragraph.
        columns: columns to fill.
        indent: text before the first line.
        hang: text before each further line.
    """
    return textwrap.fill(
        text, columns, initial_indent=indent, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
    )


def with_label(label: str, text: str, columns: int) -> str:
    """Wrap a paragraph, with a label in a column to its left."""
    return wrap(text, columns, indent=f"    {label:<{LABEL_WIDTH}}", hang=" " * (LABEL_WIDTH + 4))


def formula_lines(formula: str, columns: int) -> list[str]:
    """Split a formula into lines, indented by 4 spaces. A long line is broken at wide gaps, and then, if needed, at spaces.

    Args:
        formula: one or more lines; equations on the same line are separated by at least four spaces.
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
    """Wrap the lines of a text that are too long, except lines that are part of a frame.

    Example:
        >>> print(fit_lines("one two three\\n│ a frame of │", 8))
        one two
        three
        │ a frame of │
    """
    lines = [line if len(line) <= columns or set(line) & set(FRAME) else wrap(line, columns) for line in text.split("\n")]
    return "\n".join(lines)


def rewrap_descriptions(text: str, columns: int) -> str:
    """Rewrap the flag descriptions in Tyro's help, because Tyro keeps the line breaks of docstrings.

    A description is a column of text to the right of its flag or below the flag. A description without superfluous line breaks
    stays unchanged.

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
        if indent >= MIN_INDENT and first[indent - 2 : indent].isspace() and first[indent : indent + 1].strip():
            while lines and _indent(lines[0]) == indent:
                rows.append(lines.pop(0))
        done += _rewrap(rows, indent, columns) if len(rows) > 1 else rows
    return "\n".join(done)


def _rewrap(rows: Sequence[str], indent: int, columns: int) -> Sequence[str]:
    """Rewrap a description if the first word of some line fits on the line before."""
    shown = [_visible(row) for row in rows]
    if all(len(above) + 1 + len(below.split()[0]) > columns for above, below in pairwise(shown)):
        return rows
    start = next(index for index in range(len(rows[0])) if len(_COLOR.sub("", rows[0][:index])) == indent)
    text = rows[0][start:]
    for row in rows[1:]:  # Tyro also breaks lines after commas inside words, such as `--with term=entropy,coefficient=0.01`
        is_inside_word = text.count("`") % 2 == 1 and _visible(text).endswith(",")
        text = _END.sub(r"\1", text) + _INDENT.sub(r"\1", row) if is_inside_word else f"{text} {row}"
    wrapped, gap = [rows[0][:start]], ""
    for word in text.split():
        if not _visible(word):  # only color codes
            wrapped[-1] += word
        elif len(_visible(f"{wrapped[-1]}{gap}{word}")) > columns:
            wrapped.append(" " * indent + word)
        else:
            wrapped[-1] += gap + word
        gap = " " if _visible(word) else gap
    return wrapped


def _visible(line: str) -> str:
    """Remove color codes and trailing spaces from a line."""
    return _COLOR.sub("", line).rstrip()


def _indent(line: str) -> int:
    """Count the spaces before the text of a line; 0 for an empty line."""
    shown = _visible(line)
    return len(shown) - len(shown.lstrip(" "))


def with_paragraphs(rows: Sequence[tuple[str, str]], columns: int) -> str:
    """Format names, each with a paragraph under it."""
    return "\n".join(f"  {name}\n{wrap(text, columns, indent='      ', hang='      ')}" for name, text in rows)
