"""Verifiers: rewards that decide whether an answer is correct, and not only how much it is worth."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from rljax.errors import InputError

Reward = TypeVar("Reward", bound=Callable)


def verifier(reward: Reward) -> Reward:
    """Mark a reward whose value is above 0 exactly when the answer is correct.

    Where one of several rewards is a verifier, it alone decides what counts as correct: in the accuracy, in dynamic sampling, in
    the loss on correct responses, in the difficulty window, in `rljax eval`. Without a verifier, a response counts as correct when
    its whole reward is above 0.

    Args:
        reward: a reward function. Its attribute `verifies` becomes the function itself, so that a wrapper made with
            `functools.wraps`, which copies attributes, is no verifier.

    Returns:
        The same function.

    Raises:
        InputError: no attribute can be set on it, as on a method; wrap it in a function.

    Example:
        >>> @verifier
        ... def solved(completions, answer):
        ...     return [float(a in c) for c, a in zip(completions, answer)]
        >>> is_verifier(solved)
        True
    """
    try:
        reward.verifies = reward  # pyright: ignore[reportFunctionMemberAccess]  a function holds attributes
    except AttributeError as error:
        raise InputError(f"{reward!r} cannot be marked as a verifier; wrap it in a function of its own.") from error
    return reward


def is_verifier(reward: Callable) -> bool:
    """Whether a reward decides what is correct.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> is_verifier(BY_NAME["math"]), is_verifier(BY_NAME["format"])
        (True, False)
    """
    inner = reward.func if isinstance(reward, partial) else reward
    return getattr(inner, "verifies", None) is inner


def is_right(reward: float, correct: bool | None) -> bool:
    """Whether an answer is right: by the verifier where one decided, else by a reward above 0.

    Example:
        >>> is_right(0.2, False), is_right(0.2, None)
        (False, True)
    """
    return reward > 0 if correct is None else correct
