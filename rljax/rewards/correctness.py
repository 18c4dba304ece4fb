"""Verifiers: rewards that decide whether an answer is correct, and not only how much it is worth."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from rljax.errors import InputError

Reward = TypeVar("Reward", bound=Callable)


def verifier(reward: Reward) -> Reward:
    """Mark a reward whose value is above 0 exactly when the answer is correct; `right_from` marks one with partial credit.

    If one of several rewards is a verifier, it alone decides what counts as correct: in the accuracy, in dynamic sampling, in
    the loss on correct responses, in the difficulty window, in `rljax eval`. Without a verifier, a response counts as correct when
    its total reward is above 0.

    Args:
        reward: a reward function. Its attribute `verifies` becomes the function itself, so that a wrapper made with
            `functools.wraps`, which copies attributes, is not a verifier.

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
        >>> lowest_right(share_of_tests)
        1.0
    """

    def mark(reward: Reward) -> Reward:
        verifier(reward).right_from = limit  # pyright: ignore[reportFunctionMemberAccess]  a function holds attributes
        return reward

    return mark


def reads(form: str) -> Callable[[Reward], Reward]:
    """Declare the form in which a reward reads answers. A run shows it at its start, and so does `rljax explain REWARD`.

    Args:
        form: a noun phrase that follows "reads", such as "the number after the last ####".

    Returns:
        What marks a reward.

    Example:
        >>> @reads("the first word")
        ... def first_word(completions, answer):
        ...     return [float(c.split()[:1] == [a]) for c, a in zip(completions, answer)]
        >>> form_of(first_word)
        'the first word'
    """

    def mark(reward: Reward) -> Reward:
        reward.reads = form  # pyright: ignore[reportAttributeAccessIssue]  a function holds attributes
        return reward

    return mark


def form_of(reward: Callable) -> str | None:
    """The form in which a reward reads answers; None if it does not declare one."""
    return getattr(_inner(reward), "reads", None)


def lowest_right(reward: Callable) -> float | int | None:
    """The lowest value that a verifier with partial credit gives to a correct answer; None: any value above 0.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> lowest_right(BY_NAME["math"]) is None
        True
    """
    return getattr(_inner(reward), "right_from", None)


def verifier_like(reward: Reward, other: Callable) -> Reward:
    """Mark a reward as the same kind of verifier as another one; return it unchanged if the other is not a verifier."""
    if not is_verifier(other):
        return reward
    limit = lowest_right(other)
    return verifier(reward) if limit is None else right_from(limit)(reward)


def _inner(reward: Callable) -> Callable:
    return reward.func if isinstance(reward, partial) else reward


def is_verifier(reward: Callable) -> bool:
    """True if a reward decides what is correct.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> is_verifier(BY_NAME["math"]), is_verifier(BY_NAME["format"])
        (True, False)
    """
    inner = _inner(reward)
    return getattr(inner, "verifies", None) is inner


def is_right(reward: float, correct: bool | None) -> bool:
    """True if an answer is right: by the verifier where one decided, else by a reward above 0.

    Example:
        >>> is_right(0.2, False), is_right(0.2, None)
        (False, True)
    """
    return reward > 0 if correct is None else correct
