r"""Floor 0: pure functions of strings that several floors need: `\boxed` answers, one-line errors, text for a terminal."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Box(NamedTuple):
    r"""One `\boxed{...}` of a text: where it starts, and its content."""

    start: int
    """Position of the command's backslash."""
    content: str
    """The text between the braces, as it stands."""


def boxes(text: str, *, commands: Sequence[str] = ("boxed",)) -> list[Box]:
    r"""Find every `\boxed{...}` whose braces balance.

    The text is read only once, so a text full of unclosed boxes takes no longer than any other. The content of every box is copied,
    which is much for boxes nested a thousand deep; `last_box` copies one. An escaped brace, `\{`, does not count as a brace.

    Args:
        text: LaTeX, or text with LaTeX in it.
        commands: names of the commands that count as a box, without the backslash.

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
        The box; None if there is none. Only its own content is copied, however deep boxes are nested.

    Example:
        >>> last_box(r"\boxed{1}, or \boxed{\boxed{2}}, or \boxed{3")
        Box(start=21, content='2')
    """
    start, content = max(_box_spans(text, ("boxed",)), key=lambda span: span[0], default=(-1, slice(0)))
    return Box(start, text[content]) if start >= 0 else None


def _box_spans(text: str, commands: Sequence[str]) -> Iterator[tuple[int, slice]]:
    """Find the start and the content of every box in the order in which they close."""
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


def one_line(error: BaseException) -> str:
    """Describe an exception in one line.

    Args:
        error: any exception.

    Returns:
        Its type and its message, with every run of white space replaced by one space.

    Example:
        >>> one_line(KeyError("no key"))
        "KeyError: 'no key'"
    """
    return " ".join(f"{type(error).__name__}: {error}".split())


def printable(text: object) -> str:
    """Replace every unprintable character except line ends with its escape: a terminal would obey control characters.

    Args:
        text: any object; `str` converts it.

    Returns:
        Printable characters and line ends.

    Example:
        >>> printable("a" + chr(27) + "[31m")
        'a\\\\x1b[31m'
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in str(text))


def one_paragraph(text: object) -> str:
    """Put a message, which may quote anything, on one line of printable characters.

    Example:
        >>> one_paragraph("no file 'a" + chr(10) + chr(7) + "'")
        "no file 'a \\\\x07'"
    """
    return " ".join(printable(text).split("\n"))


def shortened(text: object, length: int) -> str:
    """Shorten a long text to its two ends, which usually hold the question and the answer.

    Args:
        text: any object; `str` converts it. Line ends at its start and end are dropped.
        length: characters to keep, an even number.

    Returns:
        The text, or its first and last `length / 2` characters with " … " between.

    Example:
        >>> shortened("1+2+3+4=10", 6)
        '1+2 … =10'
    """
    shown = str(text).strip("\n")
    return shown if len(shown) <= length else f"{shown[: length // 2]} … {shown[-(length // 2) :]}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the known names that are nearest to an unknown one, as the end of a sentence.

    Args:
        name: the unknown name.
        known: names that exist.

    Returns:
        `; did you mean 'a' or 'b'?` with at most three names, or a full stop if none is near.

    Example:
        >>> did_you_mean("learing_rate", ["learning_rate", "steps"]), did_you_mean("x", ["steps"])
        ("; did you mean 'learning_rate'?", '.')
    """
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else "."


def listed(names: Iterable[str], command: str, *, most: int = 40) -> str:
    """List the names that exist, for a message about one that does not; of many, the first and the command that prints all.

    Args:
        names: names that exist, in the order to list them.
        command: the command that prints all of them.
        most: number of names that are listed at most.

    Example:
        >>> listed(["dapo", "grpo", "ppo"], "rljax algorithms")
        'dapo, grpo, ppo'
        >>> listed(["dapo", "grpo", "ppo"], "rljax algorithms", most=2)
        'dapo, grpo and 1 more (`rljax algorithms` prints them all)'
    """
    known = list(names)
    first = ", ".join(known[:most])
    return first if len(known) <= most else f"{first} and {len(known) - most} more (`{command}` prints them all)"
