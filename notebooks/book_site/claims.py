"""The pages of claims: an index that compares each claim with its experiment, sorted by verdict, and a page for each claim."""

from collections.abc import Mapping
from pathlib import Path

from book_site.book import HIDDEN
from book_site.docstrings import escape_text, table
from book_site.extension import TABLES_WITH_PAGES
from lab.claim_plots import plot_all
from rljax.book.claims import VERDICTS, ClaimResult, Verdict, claim_names, read_claim
from rljax.book.claims_summary import SUMMARY

MEANING: dict[Verdict, str] = {
    "holds here": "The 95 % interval is on the claim's side, beyond the smallest size that would matter.",
    "contradicted": "The interval is on the other side, beyond that size. A larger model may still confirm the claim.",
    "not seen at this scale": "The interval ends below the smallest size that would matter.",
    "not decided": "The interval is too wide to tell, or the experiment is not a fair test; its page explains which.",
}
INTRODUCTION = """(page-claims)=
# Claims from papers, put to the test

{count} claims about algorithms, each tested by an experiment in `experiments/claims/`. In most of them a
policy is a table of logits in a small world, trained with the library's losses, advantages and weights. An
experiment takes seconds; its arms share worlds and seeds, and pass rates are exact.
Effects of a network (shared features, a large vocabulary, limited capacity) do not appear.
**A verdict holds for these worlds only.** The most used methods are tested again [on a transformer](#page-claims-on-transformer).

## In ten lines

{summary}

```{{image}} claims.png
:alt: the statistic of every claim with its interval, grouped by verdict
```

Each statistic is divided by the smallest size that would matter, which bounds the gray band; beyond it the axis is logarithmic.
Squares are claims of equality.

## How they are decided

Each arm has the best learning rate of a search on other seeds, unless the row says *one fixed rate*: there,
another rate may change the verdict.

A claim's statistic is one number per seed, with Student's t interval over the seeds; `rljax claims NAME` prints the
rule, the same for all claims. About one interval in twenty misses its true value by chance. Choices made after seeing
results are under "pilot". {again} claims that 16 seeds did not decide were run again with 64 others. "Learns more" or
"faster" means a higher mean pass rate during training; "finishes ahead" means a higher one at the end. Together they
took {minutes:.0f} minutes on two cores, not counting those with the trainer.

    rljax claims cispo
    rljax claims --rerun cispo

The first prints its setting, deviations from the paper and all metrics; the second reruns it."""


def claims_pages() -> dict[str, str]:
    """A page for each claim, and the index, which lists every claim under its verdict."""
    claims = [*map(read_claim, claim_names())]
    minutes = sum(claim.minutes for claim in claims)
    again = sum(bool(claim.first_look) for claim in claims)
    words = summary({claim.name: claim.verdict for claim in claims})
    text = [INTRODUCTION.format(count=len(claims), again=again, minutes=minutes, summary=words)]
    for verdict in VERDICTS:
        rows = [_row(claim) for claim in claims if claim.verdict == verdict]
        if rows:
            heads = ("claim", "mean (95 % interval)", "experiment")
            text.append(f"## {verdict.capitalize()}\n\n{MEANING[verdict]}\n\n{table(heads, rows)}")
    children = [*(f"claims/{claim.name}" for claim in claims), *(f"results/{name}" for name in TABLES_WITH_PAGES)]
    text.append(HIDDEN.format("\n".join(children)))
    return {"claims": "\n\n".join(text)} | {f"claims/{claim.name}": _page(claim) for claim in claims}


def claims_picture(file: Path) -> None:
    """Draw the intervals of all claims."""
    plot_all([*map(read_claim, claim_names())], file)


def summary(verdicts: Mapping[str, Verdict]) -> str:
    """Return one line per topic: its claims in a few words, grouped by verdict."""
    lines = []
    for topic, claims in SUMMARY.items():
        parts = []
        for verdict in VERDICTS:
            here = [f"{escape_text(words)} ({_link(name)})" for name, words in claims.items() if verdicts[name] == verdict]
            parts += [f"*{verdict}:* {', '.join(here)}"] if here else []
        lines.append(f"- **{topic}.** {'; '.join(parts)}.")
    return "\n".join(lines)


def claim_label(name: str) -> str:
    """Anchor of a claim's page."""
    return f"claim-{name.replace('_', '-')}"


def _link(name: str) -> str:
    return f"[`{name}`](#{claim_label(name)})"


def _statistic(claim: ClaimResult) -> str:
    statistic = f"{claim.statistic.text()}: {claim.unit} ({claim.statistic.seeds} seeds)"
    if claim.condition_statistic is not None:
        statistic += (
            f"; the experiment tests the claim only if {claim.condition_statistic.text()} is above 0: {claim.condition}"
        )
    return escape_text(statistic)


def _row(claim: ClaimResult) -> tuple[str, ...]:
    mark = ", one fixed rate" if claim.has_one_rate else ""
    return escape_text(claim.text), claim.statistic.text() + mark, _link(claim.name)


def _page(claim: ClaimResult) -> str:
    """The page of a claim: its results, plot and text."""
    rows = [
        ("claim", escape_text(claim.text)),
        ("source", escape_text(f"{claim.paper}, {claim.place}")),
        ("verdict", claim.verdict),
        ("statistic", _statistic(claim)),
        ("budget", escape_text(claim.budget)),
        ("run", f"{claim.date}, {claim.minutes:.1f} minutes"),
        ("files", f"`experiments/claims/{claim.name}.py` and `.json`"),
    ]
    rows += [("first look", escape_text(claim.first_look))] if claim.first_look else []
    rows += [("pilot", escape_text(claim.pilot))] if claim.pilot else []
    figures = [(escape_text(name), found.text()) for name, found in claim.figures.items()]
    parts = [
        f"({claim_label(claim.name)})=\n# `{claim.name}`",
        table(("", ""), rows),
        f"```{{image}} /../experiments/claims/{claim.name}.png\n:alt: curves of the arms, and the statistic of every seed\n```",
        *(escape_text(part) for part in claim.page.split("\n\n")),
        *([f"## Further measurements\n\n{table(('figure', 'mean (95 % interval)'), figures)}"] if figures else []),
    ]
    return "\n\n".join(parts)
