"""Call one reward function, and validate what it returns."""

import asyncio
import inspect
import math
import numbers
import os
import reprlib
import signal
import sysconfig
import threading
import traceback
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from jaxtyping import Bool, Float64, Int8

from rljax.errors import InputError
from rljax.importing import FILE_OF_MODULE
from rljax.rewards.correctness import UNFINISHED, UNSTATED, Failed, Failures, Unfinished, Unstated
from rljax.text import counted, one_line

Progress = Callable[[int, int], None]
"""Progress callback; its arguments are the number of items done and the total number of items."""
LARGEST_REWARD = 1e18
"""Largest absolute value of a reward, chosen so that squares of rewards fit into 32-bit floats."""


class FailedJudgeError(InputError):
    """A reward or an environment failed on too many responses, perhaps because it was briefly unavailable."""


class OutOfRangeError(FailedJudgeError):
    """A reward or an environment returned values that cannot be rewards; another call would not help."""


class CallResult(NamedTuple):
    """What one reward function returned for N completions."""

    values: Float64[np.ndarray, "N"]
    """The rewards; 0 where the function returned no verdict or failed."""
    valid: Bool[np.ndarray, "N"]
    """Whether the function returned a reward."""
    failed: Int8[np.ndarray, "N"]
    """The kind of failure: 0 for none, else the position in `Failures`, counted from 1."""
    failures: Failures
    """The number of failures of each kind."""
    reason: str
    """The reason for the first failure, in one line; empty if there was no failure."""
    call_failed: bool
    """Whether the call itself failed, so that every completion failed."""
    cause: BaseException | None
    """The exception that the call raised, if it raised one."""


def qualified_name(reward: object) -> str:
    """Return the name of a function, or of the class of any other object, prefixed with its module or the user's file.

    Example:
        >>> import math
        >>> qualified_name(math.sqrt)
        'math.sqrt'
    """
    named = _find_named(reward)
    file = FILE_OF_MODULE.get(named.__module__)
    return f"{named.__module__}.{named.__qualname__}" if file is None else f"{file}:{named.__qualname__}"


def short_name(reward: object) -> str:
    """Return the name of a function, or of the class of any other object, without its module.

    Example:
        >>> import math
        >>> short_name(math.sqrt)
        'sqrt'
    """
    return _find_named(reward).__qualname__.rpartition(".")[2]


def _find_named(reward: object) -> Any:
    return reward if hasattr(reward, "__qualname__") else type(reward)


def select_arguments(reward: Callable, available: Mapping[str, object]) -> dict[str, object]:
    """Select the arguments that a reward function accepts.

    Args:
        reward: a function; if it has `**kwargs`, it receives everything except `progress`.
        available: arguments by name. `progress` is passed only to a function with a parameter of that name.

    Returns:
        The arguments to call the function with.

    Raises:
        InputError: the function has no readable signature, has positional-only parameters, or needs an argument that is not
            available.

    Example:
        >>> select_arguments(lambda completions, level=1: None, {"prompts": [], "completions": ["a"], "level": [7]})
        {'completions': ['a'], 'level': [7]}
    """
    function = qualified_name(reward)
    try:
        parameters = inspect.signature(reward).parameters.values()
    except ValueError as error:  # some functions written in C
        raise InputError(f"the reward {function} has no readable signature; wrap it in a Python function.") from error
    by_position = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    if by_position:
        raise InputError(
            f"the reward {function} takes {', '.join(by_position)} by position only, but arguments are passed by name; remove "
            "the `/` from its parameters."
        )
    by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    missing = [name for name, p in by_name.items() if p.default is p.empty and name not in available]
    if missing:
        columns = ", ".join(name for name in available if name != "progress")
        raise InputError(
            f"the reward {function} needs {', '.join(missing)}, but the data has the columns {columns}; rename the argument, or "
            f"add the column."
        )
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return {name: value for name, value in available.items() if name in by_name or (takes_all and name != "progress")}


def abstain(completions: Sequence[str]) -> list[None]:
    """Abstain on every completion. It stands in for the reward in programs that need none.

    Example:
        >>> abstain(["a", "b"])
        [None, None]
    """
    return [None] * len(completions)


