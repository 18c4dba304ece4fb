"""Pages of the book: its equations by module, its algorithms, the papers, the errata."""

import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from pathlib import Path

import document_errata

from book_site.docstrings import escape_text, header, label, markdown, source, table
from book_site.extension import TABLES_WITH_PAGES, label_of
from rljax.algorithms import BY_NAME
from rljax.algorithms.corrections import BY_NAME as CORRECTIONS
from rljax.book.equations import Equation, by_role, equations, public_ops
from rljax.book.errata import ERRATA, Erratum
from rljax.book.genealogy import GenealogyEntry, genealogy
from rljax.book.references import find_citations, references
from rljax.book.slots import slot_contents
from rljax.book.slots import table as slots_table
from rljax.book.uses import ops_in, slots
from rljax.cli.equations_text import links, most_used

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
HIDDEN = "```{{toctree}}\n:hidden:\n\n{}\n```"


@cache
def anchors() -> Mapping[str, str]:
    """Name of every equation and algorithm -> its anchor."""
    return {entry.name: label(entry.name) for entry in equations()}


def link(name: str) -> str:
    """An equation's or an algorithm's name, linked if it has a page."""
    return f"[`{name}`](#{anchors()[name]})" if name in anchors() else f"`{name}`"


def _links(names: Iterable[str]) -> str:
    return ", ".join(map(link, names))


def ops_pages() -> dict[str, str]:
    """A page for each module of equations, and an index of all equations."""
    functions = {f"{function.__module__}.{function.__name__}": function for function in public_ops()}
    entries = [entry for entry in equations() if entry.name not in BY_NAME]
    linked = links()
    pages = {}
    for module, group in itertools.groupby(entries, key=lambda entry: entry.module):
        own = list(group)
        text = [f"# {module.removeprefix('rljax.ops.')}", markdown(inspect.getdoc(import_module(module)) or "", anchors())]
        for entry in own:
            text += _equation(entry, functions[f"{entry.module}.{entry.function}"], linked[entry.name])
        pages[f"equations/{module.removeprefix('rljax.ops.').replace('.', '-')}"] = "\n\n".join(text)
    return pages | {"equations/index": _equation_index(entries, list(pages))}


def _equation(entry: Equation, function: object, linked: Mapping[str, tuple[str, ...]]) -> list[str]:
    assert callable(function)
    relations = [f"{title}: {_links(names)}" for title, names in linked.items() if names]
    return [
        f"({label(entry.name)})=\n## {entry.function}",
        f"```python\n{header(function)}\n```",
        markdown(inspect.getdoc(function) or "", {**anchors(), **_siblings(entry)}),
        "\\\n".join([*relations, f"tested by `{entry.test}`"]),
        source(function),
    ]


