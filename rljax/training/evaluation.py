"""Evaluate a model on problems whose answers can be checked: open it, draw answers, judge them, report."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from rljax.data.dataset import load_problems
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.evaluation.report import Report, chosen_columns, make_report
from rljax.evaluation.sampled import Call, answer_all, sample_files, settings_of
from rljax.evaluation.statistics import MOST_SAMPLES
from rljax.files import atomic_write
from rljax.models import Policy
from rljax.rewards.ballot import vote_for
from rljax.rewards.calling import called_name
from rljax.rollout import Engine, Environment
from rljax.training.opening import load
from rljax.training.seams import refuse_missing


def judge_name(judge: Environment | Callable | str | Sequence[Callable | str] | None, in_settings: str) -> str:
    """Name of what judges the answers, an environment or rewards; names of several rewards are joined by commas.

    Example:
        >>> judge_name([len, "exact"], "math"), judge_name("gsm8k", "gsm8k")
        ('builtins.len,exact', 'gsm8k')
    """
    if judge is None or isinstance(judge, str):
        return in_settings
    parts = judge if isinstance(judge, Sequence) else [judge]
    return ",".join(part if isinstance(part, str) else called_name(part) for part in parts)


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
    greedy: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: Sequence[str] | None = None,
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
        greedy: take the most likely token each time; the default for a single answer.
        temperature: sampling temperature; by default 1 for several answers to a problem.
        top_k: draw from the k most likely tokens only.
        top_p: draw from the smallest set of most likely tokens that holds this share of the probability.
        stop: texts that end an answer, which keeps them; by default those of the run.
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
    check_numbers(limit=limit, samples=samples, batch=batch, seed=seed)
    numbers_of_answers = chosen_k(samples, k)
    temperature = chosen_temperature(samples, greedy=greedy, temperature=temperature, top_k=top_k, top_p=top_p)
    if problems is None and dataset is not None:
        problems = load_problems(dataset)
    opened = load(
        target,
        which=checkpoint,
        reward=reward,
        tokenizer=tokenizer,
        problems=None if problems is None else problems[:limit],
        max_response_tokens=max_response_tokens,
        policy=policy,
        engine=engine,
        environment=environment,
    )
    refuse_missing(opened.missing)
    worker = opened.sampler(temperature=temperature, top_k=top_k, top_p=top_p, stop=stop)
    worker = worker if limit is None else worker.first(limit)
    answered = worker.prompts.problems
    judged_by = judge_name(reward if environment is None else environment, opened.config.reward.name)
    columns = chosen_columns(answered, by)
    sampled = answer_all(
        worker,
        opened.params,
        samples,
        seed=seed,
        batch=batch,
        vote=vote_for(judged_by),
        settings={
            "target": str(target),
            "checkpoint": checkpoint,
            "dataset": dataset,
            "limit": limit,
            "reward": judged_by,
            **settings_of(worker, opened.params, opened.mesh),
        },
        out=out,
        watch=watch,
    )
    report = make_report(sampled, answered, at=numbers_of_answers, columns=columns, right_above=right_above)
    report = report._replace(dropped=worker.prompts.dropped)
    if out is not None:
        save_summary(out, report, right_above=right_above)
    return report


def check_numbers(*, limit: int | None, samples: int, batch: int, seed: int) -> None:
    """Refuse numbers out of range.

    Raises:
        InputError: names the number and its range.
    """
    for name, value in (("limit", limit), ("samples", samples), ("batch", batch)):
        if value is not None and value < 1:
            raise InputError(f"--{name} is {value}; it must be at least 1.")
    if samples > MOST_SAMPLES:
        raise InputError(f"--samples is {samples}; at most {MOST_SAMPLES} answers to a problem can be measured.")
    if seed < 0:
        raise InputError(f"--seed is {seed}; it must be 0 or more.")


def chosen_k(samples: int, k: Sequence[int] | None) -> list[int]:
    """Numbers of answers for pass@k and maj@k, in order.

    Raises:
        InputError: a number is below 1 or above `samples`.

    Example:
        >>> chosen_k(6, None), chosen_k(6, (5, 1))
        ([1, 2, 4, 6], [1, 5])
    """
    if k is None:
        return sorted({*(2**i for i in range(samples.bit_length())), samples})
    for number in k:
        if not 1 <= number <= samples:
            raise InputError(f"--k {number} cannot be measured from --samples {samples}; it must be from 1 to {samples}.")
    return sorted(set(k))


def chosen_temperature(
    samples: int, *, greedy: bool, temperature: float | None, top_k: int | None, top_p: float | None
) -> float:
    """Temperature of the draws; 0 is greedy.

    Raises:
        InputError: settings contradict each other, or several answers would all be the same.

    Example:
        >>> plain = {"greedy": False, "top_k": None, "top_p": None}
        >>> [chosen_temperature(samples, temperature=t, **plain) for samples, t in ((1, None), (4, None), (1, 0.6))]
        [0.0, 1.0, 0.6]
    """
    if greedy and temperature:
        raise InputError(f"--greedy and --temperature {temperature} contradict each other; give one of them.")
    drawn = (0.0 if samples == 1 else 1.0) if temperature is None else temperature
    chosen = 0.0 if greedy else drawn
    if chosen == 0 and samples > 1:
        raise InputError(
            f"the {samples} greedy answers to a problem would all be the same; leave --samples out, or draw them at "
            f"a --temperature above 0."
        )
    if chosen == 0 and (top_k is not None or top_p is not None):
        raise InputError(
            "--top-k and --top-p apply to sampling, but greedy answers are not sampled; give a --temperature above 0 too."
        )
    return chosen


def save_summary(out: Path, report: Report, *, right_above: float | None) -> None:
    """Write the report and the settings of the evaluation beside the answers."""
    files = sample_files(out)
    settings = json.loads(files.settings.read_text(encoding="utf-8"))
    content = {"settings": settings, "right_above": right_above, "dropped": report.dropped, **report.to_json()}
    atomic_write(files.summary, json.dumps(content, ensure_ascii=False, indent=2).encode() + b"\n")
