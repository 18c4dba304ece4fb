"""Step-level search compared with best-of-N and voting at the same number of sampled tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from rich.table import Table

from rljax.evaluation.answers import SampledAnswers
from rljax.evaluation.best_of_n import VERIFIER, VOTES, accuracy_of_chosen
from rljax.evaluation.paired_change import format_points, paired_change
from rljax.evaluation.report import plain_estimate
from rljax.evaluation.statistics import Estimate, over_problems
from rljax.text import counted


class SearchRow(NamedTuple):
    """A search of size N, and k independent responses at the same cost."""

    samples: int
    """N, the size of the search: depending on the method, samples per step, samples in total, or versions of an answer."""
    keep: int
    """Number of prefixes that the search keeps."""
    tokens: float
    """Tokens that the search sampled per problem, averaged over problems."""
    accuracy: Estimate
    """Accuracy of the search."""
    responses: int
    """k, number of independent responses in the comparison: `affordable`, but at least 1 and at most the number sampled."""
    affordable: int
    """Largest number of independent responses that need at most as many tokens, on average, as the search; may be 0."""
    response_tokens: float
    """Mean number of tokens in k independent responses."""
    best: Estimate
    """Accuracy of the response with the highest value among k responses."""
    votes: Estimate
    """Accuracy of the most frequent answer among k responses."""
    verifier: Estimate
    """Probability that at least one of k responses is right."""
    over_best: Estimate
    """Accuracy of the search minus `best`, paired by problem."""
    over_votes: Estimate
    """Accuracy of the search minus `votes`, paired by problem."""


class SearchReport(NamedTuple):
    """Searches of several sizes, each compared with independent responses at the same cost."""

    value: str
    """Name of the value function that selects steps and responses."""
    single: Estimate
    """Accuracy of a single response."""
    problems: int
    """Number of problems that have a judged response."""
    rows: tuple[SearchRow, ...]
    """One row for each size."""
    unjudged: int = 0
    """Number of problems that have no judged response."""
    dropped: int = 0
    """Number of problems that were dropped because their prompts are too long."""
    has_steps: bool = True
    """False if no answer has a second step, although some answers have ended or used up their token budget."""

    def table(self) -> Table:
        """Make a rich table of accuracy against tokens."""
        table = Table(title=f"Search by {self.value}, and k responses at its cost")
        for name in ("N", "tokens", "search", "k", "tokens", f"best by {self.value}", "votes", "any right"):
            table.add_column(name, justify="right")
        for row in self.rows:
            own = (str(row.samples), f"{row.tokens:.0f}", row.accuracy.text())
            others = (estimate.text() for estimate in (row.best, row.votes, row.verifier))
            table.add_row(*own, str(row.responses), f"{row.response_tokens:.0f}", *others)
        return table

    def lines(self) -> list[str]:
        """Describe the differences in words, with a note if a search used more or fewer tokens than its k responses."""
        left_out = {"no response to them has a verdict": self.unjudged, "their prompts have too many tokens": self.dropped}
        notes = [f"{counted(count, 'problem')} left out: {reason}." for reason, count in left_out.items() if count]
        if not self.has_steps:
            notes.append(
                "No answer has a second step: the texts that end a step do not occur; name others with --step-ends."
            )
        return notes + [
            f"N = {row.samples}: search minus best of {row.responses} {format_points(row.over_best)}; "
            f"search minus votes of {row.responses} {format_points(row.over_votes)}{_limit(row)}"
            for row in self.rows
        ]

    def to_json(self) -> dict:
        """Return everything as a dict for JSON; NaN becomes None."""
        rows = [
            {name: plain_estimate(value) if isinstance(value, Estimate) else value for name, value in row._asdict().items()}
            for row in self.rows
        ]
        return {"value": self.value, "single": plain_estimate(self.single), "problems": self.problems, "rows": rows} | {
            "unjudged": self.unjudged,
            "dropped": self.dropped,
        }


def _limit(row: SearchRow) -> str:
    """Return a note if the search used more or fewer tokens than the k responses."""
    if row.affordable > row.responses:
        only = f"only {row.responses} were sampled (the largest of --samples)"
        return f"; its tokens would give {row.affordable} responses, but {only}"
    return "; its tokens are too few for one response" if row.affordable < row.responses else ""


def search_row(
    sampled: SampledAnswers,
    value: str,
    *,
    right: Bool[np.ndarray, "P"],
    known: Bool[np.ndarray, "P"],
    tokens: Int[np.ndarray, "P"],
    samples: int,
    keep: int,
) -> SearchRow:
    """Compare a search with as many independent responses as its tokens allow, but at least one.

    Args:
        sampled: N' independent responses to each of P problems, with the scores of `value`.
        value: name of the value function.
        right: whether the answer of the search is right, `[P]`.
        known: mask of the problems for which `right` is known, `[P]`.
        tokens: number of tokens that the search sampled, `[P]`.
        samples: N, the size of the search.
        keep: number of prefixes that the search keeps.
    """
    length = float(sampled.lengths.mean())
    spent = float(tokens.mean())
    affordable = int(spent / length)
    k = int(np.clip(affordable, 1, sampled.rewards.shape[1]))
    accuracy = np.where(known, right.astype(float), np.nan)
    best, votes, verifier = (accuracy_of_chosen(sampled, name, k=k) for name in (value, VOTES, VERIFIER))
    return SearchRow(
        samples=samples,
        keep=keep,
        tokens=spent,
        accuracy=over_problems(accuracy),
        responses=k,
        affordable=affordable,
        response_tokens=k * length,
        best=over_problems(best),
        votes=over_problems(votes),
        verifier=over_problems(verifier),
        over_best=paired_change(best, accuracy),
        over_votes=paired_change(votes, accuracy),
    )


def search_report(sampled: SampledAnswers, value: str, rows: Sequence[SearchRow]) -> SearchReport:
    """Combine the rows with the accuracy of a single response; `value` is the name of the value function."""
    right, known = sampled.correctness_masks(None)
    single: Float[np.ndarray, "P"] = np.where(known.any(-1), (right & known).sum(-1) / np.maximum(known.sum(-1), 1), np.nan)
    judged = int(np.isfinite(single).sum())
    return SearchReport(value, over_problems(single), judged, tuple(rows), len(single) - judged)
