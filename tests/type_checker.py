"""The checker of signatures that the import hook applies to all of rljax."""

from collections.abc import Callable

from beartype import BeartypeConf, beartype
from beartype.door import is_bearable
from jaxtyping import _typeguard

CONFIG = BeartypeConf(is_pep484_tower=True)
"""A whole number is a float, as it is to every static checker."""

check = beartype(conf=CONFIG)


def leaf_check(accepts: Callable) -> Callable:
    """Check the one argument of a function, a leaf of a `PyTree[...]`, by its annotation.

    jaxtyping makes such a function at each call of a function with a tree, and lets another checker read it again each time.
    That was a tenth of a small run's time.
    """
    (annotation,) = accepts.__annotations__.values()

    def checked(leaf: object) -> None:
        if not is_bearable(leaf, annotation, conf=CONFIG):
            raise TypeError(f"{type(leaf).__name__} is no {annotation}")

    return checked


_typeguard.typechecked = leaf_check
