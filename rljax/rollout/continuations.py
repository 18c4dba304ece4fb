"""Monte Carlo values of states in the middle of responses, estimated from sampled continuations."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models import Params
from rljax.records import required
from rljax.rollout.engine import generate_seeds
from rljax.rollout.engine_protocols import Request, Sampling, sample_responses
from rljax.rollout.groups import Groups
from rljax.rollout.worker import RolloutWorker


class StateIndex(NamedTuple):
    """Location of a state in a rollout. The state is the part of a response before one of its tokens."""

    group: int
    """Index of the group in the rollout."""
    response: int
    """Index of the response in the group."""
    token: int
    """Index of the first token after the state."""


class Prefix(NamedTuple):
    """The beginning of a response, or all of it, for a critic or a reward model to evaluate."""

    problem: Problem
    """The problem that the response answers."""
    prompt: tuple[int, ...]
    """Token ids of the prompt."""
    tokens: tuple[int, ...]
    """Token ids after the prompt, without the end token."""
    text: str
    """The text that a reward judges: these tokens decoded, followed by the end token if it decodes to text (see `--stop-ids`)."""
    logp: tuple[float, ...]
    """Log-probability of each of these tokens under the policy before top-k and top-p, in nats. Some critics read it."""
    ended: bool
    """Whether the response ends after these tokens."""
    end: int | None = None
    """The end token that follows these tokens, if the response ended with one."""


PrefixEvaluator = Callable[[Sequence[Prefix]], Float[np.ndarray, "N"]]
"""Function from prefixes to their values. A higher value is better; NaN means that the prefix has no value."""


def prefixes_of(worker: RolloutWorker, groups: Groups) -> list[Prefix]:
    """Return the responses of a rollout as prefixes, in the order of the groups; a missing response becomes an empty prefix.

    Args:
        worker: the worker that sampled the rollout.
        groups: the rollout.
    """
    problems, tokenizer = worker.prompts.problems, worker.judge.tokenizer
    prefixes = []
    logp = required(groups.rollout.policy_logp, "rollout.policy_logp")
    for group, member in np.ndindex(groups.tokens.shape[:2]):
        attention = groups.attention[group, member]
        tokens = groups.tokens[group, member][attention].tolist()
        end = end_token(tokens, worker.sampling)
        before_end = tokens if end is None else tokens[:-1]
        prompt_id = int(groups.prompt_ids[group])
        prefixes.append(
            Prefix(
                problem=problems[prompt_id],
                prompt=tuple(worker.prompts.tokens[prompt_id]),
                tokens=tuple(before_end),
                text=tokenizer.decode(tokens),
                logp=tuple(logp[group, member][attention][: len(before_end)].tolist()),
                ended=end is not None,
                end=end,
            )
        )
    return prefixes


def end_token(tokens: Sequence[int], sampling: Sampling) -> int | None:
    """Return the last token if it is one of `sampling.eos_ids`, else None."""
    return tokens[-1] if tokens and tokens[-1] in sampling.eos_ids else None


def sample_states(groups: Groups, count: int, *, seed: int) -> list[StateIndex]:
    """Sample states of a rollout, uniformly over the tokens in its mask and without replacement.

    Args:
        groups: a rollout.
        count: number of states, at most the number of tokens in the mask.
        seed: random seed.

    Raises:
        ValueError: the mask has fewer than `count` tokens.
    """
    positions = np.argwhere(groups.rollout.mask)
    if count > len(positions):
        raise ValueError(f"count must be at most {len(positions)}, the number of tokens in the rollout's mask, got {count}")
    chosen = np.random.default_rng(seed).choice(len(positions), count, replace=False)
    return [StateIndex(*map(int, positions[index])) for index in np.sort(chosen)]


def judge_continuations(
    worker: RolloutWorker,
    params: Params,
    groups: Groups,
    states: Sequence[StateIndex],
    *,
    continuations: int,
    key: PRNGKeyArray,
    rows: int = 256,
) -> Float[np.ndarray, "S C"]:
    """Sample continuations of each state and judge the completed responses.

    The mean of a state's rewards is its Monte Carlo value.

    Args:
        worker: the worker that sampled the rollout; its token budget limits each state plus its continuation.
        params: parameters of the policy.
        groups: the rollout that the states come from.
        states: the states to continue.
        continuations: C, number of continuations per state.
        key: random key.
        rows: number of responses sampled at a time.

    Returns:
        Reward of each continuation of each of the S states, `[S, C]`.

    Raises:
        InputError: the reward abstained or failed on some of the continuations.
    """
    budget, tokenizer = worker.sampling.max_tokens, worker.judge.tokenizer
    prompt_ids = [int(groups.prompt_ids[state.group]) for state in states]
    prefixes = [groups.tokens[state.group, state.response, : state.token].tolist() for state in states]
    order = np.arange(len(states)).repeat(continuations).tolist()
    requests = [
        Request(
            (*worker.prompts.tokens[prompt_ids[state]], *prefixes[state]), prompt_ids[state], state, worker.sampling, seed
        )
        for state, seed in zip(order, generate_seeds(key, len(order)).tolist(), strict=True)
    ]
    texts: list[str] = []
    for begin in range(0, len(requests), rows):
        part = requests[begin : begin + rows]
        for request, response in zip(part, sample_responses(worker.engine, params, part), strict=True):
            prefix = prefixes[request.group]
            texts.append(tokenizer.decode(prefix + response.tokens[: budget - len(prefix)].tolist()))
    scores = worker.judge.score_texts([worker.prompts.problems[prompt_ids[state]] for state in order], texts)
    if not scores.valid.all():
        raise InputError(
            f"The reward abstained or failed on {(~scores.valid).sum()} of {len(texts)} continuations, so some states have no "
            "Monte Carlo value; use a reward that judges every response."
        )
    return scores.total.reshape(len(states), continuations)
