"""Check that a value has the type of its setting."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from rljax.errors import InputError
from rljax.settings.flat import flat_names

WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", NoneType: "null", Path: "a path"}


def hints_of(group: type) -> dict[str, Any]:
    """Return the type of each setting in a group, by its flat name.

    Example:
        >>> from rljax.training.config.groups import WarmStartConfig
        >>> hints_of(WarmStartConfig)["warm_start_batch"]
        <class 'int'>
    """
    hints, flat = get_type_hints(group, include_extras=True), flat_names(group)
    return {setting: _bare(hints[name]) for name, setting in flat.items()}


def fit_value(value: object, hint: Any) -> Any:
    """Convert a value to a type: lists become tuples, and integers become floats where a float is expected.

    Args:
        value: the value, from a YAML or JSON parser.
        hint: int, float, str, bool, None, Literal, tuple, a mapping of numbers, or a union of these.

    Raises:
        ValueError: the value has another type; the message says what is expected.

    Example:
        >>> fit_value([1, 2], tuple[float, float] | None), fit_value("bfloat16", Literal["float32", "bfloat16"])
        ((1.0, 2.0), 'bfloat16')
    """
    hint = _bare(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        for choice in arguments:
            try:
                return fit_value(value, choice)
            except ValueError:
                continue
    elif origin is Literal:
        if value in arguments:
            return value
    elif origin in (tuple, Sequence) and isinstance(value, list | tuple):
        kinds = [arguments[0]] * len(value) if _is_homogeneous(hint) else list(arguments)
        if len(kinds) == len(value):
            return tuple(fit_value(entry, kind) for entry, kind in zip(value, kinds, strict=True))
    elif origin is dict and isinstance(value, Mapping):
        return {fit_value(name, arguments[0]): fit_value(number, arguments[1]) for name, number in value.items()}
    elif type(value) is hint or (hint is Path and isinstance(value, Path)):  # not isinstance, because true is not a number
        return value
    elif (type(value), hint) in ((int, float), (str, Path)):
        return hint(value)
    raise ValueError(f"{expected(hint)} is expected")


def fit_setting(name: str, value: object, hint: Any) -> Any:
    """Convert a setting's value in Python to its type; paths count as text, and NumPy's numbers as Python's.

    Raises:
        InputError: the value has another type; the message names the setting and says what is expected.

    Example:
        >>> fit_setting("stop", "###", tuple[str, ...])
        Traceback (most recent call last):
            ...
        rljax.errors.InputError: stop is '###', but a list (each text) is expected.
    """
    plain = os.fspath(value) if isinstance(value, os.PathLike) else value.item() if isinstance(value, np.generic) else value
    try:
        return fit_value(plain, hint)
    except ValueError as error:
        raise InputError(f"{name} is {value!r:.80}, but {error}.") from error


def check_types(settings: object) -> None:
    """Refuse a group of settings if a value has another type than its setting.

    Raises:
        InputError: the message names the setting and says what is expected.
    """
    flat, hints = flat_names(type(settings)), hints_of(type(settings))
    for name, flag in flat.items():
        fit_setting(flag, getattr(settings, name), hints[flag])


def expected(hint: Any) -> str:
    """Describe a type in words.

    Example:
        >>> expected(tuple[float, float] | None), expected(Literal["best", "last"])
        ('a list of 2 entries (each a number) or null', "'best' or 'last'")
    """
    hint = _bare(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(expected, arguments))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in (tuple, Sequence):
        count = "" if _is_homogeneous(hint) else f" of {len(arguments)} entries"
        return f"a list{count} (each {expected(arguments[0])})"
    if origin is dict:
        return "a mapping of names to numbers" + (" or texts" if str in get_args(arguments[1]) else "")
    return WORDS[hint] if hint in WORDS else str(hint)


def _is_homogeneous(hint: Any) -> bool:
    """True for a list of any length, whose entries have one type."""
    return get_origin(hint) is Sequence or get_args(hint)[-1] is Ellipsis


def _bare(hint: Any) -> Any:
    """Strip the command line's annotations from a type."""
    return _bare(get_args(hint)[0]) if get_origin(hint) is Annotated else hint
