"""Report of an evaluation: measures with intervals, overall, by response length and by columns of the data."""

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from rich.table import Table
from rich.text import Text

from rljax.data.problem import Problem
from rljax.evaluation.answers import SampledAnswers
from rljax.evaluation.best_of_n import chosen_table
from rljax.evaluation.calibration import Calibration, calibration
from rljax.evaluation.group_gap import Gap, group_gap
from rljax.evaluation.heldout import SHORTEST_RANGE, last_of_range
from rljax.evaluation.problem_kinds import by_value, labels_of
from rljax.evaluation.statistics import (
    Estimate,
    average_at_n,
    majority_at_k,
    mean_over_problems,
    over_problems,
    pass_at_k,
    ratio_over_problems,
)

SCORE = "score"
"""Name of the measure for the expected score in an exam."""


class ReportPart(NamedTuple):
    """A group of problems or responses, and its measures."""

    label: str
    """Name of the group."""
    count: int
    """Number of problems or responses."""
    measures: dict[str, Estimate]
    """Name of a measure -> its estimate."""


class Report(NamedTuple):
    """Measures of an evaluation, overall and for groups of problems and responses."""

    whole: ReportPart
    """All problems."""
    by_length: list[ReportPart]
    """Responses grouped by their number of tokens, with the `accuracy` of each group."""
    by_column: dict[str, list[ReportPart]]
    """Name of a column -> the problems grouped by this column's value."""
    samples: int
    """Number of answers to each problem."""
    dropped: int = 0
    """Number of problems that were dropped because their prompts are too long."""
    chosen: Mapping[str, Mapping[int, Estimate]] = MappingProxyType({})
    """Chooser -> number of responses k -> accuracy of the response that the chooser selects from k."""
    gaps: Mapping[str, Gap] = MappingProxyType({})
    """Name of a column -> the gap between its best and its worst group."""
    calibration: Calibration | None = None
    """Calibration of the confidences stated in answers; None if no answer states one."""
    out_of: int | None = None
    """Number of problems in the exam whose expected score is reported; None without an exam."""
    measured: str = "accuracy"
    """What the fractions measure: accuracy, or, if correctness is unknown, the fraction of rewards above a threshold."""
    unjudged: int = 0
    """Number of answers whose correctness is not known."""

    def headline(self) -> str:
        """Summarize the report in one line."""
        measures = self.whole.measures
        accuracy, length = measures[f"avg@{self.samples}"], measures["response_length"].value
        interval = "no interval" if math.isnan(accuracy.low) else f"{accuracy.low:z.1%} to {accuracy.high:z.1%}"
        name = self.measured if self.measured == "accuracy" else f"{self.measured}:"
        several = f", {self.samples} answers each" if self.samples > 1 else ""
        return (
            f"{name} {accuracy.value:.1%} (95 % interval {interval}) on {accuracy.problems} of {self.whole.count} "
            f"problems{several}{self._unjudged()}, mean reward {measures['reward'].value:.3f}, mean response {length:.1f} tokens, "
            f"{measures['truncated'].value:.1%} truncated{self._score()}"
        )

    def _unjudged(self) -> str:
        """Describe how many answers were not judged."""
        return f", {self.unjudged} answer{'s' * (self.unjudged > 1)} not judged" if self.unjudged else ""

    def _score(self) -> str:
        """Describe the expected score of an exam."""
        if SCORE not in self.whole.measures:
            return ""
        score = self.whole.measures[SCORE]
        interval = "" if math.isnan(score.low) else f" ({score.low:z.1f} to {score.high:z.1f})"
        return f"; expected score {score.value:.1f}{interval} of {self.out_of}"

    def lines(self) -> list[str]:
        """Return the lines below the tables: the gap between the best and the worst group of each column, and the calibration."""
        gaps = [f"By {name}: {gap.text()}" for name, gap in self.gaps.items()]
        return gaps if self.calibration is None else [*gaps, f"Calibration: {self.calibration.text()}"]

    def to_json(self) -> dict:
        """Return the measures as a dict for JSON; NaN becomes None."""
        return {
            "samples": self.samples,
            "measured": self.measured,
            "unjudged": self.unjudged,
            "whole": _plain(self.whole),
            "by_length": [_plain(part) for part in self.by_length],
            "by_column": {name: [_plain(part) for part in parts] for name, parts in self.by_column.items()},
            "chosen": {
                name: [{"k": k, **plain_estimate(estimate)} for k, estimate in estimates.items()]
                for name, estimates in self.chosen.items()
            },
            "gaps": {
                name: {"best": gap.best, "worst": gap.worst, "left_out": gap.left_out, **plain_estimate(gap.difference)}
                for name, gap in self.gaps.items()
            },
            "calibration": None if self.calibration is None else _plain_calibration(self.calibration),
        }

    def tables(self) -> list[Table]:
        """Make the report's rich tables: all problems, response lengths, and one table per column of the data."""
        overall = Table("measure", title="All problems")
        for heading in ("value", "95 % interval", "problems"):
            overall.add_column(heading, justify="right")
        for name, estimate in self.whole.measures.items():
            overall.add_row(name.replace("_", " "), *_cells(name, estimate), str(estimate.problems))
        fractions = [name for name in self.whole.measures if "@" in name]
        shown = list(dict.fromkeys([fractions[0], *(_last(fractions, kind) for kind in ("pass@", "maj@"))]))
        tables = [overall, _table("Response length", "tokens", "responses", self.by_length, ["accuracy"])]
        columns = [name for name in shown if name is not None]
        tables += [chosen_table(self.chosen)] if self.chosen else []
        return [
            *tables,
            *(_table(f"By {name}", name, "problems", parts, columns) for name, parts in self.by_column.items()),
        ]


