"""Sequential revision: sample an answer again from its weakest step on, and keep the better version."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from rljax.models import Params
from rljax.rollout.beam_search import ScoredPrefix, SearchResult, check_step_ends, extend_all, is_open
from rljax.rollout.continuations import Prefix, PrefixEvaluator
from rljax.rollout.engine import generate_seeds
from rljax.rollout.worker import RolloutWorker


class Revision(NamedTuple):
    """Settings of a sequential revision."""

    versions: int
    """N, number of versions of each answer, including the first."""
    step_ends: tuple[str, ...]
    """Texts that end a step; they are part of the step."""


class Draft(NamedTuple):
    """The current version of an answer."""

    path: tuple[ScoredPrefix, ...]
    """The empty prefix, and the prefix after each step."""
    failures: tuple[int, ...] = ()
    """For each step of the path, the number of failed revisions: those from this step on that were no better."""


def revise(
    worker: RolloutWorker,
    params: Params,
    value: PrefixEvaluator,
    prompt_ids: Sequence[int],
    *,
    search: Revision,
    key: PRNGKeyArray,
    rows: int = 256,
) -> list[SearchResult]:
    """Answer each prompt, and revise each answer N - 1 times.

    With s_j, the prefix after j steps, and V, the value ::

        weakest step    j = argmin_j  V(s_j) - V(s_{j-1}),  among the steps with the fewest failed revisions
        revision        the steps before j are kept, and the steps from j on are sampled again
        choice          the revision replaces the answer if only the revision is complete, or if both or neither are complete and
                        its value is higher

    A prefix without a value (NaN) counts as 0.

    Args:
        worker: the worker that samples steps; its token budget covers a complete response.
        params: parameters of the policy.
        value: function that computes the values of prefixes.
        prompt_ids: indices into the worker's prompts.
        search: number of versions, and where a step ends.
        key: random key; the same key gives the same result for the same prompts.
        rows: number of steps sampled at once.

    Returns:
        A result for each prompt. `SearchResult.tokens` includes the tokens of rejected versions.

    Raises:
        ValueError: `search` has no version, or no text that ends a step.
        InputError: the engine's responses do not match the requests.

    Source:
        Revisions of Snell et al., arXiv:2408.03314, Section 6: a model samples N answers in sequence, and a verifier chooses one.
        There, a model that was trained to revise reads its earlier answers; here the value finds the step to revise, so that any
        model can be used.
    """
    if search.versions < 1:
        raise ValueError(f"versions must be at least 1, got {search.versions}")
    check_step_ends(search.step_ends)
    problems, tokens = worker.prompts.problems, worker.prompts.tokens
    empty = [Prefix(problems[i], tuple(tokens[i]), (), "", (), ended=False) for i in prompt_ids]
    begins = [(start,) for start in _score(value, empty)]
    drafts = [Draft(begin) for begin in begins]
    spent = np.zeros(len(drafts), int)
    for version in range(search.versions):
        if version:
            begins = [draft.path[: weakest_step(draft)] or draft.path for draft in drafts]
        version_key = jax.random.fold_in(key, version)
        paths, counts = _complete(worker, params, value, begins, prompt_ids, search, key=version_key, rows=rows)
        spent += counts
        drafts = [choose(draft, Draft(path), len(begin)) for draft, path, begin in zip(drafts, paths, begins, strict=True)]
    return [
        SearchResult(draft.path[-1], int(count), len(draft.path) - 1) for draft, count in zip(drafts, spent, strict=True)
    ]


def weakest_step(draft: Draft) -> int:
    """Return the number of the step to revise, counted from 1; 0 if there is no step."""
    values = [prefix.value for prefix in draft.path]
    steps = range(1, len(values))
    return min(steps, key=lambda step: (draft.failures[step - 1], values[step] - values[step - 1]), default=0)


def choose(draft: Draft, revised: Draft, step: int) -> Draft:
    """Return the better version: the revised one without failures, or the old one with one more failure at `step`."""
    old, new = draft.path[-1], revised.path[-1]
    if (new.prefix.ended, new.value) > (old.prefix.ended, old.value) or len(draft.path) == 1:
        return revised._replace(failures=(0,) * (len(revised.path) - 1))
    failures = [count + (number == step) for number, count in enumerate(draft.failures, start=1)]
    return draft._replace(failures=tuple(failures))


def _complete(
    worker: RolloutWorker,
    params: Params,
    value: PrefixEvaluator,
    begins: Sequence[tuple[ScoredPrefix, ...]],
    prompt_ids: Sequence[int],
    search: Revision,
    *,
    key: PRNGKeyArray,
    rows: int,
) -> tuple[list[tuple[ScoredPrefix, ...]], list[int]]:
    """Sample and score steps until every path has ended; return the paths, and the number of tokens sampled for each."""
    paths, spent, budget, depth = list(begins), [0] * len(begins), worker.sampling.max_tokens, 0
    while jobs := [(index, path[-1].prefix) for index, path in enumerate(paths) if is_open(path[-1].prefix, budget)]:
        seeds = generate_seeds(jax.random.fold_in(key, depth), len(paths)).tolist()
        own_seeds = [seeds[index] for index, _ in jobs]
        extended = extend_all(worker, params, jobs, prompt_ids, search.step_ends, own_seeds, rows)
        scored = _score(value, [prefix for prefix, _ in extended])
        for (index, _), (_, count), prefix in zip(jobs, extended, scored, strict=True):
            paths[index], spent[index] = (*paths[index], prefix), spent[index] + count
        depth += 1
    return paths, spent


def _score(value: PrefixEvaluator, prefixes: Sequence[Prefix]) -> list[ScoredPrefix]:
    """Compute the values of prefixes."""
    values = np.nan_to_num(np.asarray(value(prefixes), float)).tolist()
    return [ScoredPrefix(prefix, number) for prefix, number in zip(prefixes, values, strict=True)]
