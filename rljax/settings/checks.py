"""Checks that several groups of settings share. Each error names the setting, its value and the values that are allowed."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rljax.errors import InputError
from rljax.settings.flat import flat_names

LARGEST = 2**31 - 1
"""Largest whole number that a setting can be; counters on devices have 32 bits."""

YEAR = 365 * 24 * 3600
"""Longest time to wait that a setting can be, in seconds; the timers of threads overflow somewhere above."""

MAY_BE_INFINITE = frozenset({"algorithm_options", "correction_high"})
"""Settings in which infinity means that there is no bound."""


def check_numbers(settings: object) -> None:
    """Refuse numbers that are not finite, and whole numbers beyond 32 bits, in any setting of a group."""
    for name, flag in flat_names(type(settings)).items():
        for number in _numbers_in(getattr(settings, name)):
            if math.isnan(number) or (math.isinf(number) and flag not in MAY_BE_INFINITE):
                raise InputError(f"{flag} is {number}; it must be a finite number.")
            if isinstance(number, int) and abs(number) > LARGEST:
                raise InputError(f"{flag} is {number}; a whole number must be between -{LARGEST:,} and {LARGEST:,}.")


def _numbers_in(value: object) -> Iterator[int | float]:
    """Numbers in a setting, which may be a sequence or a mapping of them."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _numbers_in(entry)
    elif isinstance(value, int | float):
        yield value


def check_stop(stop: Iterable[str]) -> None:
    """Refuse stop strings that every response, or half a character, would have, and a text in the place of several."""
    if isinstance(stop, str):
        raise InputError(f"stop is the text {stop!r}; give a list of texts, such as [{stop!r}].")
    if "" in stop:
        raise InputError(
            "stop has an empty text, which would end every response at once; give texts of at least one character."
        )
    broken = next((text for text in stop if "\N{REPLACEMENT CHARACTER}" in text), None)
    if broken is not None:
        raise InputError(
            f"stop has {broken!r}, whose replacement character stands for bytes that are not text; give text that a model writes."
        )


def check_at_least(least: int, settings: object, names: Iterable[str]) -> None:
    """Refuse settings below `least`; None passes."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value >= least:
            bound = "must not be negative" if least == 0 else f"must be at least {least}"
            raise InputError(f"{flat_names(type(settings))[name]} is {value}; it {bound}.")


def check_at_most_a_year(settings: object, names: Iterable[str]) -> None:
    """Refuse seconds beyond a year; None passes."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value <= YEAR:
            raise InputError(
                f"{flat_names(type(settings))[name]} is {value:g}; it must be at most {YEAR:,}, a year in seconds."
            )


def check_positive(settings: object, names: Iterable[str]) -> None:
    """Refuse settings that are not above 0; None passes."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise InputError(f"{flat_names(type(settings))[name]} is {value}; it must be positive.")


def check_share(settings: object, names: Iterable[str]) -> None:
    """Refuse settings outside [0, 1]."""
    for name in names:
        value = getattr(settings, name)
        if not 0 <= value <= 1:
            raise InputError(f"{flat_names(type(settings))[name]} is {value}; it must be between 0 and 1.")


def check_positive_share(settings: object, names: Iterable[str]) -> None:
    """Refuse settings outside (0, 1]; None passes."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 < value <= 1:
            raise InputError(f"{flat_names(type(settings))[name]} is {value}; it must be above 0 and at most 1.")


def check_new_file(path: Path) -> None:
    """Refuse a file that exists, or whose folder does not, before the work that fills it.

    Raises:
        InputError: the file exists, or its folder does not.
    """
    if path.exists():
        raise InputError(f"{str(path)!r} already exists; choose another file.")
    if not path.parent.is_dir():
        raise InputError(f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}; make it first.")
