"""Patterns that select parameters by their paths."""

import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

from rljax.errors import InputError

MAX_LISTED = 12
"""Largest number of names that an error message lists."""


def matches(pattern: str, path: Sequence[str]) -> bool:
    """Return True if a pattern selects the parameter at a path.

    A pattern names one part of the path, or several consecutive parts separated by `/`. Within a part, `*` matches any characters,
    `?` matches one character, and `[0-3]` matches one character of a range.

    Example:
        >>> path = ("layers", "0", "attention", "query")
        >>> [matches(pattern, path) for pattern in ("query", "layers/0", "attention/*", "layers", "norm", "0/query")]
        [True, True, True, True, False, False]
    """
    parts = pattern.split("/")
    windows = (path[begin : begin + len(parts)] for begin in range(len(path) - len(parts) + 1))
    return any(all(fnmatchcase(name, part) for name, part in zip(window, parts, strict=True)) for window in windows)


def select_paths(
    patterns: Collection[str], paths: Iterable[tuple[str, ...]], *, setting: str
) -> tuple[tuple[str, ...], ...]:
    """Return the paths that at least one pattern matches, in the order of `paths`.

    Args:
        patterns: see `matches`.
        paths: paths of all parameters that may be selected.
        setting: name of the setting that contains the patterns, for the error message.

    Raises:
        InputError: a pattern matches nothing; the message lists the paths.
    """
    paths = tuple(paths)
    for pattern in patterns:
        if not any(matches(pattern, path) for path in paths):
            names = list(dict.fromkeys(re.sub(r"/\d+(?=/)", "/*", "/".join(path)) for path in paths))
            more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
            raise InputError(
                f"{setting}: {pattern!r} matches no parameter; the parameters are {', '.join(names[:MAX_LISTED])}{more}."
            )
    return tuple(path for path in paths if any(matches(pattern, path) for pattern in patterns))
