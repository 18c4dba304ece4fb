"""Find the program in a response: a fenced block, or the whole response."""

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from rljax.records import documented

LONGEST_RESPONSE = 200_000
"""Number of characters of a response that are read, counted from its end."""

_PYTHON = re.compile(r"\{?\.?(?:python|py)[0-9.]*(?=$|[\s,;:={}])", re.IGNORECASE)
_FENCE = re.compile(r"(```+|~~~+)(.*)")
_DEFINITION = re.compile(
    r"^(?:async[ \t]+)?(?:def|class)[ \t]+([^\W\d]\w*)|^([^\W\d]\w*)[ \t]*(?::[^=\n]*)?=(?!=)", re.MULTILINE
)
_CODE_INDENT = 4  # a fence that is indented by this much more than the block is part of the block


@documented
class Fence(NamedTuple):
    """A line of a response that can open or close a block."""

    start: int
    """Position of the first character of the line."""
    end: int
    """Position after the last character of the line, before its line end."""
    indent: int
    """Number of columns before the fence."""
    mark: str
    """Its backticks or tildes."""
    language: str
    """What follows them on the line; empty if there is nothing."""


@documented
class Block(NamedTuple):
    """A fenced block of a response."""

    start: int
    """Position of the first character of its first fence."""
    end: int
    """Position after the last character of its last fence, or of the block if that is missing."""
    language: str
    """What follows the first fence on its line."""
    content: str
    """Its lines, without the indentation of the fence."""


def fences(text: str) -> Iterator[Fence]:
    r"""Find the lines of a text that can be fences: at least three backticks or tildes, and after backticks no other backtick.

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
        found = _FENCE.match(bare)
        if found and not (found[1][0] == "`" and "`" in found[2]):
            indent = len(line[: len(line) - len(bare)].expandtabs(4))
            yield Fence(start, start + len(line), indent, found[1], found[2].strip())
        start += len(line) + 1


def blocks(text: str) -> list[Block]:
    r"""Find the fenced blocks of a text.

    A block ends at a fence without a language, of the same kind and at least as long, that is not indented four columns more than
    the block. It also ends where a block marked as Python begins, and at the end of the text.

    Args:
        text: Markdown.

    Returns:
        The blocks in order.

    Example:
        >>> [(block.language, block.content) for block in blocks("~~~~\n```\n~~~~\n  ```py\n  if x:\n    y()")]
        [('', '```'), ('py', 'if x:\n  y()')]
    """
    found = []
    opening: Fence | None = None
    for fence in fences(text):
        if opening is None:
            opening = fence
        elif fence.indent >= opening.indent + _CODE_INDENT:
            continue
        elif not fence.language and fence.mark.startswith(opening.mark):
            found.append(_block(text, opening, fence.start - 1, fence.end))
            opening = None
        elif _is_python(fence.language) and not _encloses(opening, fence):
            found.append(_block(text, opening, fence.start - 1, fence.start))
            opening = fence
    if opening is not None:
        found.append(_block(text, opening, len(text), len(text)))
    return found


def extracted_code(completion: str, names: Collection[str] = ()) -> str:
    """Find the program in a response.

    A response often has several blocks: a first try, the program, its output, an example of its use. The program is the first of
    these that there is:

    1. the last block marked as Python that defines one of the names,
    2. the last block without a language that defines one of them,
    3. the whole response, if it defines one of them outside its blocks,
    4. the last block marked as Python,
    5. the last block without a language,
    6. the whole response.

    Args:
        completion: a response. Only its last 200,000 characters are read.
        names: the names that the program should define, one of them; without names, any function or class.

    Returns:
        The program. If the fence of a block is indented, its lines lose as much indentation.

    Example:
        >>> extracted_code(chr(10).join(["```python", "def f(x): return x", "```", "For example", "```python", "f(3)", "```"]))
        'def f(x): return x'
        >>> extracted_code(chr(10).join(["```", "x = 1", "```", "better:", "```Python3.11", "x = 2", "```", "Done."]))
        'x = 2'
        >>> extracted_code("x = 3")
        'x = 3'
    """
    text = completion[-LONGEST_RESPONSE:]
    found = blocks(text)
    for contents in _of_python(found):
        defining = [content for content in contents if defines(content, names)]
        if defining:
            return defining[-1]
    edges = [0, *(edge for block in found for edge in (block.start, block.end)), len(text)]
    outside = "\n".join(text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))
    return text if defines(outside, names) else last_code(text)


def last_code(completion: str) -> str:
    """Find the program in a response to a task that asks for a whole program, which need not define anything.

    Args:
        completion: a response. Only its last 200,000 characters are read.

    Returns:
        The last block marked as Python, else the last block without a language, else the whole response.

    Example:
        >>> last_code(chr(10).join(["```python", "def f(): ...", "```", "better:", "```py", "print(input())", "```", "Done."]))
        'print(input())'
    """
    text = completion[-LONGEST_RESPONSE:]
    python, bare = _of_python(blocks(text))
    return [text, *bare[-1:], *python[-1:]][-1]


def _of_python(found: list[Block]) -> tuple[list[str], list[str]]:
    """Contents of the blocks that are marked as Python, and of those without a language that are not blank."""
    python = [block.content for block in found if _is_python(block.language)]
    return python, [block.content for block in found if not block.language and block.content.strip()]


def defines(text: str, names: Collection[str]) -> bool:
    """Search a text for a definition, without parsing it: what a model wrote is not safe to parse in this process.

    Args:
        text: a program.
        names: the names in question; if there are none, any function or class counts.

    Returns:
        Whether a line without indentation defines one of the names, as a function, a class or a variable.

    Example:
        >>> defines("def f(x): return x", ["f", "g"]), defines("f = abs", ["f"]), defines("f = abs", [])
        (True, True, False)
    """
    found = _DEFINITION.finditer(text)
    return any((match[1] or match[2]) in names if names else match[1] for match in found)


def _is_python(language: str) -> bool:
    return _PYTHON.match(language) is not None


def _encloses(opening: Fence, fence: Fence) -> bool:
    """True if the open block can contain the other fence, since its own is longer or of the other kind."""
    return opening.mark[0] != fence.mark[0] or len(opening.mark) > len(fence.mark)


def _block(text: str, opening: Fence, end: int, after: int) -> Block:
    lines = text[opening.end + 1 : max(end, opening.end + 1)].split("\n")
    content = "\n".join(_without_indent(line, opening.indent) for line in lines) if opening.indent else "\n".join(lines)
    return Block(opening.start, after, opening.language, content)


def _without_indent(line: str, columns: int) -> str:
    """Remove up to this many columns of white space."""
    expanded = line.expandtabs(4) if "\t" in line[:columns] else line
    return expanded[min(columns, len(expanded) - len(expanded.lstrip(" "))) :]
