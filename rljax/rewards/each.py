"""Rewards made from functions that judge one completion at a time."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljax.errors import InputError
from rljax.rewards import resolve
from rljax.rewards.correctness import Failed, mark_like
from rljax.rewards.pool import shared_pool
from rljax.rewards.reward_call import Progress, qualified_name, select_arguments, short_name
from rljax.rewards.reward_scores import reads_text
from rljax.text import one_line


def each(
    function: Callable | str, *, seconds: float | int | None = None, workers: int | None = None, memory: int | None = None
) -> Callable:
    """Make a reward from a function that judges one completion at a time.

    The function is called as `f(prompt=..., completion=..., **columns)` with one entry of each column. Without `**kwargs` it
    receives only the arguments it names. Like any reward from outside rljax, a function from outside receives conversations as
    lists of messages. It returns a number, or None to abstain. If it raises, only that completion fails.

    Args:
        function: the function, or a name that `rljax.rewards.resolve` accepts.
        seconds: wall-clock time limit of one call. With a limit, calls run in several worker processes, and a call that exceeds
            the limit is killed. Each worker imports the function's module, which should therefore not import JAX. None runs the
            calls one after another in this process.
        workers: number of worker processes; None means one per core, at most 8. It requires `seconds`.
        memory: limit on the address space of a worker in bytes (Linux only). It requires `seconds`.

    Returns:
        A reward that takes `prompts`, `completions`, `progress` and every column.

    Raises:
        InputError: this process or a worker cannot find `function`; `workers` or `memory` is set without `seconds`; or
            `rljax.rewards.pool.Pool` rejects a value.

    Example:
        >>> def shorter_than(completion, limit):
        ...     return float(len(completion) < limit)
        >>> each(shorter_than)(["?"] * 3, ["one", "three", "five"], limit=[4, 4, None])
        [1.0, 0.0, Failed(kind='raised', reason="TypeError: '<' not supported between instances of 'int' and 'NoneType'")]
    """
    judge_one = resolve(function)
    if seconds is None and not (workers is None and memory is None):
        raise InputError("`workers` and `memory` apply only to calls with a time limit; set `seconds`, or remove them.")
    pool = None
    if seconds is not None:
        name = function if isinstance(function, str) else _import_path(function)
        pool = shared_pool(name, seconds=seconds, workers=workers, memory=memory)

    def one_by_one(
        prompts: Sequence, completions: Sequence, progress: Progress | None = None, **columns: Sequence
    ) -> list[Any]:
        offered = select_arguments(judge_one, {"prompt": prompts, "completion": completions, **columns})
        calls = [dict(zip(offered, row, strict=True)) for row in zip(*offered.values(), strict=True)]
        return _call_all(judge_one, calls, progress) if pool is None else pool.map(calls, progress)

    one_by_one.__qualname__ = f"each({short_name(judge_one)})"
    one_by_one.reads_text = reads_text(judge_one)  # pyright: ignore[reportFunctionMemberAccess]  functions have attributes
    return mark_like(one_by_one, judge_one)


def _call_all(function: Callable, calls: Sequence[Mapping], progress: Progress | None) -> list[Any]:
    outcomes = []
    for call in calls:
        try:
            outcomes.append(function(**call))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # user code may raise anything
            outcomes.append(Failed("raised", one_line(error)))
        if progress is not None:
            progress(len(outcomes), len(calls))
    return outcomes


def _import_path(function: Callable) -> str:
    """Return the name by which a worker can import a function, as `module:function`."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier() or importlib.util.find_spec(module) is None:
        raise InputError(
            f"a worker process cannot import the function {qualified_name(function)}; define it at the top level of a file, and "
            f"name it as `path.py:function` or `module:function`."
        )
    return f"{module}:{name}"
