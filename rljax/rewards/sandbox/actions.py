"""Actions that one sandbox process can perform on an object in the other process: their names, and functions for them.

An action on an object is named after the special method that Python would call, or is one of "get", "set", "delete", "type",
"call" and "content".
"""

import copy
import functools
import math
import operator
import os
import re
import types
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_BINARY = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_OPERATORS = {name: getattr(operator, f"__{name}__") for name in _BINARY} | {"divmod": divmod}
ARITHMETIC: Mapping[str, Callable[[Any, Any], object]] = MappingProxyType(
    {
        **{f"__{name}__": function for name, function in _OPERATORS.items()},
        **{
            f"__r{name}__": lambda own, other, function=function: function(other, own)
            for name, function in _OPERATORS.items()
        },
        **{f"__i{name}__": getattr(operator, f"__i{name}__") for name in _BINARY},
    }
)
"""The binary operators, their reflected versions (operands exchanged), and their in-place versions."""

_PLAIN_TYPES: tuple[type, ...] = (*(int, float, complex, str, bytes, bytearray, tuple, frozenset, set, list, dict, deque),)
MUTABLE = (bytearray, set, list, dict, deque)
"""The plain types whose instances can change."""
PREDICATES = frozenset(
    {"startswith", "endswith", "issubset", "issuperset", "isdisjoint", *(n for n in dir(str) if n.startswith("is"))}
)
"""Methods of plain types that return True or False. Code that calls such a method expects the value to have a plain type."""


def base_of(kind: type) -> type | None:
    """Find the plain type that a class is derived from.

    Args:
        kind: a class.

    Returns:
        The plain type; None if there is none.

    Example:
        >>> import enum
        >>> base_of(enum.IntEnum), base_of(object)
        (<class 'int'>, None)
    """
    return next((base for base in _PLAIN_TYPES if issubclass(kind, base)), None)


def content(value: Any) -> object:
    """Copy the plain content of a value whose class is derived from a plain type.

    Args:
        value: the value.

    Returns:
        The content as an instance of the plain type itself. Methods that the class overrides are bypassed.

    Raises:
        TypeError: the class is not derived from a plain type.

    Example:
        >>> class Odd(list):
        ...     __iter__ = None
        >>> content(Odd([1, 2]))
        [1, 2]
    """
    base = base_of(type(value))
    if base is None:
        raise TypeError(f"{type(value).__name__} has no plain content")
    if base is dict:
        return dict(dict.items(value))
    if base in (int, float, complex, str, bytes):
        getter = {
            int: int.__int__,
            float: float.__float__,
            complex: complex.__complex__,
            str: str.__str__,
            bytes: bytes.__bytes__,
        }
        return getter[base](value)
    return base([*base.__iter__(value)])  # type: ignore[attr-defined]


def run_awaitable(awaitable: Awaitable) -> object:
    """Run an awaitable to completion in this process's event loop, or in another thread if that loop is already running.

    Args:
        awaitable: a coroutine, or any other object that can be awaited.

    Returns:
        The result of the awaitable.

    Example:
        >>> import asyncio
        >>> run_awaitable(asyncio.sleep(0, 3))
        3
    """

    import asyncio  # noqa: PLC0415 - few programs need these modules, which are slow to load
    import concurrent.futures  # noqa: PLC0415

    async def wait() -> object:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _event_loop_runner().run(wait())
    # A coroutine is already running here and waits for the other process, which in turn waits for this awaitable.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(wait())).result()


@functools.cache
def _event_loop_runner() -> Any:
    allow_event_loops()
    import asyncio  # noqa: PLC0415

    return asyncio.Runner()


def allow_event_loops() -> None:
    """Make `asyncio` work without sockets: if no socket pair can be opened, its event loops wake themselves through a pipe."""
    import socket  # noqa: PLC0415 - few programs need this module

    original = socket.socketpair

    def pair(*positional: Any, **named: Any) -> tuple:
        try:
            return original(*positional, **named)
        except OSError:
            return tuple(map(_PipeEnd, os.pipe()))

    socket.socketpair = pair  # type: ignore[assignment]


class _PipeEnd:
    """An end of a pipe, with the socket methods that an event loop uses."""

    def __init__(self, file: int) -> None:
        self._file = file

    def fileno(self) -> int:
        return self._file

    def setblocking(self, flag: bool) -> None:
        os.set_blocking(self._file, flag)

    def send(self, text: bytes) -> int:
        return os.write(self._file, text)

    def recv(self, count: int) -> bytes:
        return os.read(self._file, count)

    def close(self) -> None:
        os.close(self._file)


ACTIONS: Mapping[str, Callable[..., object]] = MappingProxyType(
    {
        "get": getattr,
        "set": setattr,
        "delete": delattr,
        "type": type,
        "content": content,
        "call": lambda subject, positional, named: subject(*positional, **named),
        "__len__": len,
        "__iter__": iter,
        "__next__": next,
        "__reversed__": reversed,
        "__getitem__": operator.getitem,
        "__setitem__": operator.setitem,
        "__delitem__": operator.delitem,
        "__contains__": operator.contains,
        "__bool__": bool,
        "__hash__": hash,
        "__repr__": repr,
        "__str__": str,
        "__format__": format,
        "__int__": int,
        "__float__": float,
        "__complex__": complex,
        "__index__": operator.index,
        "__round__": round,
        "__trunc__": math.trunc,
        "__floor__": math.floor,
        "__ceil__": math.ceil,
        "__abs__": abs,
        "__neg__": operator.neg,
        "__pos__": operator.pos,
        "__invert__": operator.invert,
        "__instancecheck__": lambda kind, value: isinstance(value, kind),
        "__subclasscheck__": lambda kind, value: issubclass(value, kind),
        "__copy__": copy.copy,
        "__deepcopy__": copy.deepcopy,
        "__enter__": lambda subject: type(subject).__enter__(subject),
        "__exit__": lambda subject, error: bool(type(subject).__exit__(subject, *_exit_arguments(error))),
        "__await__": run_awaitable,
        "__aiter__": aiter,
        "__anext__": lambda subject: run_awaitable(anext(subject)),
        "__aenter__": lambda subject: run_awaitable(type(subject).__aenter__(subject)),
        "__aexit__": lambda subject, error: bool(run_awaitable(type(subject).__aexit__(subject, *_exit_arguments(error)))),
        **{name: getattr(operator, name) for name in COMPARISONS},
        **ARITHMETIC,
    }
)


def _exit_arguments(error: BaseException | None) -> Sequence:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def abilities(value: object) -> list[str]:
    """List the special methods that an object has, plus "coroutine" for a coroutine and "match" for a regular expression match.

    Args:
        value: an object.

    Returns:
        Names of special methods, and possibly "coroutine" or "match".

    Example:
        >>> [name for name in abilities(iter([])) if name in ("__next__", "__len__")], "__call__" in abilities(len)
        (['__next__'], True)
    """
    methods = {name: method for kind in reversed(type(value).__mro__) for name, method in vars(kind).items()}
    names = [name for name in ("__call__", *ACTIONS) if name.startswith("__") and methods.get(name) is not None]
    if "__getitem__" in names and "__iter__" not in names:
        names.append("__iter__")  # Python can iterate over such an object
    if isinstance(value, type) and hasattr(value, "__class_getitem__"):
        names.append("__getitem__")
    if isinstance(value, types.CoroutineType):
        names.append("coroutine")
    return [*names, "match"] if isinstance(value, re.Match) else names
