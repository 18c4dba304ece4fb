"""Beam search over reasoning steps: at each depth, only the prefixes with the highest values are continued."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from rljax.models import Params
from rljax.rollout.continuations import Prefix, PrefixEvaluator, end_token
from rljax.rollout.engine import generate_seeds
from rljax.rollout.engine_protocols import Request, Response, sample_responses
from rljax.rollout.worker import RolloutWorker


class Search(NamedTuple):
    """Settings of a beam search."""

    samples: int
    """N, number of steps sampled per problem at each depth, divided among the kept prefixes; ended prefixes' shares are unused."""
    keep: int
    """Number of prefixes that are kept at each depth, at most N."""
    step_ends: tuple[str, ...]
    """Texts that end a step; they are part of the step."""


class ScoredPrefix(NamedTuple):
    """A prefix of a response, and its value."""

    prefix: Prefix
    """The prefix."""
    value: float
    """The value of the prefix."""


class SearchResult(NamedTuple):
    """The result of the search for one problem."""

    best: ScoredPrefix
    """The complete response with the highest value, or the best prefix if no response is complete."""
    tokens: int
    """Number of tokens sampled, including those of dropped prefixes."""
    depth: int
    """Number of steps in the longest kept prefix."""


def beam_search(
    worker: RolloutWorker,
    params: Params,
    value: PrefixEvaluator,
    prompt_ids: Sequence[int],
    *,
    search: Search,
    key: PRNGKeyArray,
    rows: int = 256,
) -> list[SearchResult]:
    """Search for a good response to each of the prompts.

    At each depth, every kept prefix that has not ended is continued by one step, several times: the N samples of a problem are
    divided among its kept prefixes. The continuations and ended prefixes with the highest values are kept; duplicates count once.
    A problem is done when all its kept prefixes have ended or used up the token budget of a response.

    Args:
        worker: the worker that samples steps; its token budget covers a complete response.
        params: parameters of the policy.
        value: function that computes the values of prefixes.
        prompt_ids: indices into the worker's prompts.
        search: how many steps are sampled and kept, and where a step ends.
        key: random key; the same key gives the same result for the same prompts.
        rows: number of steps sampled at once; smaller batches are padded to this number, a quarter of it, a quarter of that, and
            so on, so that few programs are compiled.

    Returns:
        A result for each prompt.

    Raises:
        ValueError: `search` keeps no prefix, keeps more prefixes than it samples, or has no text that ends a step.
        InputError: the engine's responses do not match the requests.

    Source:
        The beam search of Snell et al., Scaling LLM Test-Time Compute Optimally can be More Effective than Scaling Model
        Parameters, arXiv:2408.03314, Section 5.2; here ended prefixes stay in the beam, and duplicates are removed.
    """
    if not 1 <= search.keep <= search.samples:
        raise ValueError(f"keep must be from 1 to samples={search.samples}, got {search.keep}")
    check_step_ends(search.step_ends)
    problems, tokens = worker.prompts.problems, worker.prompts.tokens
    beams = [[ScoredPrefix(Prefix(problems[i], tuple(tokens[i]), (), "", (), ended=False), 0.0)] for i in prompt_ids]
    spent, depths = np.zeros(len(beams), int), np.zeros(len(beams), int)
    depth = 0
    while True:
        budget = worker.sampling.max_tokens
        jobs = [job for index, beam in enumerate(beams) for job in _select_jobs(index, beam, search, budget)]
        if not jobs:
            break
        seeds = generate_seeds(jax.random.fold_in(key, depth), search.samples * len(beams)).tolist()
        fresh: list[list[Prefix]] = [[] for _ in beams]
        extended = extend_all(worker, params, jobs, prompt_ids, search.step_ends, seeds, rows)
        for (index, _), (prefix, count) in zip(jobs, extended, strict=True):
            spent[index] += count
            fresh[index].append(prefix)
        depth += 1
        active = sorted({index for index, _ in jobs})
        depths[active] = depth
        for index, candidates in zip(active, _evaluate(value, [fresh[index] for index in active]), strict=True):
            ended = [kept for kept in beams[index] if not is_open(kept.prefix, worker.sampling.max_tokens)]
            beams[index] = _select_best(ended + candidates, search.keep)
    bests = [next((kept for kept in beam if kept.prefix.ended), beam[0]) for beam in beams]  # beams are sorted by value
    return [SearchResult(*each) for each in zip(bests, spent.tolist(), depths.tolist(), strict=True)]


def check_step_ends(step_ends: Sequence[str]) -> None:
    """Raise a ValueError if no text ends a step, or one of the texts is empty."""
    if not all(step_ends) or not step_ends:
        raise ValueError(f"step_ends must be one or more non-empty texts, got {step_ends}")