def make_report(
    sampled: SampledAnswers,
    problems: Sequence[Problem],
    *,
    at: Sequence[int],
    columns: Sequence[str],
    right_above: float | None = None,
    out_of: int | None = None,
) -> Report:
    """Compute the report of an evaluation.

    Args:
        sampled: N answers to each of P problems.
        problems: the P problems.
        at: values of k for pass@k and maj@k, each at most N; maj@1 is left out.
        columns: columns that the problems are grouped by; see `choose_columns`.
        right_above: an answer is right if its reward exceeds this. None lets the verifier decide; without a verifier, an answer is
            right if its reward is above 0, or at least 0 if no reward can be positive.
        out_of: number of problems in an exam, to report its expected score; None without an exam.

    Returns:
        The report; without maj@k if no response contains an answer to vote for, and without distinct-2 if N is 1.
    """
    has_reward, samples = sampled.judged, sampled.rewards.shape[1]
    right, known = sampled.correctness_masks(right_above)
    everything = np.ones_like(has_reward)
    votes = any(answer is not None for row in sampled.answers for answer in row)
    fractions = {
        f"avg@{samples}": average_at_n(right.astype(float), known),
        **{f"pass@{k}": pass_at_k(right, known, k=k) for k in at},
        **{f"maj@{k}": majority_at_k(sampled.answers, right, known, k=k) for k in at if k > 1 and votes},
        "truncated": average_at_n(sampled.truncated.astype(float), everything),
    }
    means = {
        "reward": average_at_n(sampled.rewards, has_reward),
        "response_length": average_at_n(sampled.lengths, everything),
        **({} if sampled.distinct is None else {"distinct-2": sampled.distinct}),
    }

    def make_part(label: str, index: np.ndarray) -> ReportPart:
        measured = {name: over_problems(values[index]) for name, values in fractions.items()}
        if out_of is not None:
            value, low, high, problems = measured[f"avg@{samples}"]
            measured[SCORE] = Estimate(out_of * value, out_of * low, out_of * high, problems)
        measured |= {name: mean_over_problems(values[index]) for name, values in means.items()}
        return ReportPart(label, len(index), measured)

    groups = {name: _groups(labels_of(problems, name)) for name in columns}
    gaps = {
        name: group_gap({label: fractions[f"avg@{samples}"][index] for label, index in found.items()})
        for name, found in groups.items()
    }
    return Report(
        whole=make_part("all", np.arange(len(has_reward))),
        by_length=length_parts(right, known, sampled.lengths),
        by_column={name: [make_part(*group) for group in found.items()] for name, found in groups.items()},
        samples=samples,
        measured=sampled.measured(right_above),
        unjudged=int((~known).sum()),
        out_of=out_of,
        calibration=None if sampled.confidence is None else calibration(sampled.confidence, right, known),
        gaps={name: gap for name, gap in gaps.items() if gap is not None},
    )


