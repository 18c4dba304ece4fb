"""The name under which this package is distributed, and the links in its metadata."""

from importlib.metadata import PackageNotFoundError, metadata

NAME = "rljax-lm"
"""Name of the distribution, as in pyproject.toml. On PyPI, the name rljax belongs to another package."""


def links() -> dict[str, str]:
    """Return the links of `[project.urls]` in pyproject.toml by lower-case name; empty in a clone that is not installed.

    Example:
        >>> set(links()) <= {"repository", "issues", "homepage", "documentation", "changelog"}
        True
    """
    try:
        entries = metadata(NAME).get_all("Project-URL") or []
    except PackageNotFoundError:  # a clone on the path that is not installed
        return {}
    pairs = (entry.partition(", ") for entry in entries)
    return {name.lower(): url for name, _, url in pairs}
