"""Step-level search with the critic of a run, or with a reward model, beside best-of-N and voting at the same cost."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import jax
import numpy as np
from jaxtyping import Bool

from rljax.data.dataset import load_problems
from rljax.errors import InputError
from rljax.evaluation.answers import Sampled
from rljax.evaluation.sampled import Call, answer_all
from rljax.evaluation.search_report import SearchReport, SearchRow, search_report, search_row
from rljax.rewards.ballot import vote_for
from rljax.rewards.steps import LINE_ENDS, STEP_ENDS
from rljax.rollout import Response, RolloutWorker
from rljax.rollout.continuations import Value
from rljax.rollout.search import Found, Search, beam_search
from rljax.training.config import TrainConfig
from rljax.training.inference.answers import check_numbers, judge_name
from rljax.training.inference.prefix_values import CRITIC, value_named
from rljax.training.inference.trained_policy import OpenPolicy, load
from rljax.training.parts.seams import refuse_missing

Watch = Callable[[Sequence[Call]], Iterable[Call]]


def search(
    target: str | Path,
    *,
    value: str = CRITIC,
    samples: Sequence[int] = (4, 16),
    expand: int = 4,
    step_ends: Sequence[str] | None = None,
    dataset: str | None = None,
    reward: str | None = None,
    checkpoint: Literal["best", "last"] = "best",
    limit: int | None = None,
    max_response_tokens: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    batch: int = 256,
    seed: int = 0,
    watch: Watch = iter,
) -> SearchReport:
    """Answer problems by a search over steps, and by independent responses of as many tokens, and compare the accuracies.

    Args:
        target: folder of a run, Hugging Face folder, or hub id.
        value: `critic` (that of the run) or `model:FOLDER` (a reward model); it values steps and whole responses.
        samples: numbers N of steps that are drawn at each depth; one search for each.
        expand: M, continuations of a kept prefix; a search keeps N / M of them, at least 1.
        step_ends: texts that end a step; by default those of the steps of the run's task, else the end of a line.
        dataset: problems to answer (file or hub id); by default the run's held-out ones.
        reward: judges the answers, in place of the run's reward.
        checkpoint: which checkpoint of the run.
        limit: maximum number of problems; the first ones are answered.
        max_response_tokens: budget of a response; by default the run's.
        temperature: sampling temperature, above 0.
        top_k: draw from the k most likely tokens only.
        top_p: draw from the smallest set of most likely tokens that holds this share of the probability.
        batch: maximum number of steps, or answers, that are drawn at once.
        seed: random seed of the sampling.
        watch: passes the engine calls of the independent responses on, for example to show progress.

    Raises:
        InputError: the target cannot be opened, it has no critic, or an argument cannot be used.
    """
    check_search(samples, expand, temperature)
    check_numbers(limit=limit, samples=max(samples), batch=batch, seed=seed)
    problems = None if dataset is None else load_problems(dataset)
    opened = load(target, which=checkpoint, reward=reward, problems=problems, max_response_tokens=max_response_tokens)
    refuse_missing(opened.missing)
    worker = opened.sampler(temperature=temperature, top_k=top_k, top_p=top_p)
    worker = worker if limit is None else worker.first(limit)
    valued = value_named(value, opened, target, which=checkpoint)
    ends = ends_of_steps(opened.config) if step_ends is None else tuple(step_ends)
    sampled = answer_all(
        worker,
        opened.params,
        max(samples),
        seed=seed,
        batch=batch,
        vote=vote_for(judge_name(reward, opened.config.reward.name)),
        values={value: valued},
        watch=watch,
    )
    row = partial(
        _search_once, opened, worker, valued, sampled, name=value, expand=expand, ends=ends, batch=batch, seed=seed
    )
    return search_report(sampled, value, [row(count) for count in samples])


def check_search(samples: Sequence[int], expand: int, temperature: float) -> None:
    """Refuse sizes that cannot be searched.

    Raises:
        InputError: names the setting and its range.
    """
    if not samples or min(samples) < 1:
        raise InputError(f"--samples is {' '.join(map(str, samples))}; give numbers of at least 1.")
    if expand < 1:
        raise InputError(f"--expand is {expand}; it must be at least 1.")
    if temperature <= 0:
        raise InputError(f"--temperature is {temperature}; steps are drawn at a temperature above 0.")


def ends_of_steps(config: TrainConfig) -> tuple[str, ...]:
    """Texts that end a step: those of the step reward of the run or of its task, else the end of a line.

    Example:
        >>> ends_of_steps(TrainConfig()), ends_of_steps(TrainConfig.flat(dataset="sums.jsonl", reward="exact"))
        ((';',), ('\\n',))
    """
    named = config.reward.step_reward
    if named is None and config.generated_task is not None:
        named = config.generated_task.step_reward
    return LINE_ENDS if named is None else STEP_ENDS.get(named, LINE_ENDS)


def _search_once(
    opened: OpenPolicy,
    worker: RolloutWorker,
    value: Value,
    sampled: Sampled,
    samples: int,
    *,
    name: str,
    expand: int,
    ends: tuple[str, ...],
    batch: int,
    seed: int,
) -> SearchRow:
    """One search, compared with the independent responses."""
    settings = Search(samples, max(1, samples // expand), ends)
    width, count = max(1, batch // samples), len(worker.prompts.tokens)
    key = jax.random.fold_in(jax.random.key(seed), samples)
    found: list[Found] = []
    for begin in range(0, count, width):
        part = list(range(begin, min(begin + width, count)))
        part_key = jax.random.fold_in(key, begin)
        found += beam_search(worker, opened.params, value, part, search=settings, key=part_key, rows=batch)
    right, known = judge_found(worker, found)
    tokens = np.array([result.tokens for result in found])
    return search_row(sampled, name, right=right, known=known, tokens=tokens, samples=samples, keep=settings.keep)


def judge_found(worker: RolloutWorker, found: Sequence[Found]) -> tuple[Bool[np.ndarray, "P"], Bool[np.ndarray, "P"]]:
    """Judge the answers of a search: masks of those that are right, and of those for which this is known.

    Raises:
        InputError: the run has an environment, which judges turns and not answers of a search; or the reward failed.
    """
    if worker.environment is not None:
        raise InputError("environment: a search answers in one turn, which a reward judges; give --reward.")
    prefixes = [result.best.prefix for result in found]
    responses = []
    for place, prefix in enumerate(prefixes):
        tokens = np.array([*prefix.tokens, *([] if prefix.end is None else [prefix.end])], np.int32)
        logp = np.zeros(len(tokens), np.float32)
        drawn = np.ones(len(tokens), bool)
        finish = "stop" if prefix.ended else "length"
        responses.append(Response(place, place, tokens, drawn, logp, logp, finish))
    verdicts = worker.judge([prefix.problem for prefix in prefixes], responses, worker.sampling.max_tokens)
    if verdicts.correct is None:
        return verdicts.valid & (verdicts.rewards > 0), verdicts.valid
    return verdicts.valid & (verdicts.correct > 0), verdicts.valid & ~np.isnan(verdicts.correct)
