"""Checks that several groups of settings share. Each error names the setting, its value and the values that are allowed."""

from collections.abc import Iterable

from rljax.errors import InputError
from rljax.training.config.flat import flat_names


def check_at_least(least: int, settings: object, names: Iterable[str]) -> None:
    """Refuse settings below `least`; None passes."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value >= least:
            bound = "must not be negative" if least == 0 else f"must be at least {least}"
            raise InputError(f"{flat_names(type(settings))[name]} is {value}; it {bound}.")


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
