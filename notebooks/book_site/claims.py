"""The page of claims: what was claimed, and what small experiments say, sorted by verdict."""

from book_site.docstrings import escaped, table
from rljax.book.claim_results import Outcome, outcome_of, read_results
from rljax.book.claims import VERDICTS, Page, Verdict, claim_files, read_page

MEANING: dict[Verdict, str] = {
    "holds here": "The 95 % interval lies on the side of the claim, beyond the smallest size that would matter.",
    "contradicted": "The interval lies on the other side, beyond that size. A larger model may still bear the claim out.",
    "not seen at this scale": "The interval ends below the smallest size that would matter.",
    "not decided": "The interval is too wide to tell, or the experiment is no fair test of the claim: `rljax claims NAME` "
    "says which. Results of another version of the experiment decide nothing either.",
}
INTRODUCTION = """(page-claims)=
# Claims of papers, put to the test

{count} claims about algorithms, each decided by an experiment of its own in `experiments/claims/`. In most of them a
policy is a table of logits on a small world of tokens; the losses, advantages and weights are those of the library.
So an experiment takes seconds, every arm trains on the same worlds from the same seeds, and pass rates are exact.
What depends on a network does not show: features that prompts share, a large vocabulary, a capacity that runs out.
**A verdict is about these worlds.** It says what an equation does by itself, which is where a claim about an equation
should begin.

Where algorithms want different learning rates, both sides have the same search for theirs, on seeds of their own, and often
a verifier that errs on one response in 20; the page of an experiment says so. The others share one learning rate.

The statistic of a claim is one number a seed, its interval is that of Student's t over the seeds, and one rule decides
all claims: `rljax claims NAME` prints it. {count} intervals at 95 % are {count} looks, so about one in twenty misses its
true value by chance. Where something was chosen after results had been seen, the experiment says what, under "pilot".
A claim to learn more or faster is decided by the mean pass rate during training, one to end better by the pass rate at
the end; `rljax claims NAME` shows the other beside it. All experiments took {minutes:.0f} minutes on two shared cores.

    rljax claims                     # this table
    rljax claims cispo               # an experiment: question, setting, deviations from the paper, all numbers
    rljax claims --rerun cispo"""


def claims_page() -> str:
    """Every claim under its verdict."""
    pages = [read_page(file) for file in claim_files().values()]
    outcomes = [outcome_of(page, read_results(page)) for page in pages]
    text = [INTRODUCTION.format(count=len(pages), minutes=sum(found.minutes for found in outcomes))]
    for verdict in VERDICTS:
        rows = [_row(page, found) for page, found in zip(pages, outcomes, strict=True) if found.verdict == verdict]
        if rows:
            heads = ("claim", "made by", "statistic, mean over the seeds (95 % interval)", "experiment")
            text.append(f"## {verdict.capitalize()}\n\n{MEANING[verdict]}\n\n{table(heads, rows)}")
    return "\n\n".join(text)


def _row(page: Page, outcome: Outcome) -> tuple[str, str, str, str]:
    claim = page.claim
    statistic = f"{outcome.statistic.text()}: {claim.unit} ({outcome.statistic.seeds} seeds)"
    if claim.condition is not None and outcome.condition is not None:
        statistic += f"; a test if {outcome.condition.text()} lies above 0: {claim.condition[0]}"
    return escaped(claim.text), escaped(f"{claim.paper}, {claim.place}"), escaped(statistic), f"`{page.name}`"
