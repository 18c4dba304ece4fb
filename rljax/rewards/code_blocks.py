"""Find the program in a response: a fenced block, or the full response."""

import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

LONGEST_RESPONSE = 200_000
"""Only this many characters at the end of a response are read."""

_PYTHON = re.compile(r"[\[({<#\"'`* ]*\.?(?:ipython|python|py)(?:[0-9.-]*|_?code)(?=$|[\s,;:={}\])>\"'`*])", re.IGNORECASE)
_STATEMENT = re.compile(
    r"(?:async[ \t]+)?(?:def|class)[ \t]+\w+[ \t]*[(:]|import[ \t]+[\w.]+[ \t]*(?:$|,|as\b|[#;])|from[ \t]+[\w.]+[ \t]+import\b"
    r"|@\w|#|['\"]{3}|(?:for|while|if|with|try)\b.*:[ \t]*(?:#.*)?$|[a-z_]\w*[ \t]*:[ \t]*[\w\[\], ]+=(?!=)"
    r"|[^\W\d][\w.]*(?:\[[^\]]*\])?(?:,[ \t]*[\w.]+)*[ \t]*(?:[-+*/%|&^]|//|\*\*)?=(?!=)|[^\W\d][\w.]*\(.*[)(,\[{][ \t]*(?:#.*)?$"
)
_ATTRIBUTE = re.compile(r"[\w-]+=|#")
"""Start of an attribute, such as `title="a.py"`, or of a comment after a fence's language."""
_LONGEST_START = 200
"""Only this many characters of a line are read to decide whether it is prose."""
_FENCE = re.compile(r"(```+|~~~+)(.*)")
_DEFINITION = re.compile(
    r"^(?:async[ \t]+)?(?:def|class)[ \t]+([^\W\d]\w*)|^([^\W\d]\w*)[ \t]*(?::[^=\n]*)?=(?!=)", re.MULTILINE
)
_TRIPLE = re.compile(r"'{3}|\"{3}")
_PRINTS = re.compile(r"^[^\n#'\"]*\b(?:print|write|writelines)[ \t]*\(", re.MULTILINE)
_RETURNS = re.compile(r"^[ \t]*(?:return|yield)\b", re.MULTILINE)
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_LANGUAGE_LINE = re.compile(r"\A\s*(?:python|py)[0-9.]*[ \t]*\n", re.IGNORECASE)
_CODE_INDENT = 4  # a fence that is indented by this many columns more than the block is part of the block's content


class Fence(NamedTuple):
    """A line of a response that can open or close a block."""

    start: int
    """Position of the first character of the line."""
    end: int
    """Position of the newline at the end of the line."""
    indent: int
    """Number of columns before the fence."""
    mark: str
    """The backticks or tildes of the fence."""
    language: str
    """Rest of the line after the mark; empty if the rest is a tag, such as `</answer>` or a model's end token."""


class Block(NamedTuple):
    """A fenced block of a response."""

    start: int
    """Position of the line with the opening fence."""
    end: int
    """Position after the closing fence, or after the content if there is none."""
    language: str
    """Rest of the line after the opening fence, or a language named on the first line of the block."""
    content: str
    """The lines of the block, without the indentation of the opening fence."""
    closed: bool = True
    """Whether a fence closes it."""


def find_fences(text: str) -> Iterator[Fence]:
    r"""Find the lines that can be fences: they start with three or more tildes, or with three or more backticks and no others.

    Each character is read a fixed number of times, so the running time is proportional to the text's length.

    Args:
        text: Markdown.

    Yields:
        The fences in order.

    Example:
        >>> [fence.language for fence in find_fences("```python\nx = 1\n```\na ```quote```")]
        ['python', '']
    """
    start = 0
    for line in text.split("\n"):
        bare = line.lstrip(" \t")
        found = _FENCE.match(bare)
        if found and not (found[1][0] == "`" and "`" in found[2]):
            indent = len(line[: len(line) - len(bare)].expandtabs(4))
            language = found[2].strip()
            is_tag = language.startswith("<") and not _is_python(language)
            yield Fence(start, start + len(line), indent, found[1], "" if is_tag else language)
        start += len(line) + 1


