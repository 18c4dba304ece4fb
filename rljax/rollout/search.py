"""Beam search over reasoning steps: values of prefixes decide which of them go on."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from rljax.models import Params
from rljax.records import documented
from rljax.rollout.continuations import Prefix, Value, end_token
from rljax.rollout.engine import draw_seeds
from rljax.rollout.request import Request, Response, check_responses
from rljax.rollout.worker import RolloutWorker


@documented
class Search(NamedTuple):
    """Settings of a search: how it spends its samples."""

    samples: int
    """N, steps drawn for a problem at each depth; an ended prefix leaves its share undrawn."""
    keep: int
    """Prefixes that are kept at each depth, at most N."""
    step_ends: tuple[str, ...]
    """Texts that end a step. They stay in it."""


@documented
class Kept(NamedTuple):
    """A prefix of a search, and its value."""

    prefix: Prefix
    """The prefix."""
    value: float
    """Its value."""


@documented
class Found(NamedTuple):
    """The result of the search for one problem."""

    best: Kept
    """The whole response with the highest value; where none has ended, the prefix with the highest one."""
    tokens: int
    """Tokens that were drawn, those of dropped prefixes included."""
    depth: int
    """Steps of the longest kept prefix."""


def beam_search(
    worker: RolloutWorker,
    params: Params,
    value: Value,
    prompt_ids: Sequence[int],
    *,
    search: Search,
    key: PRNGKeyArray,
    rows: int = 256,
) -> list[Found]:
    """Search for a good response to each of the prompts.

    At every depth, each kept prefix that has not ended is continued by one step, several times, so that a problem has N samples.
    Of the continuations and the ended prefixes, those with the highest values are kept; equal ones count once. A problem is done
    when all its kept prefixes have ended or used up the token budget of a response.

    Args:
        worker: draws steps with its sampling; its token budget covers a whole response.
        params: parameters of the policy.
        value: gives prefixes their values.
        prompt_ids: indices into the worker's prompts.
        search: how many steps are drawn and kept, and where a step ends.
        key: random key; the same one gives the same result for the same prompts.
        rows: steps that are drawn at once; fewer are filled up to this number, a quarter of it, or a quarter of that, and so on,
            so that few programs are compiled.

    Returns:
        A result for each prompt.

    Raises:
        ValueError: `search` keeps none or more prefixes than it draws, or has no text that ends a step.
        InputError: the engine's responses do not answer the requests.

    Source:
        The beam search of Snell et al., Scaling LLM Test-Time Compute Optimally can be More Effective than Scaling Model
        Parameters, arXiv:2408.03314, Section 5.2; here ended prefixes stay in the beam, and copies leave it.
    """
    if not 1 <= search.keep <= search.samples:
        raise ValueError(f"keep must be from 1 to samples={search.samples}, got {search.keep}")
    if not all(search.step_ends) or not search.step_ends:
        raise ValueError(f"step_ends must hold texts that are not empty, got {search.step_ends}")
    problems, tokens = worker.prompts.problems, worker.prompts.tokens
    beams = [[Kept(Prefix(problems[i], tuple(tokens[i]), (), "", (), ended=False), 0.0)] for i in prompt_ids]
    spent, depths = np.zeros(len(beams), int), np.zeros(len(beams), int)
    depth = 0
    while True:
        jobs = [job for place, beam in enumerate(beams) for job in _jobs(place, beam, search, worker.sampling.max_tokens)]
        if not jobs:
            break
        seeds = draw_seeds(jax.random.fold_in(key, depth), search.samples * len(beams)).tolist()
        requests = _requests(worker, jobs, prompt_ids, search.step_ends, seeds)
        drawn = _drawn(worker, params, requests, rows)
        fresh: list[list[Prefix]] = [[] for _ in beams]
        for (place, prefix), response in zip(jobs, drawn, strict=True):
            tokens = response.tokens[: worker.sampling.max_tokens - len(prefix.tokens)]
            spent[place] += len(tokens)
            fresh[place].append(_continued(worker, prefix, response._replace(tokens=tokens)))
        depth += 1
        active = sorted({place for place, _ in jobs})
        depths[active] = depth
        for place, candidates in zip(active, _valued(value, [fresh[place] for place in active]), strict=True):
            ended = [kept for kept in beams[place] if not _is_open(kept.prefix, worker.sampling.max_tokens)]
            beams[place] = _best(ended + candidates, search.keep)
    return [Found(_answer(beam), int(spent[place]), int(depths[place])) for place, beam in enumerate(beams)]


def _is_open(prefix: Prefix, budget: int) -> bool:
    """True if a prefix can go on."""
    return not prefix.ended and len(prefix.tokens) < budget


def _jobs(place: int, beam: Sequence[Kept], search: Search, budget: int) -> list[tuple[int, Prefix]]:
    """The prefixes of a problem to continue, each as often as it is continued; an ended prefix has its share of the samples."""
    going = [kept.prefix for kept in beam if _is_open(kept.prefix, budget)]
    shares = [search.samples // len(beam) + (rank < search.samples % len(beam)) for rank in range(len(beam))]
    return [(place, prefix) for prefix, share in zip(going, shares, strict=False) for _ in range(share)]


def _requests(
    worker: RolloutWorker,
    jobs: Sequence[tuple[int, Prefix]],
    prompt_ids: Sequence[int],
    step_ends: tuple[str, ...],
    seeds: Sequence[int],
) -> list[Request]:
    """Requests for one more step of each prefix; all with the budget of a whole response, for which one program is compiled."""
    sampling = worker.sampling._replace(stop=tuple(dict.fromkeys([*step_ends, *worker.sampling.stop])))
    return [
        Request((*prefix.prompt, *prefix.tokens), int(prompt_ids[place]), group, sampling, seeds[group])
        for group, (place, prefix) in enumerate(jobs)
    ]


def _drawn(worker: RolloutWorker, params: Params, requests: list[Request], rows: int) -> list[Response]:
    """Responses to the requests, `rows` at a time."""
    responses: list[Response] = []
    for begin in range(0, len(requests), rows):
        part = requests[begin : begin + rows]
        size = rows
        while size // 4 >= len(part):
            size //= 4
        filled = part + part[:1] * (size - len(part))
        drawn = worker.engine.generate(params, filled)
        check_responses(filled, drawn)
        responses += drawn[: len(part)]
    return responses


def _continued(worker: RolloutWorker, prefix: Prefix, response: Response) -> Prefix:
    """The prefix with one more step. It has ended with the end token, or with a stop string of the worker."""
    tokenizer, sampling = worker.judge.tokenizer, worker.sampling
    drawn = response.tokens.tolist()
    end = end_token(drawn, sampling)
    kept = drawn if end is None else drawn[:-1]
    text = tokenizer.decode((*prefix.tokens, *drawn))
    stopped = any(string in text for string in sampling.stop)
    logp = (*prefix.logp, *response.policy_logp[: len(kept)].tolist())
    return prefix._replace(tokens=(*prefix.tokens, *kept), text=text, logp=logp, ended=end is not None or stopped, end=end)


def _valued(value: Value, candidates: Sequence[Sequence[Prefix]]) -> list[list[Kept]]:
    """Give all candidates of all problems their values in one call."""
    everything = [prefix for part in candidates for prefix in part]
    values = iter(np.where(np.isnan(found := value(everything)), -np.inf, found).tolist())
    return [[Kept(prefix, next(values)) for prefix in part] for part in candidates]


def _best(candidates: Sequence[Kept], count: int) -> list[Kept]:
    """The prefixes with the highest values, each once; of equal ones the first."""
    once: dict[tuple[tuple[int, ...], bool, int | None], Kept] = {}
    for kept in candidates:
        once.setdefault((kept.prefix.tokens, kept.prefix.ended, kept.prefix.end), kept)
    return sorted(once.values(), key=lambda kept: -kept.value)[:count]


def _answer(beam: Sequence[Kept]) -> Kept:
    """The ended prefix with the highest value, or, without one, the best."""
    return next((kept for kept in beam if kept.prefix.ended), beam[0])
