"""Comparison of answers to the same held-out problems before and after RL."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rljax.evaluation.statistics import Estimate, paired_share_difference, wilson_interval
from rljax.rewards.correctness import is_right

Row = Mapping[str, Any]

SHOWN = 3
"""Default number of problems with changed answers to show."""


class Comparison(NamedTuple):
    """Greedy answers to the same problems before and after RL."""

    gained: int
    """Number of problems whose answer is right only after RL."""
    lost: int
    """Number of problems whose answer was right only before RL."""
    kept: int
    """Number of problems whose answer is right both times."""
    missed: int
    """Number of problems whose answer is right neither time."""
    shown: list[dict[str, Any]]
    """Problems whose completion changed: `prompt`, reference `answer`, the completions `before` and `after` RL, their rewards
    (`reward_before`, `reward_after`) and their verdicts (`correct_before`, `correct_after`)."""


def row_is_right(row: Row) -> bool:
    """True if a judged answer of `heldout.jsonl` is right; see `rljax.rewards.correctness.is_right`."""
    return is_right(row["reward"], row.get("correct"))  # earlier versions did not record `correct`


def compare(rows: Sequence[Row], *, shown: int = SHOWN) -> Comparison | None:
    """Compare the answers before RL with the latest ones.

    Args:
        rows: rows of a run's `heldout.jsonl`, with `step`, `problem`, `prompt`, `completion`, `answer`, `reward` and `correct`. A
            reward is None if the answer could not be judged. If two rows have the same step and problem, the later one counts.
        shown: maximum number of problems with changed answers to show. If answers became wrong, at least one of them is shown.

    Returns:
        The comparison over the problems that were judged both times; None if there are no answers before RL or after an RL step.

    Example:
        >>> def row(step, problem, completion, reward):
        ...     return dict(step=step, problem=problem, prompt="1+1=", completion=completion, answer="2", reward=reward)
        >>> found = compare([row(0, 0, "3", 0.0), row(0, 1, "2", 1.0), row(5, 0, "2", 1.0), row(5, 1, "2", 1.0)])
        >>> found[:4], found.shown[0]["before"], found.shown[0]["after"]
        ((1, 0, 1, 0), '3', '2')
    """
    pairs = judged_pairs(rows)
    if pairs is None:
        return None
    gained, lost, kept, missed = (
        [pair for pair in pairs if (row_is_right(pair[0]), row_is_right(pair[1])) == case]
        for case in ((False, True), (True, False), (True, True), (False, False))
    )
    reworded = [pair for pair in missed + kept if pair[0]["completion"] != pair[1]["completion"]]
    better = gained[: shown - bool(lost)]
    chosen = [*better, *lost[: shown - len(better)], *reworded][:shown]
    return Comparison(len(gained), len(lost), len(kept), len(missed), [_side_by_side(*pair) for pair in chosen])


def describe_sets(sets: Mapping[str, Sequence[Row]]) -> list[str]:
    """Describe the accuracy on further held-out sets before and after RL; sets without answers after an RL step are omitted.

    Args:
        sets: name of a set -> its rows of `heldout.jsonl`.

    Example:
        >>> row = dict(step=0, problem=0, prompt="1+1=", completion="3", answer="2", reward=0.0, correct=False)
        >>> describe_sets({"sums": [row, row | dict(step=5, completion="2", reward=1.0, correct=True)]})
        ['Accuracy on sums: 0.0% before RL, 100.0% after (1 problem): 1 became right, 0 became wrong.']
    """
    lines = []
    for name, rows in sets.items():
        found = compare(rows)
        count = 0 if found is None else sum(found[:4])
        if found is None or not count:
            continue
        before, after = (found.kept + found.lost) / count, (found.kept + found.gained) / count
        lines.append(
            f"{describe_measure(rows).capitalize()} on {name}: {before:.1%} before RL, {after:.1%} after ({count} "
            f"problem{'s' * (count > 1)}): {found.gained} became right, {found.lost} became wrong."
        )
    return lines


def judged_pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]] | None:
    """Pair the answers before RL with the latest ones, for problems judged both times; None if either set of answers is missing.

    Args:
        rows: rows of a run's `heldout.jsonl`, as in `compare`.
    """
    last = max((row["step"] for row in rows), default=0)
    before, after = ({row["problem"]: row for row in rows if row["step"] == step} for step in (0, last))
    if last == 0 or not before:
        return None
    is_judged = make_is_judged(rows)
    pairs = [(before[problem], after[problem]) for problem in before if problem in after]
    return [pair for pair in pairs if all(map(is_judged, pair))]


def make_is_judged(rows: Iterable[Row]) -> Callable[[Row], bool]:
    """Return a function that tests whether an answer is judged: it has a reward and, if any of `rows` has a verdict, a verdict."""
    has_verifier = any(row.get("correct") is not None for row in rows)
    return lambda row: row["reward"] is not None and (not has_verifier or row.get("correct") is not None)


def interval_of(share: float | None, rows: Sequence[Row]) -> Estimate | None:
    """Compute the 95 % interval of a held-out accuracy; None if there is no accuracy, or no answer was judged.

    Args:
        share: the accuracy.
        rows: rows of `heldout.jsonl`; the answers of the first evaluation determine how many problems were judged.
    """
    first = min((row["step"] for row in rows), default=0)
    judged = sum(row["step"] == first for row in filter(make_is_judged(rows), rows))
    if share is None or not judged:
        return None
    return Estimate(share, *wilson_interval(round(share * judged), judged), judged)


def describe_measure(rows: Iterable[Row]) -> str:
    """Name the fraction of right answers: accuracy if a verifier judged an answer or there are no answers, else rewards above 0."""
    kept = list(rows)
    return "accuracy" if not kept or any(row.get("correct") is not None for row in kept) else "share of rewards above 0"


def last_answers(rows: Sequence[Row], *, has_rl: bool = True) -> dict[tuple[int, str], Row]:
    """Return the rows of a run's latest evaluation by problem and prompt.

    Args:
        rows: rows of the run's `heldout.jsonl`.
        has_rl: whether the run has RL steps: the result is then empty until one was evaluated. A run of `rljax sft` has none, and
            its rows at step 0 are its last answers.
    """
    last = max((row["step"] for row in rows), default=0)
    return {(row["problem"], row["prompt"]): row for row in rows if row["step"] == last and (last or not has_rl)}


def paired_difference(first: Mapping[tuple[int, str], Row], second: Mapping[tuple[int, str], Row]) -> Estimate | None:
    """Compute the second run's accuracy minus the first run's on the same problems, with a 95 % score interval.

    Args:
        first: the first run's `last_answers`.
        second: the second run's `last_answers`.

    Returns:
        The difference over the problems for which both runs have a judged answer in their last evaluation; None if there are none.

    Example:
        >>> row = dict(step=9, problem=0, prompt="1+1=", completion="2", answer="2", reward=1.0)
        >>> paired_difference(last_answers([row | {"reward": 0.0}]), last_answers([row])).value
        1.0
    """
    pairs = [(first[key], second[key]) for key in first if key in second]
    is_judged = make_is_judged([*first.values(), *second.values()])
    judged = np.array([tuple(map(row_is_right, pair)) for pair in pairs if all(map(is_judged, pair))], bool)
    return paired_share_difference(*judged.T) if len(judged) else None


def _side_by_side(before: Row, after: Row) -> dict[str, Any]:
    return {
        "prompt": before["prompt"],
        "answer": before["answer"],
        "before": before["completion"],
        "after": after["completion"],
        "reward_before": before["reward"],
        "reward_after": after["reward"],
        "correct_before": before.get("correct"),
        "correct_after": after.get("correct"),
    }


def answer_rows(answers: Sequence[Row], valid: Sequence[bool], step: int) -> list[dict[str, Any]]:
    """Make rows of `heldout.jsonl`.

    Args:
        answers: one per problem, in the order of the problems, with `prompt`, `completion`, `answer`, `reward` and `correct`.
        valid: whether each answer was judged.
        step: number of RL steps done.

    Example:
        >>> answer_rows([{"prompt": "1+1=", "completion": "2", "answer": "2", "reward": 0.0, "correct": None}], [False], 4)
        [{'step': 4, 'problem': 0, 'prompt': '1+1=', 'completion': '2', 'answer': '2', 'reward': None, 'correct': None}]
    """
    return [
        {
            "step": step,
            "problem": problem,
            **row,
            "reward": row["reward"] if judged and math.isfinite(row["reward"]) else None,
        }
        for problem, (row, judged) in enumerate(zip(answers, valid, strict=True))
    ]
