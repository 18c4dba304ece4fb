"""Search for a pattern in a text, for worker processes: some patterns take longer than anyone can wait."""

import re


def occurs(pattern: str, text: str) -> bool:
    """True if a regular expression matches anywhere in a text.

    Example:
        >>> occurs("(?i)fool", "a Fool"), occurs("^b", "ab")
        (True, False)
    """
    return re.search(pattern, text) is not None
