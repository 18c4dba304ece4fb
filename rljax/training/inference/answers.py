"""Answers to problems: open a model, draw them, and judge them; what every evaluation begins with."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rljax.data.dataset import load_problems
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.evaluation.answers import Sampled
from rljax.evaluation.chosen import VERIFIER, VOTES
from rljax.evaluation.report import chosen_columns
from rljax.evaluation.sampled import Call, answer_all, settings_of
from rljax.evaluation.statistics import MOST_SAMPLES
from rljax.models import Policy
from rljax.records import documented
from rljax.rewards.ballot import vote_for
from rljax.rewards.calling import called_name
from rljax.rollout import Engine, Environment
from rljax.rollout.continuations import Value
from rljax.rollout.worker import RolloutWorker
from rljax.training.inference.prefix_values import value_named
from rljax.training.inference.trained_policy import OpenPolicy, load
from rljax.training.parts.seams import refuse_missing


@documented
class Answered(NamedTuple):
    """N judged answers to each of P problems, and how they are to be reported."""

    sampled: Sampled
    """The answers."""
    problems: Sequence[Problem]
    """The P problems."""
    dropped: int
    """Number of problems that were left out because their prompts are too long."""
    judged_by: str
    """Name of what judged them."""
    at: Sequence[int]
    """Numbers of answers k for pass@k, maj@k and best@k."""
    columns: Sequence[str]
    """Columns that the problems are grouped by."""
    choosers: Sequence[str]
    """Choosers of one answer out of k."""


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


def answer_problems(
    target: str | Path,
    *,
    dataset: str | None = None,
    problems: Sequence[Problem] | None = None,
    reward: str | Callable | Sequence[Callable | str] | None = None,
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
) -> Answered:
    """Open a model, draw answers, and judge them; the arguments are those of `rljax.training.inference.evaluation.evaluate`.

    Raises:
        InputError: the target cannot be opened, or an argument cannot be used.
    """
    check_numbers(limit=limit, samples=samples, batch=batch, seed=seed)
    at, choosers = chosen_k(samples, k), check_choosers(choose, samples)
    temperature = chosen_temperature(samples, greedy=greedy, temperature=temperature, top_k=top_k, top_p=top_p)
    opened = load(
        target,
        which=checkpoint,
        reward=reward,
        tokenizer=tokenizer,
        problems=first_problems(problems, dataset, limit),
        max_response_tokens=max_response_tokens,
        policy=policy,
        engine=engine,
        environment=environment,
    )
    refuse_missing(opened.missing)
    worker = opened.sampler(temperature=temperature, top_k=top_k, top_p=top_p, stop=stop, stop_ids=stop_ids)
    worker = worker if limit is None else worker.first(limit)
    columns = chosen_columns(worker.prompts.problems, by)
    judged_by = judge_name(reward if environment is None else environment, opened.config.reward.name)
    source = {"target": str(target), "checkpoint": checkpoint, "dataset": dataset, "limit": limit, "reward": judged_by}
    drawing = {"seed": seed, "batch": batch, "out": out, "watch": watch}
    scores = scores_by(choosers, opened, target, checkpoint)
    sampled = draw_answers(opened, worker, samples, source=source, scores=scores, **drawing)
    return Answered(sampled, worker.prompts.problems, worker.prompts.dropped, judged_by, at, columns, choosers)


def first_problems(problems: Sequence[Problem] | None, dataset: str | None, limit: int | None) -> Sequence[Problem] | None:
    """The first `limit` problems, or those of a dataset; None leaves the choice to the run, which has held-out ones."""
    if problems is None and dataset is not None:
        problems = load_problems(dataset)
    return None if problems is None else problems[:limit]


def scores_by(
    names: Sequence[str], opened: OpenPolicy, target: str | Path, checkpoint: Literal["best", "last"]
) -> dict[str, Value]:
    """Open the choosers that score an answer, by name; the verifier and the votes need no score."""
    return {name: value_named(name, opened, target, which=checkpoint) for name in names if name not in (VERIFIER, VOTES)}


def draw_answers(
    opened: OpenPolicy,
    worker: RolloutWorker,
    samples: int,
    *,
    source: Mapping[str, Any],
    scores: Mapping[str, Value],
    **drawing: Any,
) -> Sampled:
    """Draw answers and judge them; a file of answers is continued only with the same settings.

    Args:
        opened: the policy.
        worker: draws and judges.
        samples: answers to each problem.
        source: where policy and problems are from, and the name of the reward.
        scores: choosers that score an answer.
        **drawing: the other options of `answer_all`.
    """
    chosen_by = {"choose": [*scores]} if scores else {}
    settings = {**source, **chosen_by, **settings_of(worker, opened.params, opened.mesh)}
    vote = vote_for(source["reward"])
    return answer_all(worker, opened.params, samples, vote=vote, settings=settings, values=scores, **drawing)


def check_choosers(names: Sequence[str], samples: int) -> list[str]:
    """Choosers, each once.

    Raises:
        InputError: there is a single answer to choose from.

    Example:
        >>> check_choosers(("votes", "critic", "votes"), 4)
        ['votes', 'critic']
    """
    if names and samples == 1:
        raise InputError("--choose takes one of several answers, but there is a single one; give --samples too.")
    return list(dict.fromkeys(names))


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


def check_temperature(temperature: float | int) -> None:
    """Refuse a temperature at which all responses to a prompt would be the same.

    Raises:
        InputError: it is not above 0.
    """
    if not 0 < temperature < math.inf:
        raise InputError(f"--temperature is {temperature}; responses are drawn at a finite temperature above 0.")


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
