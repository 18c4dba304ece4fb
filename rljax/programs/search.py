"""Step-level search with the critic of a run, or with a reward model, compared with best-of-N and voting at the same cost."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

from rljax.errors import InputError
from rljax.evaluation.answers import SampledAnswers
from rljax.evaluation.sampled import answer_all
from rljax.evaluation.search_report import SearchReport, SearchRow, search_report, search_row
from rljax.programs.answer_settings import SearchSettings, with_changes
from rljax.programs.evaluation import Watch, check_samples, open_sampler
from rljax.programs.prefix_values import value_named
from rljax.programs.trained_policy import OpenPolicy
from rljax.rewards.majority_vote import vote_for
from rljax.rewards.steps import LINE_ENDS, STEP_ENDS
from rljax.rollout import Response, RolloutWorker
from rljax.rollout.continuations import Value
from rljax.rollout.search import Search, SearchResult, beam_search
from rljax.rollout.tree_search import TreeSearch, tree_search
from rljax.training.config import TrainConfig

DEFAULTS = SearchSettings()


def search(target: str | Path, settings: SearchSettings = DEFAULTS, *, watch: Watch = iter, **changes: Any) -> SearchReport:
    """Answer problems by a search over steps and by independent responses with equally many tokens, and compare the accuracies.

    Args:
        target: folder of a run, Hugging Face folder, or hub id.
        settings: which problems, and how the search is done.
        watch: iterates over the engine calls of the independent responses, for example to show progress.
        **changes: fields of `settings` by name.

    Raises:
        InputError: the target cannot be opened, it has no critic, or an argument cannot be used.
    """
    settings = with_changes(settings, changes)
    opened, worker = open_sampler(target, settings, limit=settings.limit, temperature=settings.temperature)
    value = value_named(settings.value, opened, target, which=settings.checkpoint)
    sampled = answer_all(
        worker,
        opened.params,
        check_samples(max(settings.samples)),
        seed=settings.seed,
        batch=settings.batch,
        vote=vote_for(opened.config.reward.name),
        values={settings.value: value},
        watch=watch,
    )
    row = partial(_search_once, opened, worker, value, sampled, settings)
    report = search_report(sampled, settings.value, [row(count) for count in settings.samples])
    return report._replace(dropped=worker.prompts.dropped)


def ends_of_steps(config: TrainConfig) -> tuple[str, ...]:
    """Return the texts that end a step: those of the step reward of the run or of its task, else the end of a line.

    Example:
        >>> ends_of_steps(TrainConfig()), ends_of_steps(TrainConfig.flat(dataset="sums.jsonl", reward="exact"))
        ((';',), ('\\n',))
    """
    named = config.reward.step_reward
    if named is None and config.generated_task is not None:
        named = config.generated_task.step_reward
    return LINE_ENDS if named is None else STEP_ENDS.get(named, LINE_ENDS)


def _search_once(
    opened: OpenPolicy, worker: RolloutWorker, value: Value, sampled: SampledAnswers, settings: SearchSettings, samples: int
) -> SearchRow:
    """Run one search, and compare it with the independent responses."""
    ends = ends_of_steps(opened.config) if settings.step_ends is None else tuple(settings.step_ends)
    keep = samples if settings.method == "tree" else max(1, samples // settings.expand)
    run: Callable[..., list[SearchResult]]
    if settings.method == "tree":
        run = partial(tree_search, search=TreeSearch(samples, settings.expand, settings.exploration, ends))
    else:
        run = partial(beam_search, search=Search(samples, keep, ends))
    width, count = max(1, settings.batch // samples), len(worker.prompts.tokens)
    key = jax.random.fold_in(jax.random.key(settings.seed), samples)
    found: list[SearchResult] = []
    for begin in range(0, count, width):
        part = list(range(begin, min(begin + width, count)))
        part_key = jax.random.fold_in(key, begin)
        found += run(worker, opened.params, value, part, key=part_key, rows=settings.batch)
    right, known = judge_found(worker, found)
    tokens = np.array([result.tokens for result in found])
    return search_row(sampled, settings.value, right=right, known=known, tokens=tokens, samples=samples, keep=keep)


def judge_found(
    worker: RolloutWorker, found: Sequence[SearchResult]
) -> tuple[Bool[np.ndarray, "P"], Bool[np.ndarray, "P"]]:
    """Judge the answers of a search; return masks of the right answers, and of those whose correctness is known.

    Raises:
        InputError: the run has an environment, which judges turns, not search answers; or the reward failed.
    """
    if worker.environment is not None:
        raise InputError("environment: a search answers in one turn, which only a reward can judge; give --reward.")
    prefixes = [result.best.prefix for result in found]
    responses = []
    for place, prefix in enumerate(prefixes):
        tokens = np.array([*prefix.tokens, *([] if prefix.end is None else [prefix.end])], np.int32)
        logp = np.zeros(len(tokens), np.float32)
        is_sampled = np.ones(len(tokens), bool)
        finish = "stop" if prefix.ended else "length"
        responses.append(Response(place, place, tokens, is_sampled, logp, logp, finish))
    verdicts = worker.judge([prefix.problem for prefix in prefixes], responses, worker.sampling.max_tokens)
    if verdicts.correct is None:
        return verdicts.valid & (verdicts.rewards > 0), verdicts.valid
    return verdicts.valid & (verdicts.correct > 0), verdicts.valid & ~np.isnan(verdicts.correct)
