"""String functions for one-line errors, terminals, suggested names and JSON. They import nothing else from rljax."""

import difflib
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

_WORD = re.compile(r"\w+|[^\w\s]")
SHINGLE_WORDS = 3
"""Number of words or symbols in a shingle."""


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


def replace_surrogates(text: str) -> str:
    r"""Replace lone surrogates, which UTF-8 cannot encode, by the replacement character; a tool's output may contain them.

    Example:
        >>> replace_surrogates("é \ud83d") == "é \N{REPLACEMENT CHARACTER}"
        True
    """
    return text.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON, and reject an object in which a name occurs twice; the standard library would keep only the last value.

    Raises:
        ValueError: the text is not JSON in UTF-8, is nested too deeply, or a name occurs twice in an object.

    Example:
        >>> parse_json('{"prompt": "1+1="}')
        {'prompt': '1+1='}
        >>> parse_json('{"prompt": "1+1=", "prompt": "1+2="}')
        Traceback (most recent call last):
        ValueError: the name 'prompt' occurs twice in an object
    """
    try:
        return json.loads(text, object_pairs_hook=unique_names)
    except RecursionError as error:
        raise ValueError("the values are nested too deeply") from error


def unique_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from the names and values of a JSON object; raise a ValueError if a name occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r:.80} occurs twice in an object")
    return found


def json_lines(rows: Iterable[Mapping[str, Any]], *, allow_nan: bool = True) -> bytes:
    """Format rows as JSON lines. A lone surrogate becomes its JSON escape, so that text from a model never stops a run.

    Raises:
        ValueError: a number is not finite, and `allow_nan` is False.

    Example:
        >>> json_lines([{"prompt": "1+1="}, {"prompt": "2+2="}])
        b'{"prompt": "1+1="}\\n{"prompt": "2+2="}\\n'
    """
    lines = (f"{json.dumps(row, ensure_ascii=False, allow_nan=allow_nan)}\n" for row in rows)
    return "".join(lines).encode(errors="backslashreplace")


def texts_of(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value, at any depth, except the keys of objects.

    Example:
        >>> list(texts_of({"reward": "math", "tools": [{"name": "add"}, 3]}))
        ['math', 'add']
    """
    if isinstance(value, str):
        yield value
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_of(entry)


