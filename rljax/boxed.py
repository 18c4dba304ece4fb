r"""Find `\boxed` answers in LaTeX."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Box(NamedTuple):
    r"""One `\boxed{...}` in a text: where it starts, and its content."""

    start: int
    """Position of the command's backslash."""
    content: str
    """The text between the braces, unchanged."""


def boxes(text: str, *, commands: Sequence[str] = ("boxed",)) -> list[Box]:
    r"""Find every `\boxed{...}` whose braces balance.

    The text is scanned only once, even if it is full of unclosed boxes. The content of every box is copied, which is slow for boxes
    nested a thousand deep; `last_box` copies only one box. An escaped brace, `\{`, does not count as a brace.

    Args:
        text: LaTeX, or text with LaTeX in it.
        commands: names of the commands that count as boxes, without the backslash.

    Returns:
        The boxes in the order in which they close; an inner box comes before the box around it.

    Example:
        >>> boxes(r"\boxed{1}, or \boxed{\frac{1}{2}}, or \boxed{3")
        [Box(start=0, content='1'), Box(start=14, content='\\frac{1}{2}')]
    """
    return [Box(start, text[content]) for start, content in _box_spans(text, commands)]


def last_box(text: str) -> Box | None:
    r"""Find the last `\boxed{...}` whose braces balance: the one that starts last.

    Args:
        text: LaTeX, or text with LaTeX in it.

    Returns:
        The box, or None if there is none. Only this box's content is copied, however deeply boxes are nested.

    Example:
        >>> last_box(r"\boxed{1}, or \boxed{\boxed{2}}, or \boxed{3")
        Box(start=21, content='2')
    """
    start, content = max(_box_spans(text, ("boxed",)), key=lambda span: span[0], default=(-1, slice(0)))
    return Box(start, text[content]) if start >= 0 else None


def _box_spans(text: str, commands: Sequence[str]) -> Iterator[tuple[int, slice]]:
    """Yield the start of each box and the slice of its content, in the order in which boxes close."""
    tokens = re.compile(rf"(?P<box>\\(?:{'|'.join(commands)})\s*\{{)|\\.|(?P<open>\{{)|(?P<close>\}})", re.DOTALL)
    unclosed: list[tuple[int, int] | None] = []  # the span of a box's opening; None for any other brace
    for token in tokens.finditer(text):
        if token["box"]:
            unclosed.append(token.span())
        elif token["open"]:
            unclosed.append(None)
        elif token["close"] and unclosed:
            opening = unclosed.pop()
            if opening is not None:
                yield opening[0], slice(opening[1], token.start())