def is_open(prefix: Prefix, budget: int) -> bool:
    """Return True if a prefix can be continued."""
    return not prefix.ended and len(prefix.tokens) < budget


def _select_jobs(index: int, beam: Sequence[ScoredPrefix], search: Search, budget: int) -> list[tuple[int, Prefix]]:
    """Return a problem's open prefixes, once per continuation; the shares of ended prefixes are not passed on to the others."""
    unfinished = [kept.prefix for kept in beam if is_open(kept.prefix, budget)]
    shares = [search.samples // len(beam) + (rank < search.samples % len(beam)) for rank in range(len(beam))]
    return [(index, prefix) for prefix, share in zip(unfinished, shares, strict=False) for _ in range(share)]


def extend_all(
    worker: RolloutWorker,
    params: Params,
    jobs: Sequence[tuple[int, Prefix]],
    prompt_ids: Sequence[int],
    step_ends: tuple[str, ...],
    seeds: Sequence[int],
    rows: int,
) -> list[tuple[Prefix, int]]:
    """Sample one more step of each prefix; return the longer prefixes, and how many tokens were sampled for each.

    Args:
        worker: the worker that samples steps.
        params: parameters of the policy.
        jobs: (index into `prompt_ids`, prefix) pairs.
        prompt_ids: indices into the worker's prompts.
        step_ends: texts that end a step.
        seeds: a seed for each job.
        rows: number of steps sampled at once.
    """
    requests = make_requests(worker, jobs, prompt_ids, step_ends, seeds)
    extended = []
    for (_, prefix), response in zip(jobs, sample_steps(worker, params, requests, rows), strict=True):
        tokens = response.tokens[: worker.sampling.max_tokens - len(prefix.tokens)]
        extended.append((extend_prefix(worker, prefix, response._replace(tokens=tokens)), len(tokens)))
    return extended


def make_requests(
    worker: RolloutWorker,
    jobs: Sequence[tuple[int, Prefix]],
    prompt_ids: Sequence[int],
    step_ends: tuple[str, ...],
    seeds: Sequence[int],
) -> list[Request]:
    """Build requests for one more step of each prefix; all have the budget of a full response, so that one program suffices."""
    sampling = worker.sampling._replace(stop=tuple(dict.fromkeys([*step_ends, *worker.sampling.stop])))
    return [
        Request((*prefix.prompt, *prefix.tokens), int(prompt_ids[index]), group, sampling, seeds[group])
        for group, (index, prefix) in enumerate(jobs)
    ]


def sample_steps(worker: RolloutWorker, params: Params, requests: list[Request], rows: int) -> list[Response]:
    """Sample responses to the requests, `rows` at a time."""
    responses: list[Response] = []
    for begin in range(0, len(requests), rows):
        part = requests[begin : begin + rows]
        size = rows
        while size // 4 >= len(part):
            size //= 4
        filled = part + part[:1] * (size - len(part))
        responses += sample_responses(worker.engine, params, filled)[: len(part)]
    return responses


def extend_prefix(worker: RolloutWorker, prefix: Prefix, response: Response) -> Prefix:
    """Append a step to a prefix. The prefix has ended if it now has the end token, or one of the worker's stop strings."""
    tokenizer, sampling = worker.judge.tokenizer, worker.sampling
    step = response.tokens.tolist()
    end = end_token(step, sampling)
    kept = step if end is None else step[:-1]
    text = tokenizer.decode((*prefix.tokens, *step))
    stopped = any(string in text for string in sampling.stop)
    logp = (*prefix.logp, *response.policy_logp[: len(kept)].tolist())
    return prefix._replace(tokens=(*prefix.tokens, *kept), text=text, logp=logp, ended=end is not None or stopped, end=end)


def _evaluate(value: PrefixEvaluator, candidates: Sequence[Sequence[Prefix]]) -> list[list[ScoredPrefix]]:
    """Evaluate the candidates of all problems in one call."""
    everything = [prefix for part in candidates for prefix in part]
    values = iter(np.where(np.isnan(found := value(everything)), -np.inf, found).tolist())
    return [[ScoredPrefix(prefix, next(values)) for prefix in part] for part in candidates]


def _select_best(candidates: Sequence[ScoredPrefix], count: int) -> list[ScoredPrefix]:
    """Return the prefixes with the highest values, without duplicates."""
    once: dict[tuple[tuple[int, ...], bool, int | None], ScoredPrefix] = {}
    for kept in candidates:
        once.setdefault((kept.prefix.tokens, kept.prefix.ended, kept.prefix.end), kept)
    return sorted(once.values(), key=lambda kept: -kept.value)[:count]
