"""Caches of functions that are built from settings: equal settings give the same function, so that JAX compiles it once."""

from collections.abc import Callable
from functools import lru_cache, partial, wraps
from types import MethodType
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

CACHED_RESULTS = 8
"""Number of the most recently used results that are cached per builder, enough for two or three runs."""


def cache_results(make: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Cache a builder's results, so that a run that is resumed or repeated in the same process compiles nothing again.

    JAX identifies a function by its identity as an object, so a closure that is created again is traced and compiled again.

    Args:
        make: the builder, which returns a function, or a record of functions, that depends only on the arguments and holds no large
            arrays.

    Returns:
        `make` with a cache of its latest results. A call is not cached if an argument is not hashable, or if it contains a bound
        method, because the object's attributes may change (users may pass bound methods as components of an algorithm). Functions
        that users pass must always return the same result for the same arguments.

    Example:
        >>> @cache_results
        ... def adder(number):
        ...     return lambda x: x + number
        >>> adder(2) is adder(2), adder(2) is adder(2.0)
        (True, False)
    """
    make_once = lru_cache(maxsize=CACHED_RESULTS, typed=True)(make)

    @wraps(make)
    def cached(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if contains_bound_method((args, tuple(kwargs.values()))):
            return make(*args, **kwargs)
        try:
            hash((args, *kwargs.values()))
        except TypeError:
            return make(*args, **kwargs)
        return make_once(*args, **kwargs)

    return cached


def contains_bound_method(argument: object) -> bool:
    """Return True if an argument is a bound method of a Python class, or a tuple or partial function that contains one.

    Built-in methods do not count.

    Example:
        >>> contains_bound_method((1, len, ("text".join, None))), contains_bound_method([].append)
        (False, False)
        >>> from pathlib import Path
        >>> contains_bound_method((1, (Path().exists,)))
        True
    """
    if isinstance(argument, partial):
        return contains_bound_method((argument.func, argument.args, tuple(argument.keywords.values())))
    if isinstance(argument, tuple):
        return any(map(contains_bound_method, argument))
    return isinstance(argument, MethodType)


cached_partial = lru_cache(maxsize=8 * CACHED_RESULTS, typed=True)(partial)
"""`functools.partial`, except that equal functions and arguments give the same object, so that JAX compiles it once.

The arguments must be hashable. All partial functions share one cache, so it is larger than a builder's.
"""
