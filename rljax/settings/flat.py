"""Flat names of settings: the names of the command-line flags, with underscores for dashes and without a prefix for the group."""

from dataclasses import fields
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

_FLAG: Any = type(tyro.conf.arg())


@cache
def flat_names(group: type) -> dict[str, str]:
    """Map each field of a group of settings to its flat name; fields without a flag are left out.

    Example:
        >>> from rljax.training.config.setting_groups import WarmStartConfig
        >>> flat_names(WarmStartConfig)["steps"]
        'warm_start_steps'
    """
    hints = get_type_hints(group, include_extras=True)
    settable = [entry.name for entry in fields(group) if not _is_fixed(hints[entry.name])]
    return {name: _flag_of(hints[name]) or name for name in settable}


def _is_fixed(hint: object) -> bool:
    """True if a field has no flag of its own, because the name of the run's task determines its value."""
    return get_origin(hint) is Annotated and tyro.conf.Fixed in get_args(hint)[1:]


def _flag_of(hint: object) -> str | None:
    """Return the flag name set by a field's annotation, with underscores for dashes; None if the annotation sets no name."""
    markers = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    names = [marker.name for marker in markers if isinstance(marker, _FLAG) and marker.name is not None]
    return names[0].replace("-", "_") if names else None
