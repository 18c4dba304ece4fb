"""What becomes of a state: fresh continuations from the middle of a response, and the Monte-Carlo value they estimate."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from rljax.data.problem import reward_columns
from rljax.data.prompts import right_pad
from rljax.errors import InputError
from rljax.models import Params
from rljax.rewards.protocol import score
from rljax.rollout.engine import Engine
from rljax.rollout.groups import Groups
from rljax.rollout.sampling import Samples


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


def go_on(
    engine: Engine,
    params: Params,
    problems: Sequence[int],
    begun: Sequence[Sequence[int]],
    *,
    key: PRNGKeyArray,
    most: int,
    rows: int = 256,
) -> list[list[int]]:
    """Let the policy go on with responses that have begun; an ended one stays as it is.

    Args:
        engine: says how tokens are drawn, and at most how many are added.
        params: of the policy.
        problems: the prompt of each, as an index into the engine's.
        begun: the first tokens of each, at most `most`.
        key: random key.
        most: tokens of a whole response.
        rows: responses sampled at a time, a multiple of the mesh's devices.

    Returns:
        The tokens of each response, old and new.
    """
    asked = [[*engine.prompts.tokens[problem], *tokens] for problem, tokens in zip(problems, begun, strict=True)]
    prompts = replace(engine.prompts, problems=[engine.prompts.problems[problem] for problem in problems], tokens=asked)
    longer = replace(engine, prompts=prompts, prompt_length=engine.prompt_length + most)
    responses = [list(tokens) for tokens in begun]
    alive = [place for place, tokens in enumerate(begun) if len(tokens) == 0 or tokens[-1] != engine.sampling.eos_id]
    for call, begin in enumerate(range(0, len(alive), rows)):
        part = alive[begin : begin + rows]
        filled = np.resize(part, rows)  # the last call is filled up with repeats that do not count
        drawn = longer.draw(params, filled.tolist(), jax.random.fold_in(key, call))
        for place, tokens, seen in zip(part, drawn.tokens, drawn.mask, strict=False):
            responses[place] = [*responses[place], *tokens[seen].tolist()][:most]
    return responses


def explore(
    engine: Engine, params: Params, groups: Groups, *, key: PRNGKeyArray, temperature: float, rows: int = 256
) -> tuple[Groups, Int[np.ndarray, "P G"]]:
    """Leave each response at a token drawn at random for another one, and let the policy go on from there.

    What a policy seldom does, its critic seldom sees. Behind the other token everything is the policy's own again, so that what
    becomes of the response is a sample of the policy's value there.

    Args:
        engine: as the rollout was sampled.
        params: of the policy.
        groups: the rollout; all places filled.
        key: random key.
        temperature: at which the other token is drawn, from all tokens.
        rows: responses sampled at a time, a multiple of the mesh's devices.

    Returns:
        The new responses, judged, in the same places, without log-probabilities; and for each the first token that is the
        policy's own again (its length, where it ended with the other token).
    """
    lengths = groups.mask.sum(-1)
    places, other, rest = jax.random.split(key, 3)
    left = np.floor(np.asarray(jax.random.uniform(places, lengths.shape)) * lengths).astype(int)
    problems = groups.problem.repeat(lengths.shape[1]).tolist()
    begun = [
        tokens[:count].tolist()
        for tokens, count in zip(groups.tokens.reshape(-1, groups.tokens.shape[-1]), left.reshape(-1), strict=True)
    ]
    most = engine.sampling.max_tokens
    one = engine.sampling._replace(max_tokens=1, temperature=temperature, top_k=None, top_p=None)
    turned = go_on(replace(engine, sampling=one), params, problems, begun, key=other, most=most, rows=rows)
    finished = go_on(engine, params, problems, turned, key=rest, most=most, rows=rows)
    tokens, mask = right_pad(finished, most, engine.sampling.pad_id)
    nothing = np.zeros(tokens.shape, np.float32)
    ended = np.array([tokens[-1] == engine.sampling.eos_id for tokens in finished])
    judged = engine.judge(
        groups.problem.tolist(), np.ones(lengths.shape, bool), Samples(tokens, mask, nothing, nothing, ~ended)
    )
    return judged, left + 1


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
    wanted = [state for state in states for _ in range(continuations)]
    asked = [int(groups.problem[state.group]) for state in wanted]
    begun = [groups.tokens[state.group, state.response, : state.token].tolist() for state in wanted]
    finished = go_on(engine, params, asked, begun, key=key, most=engine.sampling.max_tokens, rows=rows)
    problems, texts = [engine.prompts.problems[index] for index in asked], list(map(engine.tokenizer.decode, finished))
    rewards, valid = score(engine.reward, [problem.prompt for problem in problems], texts, reward_columns(problems))
    if not valid.all():
        raise InputError("The reward had no opinion on some continuations, so states have no Monte-Carlo value.")
    return rewards.reshape(len(states), continuations)
