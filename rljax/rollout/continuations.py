"""What becomes of a state: fresh continuations from the middle of a response, and the Monte-Carlo value they estimate."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from rljax.data.problem import reward_columns
from rljax.errors import InputError
from rljax.models import Params
from rljax.rewards.protocol import score
from rljax.rollout.engine import Engine
from rljax.rollout.groups import Groups


class State(NamedTuple):
    """A response up to some token: what a critic values before that token."""

    group: int
    response: int
    token: int
    """The first token that is not part of the state."""


def draw_states(groups: Groups, count: int, *, seed: int) -> list[State]:
    """Draw tokens of a rollout at random, all response tokens alike, none twice; the states before them.

    Args:
        groups: a rollout.
        count: how many, at most the number of its response tokens.
        seed: of the draw.

    Raises:
        ValueError: more states than tokens.
    """
    places = np.argwhere(groups.mask)
    if count > len(places):
        raise ValueError(f"count must be at most the rollout's {len(places)} tokens, got {count}")
    chosen = np.random.default_rng(seed).choice(len(places), count, replace=False)
    return [State(*map(int, places[index])) for index in np.sort(chosen)]


def continued_rewards(
    engine: Engine,
    params: Params,
    groups: Groups,
    states: Sequence[State],
    *,
    continuations: int,
    key: PRNGKeyArray,
    rows: int = 256,
) -> Float[np.ndarray, "S C"]:
    """Finish each state again and again, and judge what becomes of it; the mean of a row is the state's Monte-Carlo value.

    Args:
        engine: as the rollout was sampled; the budget of a response holds for state and continuation together.
        params: of the policy.
        groups: the rollout that the states are of.
        states: where to go on from.
        continuations: C, how often each is finished.
        key: random key.
        rows: responses sampled at a time, a multiple of the mesh's devices.

    Returns:
        Reward of every continuation, `[S, C]`.

    Raises:
        InputError: the reward had no opinion on some continuation, or failed.
    """
    budget = engine.sampling.max_tokens
    asked = [engine.prompts.problems[groups.problem[state.group]] for state in states]
    taken = [groups.tokens[state.group, state.response, : state.token].tolist() for state in states]
    begun = [
        engine.prompts.tokens[groups.problem[state.group]] + tokens for state, tokens in zip(states, taken, strict=True)
    ]
    prompts = replace(engine.prompts, problems=asked, tokens=begun)
    longer = replace(engine, prompts=prompts, prompt_length=engine.prompt_length + budget)
    wanted = np.arange(len(states)).repeat(continuations)
    texts: list[str] = []
    for call, begin in enumerate(range(0, len(wanted), rows)):
        part = wanted[begin : begin + rows]
        filled = np.resize(part, rows)  # the last call is filled up with repeats that do not count
        drawn = longer.draw(params, filled.tolist(), jax.random.fold_in(key, call))
        for state, tokens, seen in zip(part, drawn.tokens, drawn.mask, strict=False):
            rest = tokens[seen][: budget - len(taken[state])].tolist()
            texts.append(engine.tokenizer.decode(taken[state] + rest))
    problems = [asked[state] for state in wanted]
    rewards, valid = score(engine.reward, [problem.prompt for problem in problems], texts, reward_columns(problems))
    if not valid.all():
        raise InputError("The reward had no opinion on some continuations, so states have no Monte-Carlo value.")
    return rewards.reshape(len(states), continuations)