def map_texts(change: Callable[[str], str], value: Any) -> Any:
    """Apply `change` to the strings in a JSON value, at any depth, except the keys of objects.

    Example:
        >>> map_texts(str.upper, {"reward": "math", "turns": [1, "two"]})
        {'reward': 'MATH', 'turns': [1, 'TWO']}
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: map_texts(change, entry) for name, entry in value.items()}
    return [map_texts(change, entry) for entry in value] if isinstance(value, list) else value


def counted(count: int, noun: str) -> str:
    """Return a count and its noun, in the plural with an s unless the count is 1.

    Example:
        >>> counted(1, "problem"), counted(12, "RL step")
        ('1 problem', '12 RL steps')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def printable(text: object) -> str:
    """Replace every unprintable character except line breaks by its escape, because a terminal would obey control characters.

    Args:
        text: any object; `str` converts it.

    Returns:
        The text with only printable characters and line breaks.

    Example:
        >>> printable("a" + chr(27) + "[31m")
        'a\\\\x1b[31m'
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in str(text))


def one_paragraph(text: object) -> str:
    """Put a message that may contain any text on one line of printable characters.

    Example:
        >>> one_paragraph("no file 'a" + chr(10) + chr(7) + "'")
        "no file 'a \\\\x07'"
    """
    return " ".join(printable(text).split("\n"))


def html_text(value: object) -> str:
    """Escape a value for use in an HTML page."""
    return html.escape(printable(value))


def shorten(text: object, length: int) -> str:
    """Shorten a long text to its two ends, which usually contain the question and the answer.

    Args:
        text: any object; `str` converts it. Line breaks at the start and end of the text are dropped.
        length: maximum number of characters of the text to keep, an even number.

    Returns:
        The text, or its first and last `length / 2` characters with " … " between them.

    Example:
        >>> shorten("1+2+3+4=10", 6)
        '1+2 … =10'
    """
    shown = str(text).strip("\n")
    return shown if len(shown) <= length else f"{shown[: length // 2]} … {shown[-(length // 2) :]}"


def did_you_mean(name: str, known: Iterable[str], *, nearest: bool = False, cutoff: float = 0.7) -> str:
    """Return the end of a sentence about an unknown name: the known names that are most similar to it.

    Args:
        name: the unknown name.
        known: names that exist.
        nearest: if no name is similar enough, list the three nearest anyway, starting with names that contain the unknown name.
        cutoff: minimum similarity, from 0 to 1.

    Returns:
        `; did you mean 'a' or 'b'?` with at most three names. If no name is similar enough: a period, or with `nearest`
        `; the nearest are 'a'.`

    Example:
        >>> did_you_mean("learing_rate", ["learning_rate", "steps"]), did_you_mean("x", ["steps"])
        ("; did you mean 'learning_rate'?", '.')
        >>> did_you_mean("entropi", ["entropy", "entropy"])
        "; did you mean 'entropy'?"
        >>> did_you_mean("rate", ["learning_rate", "steps"], nearest=True)
        "; the nearest are 'learning_rate', 'steps'."
    """
    names = sorted({*known})
    near = _near(name, names, cutoff)
    if near or not nearest:
        return f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    containing = sorted((each for each in names if name in each), key=len)
    others = difflib.get_close_matches(name, names, n=3, cutoff=0.0)
    return f"; the nearest are {', '.join(map(repr, list(dict.fromkeys([*containing, *others]))[:3]))}."


def _near(name: str, names: list[str], cutoff: float) -> list[str]:
    """Return the name that differs only in case, hyphens or underscores; else at most three similar names."""
    by_letters = {re.sub(r"[\W_]", "", each).lower(): each for each in reversed(names)}
    letters = re.sub(r"[\W_]", "", name).lower()
    if letters in by_letters:
        return [by_letters[letters]]
    return difflib.get_close_matches(name, names, n=3, cutoff=cutoff)


def nearest_first(name: str, known: Iterable[str], advice: str) -> str:
    """Return the end of a sentence about an unknown name: similar known names, if any are similar, and then the advice.

    Args:
        name: the unknown name.
        known: names that exist.
        advice: what to do, beginning with a lowercase letter.

    Example:
        >>> nearest_first("drgrpo", ["dr_grpo", "ppo"], "choose one of dr_grpo, ppo.")
        "; did you mean 'dr_grpo'? Choose one of dr_grpo, ppo."
        >>> nearest_first("x", ["dr_grpo", "ppo"], "choose one of dr_grpo, ppo.")
        '; choose one of dr_grpo, ppo.'
    """
    near = did_you_mean(name, known, cutoff=0.65)
    return f"; {advice}" if near == "." else f"{near} {advice[0].upper()}{advice[1:]}"


def list_names(names: Iterable[str], command: str, *, most: int = 40) -> str:
    """List the known names for a message about an unknown name. A long list is cut, and ends with the command that prints all.

    Args:
        names: names that exist, in the order to list them.
        command: the command that prints all names.
        most: maximum number of names in the list.

    Example:
        >>> list_names(["dapo", "grpo", "ppo"], "rljax algorithms")
        'dapo, grpo, ppo'
        >>> list_names(["dapo", "grpo", "ppo"], "rljax algorithms", most=2)
        'dapo, grpo and 1 more (`rljax algorithms` prints them all)'
    """
    known = list(names)
    first = ", ".join(known[:most])
    return first if len(known) <= most else f"{first} and {len(known) - most} more (`{command}` prints them all)"


def words_of(text: str) -> list[str]:
    """Return the words and symbols of a text, in lower case.

    Example:
        >>> words_of("Two and two, then")
        ['two', 'and', 'two', ',', 'then']
    """
    return _WORD.findall(text.casefold())


def shingles_of(text: str) -> frozenset[str]:
    """Return all sequences of three adjacent words or symbols in a text, in lower case. A shorter text is one sequence.

    Example:
        >>> sorted(shingles_of("Two and two, then"))
        ['and two ,', 'two , then', 'two and two']
    """
    words = words_of(text)
    return frozenset(" ".join(words[i : i + SHINGLE_WORDS]) for i in range(max(1, len(words) - SHINGLE_WORDS + 1)))
