"""Checks that the settings of several groups share. Each refusal names the setting, its value and what to give instead."""

from collections.abc import Iterable

from rljax.errors import InputError
from rljax.training.config.flat import flat_names


def check_at_least(least: int, settings: object, names: Iterable[str]) -> None:
    """Refuse a setting below `least`; None is allowed where the setting allows it."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value >= least:
            bound = "must not be negative" if least == 0 else f"must be at least {least}"
            raise InputError(f"{flat_names(type(settings))[name]} is {value}; it {bound}.")


def check_positive(settings: object, names: Iterable[str]) -> None:
    """Refuse a setting that is not above 0; None is allowed where the setting allows it."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise InputError(f"{flat_names(type(settings))[name]} is {value}; it must be positive.")


def check_share(settings: object, names: Iterable[str]) -> None:
    """Refuse a setting that is no share, from 0 to 1."""
    for name in names:
        value = getattr(settings, name)
        if not 0 <= value <= 1:
            raise InputError(f"{flat_names(type(settings))[name]} is {value}; it must lie between 0 and 1.")


def check_positive_share(settings: object, names: Iterable[str]) -> None:
    """Refuse a setting that is not above 0 and at most 1; None is allowed where the setting allows it."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 < value <= 1:
            raise InputError(f"{flat_names(type(settings))[name]} is {value}; it must be above 0 and at most 1.")
