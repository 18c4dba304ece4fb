"""The checker of signatures that the import hook applies to all of rljax."""

from collections.abc import Callable, Iterable
from importlib.metadata import version
from io import TextIOBase
from types import UnionType
from typing import TextIO, Union, get_args, get_origin

from beartype import BeartypeConf, FrozenDict, beartype
from beartype.door import is_bearable
from jaxtyping import _typeguard

CONFIG = BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict({TextIO: TextIOBase}))
"""A whole number is a float, as it is to every static checker. A stream of text is what Python's own streams of text derive from:
beartype asks for its `mode`, which an `io.StringIO` does not have."""

check = beartype(conf=CONFIG)


def leaf_check(accepts: Callable) -> Callable:
    """Check the one argument of a function, a leaf of a `PyTree[...]`, by its annotation.

    jaxtyping makes such a function at each call of a function with a tree, and lets another checker read it again each time.
    That was a tenth of a small run's time.

    Raises:
        TypeError: the leaf is a container by its annotation. beartype would look at one of its entries alone.
    """
    (annotation,) = accepts.__annotations__.values()
    if holds_entries(annotation):
        raise TypeError(
            f"PyTree[{annotation}]: only one entry of such a leaf would be checked; name the type of the entries"
        )

    def checked(leaf: object) -> None:
        if not is_bearable(leaf, annotation, conf=CONFIG):
            raise TypeError(f"{type(leaf).__name__} is no {annotation}")

    return checked


def holds_entries(annotation: object) -> bool:
    """Whether an annotation, or one of a union, is that of a container with entries of a type."""
    if get_origin(annotation) in (Union, UnionType):
        return any(map(holds_entries, get_args(annotation)))
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Iterable)


if not hasattr(_typeguard, "typechecked"):
    raise RuntimeError(
        f"jaxtyping {version('jaxtyping')} has no jaxtyping._typeguard.typechecked, which checks the leaves of a tree; "
        "find out how this version does it, and change tests/type_checker.py"
    )
_typeguard.typechecked = leaf_check
