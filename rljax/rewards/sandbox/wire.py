"""What the processes of the sandbox say to each other: plain data in frames, and never an object of the program under test.

Every value is written as JSON in which `None`, booleans, strings, floats, lists and small integers stand for themselves, and
everything else is an object with one key that names the kind. What is read is built from exact builtin and standard types
alone, so that no `__eq__` or `__hash__` of a stranger ever reaches the process that compares.
"""

import datetime
import json
import os
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType

LONGEST_FRAME = 8 * 2**20
"""Bytes of the largest message that is read."""

_HEADER = struct.Struct(">Q")
_NATIVE_INTEGERS = 2**63  # beyond, decimal digits would cost quadratic time
_TYPES = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, object, type)
    }
)
_SEQUENCES = MappingProxyType({"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque})
_NATIVE = MappingProxyType(
    {
        str: str.__str__,
        float: float.__float__,
        int: lambda value: int(value) if abs(value) < _NATIVE_INTEGERS else {"int": [f"{value:x}"]},
    }
)
_KINDS = MappingProxyType(  # how a value is taken apart, and how it is made of the parts
    {
        "int": ((), None, lambda digits: int(digits, 16)),
        "complex": (complex, lambda value: (value.real, value.imag), complex),
        "bytes": (bytes, lambda value: (value.hex(),), bytes.fromhex),
        "bytearray": (bytearray, lambda value: (value.hex(),), bytearray.fromhex),
        "range": (range, lambda value: (value.start, value.stop, value.step), range),
        "array": (array, lambda value: (value.typecode, value.tolist()), array),
        "decimal": (Decimal, lambda value: (str(value),), Decimal),
        "fraction": (Fraction, lambda value: (value.numerator, value.denominator), Fraction),
        "datetime": (datetime.datetime, lambda value: (value.isoformat(),), datetime.datetime.fromisoformat),
        "date": (datetime.date, lambda value: (value.isoformat(),), datetime.date.fromisoformat),
        "time": (datetime.time, lambda value: (value.isoformat(),), datetime.time.fromisoformat),
        "timedelta": (
            datetime.timedelta,
            lambda value: (value.days, value.seconds, value.microseconds),
            datetime.timedelta,
        ),
    }
)


class WireError(ValueError):
    """A message that is cut off, too long, or not of the agreed form."""


def frame(message: object) -> bytes:
    """Put one message into bytes.

    Args:
        message: anything that JSON can hold.

    Returns:
        Its length and its text.

    Example:
        >>> frame([1])
        b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x03[1]'
    """
    body = json.dumps(message).encode("ascii")
    return _HEADER.pack(len(body)) + body


def send(file: int, message: object) -> None:
    """Write one message.

    Args:
        file: a descriptor.
        message: anything that JSON can hold.

    Raises:
        OSError: nobody reads any more.

    Example:
        >>> import os
        >>> here, there = os.pipe()
        >>> send(there, ["call", 1]); receive(here)
        ['call', 1]
    """
    rest = memoryview(frame(message))
    while rest:
        rest = rest[os.write(file, rest) :]


def receive(file: int) -> object:
    """Read one message and not a byte more.

    Args:
        file: a descriptor.

    Returns:
        What was sent.

    Raises:
        WireError: the other side is gone, or sent something that is no message.

    Example:
        >>> import os
        >>> here, there = os.pipe()
        >>> _ = os.write(there, bytes([255] * 8))
        >>> receive(here)
        Traceback (most recent call last):
        ...
        rljax.rewards.sandbox.wire.WireError: a message of 18446744073709551615 bytes
    """
    (length,) = _HEADER.unpack(_read(file, _HEADER.size))
    if length > LONGEST_FRAME:
        raise WireError(f"a message of {length} bytes")
    body = _read(file, length)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError("a message that is not JSON") from error


def encode(value: object, refer: Callable[[object], int]) -> object:
    """Write a value in terms of JSON.

    Args:
        value: anything.
        refer: gives a number to an object that is not plain data, under which the other side can ask about it.

    Returns:
        What `send` can send.

    Example:
        >>> encode({1: (2.5, 2**70)}, id)
        {'dict': [[1, {'tuple': [2.5, {'int': ['400000000000000000']}]}]]}
    """
    if value is None or type(value) is bool:
        return value
    for kind, write in _NATIVE.items():
        if isinstance(value, kind):
            return write(value)
    if isinstance(value, list):
        return [encode(entry, refer) for entry in value]
    name, parts = _taken_apart(value, refer)
    return {name: [encode(part, refer) for part in parts]}


def _taken_apart(value: object, refer: Callable[[object], int]) -> tuple[str, Iterable]:
    if isinstance(value, dict):
        return "dict", map(list, value.items())
    for name, kind in _SEQUENCES.items():
        if isinstance(value, kind):
            return name, value
    for name, (kind, take_apart, _) in _KINDS.items():
        if isinstance(value, kind):
            return name, take_apart(value)
    if isinstance(value, type) and _TYPES.get(value.__name__) is value:
        return "type", [value.__name__]
    return "remote", [refer(value)]


def decode(written: object, revive: Callable[[int], object]) -> object:
    """Read what `encode` wrote, or refuse it.

    Args:
        written: what `receive` returned.
        revive: gives the object that stands here for the other side's object of a number.

    Returns:
        A value of exact builtin and standard types, and of what `revive` returns.

    Raises:
        WireError: it is nothing that `encode` writes.

    Example:
        >>> decode({"dict": [[1, {"tuple": [2.5, None]}]]}, abs)
        {1: (2.5, None)}
        >>> decode({"dict": [[[], 1]]}, abs)
        Traceback (most recent call last):
        ...
        rljax.rewards.sandbox.wire.WireError: not a value: TypeError
    """
    try:
        return _decode(written, revive)
    except (TypeError, ValueError, KeyError, ArithmeticError, RecursionError) as error:
        raise WireError(f"not a value: {type(error).__name__}") from error


def _decode(written: object, revive: Callable[[int], object]) -> object:
    if isinstance(written, list):
        return [_decode(entry, revive) for entry in written]
    if not isinstance(written, dict):
        return written
    ((name, content),) = written.items()
    if name == "dict":
        return {_decode(key, revive): _decode(entry, revive) for key, entry in content}
    if name in _SEQUENCES:
        return _SEQUENCES[name](_decode(entry, revive) for entry in content)
    make = {"remote": revive, "type": _TYPES.__getitem__}[name] if name in ("remote", "type") else _KINDS[name][2]
    return make(*(_decode(part, revive) for part in content))


def _read(file: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(file, min(count, 2**20))
        if not part:
            raise WireError("the other side is gone")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
