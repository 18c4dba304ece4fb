"""Text of `rljax equations`: the index, a query's matches, and single entries with formula, source and links."""

import difflib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TextIO

from rljax.algorithms import BY_NAME
from rljax.book.equations import Equation, by_role, equations
from rljax.book.references import find_citations, references
from rljax.book.text_search import IDEAS, Match, content_words, search
from rljax.book.uses import callers, calls_of_ops, calls_of_records, ops_in, uses
from rljax.cli.terminal_text import columns_of, formula_lines, with_label, with_paragraphs, wrap
from rljax.errors import InputError
from rljax.preference.direct_losses import BY_NAME as DIRECT_LOSSES
from rljax.text import counted

MOST_IN_FULL = 3
"""Maximum number of matches that are printed in full; each of the others takes one line."""


def links() -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the links of each entry: for an op, `used by` (algorithms and preference losses), `called by` and `calls` (other ops);
    for an algorithm, the ops in each slot."""
    records = calls_of_records() | {f"preference --loss {name}": ops_in(make()) for name, make in DIRECT_LOSSES.items()}
    calls = calls_of_ops()
    used, called = callers(records), callers(calls)
    found = {op: {"used by": used[op], "called by": called[op], "calls": calls[op]} for op in calls}
    for name in BY_NAME:
        rows = {f"{use.slot} (with {use.option})" if use.option else use.slot: use.ops for use in uses(name)}
        found[name] = rows
    return found


def entry_text(entry: Equation, linked: Mapping[str, tuple[str, ...]], columns: int) -> str:
    """Format an entry's name, summary, formula, source, function, test and links."""
    head = wrap(f"{entry.name}: {entry.summary}", columns, hang="    ")
    rows = {"source": entry.source, "function": f"{entry.module}.{entry.function}", "test": entry.test}
    if entry.name in BY_NAME:
        rows["options"] = f"rljax algorithms {entry.name}"
        lines = [wrap(f"{slot}: {', '.join(ops)}", columns, indent=" " * 8, hang=" " * 12) for slot, ops in linked.items()]
        below = ["    slots", *lines]
    else:
        rows |= {label: ", ".join(names) for label, names in linked.items() if names}
        below = []
    shown = [with_label(label, text, columns) for label, text in rows.items()]
    return "\n".join([head, "", *formula_lines(entry.equation, columns), "", *shown, *below])


MOST_USED = 10
"""Number of equations listed first in the index."""


def most_used() -> list[tuple[Equation, int]]:
    """Return the most used equations, each with the number of algorithms that use it, in decreasing order."""
    used = callers(calls_of_records())
    entries = [(entry, sum(name in BY_NAME for name in used[entry.name])) for entry in equations() if entry.name in used]
    return sorted(entries, key=lambda pair: -pair[1])[:MOST_USED]


def index_text(entries: Sequence[Equation], columns: int) -> str:
    """Format the most used equations, then every entry by role and module, with its name, summary and source."""
    first = [(entry.name, f"{entry.summary} [{counted(count, 'algorithm')}]") for entry, count in most_used()]
    parts = [f"The {len(first)} most used\n{with_paragraphs(first, columns)}"]
    for role, group in by_role(entries).items():
        parts.append(f"{role}\n{'=' * len(role)}")
        for (module, test), own in itertools.groupby(group, key=lambda entry: (_module_of(entry), entry.test)):
            rows = [(entry.name, f"{entry.summary} [{entry.source}]") for entry in own]
            parts.append(f"{wrap(f'{module}, {test}', columns)}\n{with_paragraphs(rows, columns)}")
    return "\n\n".join(parts)


def _module_of(entry: Equation) -> str:
    return "rljax.algorithms" if entry.name in BY_NAME else entry.module


def matches_text(matches: Sequence[Match], query: str, columns: int, *, limit: int) -> str:
    """Format the best matches in full, the next ones on one line each, and notes on missing words and omitted entries."""
    linked = links()
    blocks = [entry_text(match.entry, linked[match.entry.name], columns) for match in matches[: min(MOST_IN_FULL, limit)]]
    others = [(match.entry.name, match.entry.summary) for match in matches[MOST_IN_FULL:limit]]
    if others:
        blocks.append(f"also\n{with_paragraphs(others, columns)}")
    words = content_words(query)
    notes = []
    if matches[0].words_found < len(words) and len(matches) > 1:
        notes.append(f"No entry has all of these words: {', '.join(words)}. The entries above are the best matches.")
    if len(matches) > limit:
        notes.append(f"{limit} of {len(matches)} entries, best first; --limit {len(matches)} shows all.")
    return "\n\n".join([*blocks, *(wrap(note, columns) for note in notes)])


def find_matches(query: str) -> tuple[Match, ...]:
    """Search, and refuse a query that matches nothing.

    Raises:
        InputError: no entry has a word of the query.
    """
    matches = search(query)
    if not matches:
        names = [name for entry in equations() for name in (entry.name, entry.function)]
        near = list(dict.fromkeys(difflib.get_close_matches(query.casefold(), names, n=3)))
        hint = f"; did you mean {' or '.join(near)}?" if near else "."
        raise InputError(
            f"No equation has {query!r} in its name, summary, formula, source or keywords{hint} `rljax equations` without a query "
            "lists all equations."
        )
    return matches


def show_equations(query: str, stream: TextIO, *, limit: int = 10) -> None:
    """Print the index if the query is empty; otherwise its matches, best first.

    Raises:
        InputError: the query finds nothing, or the limit is below 1.
    """
    if limit < 1:
        raise InputError(f"--limit is {limit}; it must be at least 1.")
    columns = columns_of(stream)
    if query.strip():
        text = matches_text(find_matches(query), query, columns, limit=limit)
    else:
        entries = equations()
        hint = "Add a name, a word, a paper or a question (gae, dapo, 2504.05118, what bounds the ratio?) to see formulas."
        text = "\n\n".join((index_text(entries, columns), wrap(f"{len(entries)} equations. {hint}", columns)))
    stream.write(f"{text}\n")


def show_equations_json(query: str, stream: TextIO) -> None:
    """Print every entry, or all matches of a query with their scores, as a JSON list.

    Raises:
        InputError: the query finds nothing.
    """
    linked = links()
    matches = find_matches(query) if query.strip() else [Match(entry, 0, 0.0) for entry in equations()]
    rows = [
        asdict(match.entry)
        | {"ideas": IDEAS[match.entry.name].split("; "), "links": linked[match.entry.name]}
        | {"references": [reference.key for reference in find_citations(match.entry.source)]}
        | ({"score": match.score} if query.strip() else {})
        for match in matches
    ]
    stream.write(f"{json.dumps(rows, indent=2, ensure_ascii=False)}\n")


def show_bibtex(query: str, stream: TextIO) -> None:
    """Print BibTeX for every document that the book cites, or for the documents that the query's matches cite.

    Raises:
        InputError: the query finds nothing, or nothing with a published source.
    """
    entries = references()
    if query.strip():
        sources = [match.entry.source for match in find_matches(query)]
        entries = tuple(entry for entry in entries if any(entry in find_citations(source) for source in sources))
        if not entries:
            raise InputError(f"No entry for {query!r} has a BibTeX entry: the sources are conventions or unpublished.")
    stream.write("\n\n".join(entry.text for entry in entries) + "\n")