def _groups(labels: Sequence[str]) -> dict[str, np.ndarray]:
    """Map each label, in the order of `by_value`, to the indices of the problems that have it."""
    return {label: np.flatnonzero(np.array(labels) == label) for label in sorted(set(labels), key=by_value)}


def length_parts(right: np.ndarray, judged: np.ndarray, lengths: np.ndarray) -> list[ReportPart]:
    """Return the accuracy of the judged responses in each range of lengths.

    Args:
        right: mask of the right responses, `[P, N]`.
        judged: mask of the responses whose correctness is known, `[P, N]`.
        lengths: lengths of the responses in tokens, `[P, N]`.

    Returns:
        A part for each range that contains a judged response: up to 16 tokens, 17 to 32, and so on. The interval is over
        problems: responses to the same problem count as one observation.

    Example:
        >>> parts = length_parts(np.array([[True], [False], [True]]), np.ones((3, 1), bool), np.array([[3], [16], [40]]))
        >>> [(part.label, part.count, part.measures["accuracy"].value) for part in parts]
        [('1 to 16', 2, 0.5), ('33 to 64', 1, 1.0)]
    """
    upper = last_of_range(lengths)
    parts = []
    for last in np.unique(upper[judged]).tolist():
        inside = judged & (upper == last)
        first = 1 if last == SHORTEST_RANGE else last // 2 + 1
        accuracy = ratio_over_problems((right & inside).sum(-1), inside.sum(-1))
        parts.append(ReportPart(f"{first} to {last}", int(inside.sum()), {"accuracy": accuracy}))
    return parts


def _last(names: Sequence[str], prefix: str) -> str | None:
    return next((name for name in reversed(names) if name.startswith(prefix)), None)


def _cells(name: str, estimate: Estimate) -> tuple[str, str]:
    """Format the value and the interval of a measure."""
    if math.isnan(estimate.value):
        return "-", "-"
    spec = {"response_length": "z.1f", SCORE: "z.1f", "reward": "z.3f"}.get(name, "z.1%")
    interval = "-" if math.isnan(estimate.low) else f"{estimate.low:{spec}} to {estimate.high:{spec}}"
    return f"{estimate.value:{spec}}", interval


def _table(title: str, what: str, counted: str, parts: Iterable[ReportPart], names: Sequence[str]) -> Table:
    """Make a table with one row per part: the part's count, and each measure with its interval."""
    table = Table(title=Text(title))
    table.add_column(Text(what))
    table.add_column(counted, justify="right")
    for name in names:
        table.add_column(name, justify="right")
    for part in parts:
        table.add_row(Text(part.label), str(part.count), *(part.measures[name].text() for name in names))
    return table


def plain_estimate(estimate: Estimate) -> dict[str, float | int | None]:
    """Return an estimate as a dict for JSON; NaN becomes None.

    Example:
        >>> plain_estimate(Estimate(0.5, math.nan, math.nan, 1))
        {'value': 0.5, 'low': None, 'high': None, 'problems': 1}
    """
    return {key: None if math.isnan(value) else value for key, value in estimate._asdict().items()}


def _plain_calibration(found: Calibration) -> dict:
    estimates = {name: plain_estimate(value) for name, value in found._asdict().items() if name != "stated"}
    return {"stated": found.stated, **estimates}


def _plain(part: ReportPart) -> dict:
    measures = {name: plain_estimate(estimate) for name, estimate in part.measures.items()}
    return {"label": part.label, "count": part.count, "measures": measures}
