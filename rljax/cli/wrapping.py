"""Text for a terminal of any width: words wrap, and no name is cut."""

import shutil
import textwrap


def terminal_width() -> int:
    """Columns of the terminal, from 40 to 120; 80 without a terminal."""
    return min(max(shutil.get_terminal_size((80, 24)).columns, 40), 120)


def hanging(text: str, width: int, *, indent: int, below: int | None = None) -> list[str]:
    """Wrap a text between words; a word longer than the line keeps its line to itself.

    Args:
        text: one paragraph.
        width: columns.
        indent: columns before the first line.
        below: columns before the other lines; None for as many as before the first.

    Example:
        >>> hanging("advantages of a group", 16, indent=2, below=4)
        ['  advantages of', '    a group']
    """
    further = indent if below is None else below
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * further,
        break_long_words=False,
        break_on_hyphens=False,
    )
