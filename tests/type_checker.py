"""The checker of signatures that the import hook applies to all of rljax."""

from collections.abc import Callable
from functools import cache
from typing import Any

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""A whole number is a float, as it is to every static checker."""


def check(signed: Callable) -> Callable:
    """Check the calls of a function; its checker is written at the first one, because a worker of the suite calls few functions."""
    checker = cache(lambda: checked(signed))

    def call(*arguments: Any, **keywords: Any) -> Any:
        return checker()(*arguments, **keywords)

    return call
