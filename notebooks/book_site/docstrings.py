"""Docstrings as Markdown: summary, formula, arguments, example and source of a function; also the texts under a class's fields."""

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping

from book_site.formulas import tex_lines
from rljax.book.equations import formula

SECTIONS = ("Attributes", "Args", "Returns", "Raises", "Example", "Source")
CODE = re.compile(r"(`[^`]+`)")
SPECIAL = re.compile(r"([\\*_<>\[\]|$~{}#])")
STRESSED = re.compile(r"((?:\\\*){1,2})(\w[\w ]*\w)\1")
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
ENTRY = re.compile(r"^(\S[^:\n]*): (.*(?:\n(?: .*)?)*)", re.MULTILINE)


def label(name: str) -> str:
    """Anchor of an equation or an algorithm: `gae.gae` has `book-gae-gae`."""
    return f"book-{re.sub(r'[^a-z0-9]+', '-', name.lower())}"


def escape_text(text: str, anchors: Mapping[str, str] | None = None) -> str:
    """Plain text with code in backticks, as Markdown on one line; arXiv ids, and names in `anchors`, become links.

    Args:
        text: from a docstring.
        anchors: name, without its backticks -> anchor.

    Example:
        >>> escape_text("A_i of `gae`, arXiv:1506.02438", {"gae": "book-gae-gae"})
        'A\\\\_i of [`gae`](#book-gae-gae), [arXiv:1506.02438](https://arxiv.org/abs/1506.02438)'
        >>> escape_text("2 * 3, *not* 5, to be **maximized**")
        '2 \\\\* 3, *not* 5, to be **maximized**'
    """
    parts = CODE.split(" ".join(text.split()))
    known = anchors or {}
    for index, part in enumerate(parts):
        if index % 2:
            anchor = known.get(part.strip("`").removeprefix("rljax.ops."))
            parts[index] = f"[{part}](#{anchor})" if anchor else part
        else:
            stressed = STRESSED.sub(_stress, SPECIAL.sub(r"\\\1", part))
            parts[index] = ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", stressed)
    return "".join(parts)


def _stress(found: re.Match[str]) -> str:
    """Words between one or two escaped asterisks, as Markdown."""
    stars = "*" * found[1].count("*")
    return f"{stars}{found[2]}{stars}"


def source(function: Callable) -> str:
    """The code of a function in a collapsible block, without its docstring, titled with its file and line.

    Example:
        >>> from rljax.ops.group import leave_one_out
        >>> "rljax/ops/group.py, line" in source(leave_one_out), "Formula" in source(leave_one_out)
        (True, False)
    """
    written = inspect.unwrap(function)
    lines, first = inspect.getsourcelines(written)
    code = textwrap.dedent("".join(lines))
    body = next(node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef)).body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        code = "".join(
            line for at, line in enumerate(code.splitlines(True), 1) if not body[0].lineno <= at <= body[0].end_lineno
        )
    file = f"{written.__module__.replace('.', '/')}.py, line {first}"
    return f'<details class="source"><summary>Source: {file}</summary>\n\n```python\n{code.rstrip()}\n```\n\n</details>'


def cell(text: str) -> str:
    """Escape the bars inside code in backticks, so that the text fits into a cell of a table."""
    return CODE.sub(lambda code: code[0].replace("|", r"\|"), text)


def table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table of cells that are Markdown already."""
    lines = [titles, ("---",) * len(titles), *(tuple(cell(text) for text in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def display_formula(equation: str) -> str:
    """The formula of a docstring as display math, one block per line."""
    return "\n\n".join(f"$$\n{line}\n$$" for line in tex_lines(equation))


def field_texts(record: type) -> dict[str, str]:
    """Read the text under each field of a class and of its base classes from their source code.

    Example:
        >>> from rljax.algorithms import Rollout
        >>> field_texts(Rollout)["mask"]
        'True for response tokens, including end-of-sequence.'
    """
    texts = {}
    for kind in reversed([kind for kind in record.__mro__ if "__annotations__" in vars(kind)]):
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(node, ast.ClassDef), kind
        for field, below in itertools.pairwise(node.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = inspect.cleandoc(text)
    return texts


def header(function: Callable) -> str:
    """The `def` line of a function as it is written, without its decorators and its body."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef), function
    return "\n".join(source.splitlines()[node.lineno - 1 : node.body[0].lineno - 1]).removesuffix(":")


def sections(docstring: str) -> dict[str, str]:
    """Split a docstring at the titles of its sections; the text before the first has the title ""."""
    parts = re.split(rf"^({'|'.join(SECTIONS)}):\n", f"\n{docstring}", flags=re.MULTILINE)
    found = {"": parts[0].strip("\n")}
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        lines = text.splitlines()
        end = next((at for at, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
        found[title] = textwrap.dedent("\n".join(lines[:end])).strip("\n")
        after = "\n".join(lines[end:]).strip("\n")
        if after:
            found[""] += f"\n\n{after}"
    return found


def markdown(docstring: str, anchors: Mapping[str, str]) -> str:
    """The complete docstring as Markdown.

    Args:
        docstring: without indentation, as `inspect.getdoc` returns it.
        anchors: name, without its backticks -> anchor.
    """
    found = sections(docstring)
    blocks = list(_prose(found.pop(""), anchors))
    for title, text in found.items():
        blocks += _section(title, text, anchors)
    return "\n\n".join(blocks)


def _prose(text: str, anchors: Mapping[str, str]) -> Iterator[str]:
    """Paragraphs, blocks of code, and the formula after `::`."""
    equation = formula(text)
    for block in re.split(r"\n\s*\n(?! )", text):
        if block.lstrip().startswith("::"):
            yield display_formula(equation or "")
        elif ">>>" in block:
            yield fence_dialogue(textwrap.dedent(block))
        elif block.strip():
            yield escape_text(block, anchors)


def fence_dialogue(text: str) -> str:
    """An interactive Python session as a block of code."""
    return f"```pycon\n{text}\n```"


def _section(title: str, text: str, anchors: Mapping[str, str]) -> Iterator[str]:
    if title == "Example":
        yield f"**Example**\n\n{fence_dialogue(text)}"
        return
    entries = ENTRY.findall(text) if title in ("Attributes", "Args", "Raises") else []
    if entries:
        items = "\n".join(f"- `{name}`: {escape_text(words, anchors)}" for name, words in entries)
        yield f"**{title}**\n\n{items}"
    else:
        yield f"**{title}**: {escape_text(text, anchors)}"
