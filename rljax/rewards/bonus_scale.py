"""The scale of a bonus: a number, or the text after the colon in `count_bonus:0.1`."""

import math

from rljax.errors import InputError


def read_scale(reward: str, scale: float | int | str) -> float:
    """Return the scale of a bonus as a number.

    Args:
        reward: name of the reward, for the error message.
        scale: the scale, as a number or as text.

    Raises:
        InputError: the scale is not a positive finite number.

    Example:
        >>> read_scale("count_bonus", "0.1")
        0.1
    """
    try:
        number = float(scale)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"the scale of {reward} is {scale!r}; it must be a positive number, e.g. {reward}:0.1.")
    return number
