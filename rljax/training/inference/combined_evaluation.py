"""Evaluations that set several beside each other: the same problems with changed prompts, and several runs that vote."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from rljax.data.perturbation import perturbed
from rljax.errors import InputError
from rljax.evaluation.answers import Sampled
from rljax.evaluation.paired import paired_change, points
from rljax.evaluation.report import Report, plain_estimate
from rljax.evaluation.statistics import (
    Estimate,
    average_at_n,
    majority_at_k,
    over_problems,
)
from rljax.records import documented
from rljax.training.inference.answers import Answered, answer_problems
from rljax.training.inference.evaluation import report_of


@documented
class Robustness(NamedTuple):
    """Accuracy on problems, and on the same problems with changed prompts."""

    perturbation: str
    """How the prompts were changed."""
    before: Report
    """With the prompts as they are, of the problems whose changed prompts fit."""
    after: Report
    """With the changed prompts."""
    change: Estimate
    """Accuracy with changed prompts less that with the others, paired by problem."""
    prompts: int
    """Number of prompts that changed."""
    example: tuple[str, str]
    """A prompt, and what it was changed to."""

    def lines(self) -> list[str]:
        """The change in words."""
        first, second = self.example
        return [
            f"{self.prompts} prompts changed ({self.perturbation}), as {first!r} to {second!r}",
            f"as they are:  {self.before.headline()}",
            f"changed:      {self.after.headline()}",
            f"difference:   {points(self.change)} on the same {self.change.problems} problems",
            *(
                [f"{self.after.dropped} changed prompts have too many tokens and are left out"]
                if self.after.dropped
                else []
            ),
        ]

    def to_json(self) -> dict:
        """Everything as a dict for JSON."""
        reports = {"before": self.before.to_json(), "after": self.after.to_json()}
        change = {"change": plain_estimate(self.change), "prompts_changed": self.prompts, "example": list(self.example)}
        return {"perturbation": self.perturbation, **change, **reports}


@documented
class Ensemble(NamedTuple):
    """Accuracy of several runs, and of the vote over all their answers."""

    runs: tuple[str, ...]
    """The runs."""
    alone: tuple[Estimate, ...]
    """Accuracy of each, on the problems of the vote."""
    vote: Estimate
    """Accuracy of the most frequent answer of all runs, on the problems of which all answers were judged; answers with equally many
    votes win with equal probability."""
    gains: tuple[Estimate, ...]
    """Accuracy of the vote less that of each run, paired by problem."""

    def lines(self) -> list[str]:
        """The accuracies in words."""
        rows = [
            f"{run}: {alone.text()}; vote less {run}: {points(gain)}"
            for run, alone, gain in zip(self.runs, self.alone, self.gains, strict=True)
        ]
        return [*rows, f"vote of {len(self.runs)} runs: {self.vote.text()} on {self.vote.problems} problems"]

    def to_json(self) -> dict:
        """Everything as a dict for JSON."""
        rows = [
            {"run": run, "accuracy": plain_estimate(alone), "vote_less_run": plain_estimate(gain)}
            for run, alone, gain in zip(self.runs, self.alone, self.gains, strict=True)
        ]
        return {"runs": rows, "vote": plain_estimate(self.vote)}


def _shares(answers: Answered, right_above: float | None) -> Float[np.ndarray, "P"]:
    """Share of right answers to each problem."""
    right, known = answers.sampled.right_and_known(right_above)
    return average_at_n(right.astype(float), known)


def robustness(target: str | Path, perturbation: str, *, right_above: float | None = None, **options: Any) -> Robustness:
    """Evaluate a model on problems, and on the same problems with changed prompts.

    Args:
        target: folder of a run, Hugging Face folder, or hub id.
        perturbation: one of `rljax.data.perturbation.PERTURBATIONS`.
        right_above: an answer is right when its reward is above this; None leaves it to the verifier.
        options: those of `rljax.training.inference.evaluation.evaluate`; `out` is not among them.

    Raises:
        InputError: the target cannot be opened, an argument cannot be used, or no prompt changes; or the tokenizer cannot encode a
            changed prompt.
    """
    before = answer_problems(target, **options)
    changed = perturbed(before.problems, perturbation, seed=options.get("seed", 0))
    after = answer_problems(target, **options | {"dataset": None, "problems": changed, "limit": None})
    places = {id(problem): place for place, problem in enumerate(changed)}
    same = _of_problems(before, [places[id(problem)] for problem in after.problems])
    pairs = [
        (old.prompt, new.prompt) for old, new in zip(before.problems, changed, strict=True) if old.prompt != new.prompt
    ]
    return Robustness(
        perturbation,
        report_of(same, right_above=right_above),
        report_of(after, right_above=right_above),
        paired_change(_shares(same, right_above), _shares(after, right_above)),
        len(pairs),
        pairs[0],
    )


def _of_problems(answers: Answered, places: Sequence[int]) -> Answered:
    """The answers to some of the problems."""
    problems = [answers.problems[place] for place in places]
    return answers._replace(sampled=answers.sampled.of_problems(places), problems=problems)


def ensemble(targets: Sequence[str | Path], *, right_above: float | None = None, **options: Any) -> Ensemble:
    """Let several runs answer the same problems, and measure the most frequent of all their answers.

    Args:
        targets: at least two folders of runs, Hugging Face folders, or hub ids.
        right_above: an answer is right when its reward is above this; None leaves it to the verifier.
        options: those of `rljax.training.inference.evaluation.evaluate`, the same for all; by default the problems are those held
            out by the first run. `out` is not among them.

    Raises:
        InputError: there are fewer than two targets, one cannot be opened, its tokens do not fit the problems of the first, or
            another reward judges its answers.
    """
    if len(targets) < 2:
        raise InputError("--vote needs the answers of several runs; give at least two.")
    first = answer_problems(targets[0], **options)
    shared = options | {"dataset": None, "problems": list(first.problems), "limit": None}
    everyone = [first]
    for target in targets[1:]:
        answers = answer_problems(target, **shared)
        check_same(target, answers, first)
        everyone.append(answers)
    return vote_of(tuple(map(str, targets)), [answers.sampled for answers in everyone], right_above=right_above)


def vote_of(runs: tuple[str, ...], everyone: Sequence[Sampled], *, right_above: float | None = None) -> Ensemble:
    """Count the votes of all answers of several runs to the same problems; each answer has one vote.

    Args:
        runs: names of the runs.
        everyone: answers of each run to P problems.
        right_above: an answer is right when its reward is above this; None leaves it to the verifier.
    """
    outcomes = [sampled.right_and_known(right_above) for sampled in everyone]
    right, known = (np.concatenate(arrays, axis=1) for arrays in zip(*outcomes, strict=True))
    rows = zip(*(sampled.answers for sampled in everyone), strict=True)
    votes = majority_at_k([list(chain.from_iterable(row)) for row in rows], right, known, k=right.shape[1])
    alone = [np.where(np.isnan(votes), np.nan, average_at_n(good.astype(float), seen)) for good, seen in outcomes]
    return Ensemble(
        runs, tuple(map(over_problems, alone)), over_problems(votes), tuple(paired_change(one, votes) for one in alone)
    )


def check_same(target: str | Path, answers: Answered, first: Answered) -> None:
    """Refuse a run that left problems out, or whose answers are read and judged in another way than those of the first one.

    Raises:
        InputError: the message says what to give.
    """
    if answers.judged_by != first.judged_by:
        raise InputError(
            f"{str(target)!r} reads and judges answers by the reward {answers.judged_by!r}, and the first run by "
            f"{first.judged_by!r}, so their votes cannot be counted together; give one --reward for all."
        )
    if len(answers.problems) != len(first.problems):
        raise InputError(
            f"{str(target)!r} takes only {len(answers.problems)} of the {len(first.problems)} problems, as its prompts may have "
            "fewer tokens; give a --dataset of shorter problems."
        )
