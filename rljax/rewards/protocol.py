"""How a reward function is called, and what it may answer.

The convention is TRL's: `f(prompts=..., completions=..., **columns)`, every argument a list with one entry a completion; the
answer is as long a list of numbers, None for "no opinion". The function may be a coroutine function.
"""

import asyncio
import inspect
import math
import numbers
import reprlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32

from rljax.errors import InputError


class Scores(NamedTuple):
    """Several rewards of N completions, together and apart.

    `total` is the weighted sum of the rewards that have an opinion, and `valid` says where at least one has; elsewhere the
    total is 0. In `parts`, unweighted and by name, NaN stands for no opinion.
    """

    total: Float32[np.ndarray, "N"]
    valid: Bool[np.ndarray, "N"]
    parts: dict[str, Float32[np.ndarray, "N"]]


def score(
    reward: Callable, prompts: Sequence[str], completions: Sequence[str], columns: Mapping[str, Sequence]
) -> tuple[Float32[np.ndarray, "N"], Bool[np.ndarray, "N"]]:
    """Ask one reward function about completions.

    Args:
        reward: called with `prompts`, `completions` and the columns; if it does not take `**kwargs`, with those it names.
        prompts: N of them.
        completions: one a prompt.
        columns: extra data by name, N entries each, `answer` among them where there is one.

    Returns:
        The rewards, and where the function has an opinion; a reward without is 0.

    Raises:
        ValueError: completions or a column not as long as the prompts.
        InputError: the function asks for a column that is not there, raises, or answers with anything but N finite numbers.

    Example:
        >>> values, valid = score(lambda completions: [len(c) or None for c in completions], ["a", "a"], ["bcd", ""], {})
        >>> values.tolist(), valid.tolist()
        ([3.0, 0.0], [True, False])
    """
    for name, column in {"completions": completions, **columns}.items():
        if len(column) != len(prompts):
            raise ValueError(f"{name} must have one entry a prompt, got {len(column)} for {len(prompts)} prompts")
    called = _name(reward)
    arguments = _arguments(reward, called, prompts, completions, columns)
    try:
        returned = reward(**arguments)
        if inspect.isawaitable(returned):
            returned = _wait_for(returned)
    except Exception as error:  # a reward is a person's program, and may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"the reward {called} raised {reason}; mend the function.") from error
    return _read(returned, called, len(prompts))


def weighted_scores(
    rewards: Mapping[str, Callable],
    weights: Mapping[str, float],
    prompts: Sequence[str],
    completions: Sequence[str],
    columns: Mapping[str, Sequence],
) -> Scores:
    """Ask several reward functions about the same completions and add up what they say.

    Args:
        rewards: the functions, under the names that their parts shall have.
        weights: a finite number for each of those names.
        prompts: N of them.
        completions: one a prompt.
        columns: extra data by name, N entries each.

    Returns:
        The weighted sum and every part of it.

    Raises:
        ValueError: completions or a column not as long as the prompts.
        InputError: no rewards, weights that do not match them, or whatever `score` refuses.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> scores = weighted_scores(BY_NAME, {"exact": 1.0, "format": 0.1}, ["1+1="] * 2, ["#2", "#3"], {"answer": ["2"] * 2})
        >>> scores.total.round(2).tolist(), scores.parts["exact"].tolist()
        ([1.100000023841858, 0.10000000149011612], [1.0, 0.0])
    """
    if not rewards:
        raise InputError("there is no reward; name at least one.")
    if set(weights) != set(rewards):
        raise InputError(f"the weights are for {sorted(weights)}, the rewards are {sorted(rewards)}; give each reward one.")
    for name, weight in weights.items():
        if not math.isfinite(weight):
            raise InputError(f"the weight of the reward {name!r} is {weight}; give a finite number.")
    total = np.zeros(len(prompts), np.float32)
    valid = np.zeros(len(prompts), bool)
    parts = {}
    for name, reward in rewards.items():
        values, has_opinion = score(reward, prompts, completions, columns)
        total += np.float32(weights[name]) * values
        valid |= has_opinion
        parts[name] = np.where(has_opinion, values, np.float32(np.nan))
    return Scores(total, valid, parts)


def _name(reward: Callable) -> str:
    described = reward if hasattr(reward, "__qualname__") else type(reward)
    return f"{described.__module__}.{described.__qualname__}"


def _arguments(
    reward: Callable, called: str, prompts: Sequence[str], completions: Sequence[str], columns: Mapping[str, Sequence]
) -> dict[str, list]:
    """Pick what the function can take, in lists of its own that it may change."""
    taken = {"prompts", "completions"} & set(columns)
    if taken:
        raise InputError(
            f"the data has a column called {' and '.join(map(repr, sorted(taken)))}, a name under which rewards receive "
            f"something else; rename it."
        )
    offered = {name: list(values) for name, values in {"prompts": prompts, "completions": completions, **columns}.items()}
    try:
        parameters = inspect.signature(reward).parameters.values()
    except ValueError as error:  # some functions written in C
        raise InputError(f"the reward {called} does not tell its arguments; wrap it in a Python function.") from error
    by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    absent = [name for name, p in by_name.items() if p.default is p.empty and name not in offered]
    if absent:
        raise InputError(
            f"the reward {called} asks for {', '.join(absent)}, but the data has the columns {', '.join(offered)}; rename "
            f"the argument, or add the column."
        )
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return {name: values for name, values in offered.items() if takes_all or name in by_name}


def _wait_for(awaitable: object) -> object:
    """Run a coroutine to its end, on a thread of its own: a notebook's thread has an event loop that cannot be entered again."""

    async def awaited() -> object:
        return await awaitable

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, awaited()).result()


def _read(returned: object, called: str, count: int) -> tuple[Float32[np.ndarray, "N"], Bool[np.ndarray, "N"]]:
    """Check what a reward function returned."""
    shown = reprlib.repr(returned)
    listed = returned.tolist() if hasattr(returned, "tolist") else returned
    if not isinstance(listed, (list, tuple)):
        raise InputError(f"the reward {called} returned {shown}; it must return a list with one number a completion.")
    if len(listed) != count:
        raise InputError(
            f"the reward {called} returned {len(listed)} values for {count} completions; it must return one for each."
        )
    values = [value.tolist() if hasattr(value, "tolist") else value for value in listed]
    for position, value in enumerate(values):
        if value is not None and not isinstance(value, numbers.Real):
            raise InputError(
                f"the reward {called} returned {reprlib.repr(value)} for completion {position} (in {shown}); it must return "
                f"a number, or None for no opinion."
            )
    valid = np.array([value is not None for value in values], bool)
    with np.errstate(over="ignore"):  # what overflows is refused below
        rewards = np.array([0.0 if value is None else _as_float(value) for value in values], np.float32)
    if not np.isfinite(rewards).all():
        position = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise InputError(
            f"the reward {called} returned {reprlib.repr(values[position])} for completion {position}; it must return a "
            f"finite number, or None for no opinion."
        )
    return rewards, valid


def _as_float(value: numbers.Real) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
