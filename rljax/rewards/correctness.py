"""Verifiers: rewards that decide whether an answer is correct, and not only how much it is worth."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Float

from rljax.errors import InputError

Reward = TypeVar("Reward", bound=Callable)


def verifier(reward: Reward) -> Reward:
    """Mark a reward whose value is above 0 exactly when the answer is correct; `right_from` marks one with partial credit.

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


def right_from(limit: float | int) -> Callable[[Reward], Reward]:
    """Mark a reward that gives partial credit as a verifier: an answer is correct from this value on.

    Args:
        limit: the lowest value of a correct answer.

    Returns:
        What marks a reward, as `verifier` does.

    Example:
        >>> @right_from(1.0)
        ... def share_of_tests(completions):
        ...     return [0.5 for _ in completions]
        >>> finds_right(share_of_tests, np.array([0.5, 1.0])).tolist()
        [False, True]
    """

    def mark(reward: Reward) -> Reward:
        verifier(reward).right_from = limit  # pyright: ignore[reportFunctionMemberAccess]  a function holds attributes
        return reward

    return mark


def finds_right(reward: Callable, values: Float[np.ndarray, "*N"]) -> Bool[np.ndarray, "*N"]:
    """Which values of a verifier stand for a correct answer: those above 0, or those from its own limit on; NaN never does.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> finds_right(BY_NAME["math"], np.array([0.0, 1.0, np.nan])).tolist()
        [False, True, False]
    """
    limit = getattr(_inner(reward), "right_from", None)
    return values > 0 if limit is None else values >= limit


def verifier_like(reward: Reward, other: Callable) -> Reward:
    """Mark a reward as the same kind of verifier as another one; return it as it is where the other is none."""
    if not is_verifier(other):
        return reward
    limit = getattr(_inner(other), "right_from", None)
    return verifier(reward) if limit is None else right_from(limit)(reward)


def _inner(reward: Callable) -> Callable:
    return reward.func if isinstance(reward, partial) else reward


def is_verifier(reward: Callable) -> bool:
    """Whether a reward decides what is correct.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> is_verifier(BY_NAME["math"]), is_verifier(BY_NAME["format"])
        (True, False)
    """
    inner = _inner(reward)
    return getattr(inner, "verifies", None) is inner


def is_right(reward: float, correct: bool | None) -> bool:
    """Whether an answer is right: by the verifier where one decided, else by a reward above 0.

    Example:
        >>> is_right(0.2, False), is_right(0.2, None)
        (False, True)
    """
    return reward > 0 if correct is None else correct
