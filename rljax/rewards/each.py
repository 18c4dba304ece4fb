"""Rewards from functions that judge one completion at a time."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljax.errors import InputError
from rljax.rewards import resolve
from rljax.rewards.calling import Progress, arguments_for, called_name
from rljax.rewards.failure import Failed
from rljax.rewards.pool import shared_pool
from rljax.text import one_line


def each(
    function: Callable | str, *, seconds: float | None = None, workers: int | None = None, memory: int | None = None
) -> Callable:
    """Make a reward of a function that judges one completion at a time.

    It is called as `f(prompt=..., completion=..., **columns)` with one entry of each; without `**kwargs`, with those it
    names. It answers with a number, or None for no opinion. Where it raises, that completion has failed, and the others are
    judged all the same.

    Args:
        function: the function, or its name as `rljax.rewards.resolve` reads it.
        seconds: wall-clock limit of one call. With it, calls run in worker processes, several at a time, and a call that
            exceeds it is killed; each worker imports the function's module, so keep JAX out of it. None calls the function in
            this process, one call after the other.
        workers: processes; None for one a core, at most 8. Only with `seconds`.
        memory: most bytes of address space a worker may have (Linux only). Only with `seconds`.

    Returns:
        A reward that takes `prompts`, `completions`, `progress` and every column.

    Raises:
        InputError: `function` cannot be found, also not by a worker; `workers` or `memory` without `seconds`; or what
            `rljax.rewards.pool.Pool` refuses.

    Example:
        >>> def shorter_than(completion, limit):
        ...     return float(len(completion) < limit)
        >>> each(shorter_than)(["?"] * 3, ["one", "three", "five"], limit=[4, 4, None])
        [1.0, 0.0, Failed(kind='raised', reason="TypeError: '<' not supported between instances of 'int' and 'NoneType'")]
    """
    judge_one = resolve(function)
    if seconds is None and not (workers is None and memory is None):
        raise InputError("`workers` and `memory` are for calls with a time limit; give `seconds`, or leave them out.")
    pool = None
    if seconds is not None:
        name = function if isinstance(function, str) else _address(function)
        pool = shared_pool(name, seconds=seconds, workers=workers, memory=memory)

    def one_by_one(
        prompts: Sequence[str], completions: Sequence[str], progress: Progress | None = None, **columns: Sequence
    ) -> list[Any]:
        offered = arguments_for(judge_one, {"prompt": prompts, "completion": completions, **columns})
        calls = [dict(zip(offered, row, strict=True)) for row in zip(*offered.values(), strict=True)]
        return _call_all(judge_one, calls, progress) if pool is None else pool.map(calls, progress)

    one_by_one.__qualname__ = f"each({called_name(judge_one).rpartition('.')[2]})"
    return one_by_one


def _call_all(function: Callable, calls: Sequence[Mapping], progress: Progress | None) -> list[Any]:
    outcomes = []
    for call in calls:
        try:
            outcomes.append(function(**call))
        except Exception as error:  # a judge is a person's program, and may raise anything
            outcomes.append(Failed("raised", one_line(error)))
        if progress is not None:
            progress(len(outcomes), len(calls))
    return outcomes


def _address(function: Callable) -> str:
    """Name a function so that a worker finds it."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier() or importlib.util.find_spec(module) is None:
        raise InputError(
            f"a worker process cannot find the function {called_name(function)}; keep it at the top of a file of its own, and "
            f"name it as `path.py:function` or `module:function`."
        )
    return f"{module}:{name}"
