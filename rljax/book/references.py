"""BibTeX entries of the documents that the book cites, from `references.bib`.

If an entry has no arXiv id, its field `cited` contains the words with which the book cites the document.
"""

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

ENTRY = re.compile(r"^@(\w+)\{([^,\s]+),\n(.*?)^\}\n", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (\w+) *= \{(.*)\},?$", re.MULTILINE)


class Reference(NamedTuple):
    """An entry of the bibliography."""

    key: str
    """The BibTeX key."""
    fields: dict[str, str]
    """Name of a field -> its value, without the braces around it."""
    text: str
    """The entry exactly as in the file."""


@cache
def references() -> tuple[Reference, ...]:
    """Read every entry, in file order: ascending arXiv ids, then other documents."""
    source = (files("rljax.book") / "references.bib").read_text(encoding="utf-8")
    return tuple(Reference(found[2], dict(FIELD.findall(found[3])), found[0].rstrip()) for found in ENTRY.finditer(source))


def find_citations(text: str) -> tuple[Reference, ...]:
    """Find the entries that a text cites: by arXiv id, or by the words in the entry's field `cited`.

    Example:
        >>> text = 'GRPO, arXiv:2402.03300, Eq. 4; Schulman, "Approximating KL divergence" (2020).'
        >>> [entry.key for entry in find_citations(text)]
        ['shao2024deepseekmath', 'schulman2020kl']
    """
    words = " ".join(text.split())
    return tuple(entry for entry in references() if _citation(entry) in words)


def _citation(entry: Reference) -> str:
    return entry.fields["eprint"] if "eprint" in entry.fields else entry.fields["cited"]
