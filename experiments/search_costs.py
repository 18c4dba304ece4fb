"""Compare the accuracy and the sampled tokens of search methods with those of independent answers.

The methods: a greedy answer, a sampled answer, majority votes, the critic's best of k, beam search, tree search and revision.

All methods answer the same held-out problems of one run with a critic. The tokens of a search include all steps that it samples,
not only those of its answer. The page has one table, sorted by tokens per problem, with 95 % intervals over problems.

    rljax train --algorithm vapo --tokenizer bytes --steps 12 --heldout-problems 256 --run runs/vapo
    python experiments/search_costs.py runs/vapo                                      (3 minutes on two cores)

It writes OUT.json and OUT.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

import rljax
from lab.rows import write_page, write_rows
from rljax.evaluation.report import Report, plain_estimate
from rljax.evaluation.search_report import SearchReport
from rljax.programs.search import search

SIZES: Mapping[str, tuple[int, ...]] = {"beam": (4, 8, 16), "tree": (8, 16, 32), "revision": (2, 4, 8, 16)}
"""Method -> numbers of samples: steps sampled at a time (beam), steps in total (tree), or versions of the answer (revision)."""
OUT = Path(__file__).with_suffix("")


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    run: tyro.conf.Positional[str]
    """Run with a critic."""
    limit: int | None = None
    """Number of held-out problems; by default all."""
    out: Path = OUT
    """Path of the output files, without the endings `.json` and `.md`."""


def greedy_row(report: Report) -> dict[str, Any]:
    """Build the row of the greedy answers."""
    measures = report.whole.measures
    accuracy = plain_estimate(measures["avg@1"])
    return {"method": "greedy answer", "size": 1, "tokens": measures["response_length"].value, "accuracy": accuracy}


def rows_of(report: SearchReport, method: str) -> list[dict[str, Any]]:
    """Build the rows of one search method, and of independent answers with about as many tokens."""
    found = report.to_json()
    rows = [{"method": "sampled answer", "size": 1, "tokens": None, "accuracy": found["single"]}]
    for row in found["rows"]:
        rows.append({"method": method, "size": row["samples"], "tokens": row["tokens"], "accuracy": row["accuracy"]})
        size, tokens = row["responses"], row["response_tokens"]
        several = ("best", "votes") if size > 1 else ()
        rows += [{"method": f"{name} of k", "size": size, "tokens": tokens, "accuracy": row[name]} for name in several]
    return rows


def drop_repeats(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop repeated rows, and sort by tokens. A sampled answer gets the tokens of `votes of k`, divided by k."""
    votes = next(row for row in rows if row["method"] == "votes of k")
    each = votes["tokens"] / votes["size"]
    filled = [row | {"tokens": each if row["tokens"] is None else row["tokens"]} for row in rows]
    unique = {(row["method"], row["size"]): row for row in reversed(filled)}
    return sorted(unique.values(), key=lambda row: (row["tokens"], row["method"]))


def report_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows as a table in Markdown."""
    lines = ["| method | N or k | tokens per problem | accuracy |", "| --- | --- | --- | --- |"]
    for row in rows:
        own = row["accuracy"]
        share = f"{own['value']:.1%} ({100 * own['low']:.0f} to {100 * own['high']:.0f})"
        lines.append(f"| {row['method']} | {row['size']} | {row['tokens']:.0f} | {share} |")
    return "\n".join(lines) + "\n"


def main(arguments: Arguments) -> None:
    """Run all searches, and write the rows and the page."""
    rows = [greedy_row(rljax.evaluate(arguments.run, checkpoint="last", limit=arguments.limit))]
    for method, sizes in SIZES.items():
        found = search(arguments.run, method=method, samples=sizes, checkpoint="last", limit=arguments.limit)
        rows += rows_of(found, method)
    kept = drop_repeats(rows)
    file = arguments.out.with_suffix(".json")
    write_rows(file, kept)
    command = f"python experiments/search_costs.py {arguments.run}"
    write_page(file, command, "accuracy and sampled tokens per problem, 95 % intervals over problems.", report_of(kept))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
