"""Report of an evaluation: measures with their intervals, overall, by response length and by columns of the data."""

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from rich.table import Table
from rich.text import Text

from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.evaluation.answers import Sampled
from rljax.evaluation.calibration import Calibration, calibration
from rljax.evaluation.chosen import chosen_table
from rljax.evaluation.gap import Gap, group_gap
from rljax.evaluation.statistics import (
    Estimate,
    average_at_n,
    majority_at_k,
    mean_over_problems,
    over_problems,
    pass_at_k,
    ratio_over_problems,
)
from rljax.records import documented
from rljax.text import printable, shortened

KNOWN_COLUMNS = ("subject", "type", "level", "difficulty", "operands")
"""Columns by which problems are grouped by default, if the data has them."""
SHORTEST_RANGE = 16  # tokens; the ranges double from here on, as in the training loop's evaluations
_LABEL = 40
SCORE = "score"
"""Name of the expected score of an examination among the measures."""


@documented
class Part(NamedTuple):
    """A group of problems or responses, and its measures."""

    label: str
    """Name of the group."""
    count: int
    """Number of problems, or of responses."""
    measures: dict[str, Estimate]
    """Name of a measure -> its estimate."""


@documented
class Report(NamedTuple):
    """Measures of an evaluation, overall and of groups of problems and responses."""

    whole: Part
    """All problems."""
    by_length: list[Part]
    """Responses in ranges of their number of tokens, with the `accuracy` of each range."""
    by_column: dict[str, list[Part]]
    """Name of a column -> the problems grouped by its value."""
    samples: int
    """Number of answers to each problem."""
    dropped: int = 0
    """Number of problems that were left out because their prompts are too long."""
    chosen: Mapping[str, Mapping[int, Estimate]] = MappingProxyType({})
    """Chooser -> number of responses k -> accuracy of the one that it chooses out of k."""
    gaps: Mapping[str, Gap] = MappingProxyType({})
    """Name of a column -> the gap between its best and its worst group."""
    calibration: Calibration | None = None
    """How true the confidences are that answers state; None where none is stated."""
    out_of: int | None = None
    """Problems of an examination whose expected score is among the measures."""

    def headline(self) -> str:
        """Summary in one line."""
        measures = self.whole.measures
        accuracy, length = measures[f"avg@{self.samples}"], measures["response_length"].value
        interval = "no interval" if math.isnan(accuracy.low) else f"{accuracy.low:.1%} to {accuracy.high:.1%}"
        several = f", {self.samples} answers each" if self.samples > 1 else ""
        return (
            f"accuracy {accuracy.value:.1%} (95 % interval {interval}) on {accuracy.problems} of {self.whole.count} "
            f"problems{several}, mean reward {measures['reward'].value:.3f}, mean response {length:.1f} tokens, "
            f"{measures['truncated'].value:.1%} truncated{self._score()}"
        )

    def _score(self) -> str:
        """The expected score of an examination."""
        if SCORE not in self.whole.measures:
            return ""
        score = self.whole.measures[SCORE]
        ends = "" if math.isnan(score.low) else f" ({score.low:.1f} to {score.high:.1f})"
        return f"; expected score {score.value:.1f}{ends} of {self.out_of}"

    def lines(self) -> list[str]:
        """In words: the gap between the best and the worst group of each column, and the calibration."""
        gaps = [f"By {name}: {gap.text()}" for name, gap in self.gaps.items()]
        return gaps if self.calibration is None else [*gaps, f"Calibration: {self.calibration.text()}"]

    def to_json(self) -> dict:
        """The measures as a dict for JSON; NaN becomes None."""
        return {
            "samples": self.samples,
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
        """Tables for rich: all problems, response lengths, and one for each column."""
        whole = Table("measure", title="All problems")
        for heading in ("value", "95 % interval", "problems"):
            whole.add_column(heading, justify="right")
        for name, estimate in self.whole.measures.items():
            whole.add_row(name.replace("_", " "), *_cells(name, estimate), str(estimate.problems))
        shares = [name for name in self.whole.measures if "@" in name]
        shown = list(dict.fromkeys([shares[0], *(_last(shares, kind) for kind in ("pass@", "maj@"))]))
        tables = [whole, _table("Response length", "tokens", "responses", self.by_length, ["accuracy"])]
        columns = [name for name in shown if name is not None]
        tables += [chosen_table(self.chosen)] if self.chosen else []
        return [
            *tables,
            *(_table(f"By {name}", name, "problems", parts, columns) for name, parts in self.by_column.items()),
        ]


def make_report(
    sampled: Sampled,
    problems: Sequence[Problem],
    *,
    at: Sequence[int],
    columns: Sequence[str],
    right_above: float | None = None,
    out_of: int | None = None,
) -> Report:
    """Measure an evaluation.

    Args:
        sampled: N answers to each of P problems.
        problems: the P problems.
        at: numbers of answers k for pass@k and, above 1, maj@k; at most N.
        columns: columns that the problems are grouped by; see `chosen_columns`.
        right_above: an answer is right when its reward is above this; None leaves it to the verifier, or, without one, to a reward
            above 0.

    Returns:
        The report. It has no maj@k if no response holds an answer to vote for.
    """
    judged, samples = sampled.judged, sampled.rewards.shape[1]
    right, known = sampled.right_and_known(right_above)
    everything = np.ones_like(judged)
    votes = any(answer is not None for row in sampled.answers for answer in row)
    shares = {
        f"avg@{samples}": average_at_n(right.astype(float), known),
        **{f"pass@{k}": pass_at_k(right, known, k=k) for k in at},
        **{f"maj@{k}": majority_at_k(sampled.answers, right, known, k=k) for k in at if k > 1 and votes},
        "truncated": average_at_n(sampled.truncated.astype(float), everything),
    }
    means = {
        "reward": average_at_n(sampled.rewards, judged),
        "response_length": average_at_n(sampled.lengths, everything),
    }

    def part(label: str, index: np.ndarray) -> Part:
        measured = {name: over_problems(values[index]) for name, values in shares.items()}
        if out_of is not None:
            value, low, high, problems = measured[f"avg@{samples}"]
            measured[SCORE] = Estimate(out_of * value, out_of * low, out_of * high, problems)
        measured |= {name: mean_over_problems(values[index]) for name, values in means.items()}
        return Part(label, len(index), measured)

    groups = {name: _groups(labels_of(problems, name)) for name in columns}
    gaps = {
        name: group_gap({label: shares[f"avg@{samples}"][index] for label, index in found.items()})
        for name, found in groups.items()
    }
    return Report(
        whole=part("all", np.arange(len(judged))),
        by_length=length_parts(right, known, sampled.lengths),
        by_column={name: [part(*group) for group in found.items()] for name, found in groups.items()},
        samples=samples,
        out_of=out_of,
        calibration=None if sampled.confidence is None else calibration(sampled.confidence, right, known),
        gaps={name: gap for name, gap in gaps.items() if gap is not None},
    )


def _groups(labels: Sequence[str]) -> dict[str, np.ndarray]:
    """Value of a column -> places of the problems that have it, in the order of the values."""
    return {label: np.flatnonzero(np.array(labels) == label) for label in sorted(set(labels), key=by_value)}


def length_parts(right: np.ndarray, judged: np.ndarray, lengths: np.ndarray) -> list[Part]:
    """Accuracy of the judged responses in each range of lengths.

    Args:
        right: which responses are right, `[P, N]`.
        judged: which responses were judged, `[P, N]`.
        lengths: their lengths in tokens, `[P, N]`.

    Returns:
        A part for each range that holds a judged response: up to 16 tokens, up to 32, and so on. The interval is over
        problems: responses to one problem count as one observation.

    Example:
        >>> parts = length_parts(np.array([[True], [False], [True]]), np.ones((3, 1), bool), np.array([[3], [16], [40]]))
        >>> [(part.label, part.count, part.measures["accuracy"].value) for part in parts]
        [('1 to 16', 2, 0.5), ('33 to 64', 1, 1.0)]
    """
    most = SHORTEST_RANGE * 2 ** np.ceil(np.log2(np.maximum(lengths, SHORTEST_RANGE) / SHORTEST_RANGE)).astype(int)
    parts = []
    for last in np.unique(most[judged]).tolist():
        inside = judged & (most == last)
        first = 1 if last == SHORTEST_RANGE else last // 2 + 1
        accuracy = ratio_over_problems((right & inside).sum(-1), inside.sum(-1))
        parts.append(Part(f"{first} to {last}", int(inside.sum()), {"accuracy": accuracy}))
    return parts


def chosen_columns(problems: Sequence[Problem], names: Sequence[str] | None) -> list[str]:
    """Choose the columns that problems are grouped by.

    Args:
        problems: problems of the evaluation.
        names: names of columns; None for those of `KNOWN_COLUMNS` that the data has.

    Returns:
        Names of columns that at least one problem has.

    Raises:
        InputError: no problem has one of the named columns.

    Example:
        >>> chosen_columns([Problem("1+1=", "2", columns={"level": 1, "id": 7})], None)
        ['level']
    """
    known = dict.fromkeys(name for problem in problems for name in problem.columns)
    if names is None:
        return [name for name in KNOWN_COLUMNS if name in known]
    missing = [name for name in names if name not in known]
    if missing:
        choice = f"choose among {', '.join(known)}" if known else "they have no columns at all"
        raise InputError(f"--by {missing[0]}: the problems have no such column; {choice}.")
    return list(dict.fromkeys(names))


def labels_of(problems: Sequence[Problem], column: str) -> list[str]:
    """Value of a column as text, one per problem; "-" where a problem lacks it."""
    return [_label(problem.columns.get(column)) for problem in problems]


def _label(value: object) -> str:
    return "-" if value is None else shortened(printable(str(value)), _LABEL)


def by_value(label: str) -> tuple[int, float, str]:
    """Sort numbers by their value, before texts."""
    try:
        number = float(label)
    except ValueError:
        return 1, 0.0, label
    return (0, number, label) if math.isfinite(number) else (1, 0.0, label)


def _last(names: Sequence[str], beginning: str) -> str | None:
    return next((name for name in reversed(names) if name.startswith(beginning)), None)


def _form(name: str) -> str:
    if name in ("response_length", SCORE):
        return ".1f"
    return ".3f" if name == "reward" else ".1%"


def _cells(name: str, estimate: Estimate) -> tuple[str, str]:
    """Value and interval."""
    if math.isnan(estimate.value):
        return "-", "-"
    form = _form(name)
    interval = "-" if math.isnan(estimate.low) else f"{estimate.low:{form}} to {estimate.high:{form}}"
    return f"{estimate.value:{form}}", interval


def _table(title: str, what: str, counted: str, parts: Iterable[Part], names: Sequence[str]) -> Table:
    """One row per part: its count, and each measure with its interval."""
    table = Table(title=Text(title))
    table.add_column(Text(what))
    table.add_column(counted, justify="right")
    for name in names:
        table.add_column(name, justify="right")
    for part in parts:
        table.add_row(Text(part.label), str(part.count), *(part.measures[name].text() for name in names))
    return table


def plain_estimate(estimate: Estimate) -> dict[str, float | int | None]:
    """An estimate as a dict for JSON; NaN becomes None.

    Example:
        >>> plain_estimate(Estimate(0.5, math.nan, math.nan, 1))
        {'value': 0.5, 'low': None, 'high': None, 'problems': 1}
    """
    return {key: None if math.isnan(value) else value for key, value in estimate._asdict().items()}


def _plain_calibration(found: Calibration) -> dict:
    estimates = {name: plain_estimate(value) for name, value in found._asdict().items() if name != "stated"}
    return {"stated": found.stated, **estimates}


def _plain(part: Part) -> dict:
    measures = {name: plain_estimate(estimate) for name, estimate in part.measures.items()}
    return {"label": part.label, "count": part.count, "measures": measures}
