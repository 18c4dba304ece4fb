"""Search for a pattern in a text. This runs in worker processes, because some patterns never finish."""

import re


def occurs(pattern: str, text: str) -> bool:
    """True if a regular expression matches anywhere in a text.

    Example:
        >>> occurs("(?i)fool", "a Fool"), occurs("^b", "ab")
        (True, False)
    """
    return re.search(pattern, text) is not None