@cache
def _by_module() -> Mapping[str, Mapping[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for entry in equations():
        found.setdefault(entry.module, {})[entry.function] = label(entry.name)
    return found


def _siblings(entry: Equation) -> Mapping[str, str]:
    """Names of functions in the same module, which docstrings mention without the module."""
    return _by_module()[entry.module]


def _equation_index(entries: list[Equation], pages: list[str]) -> str:
    first = [
        (f"[`{entry.name}`](#{label(entry.name)})", escape_text(entry.summary), str(count)) for entry, count in most_used()
    ]
    parts = ["## Most used functions", table(("function", "what it computes", "algorithms"), first)]
    for role, own in by_role(entries).items():
        parts.append(f"## {role}")
        for module, group in itertools.groupby(own, key=lambda entry: entry.module):
            rows = [
                (f"[`{entry.function}`](#{label(entry.name)})", escape_text(entry.summary), escape_text(entry.source))
                for entry in group
            ]
            parts += [f"### {module.removeprefix('rljax.ops.')}", table(("function", "what it computes", "source"), rows)]
    sections = "\n\n".join(parts)
    toc = HIDDEN.format(
        "\n".join(
            [
                *(page.removeprefix("equations/") for page in pages),
                "../papers",
                "../errata",
                "../document_errata",
                "/errata",
                "../ideas",
                "/conformance",
            ]
        )
    )
    return f"""(page-equations)=
# Equations

{len(entries)} functions, each about as short as its formula: arrays in, arrays out, and no imports except JAX, NumPy and jaxtyping.
Tokens are on the last axis. In arrays of rewards, the last axis holds the responses to one prompt. Each function is tested
against a slow loop written from the formula.
`rljax equations WORDS` searches them in a terminal; [`rljax conform`](../../conformance.md) tests a loss of your own against them.

{sections}

{toc}
"""


def algorithm_pages() -> dict[str, str]:
    """A page for each algorithm, and the index with the genealogy, the corrections and the table of slots."""
    lineage = {node.name: node for node in genealogy()}
    entries = {entry.name: entry for entry in equations() if entry.name in BY_NAME}
    pages = {f"algorithms/{name}": _algorithm(entry, lineage) for name, entry in entries.items()}
    rows = [(link(name), escape_text(entry.summary), _parent_link(lineage[name])) for name, entry in entries.items()]
    corrections = [(f"`{name}`", escape_text(inspect.getdoc(make) or "")) for name, make in CORRECTIONS.items()]
    _, _, slots_of_all = slots_table().partition("\n\n")
    index = f"""(page-algorithms)=
# Algorithms

An algorithm is a record of functions, one slot for each idea of its paper; `rljax train --algorithm NAME` trains with it, and
`algorithm._replace(slot=...)` is a variant.

```{{raw}} html
:file: ../algorithm_map.svg
```

{table(("algorithm", "what it is", "closest earlier one"), rows)}

## What each changed

Each algorithm is below the closest earlier one: the one that shares the most slots with it. This is computed
from the records; it is not a history. A line shows the slots that differ: before → after, + a new slot, - a slot left
empty.

{_tree(lineage, None)}

## Corrections

`--correction NAME` reweights tokens to which the sampler and the learner assign different probabilities.

{table(("correction", "what it does"), corrections)}

## Slots

{slots_of_all.replace("## Their critics", "### Their critics")}

{HIDDEN.format(chr(10).join([*entries, "/ppo_grpo_dapo_vapo"]))}
"""
    return pages | {"algorithms/index": index}


def _tree(lineage: Mapping[str, GenealogyEntry], parent: str | None, depth: int = 0) -> str:
    """A nested list of the algorithms, each below the closest earlier one, with what it changes."""
    lines = []
    for name, node in lineage.items():
        if (node.parent or None) == parent:
            changes = "; ".join(f"`{change.text()}`" for change in node.changes)
            lines.append(f"{'  ' * depth}- {link(name)}{': ' * bool(changes)}{changes}")
            lines += filter(None, [_tree(lineage, name, depth + 1)])
    return "\n".join(lines)


def _parent_link(node: GenealogyEntry) -> str:
    return link(node.parent) if node.parent else ""


def _algorithm(entry: Equation, lineage: Mapping[str, GenealogyEntry]) -> str:
    factory, own = BY_NAME[entry.name], lineage[entry.name]
    record = factory()
    filled = slots(record)
    rows = [
        (f"`{slot}`", escape_text(what.text()), _links(ops_in(filled[slot])))
        for slot, what in slot_contents(record).items()
    ]
    children = [name for name, node in lineage.items() if node.parent == entry.name]
    relations = [f"closest earlier algorithm: {link(own.parent)}"] if own.parent else []
    relations += [f"closest earlier algorithm of: {_links(children)}"] if children else []
    text = [
        f"({label(entry.name)})=\n# {entry.name}",
        f"```python\n{header(factory)}\n```",
        markdown(inspect.getdoc(factory) or "", anchors()),
        f"## Slots\n\n{table(('slot', 'what it contains', 'equations'), rows)}",
        "## Relations\n\n" + "\\\n".join([*relations, f"tested by `{entry.test}`"]),
        source(factory),
    ]
    if own.parent:
        text.append("\n".join([f"Changes to {link(own.parent)}:\n", *(f"- `{change.text()}`" for change in own.changes)]))
    return "\n\n".join(text)


def papers_page() -> str:
    """Every paper that the book cites, with the equations and algorithms that come from it."""
    found: dict[str, list[str]] = {}
    for entry in equations():
        for reference in find_citations(entry.source):
            found.setdefault(reference.key, []).append(entry.name)
    blocks = []
    for reference in references():
        fields = reference.fields
        arxiv = fields.get("eprint")
        title = escape_text(fields["title"].replace("{", "").replace("}", ""))
        arxiv_link = f"[arXiv:{arxiv}](https://arxiv.org/abs/{arxiv})" if arxiv else ""
        names = _links(found.get(reference.key, []))
        blocks.append(
            f"**{title}** ({', '.join(filter(None, [fields.get('year', ''), arxiv_link]))})\\\n{names or 'cited in the text'}"
        )
    return "\n\n".join(["(page-papers)=\n# Papers", "`rljax equations WORDS --bibtex` prints their BibTeX.", *blocks])


def results_pages() -> dict[str, str]:
    """The tables of measurements in experiments/, unchanged."""
    pages = {}
    for name in TABLES_WITH_PAGES:
        table_of_runs = (EXPERIMENTS / f"{name}.md").read_text(encoding="utf-8")
        title = f"({label_of(name)})=\n# {name.split('/')[-1].replace('_', ' ').capitalize().replace('cpu', 'CPU')}"
        pages[f"results/{name}"] = f"{title}\n\n{table_of_runs}"
    return pages


def errata_page() -> str:
    """Errata of papers and libraries, with the numerical results of their examples, recomputed for each build."""
    text = (
        "errors and ambiguities of published papers, differences from their authors' code, and incorrect statements in "
        "libraries. Each number below is computed when this page is made, and again by `rljax errata` on your machine. The "
        "documents on which this library was first based have [errata of their own](#page-document-errata)."
    )
    return _errata_text("(page-errata)=\n# Errata", text, ERRATA)


def document_errata_page() -> str:
    """Errata of the documents on which the library was first based."""
    text = (
        "errors in the unpublished and secondary documents on which this library was first based. None is a published paper. Each "
        "number below is computed when this page is made. [A notebook](../errata.ipynb) walks through eight of them."
    )
    return _errata_text("(page-document-errata)=\n# Errata of the starting documents", text, document_errata.errata())


def _errata_text(title: str, introduction: str, entries: Sequence[Erratum]) -> str:
    with ThreadPoolExecutor() as pool:  # most of the time is spent in JAX's compiler, which runs in parallel
        results = list(zip(entries, pool.map(lambda entry: entry.check and entry.check(), entries), strict=True))
    text = [title, f"{len(results)} {introduction}"]
    for document in dict.fromkeys(entry.document for entry in entries):
        text.append(f"## {escape_text(document)}")
        for entry, found in results:
            if entry.document != document:
                continue
            computed = "nothing to compute; compare with the source" if found is None else escape_text(found.numbers)
            text += [
                f"### {entry.number}. {escape_text(entry.where)}",
                f"**Claim**: {escape_text(entry.claim)}",
                f"**{'Also' if entry.kind == 'ambiguity' else 'Correction'}**: {escape_text(entry.correction, anchors())} "
                f"({escape_text(entry.source)})",
                f"**Computed**: {computed}",
            ]
    return "\n\n".join(text)
