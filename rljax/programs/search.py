"""Step-level search guided by a run's critic or a reward model, compared with best-of-N and voting at the same cost."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool

from rljax.data.tokenizer import completion_text
from rljax.errors import InputError
from rljax.evaluation.answer_sampling import answer_all
from rljax.evaluation.answers import SampledAnswers
from rljax.evaluation.consistency import row_of
from rljax.evaluation.search_report import SearchReport, SearchRow, search_report, search_row
from rljax.programs.answer_settings import SearchSettings, with_changes
from rljax.programs.evaluation import Watch, check_samples, open_sampler
from rljax.programs.prefix_values import load_value_function
from rljax.programs.synthetic_data import write_rows
from rljax.programs.trained_policy import OpenPolicy, find_run
from rljax.rewards.steps import LINE_ENDS, STEP_ENDS
from rljax.rewards.votes import vote_reader
from rljax.rollout import Response, RolloutWorker
from rljax.rollout.beam_search import Search, SearchResult, beam_search, is_open
from rljax.rollout.continuations import PrefixEvaluator
from rljax.rollout.revision import Revision, revise
from rljax.rollout.tree_search import TreeSearch, tree_search
from rljax.settings.checks import check_new_file
from rljax.training.config import TrainConfig
from rljax.training.parts.problems import training_problems

DEFAULTS = SearchSettings()


def search(target: str | Path, settings: SearchSettings = DEFAULTS, *, watch: Watch = iter, **changes: Any) -> SearchReport:
    """Answer problems by step-level search and by independent sampling with the same number of tokens; compare the accuracies.

    Args:
        target: folder of a run, Hugging Face folder, or hub id.
        settings: which problems to answer, and how to search.
        watch: wraps the engine calls that sample the independent responses, for example to show progress.
        **changes: fields of `settings` by name.

    Raises:
        InputError: the target cannot be opened, has an environment, or lacks the critic to use; or an argument is invalid.
    """
    settings = with_changes(settings, changes)
    problems = None
    if settings.demonstrations is not None:
        check_new_file(settings.demonstrations)
        problems = (
            None if settings.dataset is not None else training_problems(find_run(target, settings.checkpoint)[0], target)
        )
    opened, worker = open_sampler(
        target, settings, limit=settings.limit, temperature=settings.temperature, problems=problems
    )
    if worker.environment is not None:
        raise InputError(
            "the run has an environment, but a search answers in one turn and needs a reward to judge the answers; pass --reward."
        )
    value = load_value_function(settings.value, opened, target, which=settings.checkpoint)
    sampled = answer_all(
        worker,
        opened.params,
        check_samples(max(settings.samples)),
        seed=settings.seed,
        batch=settings.batch,
        vote=vote_reader(opened.config.reward.name),
        values={settings.value: value},
        watch=watch,
    )
    search_once = partial(_search_once, opened, worker, value, sampled, settings)
    searches = [search_once(count) for count in settings.samples]
    if settings.demonstrations is not None:
        write_demonstrations(settings.demonstrations, worker, searches)
    report = search_report(sampled, settings.value, [each.row for each in searches])
    answers = [result for each in searches for result in each.results]
    all_unfinished = all(is_open(answer.best.prefix, worker.sampling.max_tokens) for answer in answers)
    has_steps = all_unfinished or any(answer.depth > 1 for answer in answers)
    return report._replace(dropped=worker.prompts.dropped, has_steps=has_steps)


def ends_of_steps(config: TrainConfig) -> tuple[str, ...]:
    """Return the texts that end a step for the step reward of the run or its task; line ends if there is no step reward.

    Example:
        >>> ends_of_steps(TrainConfig()), ends_of_steps(TrainConfig.flat(dataset="sums.jsonl", reward="exact"))
        ((';',), ('\\n',))
    """
    named = config.reward.step_reward
    if named is None and config.generated_task is not None:
        named = config.generated_task.step_reward
    return LINE_ENDS if named is None else STEP_ENDS.get(named, LINE_ENDS)


class JudgedSearch(NamedTuple):
    """The judged answers of one search."""

    row: SearchRow
    """Comparison of the answers with independent responses."""
    results: list[SearchResult]
    """The answer to each problem."""
    right: Bool[np.ndarray, "P"]
    """Whether each answer is right."""


def _search_once(
    opened: OpenPolicy,
    worker: RolloutWorker,
    value: PrefixEvaluator,
    sampled: SampledAnswers,
    settings: SearchSettings,
    samples: int,
) -> JudgedSearch:
    """Run one search, judge its answers, and compare them with the independent responses."""
    keep = max(1, samples // settings.expand) if settings.method == "beam" else samples
    run = _search_function(settings, samples, keep, ends_of_steps(opened.config))
    width, count = max(1, settings.batch // samples), len(worker.prompts.tokens)
    key = jax.random.fold_in(jax.random.key(settings.seed), samples)
    results: list[SearchResult] = []
    for begin in range(0, count, width):
        indices = list(range(begin, min(begin + width, count)))
        batch_key = jax.random.fold_in(key, begin)
        results += run(worker, opened.params, value, indices, key=batch_key, rows=settings.batch)
    right, known = judge_results(worker, results)
    tokens = np.array([result.tokens for result in results])
    row = search_row(sampled, settings.value, right=right, known=known, tokens=tokens, samples=samples, keep=keep)
    return JudgedSearch(row, results, right)


def _search_function(
    settings: SearchSettings, samples: int, keep: int, ends: tuple[str, ...]
) -> Callable[..., list[SearchResult]]:
    """Return the search function of the chosen method, with its settings."""
    ends = ends if settings.step_ends is None else tuple(settings.step_ends)
    if settings.method == "tree":
        return partial(tree_search, search=TreeSearch(samples, settings.expand, settings.exploration, ends))
    if settings.method == "revision":
        return partial(revise, search=Revision(samples, ends))
    return partial(beam_search, search=Search(samples, keep, ends))


def write_demonstrations(out: Path, worker: RolloutWorker, searches: Sequence[JudgedSearch]) -> None:
    """Write the searches' distinct answers that are complete, right and not empty, as rows for `rljax train --dataset`.

    Raises:
        InputError: no answer is complete and right.
    """
    tokenizer = worker.judge.tokenizer
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for prefix in (
        result.best.prefix
        for search in searches
        for result, is_right in zip(search.results, search.right, strict=True)
        if is_right and result.best.prefix.ended
    ):
        text = completion_text(tokenizer, [*prefix.tokens, *([] if prefix.end is None else [prefix.end])])
        if text:
            rows.setdefault((prefix.problem.prompt, text), row_of(prefix.problem, text, prefix.problem.answer))
    write_rows(out, list(rows.values()), advice="no answer was right; raise --samples")


def judge_results(
    worker: RolloutWorker, results: Sequence[SearchResult]
) -> tuple[Bool[np.ndarray, "P"], Bool[np.ndarray, "P"]]:
    """Judge a search's answers; return a mask of right answers and a mask of answers whose correctness is known.

    Raises:
        InputError: the reward failed.
    """
    prefixes = [result.best.prefix for result in results]
    responses = []
    for index, prefix in enumerate(prefixes):
        tokens = np.array([*prefix.tokens, *([] if prefix.end is None else [prefix.end])], np.int32)
        logp = np.zeros(len(tokens), np.float32)
        is_sampled = np.ones(len(tokens), bool)
        finish = "stop" if prefix.ended else "length"
        responses.append(Response(index, index, tokens, is_sampled, logp, logp, finish))
    verdicts = worker.judge([prefix.problem for prefix in prefixes], responses, worker.sampling.max_tokens)
    if verdicts.correct is None:
        return verdicts.valid & (verdicts.rewards > 0), verdicts.valid
    return verdicts.valid & (verdicts.correct > 0), verdicts.valid & ~np.isnan(verdicts.correct)
