"""Helpers for records: type checks of generic records, optional fields that must be present, and finite numbers."""

import math
from typing import NamedTuple, TypeGuard, TypeVar

Record = TypeVar("Record", bound=type)
Value = TypeVar("Value")


def hide_namedtuple_base(record: Record) -> Record:
    """Remove NamedTuple from the bases that beartype sees in a generic record, because beartype supports only `Generic`.

    Args:
        record: a class that was written as `class Name(NamedTuple, Generic[...])`.

    Returns:
        The same class.
    """
    bases = vars(record)["__orig_bases__"]
    record.__orig_bases__ = tuple(base for base in bases if base is not NamedTuple)  # pyright: ignore[reportAttributeAccessIssue]  typed as absent
    return record


def required(value: Value | None, name: str) -> Value:
    """Return an optional value, or raise an error if it is None.

    Args:
        value: value of the field.
        name: name of the field, for the error message.

    Raises:
        ValueError: the value is None.

    Example:
        >>> required(3, "state.step")
        3
    """
    if value is None:
        raise ValueError(f"{name} must not be None")
    return value


def is_finite_number(value: object) -> TypeGuard[int | float]:
    """Return True for a finite number that a float can represent; False for booleans and for integers that are too large.

    Example:
        >>> [is_finite_number(value) for value in (2, 0.5, float("nan"), 10**400, True, "2")]
        [True, True, False, False, False, False]
    """
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False
