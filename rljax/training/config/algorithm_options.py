"""Options of an algorithm: the arguments of the function that makes it."""

import inspect
from collections.abc import Callable

from rljax.algorithms import BY_NAME, Algorithm
from rljax.errors import InputError
from rljax.importing import import_function, is_own
from rljax.text import listed


def factory_of(algorithm: str) -> Callable[..., Algorithm]:
    """Function that makes an algorithm: a key of `BY_NAME`, `module:function` or `path.py:function`.

    A function of your own returns an `rljax.algorithms.Algorithm`; its keyword arguments are the options.

    Raises:
        InputError: the name is unknown, or the function cannot be imported.
    """
    if is_own(algorithm):
        return import_function(algorithm, "algorithm")
    if algorithm not in BY_NAME:
        raise InputError(
            f"The algorithm {algorithm!r} is unknown; choose one of {listed(sorted(BY_NAME), 'rljax algorithms')}, or name your "
            "own as `module:function` or `path.py:function`."
        )
    return BY_NAME[algorithm]


def option_names(algorithm: str) -> dict[str, int | float]:
    """Options of an algorithm and their default values.

    Raises:
        InputError: the name is unknown, the function cannot be imported, or one of its arguments has no default.
    """
    parameters = inspect.signature(factory_of(algorithm)).parameters
    missing = [name for name, option in parameters.items() if option.default is option.empty]
    if missing:
        raise InputError(
            f"The algorithm {algorithm!r} needs {', '.join(missing)}; its arguments are its options, so give each a default."
        )
    return {name: option.default for name, option in parameters.items()}
