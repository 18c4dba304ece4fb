"""Calling one reward function, and reading what it answers."""

import asyncio
import inspect
import math
import numbers
import reprlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int8

from rljax.errors import InputError
from rljax.rewards.failure import Failed, Failures
from rljax.text import one_line

Progress = Callable[[int, int], None]


class Answer(NamedTuple):
    """What one reward said of N completions."""

    values: Float32[np.ndarray, "N"]
    """0 where it has no opinion or failed."""
    valid: Bool[np.ndarray, "N"]
    """Where it has an opinion."""
    failed: Int8[np.ndarray, "N"]
    """How: 0 did not fail, else the place in `Failures`, counted from 1."""
    failures: Failures
    reason: str
    """Why it failed first, in one line; empty if it did not."""
    whole: bool
    """Whether it was the call that failed, and so all of them."""
    cause: BaseException | None
    """What the call raised."""


def called_name(reward: Callable) -> str:
    """Name a function, or whatever else can be called, in messages.

    Example:
        >>> import math
        >>> called_name(math.sqrt)
        'math.sqrt'
    """
    described = reward if hasattr(reward, "__qualname__") else type(reward)
    return f"{described.__module__}.{described.__qualname__}"


def arguments_for(reward: Callable, offered: Mapping[str, object]) -> dict[str, object]:
    """Pick from what is offered what the function can take.

    Args:
        reward: a function; with `**kwargs` it receives everything.
        offered: arguments by name. `progress` goes only to a function that names it.

    Returns:
        The arguments to call the function with.

    Raises:
        InputError: it does not tell its arguments, or asks for one that is not offered.

    Example:
        >>> arguments_for(lambda completions, level=1: None, {"prompts": [], "completions": ["a"], "level": [7]})
        {'completions': ['a'], 'level': [7]}
    """
    called = called_name(reward)
    try:
        parameters = inspect.signature(reward).parameters.values()
    except ValueError as error:  # some functions written in C
        raise InputError(f"the reward {called} does not tell its arguments; wrap it in a Python function.") from error
    by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    absent = [name for name, p in by_name.items() if p.default is p.empty and name not in offered]
    if absent:
        has = ", ".join(name for name in offered if name != "progress")
        raise InputError(
            f"the reward {called} asks for {', '.join(absent)}, but the data has the columns {has}; rename the argument, or "
            f"add the column."
        )
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return {name: value for name, value in offered.items() if name in by_name or (takes_all and name != "progress")}


def ask(
    reward: Callable,
    prompts: Sequence[str],
    completions: Sequence[str],
    columns: Mapping[str, Sequence],
    progress: Progress | None,
) -> object:
    """Call a reward function.

    Args:
        reward: the function.
        prompts: N of them.
        completions: one a prompt.
        columns: extra data by name, N entries each.
        progress: for a function that names it.

    Returns:
        What the function returned, or the exception that it raised.

    Raises:
        InputError: it cannot be called with these columns.

    Example:
        >>> ask(lambda completions: [1.0], ["a"], ["b"], {}, None), ask(lambda prompts: 1 / 0, ["a"], ["b"], {}, None)
        ([1.0], ZeroDivisionError('division by zero'))
    """
    taken = {"prompts", "completions", "progress"} & set(columns)
    if taken:
        raise InputError(
            f"the data has a column called {' and '.join(map(repr, sorted(taken)))}, a name under which rewards receive "
            f"something else; rename it."
        )
    # Lists of its own, that it may change.
    offered = {name: list(values) for name, values in {"prompts": prompts, "completions": completions, **columns}.items()}
    arguments = arguments_for(reward, offered | {"progress": progress})
    try:
        return reward(**arguments)
    except InputError:  # it says itself what the person has to mend
        raise
    except Exception as error:  # a reward is a person's program, and may raise anything
        return error


def wait_for(returned: Sequence[object]) -> list[object]:
    """Run what coroutine functions returned to its end, all of it together.

    On a thread of its own: a notebook's thread has an event loop that cannot be entered again.

    Args:
        returned: awaitables, and other things, which are passed through.

    Returns:
        Their results, and the exceptions of those that raised.

    Raises:
        InputError: what a coroutine raised of this kind.

    Example:
        >>> import asyncio
        >>> wait_for([asyncio.sleep(0, result=[1.0]), [2.0]])
        [[1.0], [2.0]]
    """
    awaitables = [entry for entry in returned if inspect.isawaitable(entry)]
    if not awaitables:
        return list(returned)

    async def together() -> list[object]:
        return await asyncio.gather(*map(_awaited, awaitables), return_exceptions=True)

    with ThreadPoolExecutor(max_workers=1) as pool:
        results = iter(pool.submit(asyncio.run, together()).result())
    finished = [next(results) if inspect.isawaitable(entry) else entry for entry in returned]
    for result in finished:
        if isinstance(result, InputError):
            raise result
    return finished