@contextmanager
def shield(function: str) -> Generator[None]:
    """Protect the process from user code that runs in the body of the `with` statement.

    - The working directory is restored after the body.
    - `os._exit` raises SystemExit, so that the run is not mistaken for a finished one; forked children still exit.

    Args:
        function: name of the user's function, for error messages.

    Raises:
        InputError: the body closed a file descriptor that it had not opened.
    """
    process, exit_now = os.getpid(), os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:
            exit_now(status)
        raise SystemExit(f"os._exit({status})")

    probe = os.open(os.devnull, os.O_RDONLY)  # code that closes file descriptors in bulk closes this one, too
    os._exit = refuse
    try:
        with chdir("."):
            yield
    finally:
        os._exit = exit_now
        try:
            os.close(probe)
        except OSError as error:
            raise InputError(
                f"the reward {function} closed file descriptors that it had not opened, including files of the run; it must close "
                "only files that it opened. When resumed, the run continues from its last checkpoint."
            ) from error


class SlowRewardError(TimeoutError):
    """A call to a reward exceeded its time limit."""


@contextmanager
def time_limit(seconds: float | int | None) -> Generator[None]:
    """Interrupt the body after `seconds`. There is no limit if `seconds` is None, or outside the process's main thread.

    Raises:
        SlowRewardError: the body took longer. It is raised inside the body, as soon as the body runs Python code again.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> NoReturn:
        raise SlowRewardError(f"it took longer than {seconds:g} s (--reward-seconds)")

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def call_function(
    reward: Callable,
    prompts: Sequence,
    completions: Sequence,
    columns: Mapping[str, Sequence],
    progress: Progress | None,
    seconds: float | int | None = None,
) -> object:
    """Call a reward function.

    Args:
        reward: the function.
        prompts: N prompts, each a text or a list of messages.
        completions: one per prompt, in the same form.
        columns: extra data by name, N entries each.
        progress: progress callback, passed if the function has a parameter of that name.
        seconds: time limit of the call (see `time_limit`); None means no limit.

    Returns:
        What the function returned, or the exception that it raised.

    Raises:
        InputError: the function cannot be called with these columns, or raised an `InputError`.

    Example:
        >>> [call_function(reward, ["a"], ["b"], {}, None) for reward in (lambda completions: [1.0], lambda prompts: 1 / 0)]
        [[1.0], ZeroDivisionError('division by zero')]
    """
    reserved = {"prompts", "completions", "progress"} & set(columns)
    if reserved:
        raise InputError(
            f"the data must have no column called {' or '.join(map(repr, sorted(reserved)))}, because rewards have an argument of "
            "that name with another meaning; rename the column."
        )
    # The function gets copies, because it may change its arguments.
    available: dict[str, object] = {
        name: list(values) for name, values in {"prompts": prompts, "completions": completions, **columns}.items()
    }
    arguments = select_arguments(reward, available | {"progress": progress})
    try:
        with shield(qualified_name(reward)), time_limit(seconds):
            return reward(**arguments)
    except (InputError, KeyboardInterrupt):  # an InputError already tells the user what to change
        raise
    except BaseException as error:  # a reward is user code, and may raise anything, `sys.exit()` included
        return error


def wait_for(returned: Sequence[object], seconds: float | int | None = None) -> list[object]:
    """Await the results of coroutine functions concurrently.

    The event loop runs on its own thread, because a notebook's thread already runs one.

    Args:
        returned: awaitables, and other values, which are passed through.
        seconds: time limit of each awaitable; None means no limit.

    Returns:
        The results in order; if an awaitable raised, its exception.

    Raises:
        InputError: a coroutine raised an `InputError`.

    Example:
        >>> import asyncio
        >>> wait_for([asyncio.sleep(0, result=[1.0]), [2.0]])
        [[1.0], [2.0]]
    """
    awaitables = [entry for entry in returned if inspect.isawaitable(entry)]
    if not awaitables:
        return list(returned)

    async def await_all() -> list[object]:
        return await asyncio.gather(*(_await(one, seconds) for one in awaitables), return_exceptions=True)

    with shield("(a coroutine)"), ThreadPoolExecutor(max_workers=1) as pool:
        results = iter(pool.submit(asyncio.run, await_all()).result())
    finished = [next(results) if inspect.isawaitable(entry) else entry for entry in returned]
    for result in finished:
        if isinstance(result, InputError):
            raise result
    return finished


async def _await(awaitable: Awaitable, seconds: float | int | None) -> object:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await awaitable
    except TimeoutError as error:
        slow = SlowRewardError(f"it took longer than {seconds} s (--reward-seconds)")
        return slow if limit.expired() else error
    except SystemExit as error:  # SystemExit would end the event loop
        return error


def locate_error(error: BaseException) -> str:
    """Return where the user's code raised an exception, as ` at FILE:LINE`; empty if no frame is in the user's code.

    This is the innermost frame in the file where the user's code begins, not a frame in a library that this code calls.
    """
    libraries = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], sysconfig.get_paths()["stdlib"]))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(libraries)]
    inside = [frame for frame in frames if frame.filename == frames[0].filename]
    return f" at {inside[-1].filename}:{inside[-1].lineno}" if inside else ""


def read_result(returned: object, function: str, count: int) -> CallResult:
    """Validate what a reward function returned or raised.

    Args:
        returned: a list, tuple or array of numbers, None (no verdict) and `Failed`; or an exception.
        function: the name of the function, for messages.
        count: the number of completions.

    Returns:
        The result. An exception or a list of the wrong length is a failure of all completions. A number that is not finite, or
        above 1e18 in absolute value, is a failure of its completion only.

    Raises:
        InputError: the function did not return a list, or the list has an entry that is not a number, None or `Failed`.

    Example:
        >>> result = read_result([1, None, Failed("timed_out", "no answer within 2 s"), math.nan], "mine", 4)
        >>> result.failures
        Failures(raised=0, timed_out=1, wrong_count=0, out_of_range=1, unfinished=0, unstated=0)
    """
    if isinstance(returned, BaseException):
        if isinstance(returned, SlowRewardError):
            return _make_failed_result(
                count, Failures(timed_out=count), f"was interrupted{locate_error(returned)}: {returned}.", returned
            )
        reason = f"raised {one_line(returned)}{locate_error(returned)}; fix the function."
        return _make_failed_result(count, Failures(raised=count), reason, returned)
    shown = reprlib.repr(returned)
    entries = _unwrap(returned)
    if not isinstance(entries, (list, tuple)):
        raise InputError(f"the reward {function} returned {shown}; it must return a list with one number per completion.")
    if len(entries) != count:
        reason = f"returned {counted(len(entries), 'value')} for {counted(count, 'completion')}; it must return one per completion."
        cause = TypeError(reason)  # this type of error is retried only once
        return _make_failed_result(count, Failures(wrong_count=count), reason, cause)
    values = [_unwrap(value) for value in entries]
    for position, value in enumerate(values):
        if not (value is None or isinstance(value, numbers.Real | Failed)):
            raise InputError(
                f"the reward {function} returned {reprlib.repr(value)} for completion {position} (in {shown}); it must return "
                f"a number, or None to abstain."
            )
    values = [_check_range(value) if isinstance(value, numbers.Real) else value for value in values]
    valid = np.array([isinstance(value, float) for value in values], bool)
    rewards = np.array([value if isinstance(value, float) else 0.0 for value in values], np.float64)
    failure_codes = {kind: number for number, kind in enumerate(Failures._fields, start=1)}
    wrong_answer_codes = {Unfinished: UNFINISHED, Unstated: UNSTATED}
    failed = np.array(
        [
            failure_codes[value.kind] if isinstance(value, Failed) else wrong_answer_codes.get(type(value), 0)
            for value in values
        ],
        np.int8,
    )
    failures = Failures(*(int((failed == number).sum()) for number in failure_codes.values()))
    reasons = [value.reason for value in values if isinstance(value, Failed)]
    return CallResult(rewards, valid, failed, failures, reasons[0] if reasons else "", call_failed=False, cause=None)


def _check_range(value: numbers.Real) -> float | Failed:
    if isinstance(value, Unfinished | Unstated):
        return value
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if abs(number) <= LARGEST_REWARD:  # False for NaN
        return number
    return Failed("out_of_range", f"it returned {reprlib.repr(value)}, which is not a number from -1e18 to 1e18")


def has_failed(kinds: Int8[np.ndarray, "*N"]) -> Bool[np.ndarray, "*N"]:
    """True where a reward failed; answers of the kinds unfinished and unstated are wrong, but the reward did not fail.

    Args:
        kinds: for each completion 0, or the position of its kind of failure in `Failures`, counted from 1.

    Example:
        >>> has_failed(np.array([0, 1, UNFINISHED, UNSTATED], np.int8)).tolist()
        [False, True, False, False]
    """
    return (kinds > 0) & (kinds != UNFINISHED) & (kinds != UNSTATED)


def check_failures(result: CallResult, function: str, max_failure_share: float | int, *, what: str = "reward") -> None:
    """Reject a result with too many failures.

    Args:
        result: the result of the call.
        function: the name of the function, for messages.
        max_failure_share: the largest fraction of completions that may fail, from 0 to 1. If it is above 0, one failure
            among several completions is always tolerated.
        what: what to call the function in messages.

    Raises:
        FailedJudgeError: more completions failed than `max_failure_share` allows.
        OutOfRangeError: the same, if the reward of each failed completion is NaN, infinite or too large.

    Example:
        >>> result = read_result([1.0, Failed("raised", "KeyError: 'x'")], "mine", 2)
        >>> check_failures(result, "mine", 0.1)
        >>> check_failures(result, "mine", 0.0)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        rljax.rewards.reward_call.FailedJudgeError: the reward mine failed on 1 of 2 completions (1 raised an exception), more ...
    """
    count, failed = len(result.values), result.failures.total
    if result.call_failed:
        if max_failure_share < 1:
            raise FailedJudgeError(f"the {what} {function} {result.reason}") from result.cause
        return
    allowed = max(max_failure_share * count, float(max_failure_share > 0 and count > 1))
    if failed > allowed:
        first = np.flatnonzero(has_failed(result.failed))[0]
        error = OutOfRangeError if result.failures.out_of_range == failed else FailedJudgeError
        raise error(
            f"the {what} {function} failed on {failed} of {count} completions ({result.failures}), more than the "
            f"{max_failure_share:.0%} that may fail; the first was completion {first}: {result.reason}. "
            f"Fix the function, or raise max_failure_share."
        )


def join_results(results: Sequence[CallResult]) -> CallResult:
    """Join the results of several calls to one reward, as if one call had judged all completions.

    Example:
        >>> parts = [read_result([1.0, None], "mine", 2), read_result([Failed("raised", "KeyError: 'x'")], "mine", 1)]
        >>> both = join_results(parts)
        >>> both.values.tolist(), both.valid.tolist(), both.failed.tolist(), both.reason
        ([1.0, 0.0, 0.0], [True, False, False], [0, 0, 1], "KeyError: 'x'")
    """
    first = next((result for result in results if result.reason), results[0])
    return CallResult(
        values=np.concatenate([result.values for result in results]),
        valid=np.concatenate([result.valid for result in results]),
        failed=np.concatenate([result.failed for result in results]),
        failures=Failures(*map(sum, zip(*(result.failures for result in results), strict=True))),
        reason=first.reason,
        call_failed=all(result.call_failed for result in results),
        cause=first.cause,
    )


def _make_failed_result(count: int, failures: Failures, reason: str, cause: BaseException) -> CallResult:
    kind = 1 + next(index for index, number in enumerate(failures) if number) if count else 0
    no_rewards, failed = np.zeros(count), np.full(count, kind, np.int8)
    return CallResult(no_rewards, np.zeros(count, bool), failed, failures, reason, call_failed=True, cause=cause)


def _unwrap(value: object) -> object:
    """Convert an array or number of NumPy or JAX to Python lists and numbers; return anything else unchanged."""
    convert = getattr(value, "tolist", None)
    return value if convert is None else convert()
