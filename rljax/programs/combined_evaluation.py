"""Evaluate several sets of answers together: answers to problems and to changed versions of them, or answers of runs that vote."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from rljax.data.perturbation import PERTURBATIONS, perturb
from rljax.errors import InputError
from rljax.evaluation.answers import SampledAnswers
from rljax.evaluation.paired_change import format_points, paired_change
from rljax.evaluation.report import Report, plain_estimate
from rljax.evaluation.statistics import (
    Estimate,
    average_at_n,
    majority_at_k,
    over_problems,
)
from rljax.programs.answer_settings import EvalSettings, with_changes
from rljax.programs.evaluation import (
    DEFAULTS,
    NO_CUSTOM_PARTS,
    EvaluationParts,
    JudgedAnswers,
    Watch,
    answer_problems,
    report_of,
)
from rljax.text import counted


class Robustness(NamedTuple):
    """Accuracy on problems, and on the same problems with changed prompts."""

    perturbation: str
    """How the prompts were changed."""
    before: Report
    """Report on the original prompts, for the problems whose changed prompts are within the token limit."""
    after: Report
    """Report on the changed prompts of the same problems."""
    change: Estimate
    """Accuracy with changed prompts minus accuracy with the original prompts, paired by problem."""
    same: Estimate
    """Fraction of equal answers before and after, over the problems with a changed prompt and at least one answer."""
    prompts: int
    """Number of prompts that changed."""
    example: tuple[str, str]
    """A prompt before and after the change."""

    def lines(self) -> list[str]:
        """Describe the change in words."""
        first, second = self.example
        return [
            f"{counted(self.prompts, 'prompt')} changed ({self.perturbation}), for example from {first!r} to {second!r}",
            f"original:     {self.before.headline()}",
            f"changed:      {self.after.headline()}",
            f"difference:   {format_points(self.change)} on the same {counted(self.change.problems, 'problem')}",
            *([f"same answer:  {self.same.text()} of the changed prompts"] if self.same.problems else []),
            *(
                [f"Left out {counted(self.after.dropped, 'changed prompt')} with too many tokens."]
                if self.after.dropped
                else []
            ),
        ]

    def to_json(self) -> dict:
        """Return everything as a dict for JSON."""
        reports = {"before": self.before.to_json(), "after": self.after.to_json()}
        change = {"change": plain_estimate(self.change), "same_answers": plain_estimate(self.same)}
        prompts = {"prompts_changed": self.prompts, "example": list(self.example)}
        return {"perturbation": self.perturbation, **change, **prompts, **reports}


class Ensemble(NamedTuple):
    """Accuracy of several runs, and of the vote over all their answers."""

    runs: tuple[str, ...]
    """The runs."""
    alone: tuple[Estimate, ...]
    """Accuracy of each run, on the problems of the vote."""
    vote: Estimate
    """Accuracy of the most frequent answer among all runs, on the problems whose answers were all judged; answers that tie for the
    most votes win with equal probability."""
    gains: tuple[Estimate, ...]
    """Accuracy of the vote minus accuracy of each run, paired by problem."""

    def lines(self) -> list[str]:
        """Describe the accuracies in words."""
        rows = [
            f"{run}: {alone.text()}; vote minus {run}: {format_points(gain)}"
            for run, alone, gain in zip(self.runs, self.alone, self.gains, strict=True)
        ]
        vote = f"vote of {counted(len(self.runs), 'run')}: {self.vote.text()} on {counted(self.vote.problems, 'problem')}"
        return [*rows, vote]

    def to_json(self) -> dict:
        """Return everything as a dict for JSON."""
        rows = [
            {"run": run, "accuracy": plain_estimate(alone), "vote_less_run": plain_estimate(gain)}
            for run, alone, gain in zip(self.runs, self.alone, self.gains, strict=True)
        ]
        return {"runs": rows, "vote": plain_estimate(self.vote)}


def _accuracies(answers: JudgedAnswers, right_above: float | None) -> Float[np.ndarray, "P"]:
    """Compute the fraction of correct answers to each problem."""
    right, known = answers.sampled.correctness_masks(right_above)
    return average_at_n(right.astype(float), known)


def robustness(
    target: str | Path,
    perturbation: str,
    settings: EvalSettings = DEFAULTS,
    *,
    parts: EvaluationParts = NO_CUSTOM_PARTS,
    watch: Watch = iter,
    **changes: Any,
) -> Robustness:
    """Evaluate a model on problems, and on the same problems with changed prompts.

    Args:
        target: folder of a run, Hugging Face folder, or hub id.
        perturbation: one of `rljax.data.perturbation.PERTURBATIONS`.
        settings: settings of the evaluation, without `out`.
        parts: your own problems, and the custom parts that were passed to `train` and judge or sample; by default, none.
        watch: wraps the iteration over the engine calls, for example to show progress.
        **changes: fields of `settings` by name.

    Raises:
        InputError: the target cannot be opened, an argument cannot be used, or no prompt changes; or the tokenizer cannot encode a
            changed prompt.
    """
    settings = with_changes(settings, changes)
    before = answer_problems(target, settings, parts, watch)
    changed = perturb(before.problems, perturbation, seed=settings.seed)
    same_settings = replace(settings, dataset=None, limit=None)
    try:
        after = answer_problems(target, same_settings, parts._replace(problems=changed), watch)
    except InputError as error:  # the model could answer the unchanged prompts, so the change is the cause
        raise InputError(
            f"--perturb {perturbation} makes prompts that this model cannot read ({str(error).rstrip('.')}); choose another of "
            f"{', '.join(PERTURBATIONS)}."
        ) from error
    indices = {id(problem): index for index, problem in enumerate(changed)}
    same = _select_problems(before, [indices[id(problem)] for problem in after.problems])
    pairs = [
        (old.prompt, new.prompt) for old, new in zip(before.problems, changed, strict=True) if old.prompt != new.prompt
    ]
    right_above = settings.right_above
    is_changed = [new.prompt != before.problems[indices[id(new)]].prompt for new in after.problems]
    equal = equal_answers(same.sampled.answers, after.sampled.answers)
    return Robustness(
        perturbation,
        report_of(same, right_above=right_above),
        report_of(after, right_above=right_above),
        paired_change(_accuracies(same, right_above), _accuracies(after, right_above)),
        over_problems(np.where(is_changed, equal, np.nan)),
        len(pairs),
        pairs[0],
    )


def equal_answers(one: Sequence[Sequence[str | None]], other: Sequence[Sequence[str | None]]) -> Float[np.ndarray, "P"]:
    """For each of P problems, pair every answer of one list with every answer of another, and compute the fraction of equal pairs.

    Args:
        one: the answers to each problem; None stands for a response without an answer, and equals nothing.
        other: answers to the same problems.

    Returns:
        The fraction for each problem; NaN if no response to the problem has an answer.

    Example:
        >>> equal_answers([["7", "8"], [None], [None]], [["7"], ["5"], [None]]).tolist()
        [0.5, 0.0, nan]
    """
    fractions = []
    for mine, theirs in zip(one, other, strict=True):
        pairs = [(left, right) for left in mine for right in theirs]
        has_answer = any(answer is not None for pair in pairs for answer in pair)
        fractions.append(np.mean([left is not None and left == right for left, right in pairs]) if has_answer else np.nan)
    return np.array(fractions, float)


def _select_problems(answers: JudgedAnswers, indices: Sequence[int]) -> JudgedAnswers:
    """Return only the answers to the problems with these indices."""
    problems = [answers.problems[index] for index in indices]
    return answers._replace(sampled=answers.sampled.of_problems(indices), problems=problems)


def ensemble(
    targets: Sequence[str | Path],
    settings: EvalSettings = DEFAULTS,
    *,
    parts: EvaluationParts = NO_CUSTOM_PARTS,
    watch: Watch = iter,
    **changes: Any,
) -> Ensemble:
    """Let several runs answer the same problems, and measure the accuracy of the most frequent answer.

    Args:
        targets: at least two folders of runs, Hugging Face folders, or hub ids.
        settings: settings of the evaluation, the same for all, without `out`; by default the problems are the first run's
            held-out problems.
        parts: your own problems, and the custom parts that were passed to `train` and judge or sample; by default, none.
        watch: wraps the iteration over the engine calls, for example to show progress.
        **changes: fields of `settings` by name.

    Raises:
        InputError: there are fewer than two targets, a target cannot be opened, its limit on prompt tokens excludes problems of
            the first target, or a different reward judges its answers.
    """
    settings = with_changes(settings, changes)
    if len(targets) < 2:
        raise InputError("--vote needs the answers of several runs; give at least two.")
    first = answer_problems(targets[0], settings, parts, watch)
    shared, parts = replace(settings, dataset=None, limit=None), parts._replace(problems=list(first.problems))
    answered = [first]
    for target in targets[1:]:
        answers = answer_problems(target, shared, parts, watch)
        check_comparable(target, answers, first)
        answered.append(answers)
    votes = [answers.sampled for answers in answered]
    return vote_of(tuple(map(str, targets)), votes, right_above=settings.right_above)


def vote_of(runs: tuple[str, ...], answered: Sequence[SampledAnswers], *, right_above: float | None = None) -> Ensemble:
    """Count the votes of all answers of several runs to the same problems; each answer has one vote.

    Args:
        runs: names of the runs.
        answered: the answers of each run to P problems.
        right_above: an answer is right if its reward is above this; None means that the verifier decides.
    """
    outcomes = [sampled.correctness_masks(right_above) for sampled in answered]
    right, known = (np.concatenate(arrays, axis=1) for arrays in zip(*outcomes, strict=True))
    rows = zip(*(sampled.answers for sampled in answered), strict=True)
    votes = majority_at_k([list(chain.from_iterable(row)) for row in rows], right, known, k=right.shape[1])
    alone = [
        np.where(np.isnan(votes), np.nan, average_at_n(is_right.astype(float), is_known)) for is_right, is_known in outcomes
    ]
    return Ensemble(
        runs, tuple(map(over_problems, alone)), over_problems(votes), tuple(paired_change(one, votes) for one in alone)
    )


def check_comparable(target: str | Path, answers: JudgedAnswers, first: JudgedAnswers) -> None:
    """Reject a run that skipped problems, or whose answers are judged by a different reward than the first run's.

    Raises:
        InputError: the message explains what to pass.
    """
    if answers.judged_by != first.judged_by:
        raise InputError(
            f"the answers of {str(target)!r} are judged by the reward {answers.judged_by!r}, and those of the first run by "
            f"{first.judged_by!r}, so their votes cannot be counted together; give one --reward for all."
        )
    if len(answers.problems) != len(first.problems):
        raise InputError(
            f"{str(target)!r} accepts only {len(answers.problems)} of the {len(first.problems)} problems, because its limit on "
            "prompt tokens is lower; give a --dataset of shorter problems."
        )