async def _awaited(awaitable: Awaitable) -> object:
    return await awaitable


def read_answer(returned: object, called: str, count: int) -> Answer:
    """Read what a reward function returned, or raised.

    Args:
        returned: a list, tuple or array of numbers, None (no opinion) and `Failed`; or an exception.
        called: the function's name in messages.
        count: how many entries there must be.

    Returns:
        The answer. An exception, and a list of another length, are failures of all completions.

    Raises:
        InputError: it is no list, or holds anything but finite numbers, None and `Failed`.

    Example:
        >>> read_answer([1, None, Failed("timed_out", "no answer within 2 s")], "mine", 3).failures
        Failures(raised=0, timed_out=1, wrong_count=0)
    """
    if isinstance(returned, BaseException):
        return _all_failed(count, Failures(raised=count), f"raised {one_line(returned)}; mend the function.", returned)
    shown = reprlib.repr(returned)
    listed = returned.tolist() if hasattr(returned, "tolist") else returned
    if not isinstance(listed, (list, tuple)):
        raise InputError(f"the reward {called} returned {shown}; it must return a list with one number a completion.")
    if len(listed) != count:
        reason = f"returned {len(listed)} values for {count} completions; it must return one for each."
        return _all_failed(count, Failures(wrong_count=count), reason, None)
    values = [value.tolist() if hasattr(value, "tolist") else value for value in listed]
    for position, value in enumerate(values):
        if not (value is None or isinstance(value, numbers.Real | Failed)):
            raise InputError(
                f"the reward {called} returned {reprlib.repr(value)} for completion {position} (in {shown}); it must return "
                f"a number, or None for no opinion."
            )
    valid = np.array([isinstance(value, numbers.Real) for value in values], bool)
    with np.errstate(over="ignore"):  # what overflows is refused below
        rewards = np.array(
            [_as_float(value) if real else 0.0 for value, real in zip(values, valid, strict=True)], np.float32
        )
    if not np.isfinite(rewards).all():
        position = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise InputError(
            f"the reward {called} returned {reprlib.repr(values[position])} for completion {position}; it must return a "
            f"finite number, or None for no opinion."
        )
    kinds = [value.kind for value in values if isinstance(value, Failed)]
    reasons = [f"completion {i}: {value.reason}" for i, value in enumerate(values) if isinstance(value, Failed)]
    places = {kind: place for place, kind in enumerate(Failures._fields, 1)}
    failed = np.array([places[value.kind] if isinstance(value, Failed) else 0 for value in values], np.int8)
    failures = Failures(raised=kinds.count("raised"), timed_out=kinds.count("timed_out"))
    return Answer(rewards, valid, failed, failures, reasons[0] if reasons else "", whole=False, cause=None)


def check_failures(answer: Answer, called: str, max_failure_share: float) -> None:
    """Refuse an answer with too many failures.

    Args:
        answer: what the reward said.
        called: the function's name in messages.
        max_failure_share: the largest share that may fail, from 0 to 1; unless it is 0, one of several may always fail.

    Raises:
        InputError: more completions failed than that.

    Example:
        >>> answer = read_answer([1.0, Failed("raised", "KeyError: 'x'")], "mine", 2)
        >>> check_failures(answer, "mine", 0.1)
        >>> check_failures(answer, "mine", 0.0)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        rljax.errors.InputError: the reward mine failed on 1 of 2 completions (1 raised), more than the 0% that may fail; ...
    """
    count, failed = len(answer.values), answer.failures.total
    if answer.whole:
        if max_failure_share < 1:
            raise InputError(f"the reward {called} {answer.reason}") from answer.cause
        return
    allowed = max(max_failure_share * count, float(max_failure_share > 0 and count > 1))
    if failed > allowed:
        raise InputError(
            f"the reward {called} failed on {failed} of {count} completions ({answer.failures}), more than the "
            f"{max_failure_share:.0%} that may fail; the first: {answer.reason}. Mend the function, or raise "
            f"max_failure_share."
        )


def _all_failed(count: int, failures: Failures, reason: str, cause: BaseException | None) -> Answer:
    nothing = np.zeros(count, np.float32)
    place = 1 + next(index for index, number in enumerate(failures) if number) if count else 0
    failed = np.full(count, place, np.int8)
    return Answer(nothing, np.zeros(count, bool), failed, failures, reason, whole=True, cause=cause)


def _as_float(value: numbers.Real) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
