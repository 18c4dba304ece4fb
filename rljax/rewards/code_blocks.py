"""Find the program in a response: the last fenced block that is marked as Python."""

from collections.abc import Iterator
from typing import NamedTuple

from rljax.records import documented

LONGEST_RESPONSE = 200_000
"""Number of characters of a response that are read, counted from its end."""

_PYTHON = frozenset({"python", "python3", "py"})


@documented
class Fence(NamedTuple):
    """A line of a response that opens or closes a block."""

    start: int
    """Position of the first character of the line."""
    end: int
    """Position after the last character of the line, before its line end."""
    language: str
    """The word after the backticks; empty if there is none."""


def fences(text: str) -> Iterator[Fence]:
    r"""Find the lines of a text that are fences: three backticks, at most one language, and no other backtick.

    Each character is read a fixed number of times, so the time is proportional to the length.

    Args:
        text: Markdown.

    Yields:
        The fences in order.

    Example:
        >>> [fence.language for fence in fences("```python\nx = 1\n```\na ```quote```")]
        ['python', '']
    """
    start = 0
    for line in text.split("\n"):
        bare = line.lstrip(" \t")
        if bare.startswith("```") and "`" not in bare[3:]:
            words = bare[3:].split(maxsplit=1)
            yield Fence(start, start + len(line), words[0] if words else "")
        start += len(line) + 1


def extracted_code(completion: str) -> str:
    """Find the program in a response.

    Args:
        completion: a response. Only its last 200,000 characters are read.

    Returns:
        The content of the last fenced block that is marked as Python, up to the end of the response if the fence is not closed;
        the whole response if there is no such block.

    Example:
        >>> extracted_code(chr(10).join(["First:", "```python", "x = 1", "```", "better:", "```python", "x = 2", "```", "Done."]))
        'x = 2'
        >>> extracted_code("x = 3")
        'x = 3'
    """
    text = completion[-LONGEST_RESPONSE:]
    found: tuple[int, int] | None = None
    block: tuple[int, bool] | None = None  # where the open block begins, and whether it is marked as Python
    for fence in fences(text):
        marked = fence.language.lower() in _PYTHON
        if block is None or marked:
            block = (fence.end + 1, marked)
        elif not fence.language:
            found = (block[0], fence.start - 1) if block[1] else found
            block = None
    if block is not None and block[1]:
        found = (block[0], len(text))
    return text if found is None else text[slice(*found)]
