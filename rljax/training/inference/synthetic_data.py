"""Training data that a model writes itself: responses kept as demonstrations, and demonstrations cleaned by its votes."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from rljax.data.dataset import load_problems
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.evaluation.consistency import Cleaned, Keep, Kept, cleaned_demonstrations, kept_responses
from rljax.evaluation.sampled import Call, answered_rows
from rljax.files import atomic_write
from rljax.rewards.ballot import vote_for
from rljax.rollout import RolloutWorker
from rljax.settings.checks import check_new_file
from rljax.training.inference.answers import check_numbers, check_temperature, judge_name
from rljax.training.inference.trained_policy import OpenPolicy, find_run, load
from rljax.training.parts.problems import training_problems
from rljax.training.parts.seams import refuse_missing

AGREEMENT = 0.5
"""Smallest share of the responses to a problem that have the answer they agree on."""
Watch = Callable[[Sequence[Call]], Iterable[Call]]


def generate(
    target: str | Path,
    out: Path,
    *,
    keep: Keep = "verifier",
    most: int = 2,
    similarity: float | int = 0.8,
    agreement: float | int | None = None,
    samples: int = 8,
    limit: int | None = 256,
    dataset: str | None = None,
    reward: str | None = None,
    checkpoint: Literal["best", "last"] = "best",
    temperature: float = 1.0,
    batch: int = 256,
    seed: int = 0,
    watch: Watch = iter,
) -> Kept:
    """Sample responses, keep good and different ones, and write them as rows that `rljax train --dataset` reads.

    Args:
        target: folder of a run, Hugging Face folder, or hub id.
        out: JSON-lines file to write; it must not exist yet.
        keep: `verifier` keeps responses that are right; `votes` those with the answer that the responses agree on.
        most: kept responses of a problem.
        similarity: largest Jaccard similarity of two kept responses of a problem, by their runs of three words.
        agreement: for `votes` alone, smallest share of a problem's responses that have the answer; by default 0.5.
        samples: responses to each problem.
        limit: maximum number of problems; the first ones are used.
        dataset: problems (file or hub id); by default the run's training problems.
        reward: judges the responses, in place of the run's reward.
        checkpoint: which checkpoint of the run.
        temperature: sampling temperature, above 0.
        batch: maximum number of responses that are drawn at once.
        seed: random seed of the sampling.
        watch: passes the engine calls on, for example to show progress.

    Raises:
        InputError: the file exists or its folder does not, the target cannot be opened, an argument cannot be used, or no
            response is kept.
    """
    if agreement is not None and keep != "votes":
        raise InputError("--agreement applies only with --keep votes or --clean; leave it out.")
    agreement = AGREEMENT if agreement is None else agreement
    _check(out, samples=samples, limit=limit, batch=batch, seed=seed, temperature=temperature, agreement=agreement)
    if most < 1:
        raise InputError(f"--most is {most}; it must be at least 1.")
    if not 0 <= similarity <= 1:
        raise InputError(f"--similarity is {similarity}; it must be from 0 to 1.")
    run, _ = find_run(target, checkpoint)
    problems = training_problems(run, target) if dataset is None else load_problems(dataset)
    opened, worker = _open(target, problems[:limit], checkpoint=checkpoint, reward=reward, temperature=temperature)
    vote = vote_for(judge_name(reward, opened.config.reward.name))
    rows = answered_rows(worker, opened.params, samples, seed=seed, batch=batch, vote=vote, watch=watch)
    kept = kept_responses(rows, worker.prompts.problems, keep=keep, most=most, threshold=similarity, agreement=agreement)
    _write(out, kept.rows, advice=f"{kept.accepted} of {kept.responses} responses were accepted; draw more --samples")
    return kept._replace(dropped=worker.prompts.dropped)


def clean(
    target: str | Path,
    out: Path,
    *,
    dataset: str,
    contradicted: Literal["drop", "replace"] = "drop",
    agreement: float | int = AGREEMENT,
    samples: int = 8,
    limit: int | None = None,
    reward: str | None = None,
    checkpoint: Literal["best", "last"] = "best",
    temperature: float = 1.0,
    batch: int = 256,
    seed: int = 0,
    watch: Watch = iter,
) -> Cleaned:
    """Drop or replace the demonstrations of a dataset that a model's answers contradict, and write the rows that are left.

    Args:
        target: folder of a run, Hugging Face folder, or hub id.
        out: JSON-lines file to write; it must not exist yet.
        dataset: the demonstrations (file or hub id).
        contradicted: what happens to a row whose answer is not the one that the model's answers agree on.
        agreement: smallest share of the answers to a problem that have to be the same.
        samples: answers to each problem.
        limit: maximum number of rows; the first ones are used.
        reward: its name tells how answers are read, in place of the run's reward.
        checkpoint: which checkpoint of the run.
        temperature: sampling temperature, above 0.
        batch: maximum number of answers that are drawn at once.
        seed: random seed of the sampling.
        watch: passes the engine calls on, for example to show progress.

    Raises:
        InputError: the file exists or its folder does not, the target or the dataset cannot be opened, an argument cannot be
            used, or no row is left.
    """
    _check(out, samples=samples, limit=limit, batch=batch, seed=seed, temperature=temperature, agreement=agreement)
    demonstrated = load_problems(dataset)[:limit]
    distinct = list({problem.prompt: problem for problem in demonstrated}.values())
    opened, worker = _open(target, distinct, checkpoint=checkpoint, reward=reward, temperature=temperature)
    vote = vote_for(judge_name(reward, opened.config.reward.name))
    rows = answered_rows(worker, opened.params, samples, seed=seed, batch=batch, vote=vote, watch=watch)
    replace = contradicted == "replace"
    cleaned = cleaned_demonstrations(
        demonstrated, rows, worker.prompts.problems, vote, agreement=agreement, replace=replace
    )
    _write(out, cleaned.rows, advice=f"all {cleaned.contradicted} are contradicted; clean with another model, or replace")
    return cleaned


def _open(
    target: str | Path,
    problems: Sequence[Problem],
    *,
    checkpoint: Literal["best", "last"],
    reward: str | None,
    temperature: float,
) -> tuple[OpenPolicy, RolloutWorker]:
    opened = load(target, which=checkpoint, reward=reward, problems=problems)
    refuse_missing(opened.missing)
    return opened, opened.sampler(temperature=temperature, top_k=None, top_p=None)


def _check(
    out: Path, *, samples: int, limit: int | None, batch: int, seed: int, temperature: float, agreement: float | int
) -> None:
    check_numbers(limit=limit, samples=samples, batch=batch, seed=seed)
    check_temperature(temperature)
    if not 0 < agreement <= 1:
        raise InputError(f"--agreement is {agreement}; it must be above 0 and at most 1.")
    check_new_file(out)


def _write(out: Path, rows: Sequence[dict[str, Any]], *, advice: str) -> None:
    """Write the rows, of which there is at least one."""
    if not rows:
        raise InputError(f"No row is left, so {str(out)!r} is not written; {advice}.")
    atomic_write(out, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode())
