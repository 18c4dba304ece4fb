"""Evaluate a model on problems whose answers can be checked: open it, draw answers, judge them, report."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from rljax.data.problem import Problem
from rljax.evaluation.chosen import chosen_by
from rljax.evaluation.report import Report, make_report
from rljax.evaluation.sampled import Call, sample_files
from rljax.files import atomic_write
from rljax.models import Policy
from rljax.rollout import Engine, Environment
from rljax.training.inference.answers import Answered, answer_problems

AIME_PROBLEMS = 15
"""Problems of an AIME, each worth a point."""


def evaluate(
    target: str | Path,
    *,
    dataset: str | None = None,
    problems: Sequence[Problem] | None = None,
    reward: str | Callable | Sequence[Callable | str] | None = None,
    right_above: float | None = None,
    tokenizer: str | None = None,
    checkpoint: Literal["best", "last"] = "best",
    limit: int | None = None,
    max_response_tokens: int | None = None,
    policy: Policy | None = None,
    engine: Engine | None = None,
    environment: Environment | None = None,
    samples: int = 1,
    k: Sequence[int] | None = None,
    choose: Sequence[str] = (),
    greedy: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: Sequence[str] | None = None,
    stop_ids: Sequence[int] = (),
    by: Sequence[str] | None = None,
    batch: int = 256,
    seed: int = 0,
    out: Path | None = None,
    watch: Callable[[Sequence[Call]], Iterable[Call]] = iter,
) -> Report:
    """Answer problems and measure how many answers are right, with 95 % confidence intervals over problems.

    Args:
        target: folder of a run, Hugging Face folder, or hub id.
        dataset: problems to answer (file or hub id); by default the run's held-out ones.
        problems: problems to answer, in place of `dataset`.
        reward: judges the answers, in place of the run's reward.
        right_above: an answer is right when its reward is above this; by default the verifier decides, if one of the rewards is
            one, else a reward above 0.
        tokenizer: tokenizer for a model folder without one.
        checkpoint: which checkpoint of the run.
        limit: maximum number of problems; the first ones are answered.
        max_response_tokens: budget of a response; by default the run's.
        policy: the policy that was passed to `train`, if any.
        engine: draws the answers, in place of the built-in engine.
        environment: the environment that was passed to `train`, if any.
        samples: number of answers to each problem.
        k: numbers of answers for pass@k and maj@k, at most `samples`; by default the powers of two, and `samples`.
        choose: choosers of one answer out of k, whose accuracy is reported: `verifier`, `votes`, `critic` (that of the run) and
            `model:FOLDER` (a reward model).
        greedy: take the most likely token each time; the default for a single answer.
        temperature: sampling temperature; by default 1 for several answers to a problem.
        top_k: draw from the k most likely tokens only.
        top_p: draw from the smallest set of most likely tokens that holds this share of the probability.
        stop: texts that end an answer, which keeps them; by default those of the run.
        stop_ids: ids of tokens that end an answer, besides those of the model and of the run.
        by: columns to group problems by; by default the known ones, such as `level`, that the data has.
        batch: maximum number of answers that are drawn at once.
        seed: random seed of the sampling.
        out: where to save the answers as they are drawn, and a summary beside them; the same call continues an interrupted
            evaluation.
        watch: passes the engine calls on, for example to show progress.

    Returns:
        The report: `report.headline()` is one line, `report.tables()` are tables for rich, `report.to_json()` is everything.

    Raises:
        InputError: the target cannot be opened, or an argument cannot be used.
    """
    answers = answer_problems(
        target,
        dataset=dataset,
        problems=problems,
        reward=reward,
        tokenizer=tokenizer,
        checkpoint=checkpoint,
        limit=limit,
        max_response_tokens=max_response_tokens,
        policy=policy,
        engine=engine,
        environment=environment,
        samples=samples,
        k=k,
        choose=choose,
        greedy=greedy,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop=stop,
        stop_ids=stop_ids,
        by=by,
        batch=batch,
        seed=seed,
        out=out,
        watch=watch,
    )
    report = report_of(answers, right_above=right_above)
    if out is not None:
        save_summary(out, report, right_above=right_above)
    return report


def report_of(answers: Answered, *, right_above: float | None = None) -> Report:
    """Measure answers.

    Args:
        answers: the answers.
        right_above: an answer is right when its reward is above this; None leaves it to the verifier.
    """
    measured = {"at": answers.at, "columns": answers.columns, "right_above": right_above}
    out_of = AIME_PROBLEMS if answers.judged_by == "aime" else None
    report = make_report(answers.sampled, answers.problems, **measured, out_of=out_of)
    chosen = chosen_by(answers.sampled, answers.choosers, at=answers.at, right_above=right_above)
    return report._replace(dropped=answers.dropped, chosen=chosen)


def save_summary(out: Path, report: Report, *, right_above: float | None) -> None:
    """Write the report and the settings of the evaluation beside the answers."""
    files = sample_files(out)
    settings = json.loads(files.settings.read_text(encoding="utf-8"))
    content = {"settings": settings, "right_above": right_above, "dropped": report.dropped, **report.to_json()}
    atomic_write(files.summary, json.dumps(content, ensure_ascii=False, indent=2).encode() + b"\n")
