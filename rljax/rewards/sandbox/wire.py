"""Encode the messages between the processes of the sandbox as plain data, never as objects of the program under test.

Every value is encoded as JSON, in which `None`, booleans, strings, floats, lists and small integers represent themselves. Any other
value becomes a JSON object whose only key names the kind of value. Plain data is decoded only to exact builtin or library types,
so no `__eq__` or `__hash__` of the program ever reaches the process that compares. A value that is not plain data is "remote": a
function of the sender chooses what is sent in place of the value, and a function of the receiver chooses what represents the value.
"""

import builtins
import datetime
import json
import os
import struct
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

LONGEST_FRAME = 8 * 2**20
"""The largest message that is accepted, in bytes."""

_HEADER = struct.Struct(">Q")
_NATIVE_INTEGERS = 2**63  # larger ones are sent in hexadecimal, because decimal digits take quadratic time
_TYPES = MappingProxyType({name: kind for name, kind in vars(builtins).items() if isinstance(kind, type)})
_CONSTANTS = MappingProxyType({"Ellipsis": ..., "NotImplemented": NotImplemented})
_SEQUENCES: Mapping[str, type] = MappingProxyType({"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque})
_DICTIONARIES: Mapping[str, type] = MappingProxyType({"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter})
_VIEWS: Mapping[str, type] = MappingProxyType(
    {
        "keys": type({}.keys()),
        "values": type({}.values()),
        "items": type({}.items()),
    }  # `dict_keys` and the like have no public name
)
_KINDS: Mapping[str, tuple[type, Callable[[Any], Iterable], Callable[..., object]]] = MappingProxyType(
    {  # the type, how a value is split into pieces, and how it is built from them
        "complex": (complex, lambda value: (value.real, value.imag), complex),
        "bytes": (bytes, lambda value: (value.hex(),), bytes.fromhex),
        "bytearray": (bytearray, lambda value: (value.hex(),), bytearray.fromhex),
        "range": (range, lambda value: (value.start, value.stop, value.step), range),
        "slice": (slice, lambda value: (value.start, value.stop, value.step), slice),
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
        "defaultdict": (
            defaultdict,
            lambda value: (value.default_factory, list(map(list, value.items()))),
            lambda factory, entries: defaultdict(factory, map(tuple, entries)),
        ),
    }
)


class WireError(ValueError):
    """A message is cut off, too long, or malformed."""


def frame(message: object) -> bytes:
    """Encode one message as bytes.

    Args:
        message: any value that JSON can represent.

    Returns:
        The length of the JSON text in 8 bytes, then the text.

    Example:
        >>> frame([1])
        b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x03[1]'
    """
    body = json.dumps(message).encode("ascii")
    return _HEADER.pack(len(body)) + body


def send(file: int, message: object) -> None:
    """Write one message.

    Args:
        file: a file descriptor.
        message: any value that JSON can represent.

    Raises:
        OSError: the other end is closed.

    Example:
        >>> import os
        >>> reader, writer = os.pipe()
        >>> send(writer, ["call", 1]); receive(reader)
        ['call', 1]
    """
    rest = memoryview(frame(message))
    while rest:
        rest = rest[os.write(file, rest) :]


def receive(file: int) -> Any:
    """Read exactly one message.

    Args:
        file: a file descriptor.

    Returns:
        The message.

    Raises:
        WireError: the other end is closed, or the bytes are not a message.

    Example:
        >>> import os
        >>> reader, writer = os.pipe()
        >>> _ = os.write(writer, bytes([255] * 8))
        >>> receive(reader)
        Traceback (most recent call last):
        ...
        rljax.rewards.sandbox.wire.WireError: a message has 18446744073709551615 bytes; at most 8388608 are accepted
    """
    (length,) = _HEADER.unpack(_read(file, _HEADER.size))
    if length > LONGEST_FRAME:
        raise WireError(f"a message has {length} bytes; at most {LONGEST_FRAME} are accepted")
    body = _read(file, length)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError("a message is not JSON") from error


def encode(value: object, refer: Callable[[Any], Iterable]) -> object:
    """Encode a value as JSON.

    Args:
        value: any value. An instance of a subclass of a plain type is not plain data.
        refer: takes an object that is not plain data, and returns the values to send in place of the object.

    Returns:
        A message that `send` can send.

    Example:
        >>> encode({1: (2.5, 2**70)}, list)
        {'dict': [[1, {'tuple': [2.5, {'int': ['400000000000000000']}]}]]}
        >>> encode([object()], lambda value: ["an object", 7])
        [{'remote': ['an object', 7]}]
    """
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return value if abs(value) < _NATIVE_INTEGERS else {"int": [f"{value:x}"]}  # type: ignore[operator]
    if kind is list:
        return [encode(entry, refer) for entry in value]  # type: ignore[attr-defined]
    name, pieces = _split(value, refer)
    return {name: [encode(piece, refer) for piece in pieces]}


def _split(value: Any, refer: Callable[[Any], Iterable]) -> tuple[str, Iterable]:
    kind = type(value)
    for name, exact in _DICTIONARIES.items():
        if kind is exact:
            return name, map(list, value.items())
    for name, exact in (*_SEQUENCES.items(), *_VIEWS.items()):
        if kind is exact:
            return name, value
    for name, (exact, split, _) in _KINDS.items():
        if kind is exact:
            return name, split(value)
    if kind is type and _TYPES.get(value.__name__) is value:
        return "type", [value.__name__]
    for name, constant in _CONSTANTS.items():
        if value is constant:
            return "constant", [name]
    return "remote", refer(value)


def decode(encoded: object, revive: Callable[..., object]) -> object:
    """Decode a value that `encode` encoded.

    Args:
        encoded: a message from `receive`.
        revive: takes the values that `refer` returned, and returns what represents the other process's object here.

    Returns:
        A value built from exact builtin and standard library types, and from what `revive` returns.

    Raises:
        WireError: `encode` could not have returned this.

    Example:
        >>> decode({"dict": [[1, {"tuple": [2.5, None]}]]}, abs)
        {1: (2.5, None)}
        >>> decode({"dict": [[[], 1]]}, abs)
        Traceback (most recent call last):
        ...
        rljax.rewards.sandbox.wire.WireError: not a value: TypeError
    """
    try:
        return _decode(encoded, revive)
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        raise WireError(f"not a value: {type(error).__name__}") from error


def _decode(encoded: object, revive: Callable[..., object]) -> object:
    if isinstance(encoded, list):
        return [_decode(entry, revive) for entry in encoded]
    if not isinstance(encoded, dict):
        return encoded
    ((name, content),) = encoded.items()
    if name in _DICTIONARIES:
        return _DICTIONARIES[name]({_decode(key, revive): _decode(entry, revive) for key, entry in content})
    pieces = [_decode(piece, revive) for piece in content]
    if name in _SEQUENCES:
        return _SEQUENCES[name](pieces)
    return _build(name, pieces, revive)


def _build(name: str, pieces: list[Any], revive: Callable[..., object]) -> object:
    special: dict[str, Callable[..., object]] = {
        "int": lambda digits: int(digits, 16),
        "type": _TYPES.__getitem__,
        "constant": _CONSTANTS.__getitem__,
        "keys": lambda *keys: dict.fromkeys(keys).keys(),
        "values": lambda *values: dict(enumerate(values)).values(),
        "items": lambda *items: dict(items).items(),
        "remote": revive,
    }
    return special[name](*pieces) if name in special else _KINDS[name][2](*pieces)


def _read(file: int, count: int) -> bytes:
    pieces = []
    while count:
        piece = os.read(file, min(count, 2**20))
        if not piece:
            raise WireError("the other end of the connection is closed")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
