"""The page of ideas: what the design documents ask for, idea by idea, and which command, test and result each has."""

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from document_errata.titles import ADVANCED, DESIGN, REVIEW, TABLE, UNDERSTANDING

SOURCE = Path(__file__).with_suffix(".toml")
DOCUMENTS = MappingProxyType(
    {
        "design": DESIGN,
        "understanding": f"*{UNDERSTANDING}*",
        "advanced": f"*{ADVANCED}*",
        "review": f"*{REVIEW}*",
        "table": TABLE,
    }
)
"""Short name of a document -> its title."""
STATES = MappingProxyType(
    {
        "works": "has a command or flag, and a test that runs it",
        "in part": "has a command, and the row says what is missing",
        "missing": "has no command; the row names the closest thing that exists",
        "outside": "is not a feature of the library, or is refuted; the row says why",
    }
)
"""State of an idea -> what it means."""
REASONS = MappingProxyType({"lacks": "in part", "missing": "missing", "outside": "outside"})
"""Key of a reason in the file -> the state that it explains."""
HEADER = ("| idea, and where it is | state | command and tests, or what is missing | result |", "| --- | --- | --- | --- |")


class Idea(NamedTuple):
    """A row of the page."""

    name: str
    """The idea in a phrase."""
    where: str
    """Short names of documents, with sections, equations, tables or algorithms."""
    state: str
    """A key of `STATES`."""
    commands: tuple[str, ...]
    """What to type; a bare flag belongs to `rljax train`."""
    tests: tuple[str, ...]
    """FILE::FUNCTION."""
    reason: str
    """What is missing, in Markdown; empty if the idea works."""
    result: str
    """An experiment, in Markdown; empty if there is none."""


def read_ideas() -> dict[str, list[Idea]]:
    """Title of a section -> its ideas, in the order of the file."""
    sections = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["section"]
    return {section["title"]: [read_idea(row) for row in section["ideas"]] for section in sections}


def read_idea(row: dict[str, Any]) -> Idea:
    """Read a row; its state follows from its keys.

    Raises:
        ValueError: a key is unknown or missing, or there are reasons for two states.

    Example:
        >>> read_idea({"idea": "sound", "where": "design 9.4.3", "missing": "text only"}).state
        'missing'
    """
    reasons = [key for key in REASONS if key in row]
    needed = {"idea", "where"} | (set() if {"missing", "outside"} & {*reasons} else {"command", "test"})
    if len(reasons) > 1 or needed - set(row) or set(row) - {"idea", "where", "command", "test", "result", *reasons}:
        raise ValueError(f"An idea needs {sorted(needed)} and at most one of {list(REASONS)}, got {row}")
    return Idea(
        row["idea"],
        row["where"],
        REASONS[reasons[0]] if reasons else "works",
        tuple(row.get("command", ())),
        tuple(row.get("test", ())),
        row[reasons[0]] if reasons else "",
        row.get("result", ""),
    )


def ideas_page() -> str:
    """The page, with the number of ideas in each state."""
    sections = read_ideas()
    ideas = [idea for section in sections.values() for idea in section]
    counts = Counter(idea.state for idea in ideas)
    states = "\n".join(
        f'| <span class="idea-state" data-state="{state}">{state}</span> | {counts[state]} | {meaning} |'
        for state, meaning in STATES.items()
    )
    documents = "\n".join(f"- **{name}**: {title}" for name, title in DOCUMENTS.items())
    tables = "\n\n".join(f"## {title}\n\n{_table(section)}" for title, section in sections.items())
    return f"""(page-ideas)=
# Ideas of the documents

{len(ideas)} ideas that the design documents behind rljax ask for: systems, equations, experiments and recommendations. None of
the documents is a published paper, and parts of them are wrong: see [their errata](#page-document-errata).

```{{container}} idea-counts
| state | ideas | an idea in this state |
| --- | --- | --- |
{states}
```

A bare flag belongs to `rljax train`; `rljax algorithms --parts` lists all parts of `--with`. `rljax claims NAME` prints an
experiment on the idea with its verdict, which may be that no effect is seen, or the opposite effect. An idea without a result is
tested as code, but no experiment shows whether it helps.

{documents}

{tables}

```{{raw}} html
<script>
{Path(__file__).with_name("ideas.js").read_text(encoding="utf-8")}</script>
```
"""


def _table(ideas: Sequence[Idea]) -> str:
    return "\n".join((*HEADER, *map(_row, ideas)))


def _row(idea: Idea) -> str:
    tests = "<br>".join(f"<code>{escape(test)}</code>" for test in idea.tests)
    label = "test" if len(idea.tests) == 1 else "tests"
    middle = (
        "<br>".join(f"`{command}`" for command in idea.commands),
        _rewrite_links(idea.reason),
        f"<details><summary>{label}</summary>{tests}</details>" if tests else "",
    )
    cells = (
        f"{idea.name}<br><small>{escape(idea.where)}</small>",
        f'<span class="idea-state" data-state="{idea.state}">{idea.state}</span>',
        "<br>".join(filter(None, middle)),
        _rewrite_links(idea.result),
    )
    return f"| {' | '.join(cells)} |"


def _rewrite_links(text: str) -> str:
    """Make links to handwritten pages point to the folder above, which contains them."""
    return re.sub(r"\]\((\w+\.md)\)", r"](../\1)", text)