def find_blocks(text: str) -> list[Block]:
    r"""Find the fenced blocks of a text.

    A block ends at a fence without a language that has the same character as the opening fence, is at least as long, and is
    indented by less than four columns more. A block also ends at the start of a Python block that it cannot contain, and at the
    end of the text.

    Args:
        text: Markdown.

    Returns:
        The blocks in order.

    Example:
        >>> [(block.language, block.content) for block in find_blocks("~~~~\n```\n~~~~\n  ```py\n  if x:\n    y()")]
        [('', '```'), ('py', 'if x:\n  y()')]
    """
    found = []
    opening: Fence | None = None
    for fence in find_fences(text):
        if opening is None:
            opening = fence
        elif fence.indent >= opening.indent + _CODE_INDENT:
            continue
        elif not fence.language and fence.mark.startswith(opening.mark):
            found.append(_read_block(text, opening, fence.start - 1, fence.end))
            opening = None
        elif _is_python(fence.language) and not _encloses(opening, fence):
            found.append(_read_block(text, opening, fence.start - 1, fence.start)._replace(closed=False))
            opening = fence
    if opening is not None:
        found.append(_read_block(text, opening, len(text), len(text))._replace(closed=False))
    return found


def extract_code(completion: str, names: Collection[str] = ()) -> str:
    """Find the program in a response.

    A response often has several blocks: a first try, the program, its output, an example of its use. If there is a program in
    `<answer>...</answer>`, or after `<think>...</think>`, only that part is searched. If the first fence has no language, it may
    close a block that the prompt opened; the text before it is the unfenced start. The program is the first of these that exists:

    1. the last block marked as Python that defines one of the names,
    2. the last block without a language that defines one of the names,
    3. the unfenced start, if it defines one of the names,
    4. the full response, if the text outside its blocks defines one of the names,
    5. the unfenced start, if it looks like the body of a function,
    6. the last block marked as Python, else the last block without a language, else the unfenced start, else the full response.

    Args:
        completion: a response. Only its last 200,000 characters are read.
        names: the program should define at least one of these names; if this is empty, any function or class counts.

    Returns:
        The program. The lines of a block lose as much indentation as its fence has.

    Example:
        >>> extract_code(chr(10).join(["```python", "def f(x): return x", "```", "For example", "```python", "f(3)", "```"]))
        'def f(x): return x'
        >>> extract_code(chr(10).join(["```", "x = 1", "```", "better:", "```Python3.11", "x = 2", "```", "Done."]))
        'x = 2'
        >>> extract_code("x = 3")
        'x = 3'
        >>> extract_code(chr(10).join(["def f(x):", "    return x", "```", "This is right."]))
        'def f(x):\\n    return x\\n'
    """
    text = _answer_part(completion[-LONGEST_RESPONSE:], lambda text: defines(text, names))
    found = find_blocks(text)
    for contents in _contents_by_language(found):
        defining = [content for content in contents if defines(content, names)]
        if defining:
            return _drop_trailing_fence(defining[-1])
    unfenced = _unfenced_start(text)
    if defines(unfenced, names):
        return unfenced
    edges = [0, *(edge for block in found for edge in (block.start, block.end)), len(text)]
    outside = "\n".join(text[left:right] for left, right in zip(edges[::2], edges[1::2], strict=True))
    return _drop_trailing_fence(text) if defines(outside, names) else _find_last_block(text)


def last_code(completion: str) -> str:
    """Find the program in a response to a task that asks for a complete program, which need not define anything.

    Args:
        completion: a response. Only its last 200,000 characters are read.

    Returns:
        The last block marked as Python that prints, else the unfenced start of the response (see `extract_code`) if that prints,
        else what steps 5 and 6 of `extract_code` find.

    Example:
        >>> last_code(chr(10).join(["```python", "def f(): ...", "```", "better:", "```py", "print(input())", "```", "Done."]))
        'print(input())'
        >>> last_code(chr(10).join(["print(input())", "```", "It prints", "```", "2", "```"]))
        'print(input())\\n'
    """
    text = _answer_part(completion[-LONGEST_RESPONSE:], calls_print)
    unfenced = _unfenced_start(text)
    rest = text[text.index(unfenced) + len(unfenced) :].partition("\n")[2] if calls_print(unfenced) else text
    printing = [content for content in _contents_by_language(find_blocks(rest))[0] if calls_print(content)]
    return _drop_trailing_fence(printing[-1]) if printing else unfenced if calls_print(unfenced) else _find_last_block(text)


def calls_print(text: str) -> bool:
    """Search a text for a call that prints, without parsing it.

    Example:
        >>> calls_print("x = int(input())\\nprint(x)"), calls_print("# print(x)"), calls_print("It prints 2.")
        (True, False, False)
    """
    return _PRINTS.search(text) is not None


def _find_last_block(text: str) -> str:
    python, bare = _contents_by_language(find_blocks(text))
    unfenced = _unfenced_start(text)
    if unfenced[:1].isspace() or _RETURNS.search(unfenced):  # the body of a function that the prompt has begun
        return unfenced
    return _drop_trailing_fence([text, *([unfenced] if unfenced.strip() else []), *bare[-1:], *python[-1:]][-1])


def _answer_part(text: str, is_program: Callable[[str], bool]) -> str:
    """Return the text in the last answer tags, else the text after the reasoning; the full text if neither seems a program."""
    thought = _THOUGHT.match(text)
    rest = "" if thought is None else text[thought.end() :]
    _, opened, answer = (rest or text).rpartition("</answer>")[0].rpartition("<answer>")
    candidates = [answer if opened else "", rest]
    return next((part for part in candidates if part and (is_program(part) or find_blocks(part))), text)


def _unfenced_start(text: str) -> str:
    """Return the text before the first fence, if that fence may close a block that the prompt opened; else an empty string.

    A fence inside a triple-quoted string is part of the program.
    """
    quoted, opened = [], None
    for mark in _TRIPLE.finditer(text):
        if opened is None:
            opened = mark
        elif mark.group() == opened.group():
            quoted.append((opened.start(), mark.end()))
            opened = None
    spans = iter(quoted)
    start, end = next(spans, (len(text), len(text)))
    for fence in find_fences(text):
        while end <= fence.start:
            start, end = next(spans, (len(text), len(text) + 1))
        if not start <= fence.start < end:
            return "" if fence.language else _drop_prose(_LANGUAGE_LINE.sub("", text[: fence.start], count=1))
    return ""


def _drop_prose(program: str) -> str:
    """Drop the prose before the first line that can begin a program, unless the text begins indented or has no such line."""
    lines = program.split("\n")
    first = next((line for line in lines if line.strip()), " ")
    if first[0].isspace():
        return program
    starts = (index for index, line in enumerate(lines) if _STATEMENT.match(line[:_LONGEST_START]))
    return "\n".join(lines[next(starts, 0) :])


def _drop_trailing_fence(program: str) -> str:
    """Drop backticks at the end of a program's last line; Python has no use for them, so they must be a misplaced fence."""
    bare = program.rstrip()
    last = bare.rpartition("\n")[2].lstrip()
    return bare.rstrip("`") if last.endswith("```") and not last.startswith("`") else program


def _contents_by_language(found: list[Block]) -> tuple[list[str], list[str]]:
    """Return the contents of the blocks marked as Python, and of the nonblank blocks without a language."""
    python = [block.content for block in found if _is_python(block.language)]
    return python, [block.content for block in found if not block.language and block.content.strip()]


def defines(text: str, names: Collection[str]) -> bool:
    """Search a text for a definition, without parsing it, because a model's text is not safe to parse in this process.

    Args:
        text: a program.
        names: the names to search for; if this is empty, any function or class counts.

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
    """True if the block that `opening` begins can contain `fence`: the opening fence is longer or has the other character."""
    return opening.mark[0] != fence.mark[0] or len(opening.mark) > len(fence.mark)


def _read_block(text: str, opening: Fence, end: int, after: int) -> Block:
    lines = text[opening.end + 1 : max(end, opening.end + 1)].split("\n")
    content = "\n".join(_drop_indent(line, opening.indent) for line in lines) if opening.indent else "\n".join(lines)
    marked, language = _LANGUAGE_LINE.match(content), opening.language
    if marked is not None and not language:
        content, language = content[marked.end() :], marked[0].strip()
    named = _PYTHON.match(language)
    rest = "" if named is None else language[named.end() :].lstrip()
    if _STATEMENT.match(rest[:_LONGEST_START]) and not _ATTRIBUTE.match(rest):
        content = f"{rest}\n{content}"
    return Block(opening.start, after, language, content)


def _drop_indent(line: str, columns: int) -> str:
    """Remove up to `columns` columns of white space at the start of a line."""
    expanded = line.expandtabs(4) if "\t" in line[:columns] else line
    return expanded[min(columns, len(expanded) - len(expanded.lstrip(" "))) :]
