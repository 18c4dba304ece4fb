"""Rewards that decide whether an answer is correct (verifiers), and records of completions that could not be judged.

A failure gives no reward: it is neither a wrong answer nor an abstention (None), and too many failures stop the run. An answer
that a verifier could not finish judging counts as wrong instead, so that a model cannot stop the run with such answers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeVar

from rljax.errors import InputError


@dataclass(frozen=True)
class Failed:
    """The entry that replaces the reward of a completion that could not be judged.

    Args:
        kind: `raised` if the judging function raised or its process died; `timed_out` if it exceeded its time limit;
            `out_of_range` if its reward is NaN, infinite or too large.
        reason: one line that explains the failure.
    """

    kind: Literal["raised", "timed_out", "out_of_range"]
    reason: str


class Unfinished(float):
    """A reward of 0 for a completion whose answer the verifier could not finish judging.

    Args:
        reason: one line that explains why judging did not finish.

    Example:
        >>> Unfinished("no answer within 2 s")
        0.0
    """

    def __new__(cls, reason: str) -> "Unfinished":
        """Make a reward of 0."""
        reward = super().__new__(cls, 0.0)
        reward.reason = reason
        return reward

    reason: str


def count_timeout_as_wrong(outcome: object) -> object:
    """Replace a `timed_out` failure with `Unfinished`, which counts as a wrong answer; return any other outcome unchanged.

    Example:
        >>> count_timeout_as_wrong(Failed("timed_out", "no answer within 2 s")), count_timeout_as_wrong(1.0)
        (0.0, 1.0)
    """
    return Unfinished(outcome.reason) if isinstance(outcome, Failed) and outcome.kind == "timed_out" else outcome


class Unstated(float):
    """A reward of 0 for a completion that states no answer in the form that the reward reads.

    Example:
        >>> Unstated()
        0.0
    """


class Failures(NamedTuple):
    """For one reward, the number of failures of each kind and of two kinds of wrong answers; the metrics are `reward_FIELD`."""

    raised: int = 0
    """Completions on which the function raised or its process died."""
    timed_out: int = 0
    """Completions on which the function exceeded its time limit."""
    wrong_count: int = 0
    """Completions in calls that did not return one value per completion."""

    out_of_range: int = 0
    """Completions whose reward was NaN, infinite or above 1e18 in absolute value."""
    unfinished: int = 0
    """Completions whose answer the verifier could not finish judging. They are wrong answers, not failures."""

    unstated: int = 0
    """Completions that state no answer in the form that the reward reads. They are wrong answers, not failures."""

    @property
    def total(self) -> int:
        """The number of failures of all kinds; wrong answers do not count."""
        return sum(self) - self.unfinished - self.unstated

    def __str__(self) -> str:
        named = {
            "raised an exception": self.raised,
            "timed out": self.timed_out,
            "without a value": self.wrong_count,
            "NaN, infinite or too large": self.out_of_range,
        }
        return ", ".join(f"{count} {name}" for name, count in named.items() if count)


RESERVED_NAMES = (*Failures._fields, "variance", "length_correlation")
"""Names that no part of a reward may have, because `reward_NAME` is a metric of every run."""


UNFINISHED, UNSTATED = (1 + Failures._fields.index(kind) for kind in ("unfinished", "unstated"))
"""Codes of unfinished and unstated answers in an array of failure codes, such as `rljax.rewards.reward_call.CallResult.failed`."""


Reward = TypeVar("Reward", bound=Callable)


def verifier(reward: Reward) -> Reward:
    """Mark a reward as a verifier: its value is above 0 exactly if the answer is correct. For partial credit, use `right_from`.

    If one of several rewards is a verifier, it alone decides what counts as correct: in the accuracy, in dynamic sampling, in
    the loss on correct responses, in the difficulty window, and in `rljax eval`. Without a verifier, a response counts as correct
    if its total reward is above 0.

    Args:
        reward: a reward function. Its attribute `verifies` becomes the function itself, so that a wrapper made with
            `functools.wraps`, which copies attributes, is not a verifier.

    Returns:
        The same function.

    Raises:
        InputError: no attribute can be set on the reward, for example because it is a method; wrap it in a function.

    Example:
        >>> @verifier
        ... def solved(completions, answer):
        ...     return [float(a in c) for c, a in zip(completions, answer)]
        >>> is_verifier(solved)
        True
    """
    try:
        reward.verifies = reward  # pyright: ignore[reportFunctionMemberAccess]  functions have attributes
    except AttributeError as error:
        raise InputError(f"{reward!r} cannot be marked as a verifier; wrap it in a function.") from error
    return reward


def right_from(limit: float | int) -> Callable[[Reward], Reward]:
    """Mark a reward with partial credit as a verifier: an answer is correct if its reward is at least `limit`.

    Args:
        limit: the lowest value of a correct answer.

    Returns:
        A decorator that marks a reward, like `verifier`.

    Example:
        >>> @right_from(1.0)
        ... def share_of_tests(completions):
        ...     return [0.5 for _ in completions]
        >>> lowest_correct_value(share_of_tests)
        1.0
    """

    def mark(reward: Reward) -> Reward:
        verifier(reward).right_from = limit  # pyright: ignore[reportFunctionMemberAccess]  functions have attributes
        return reward

    return mark


def reads(form: str) -> Callable[[Reward], Reward]:
    """Declare the form in which a reward reads answers. Runs show this form at their start, as does `rljax explain REWARD`.

    Args:
        form: a noun phrase that follows "reads", such as "the number after the last ####".

    Returns:
        A decorator that marks a reward.

    Example:
        >>> @reads("the first word")
        ... def first_word(completions, answer):
        ...     return [float(c.split()[:1] == [a]) for c, a in zip(completions, answer)]
        >>> form_of(first_word)
        'the first word'
    """

    def mark(reward: Reward) -> Reward:
        reward.reads = form  # pyright: ignore[reportAttributeAccessIssue]  functions have attributes
        return reward

    return mark


def form_of(reward: Callable) -> str | None:
    """Return the form in which a reward reads answers; None if it does not declare one."""
    return getattr(_unwrap_partial(reward), "reads", None)


def lowest_correct_value(reward: Callable) -> float | int | None:
    """Return the lowest value that a verifier with partial credit gives to a correct answer; None means any value above 0.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> lowest_correct_value(BY_NAME["math"]) is None
        True
    """
    return getattr(_unwrap_partial(reward), "right_from", None)


def mark_like(reward: Reward, other: Callable) -> Reward:
    """Mark a reward as the same kind of verifier as another reward; return it unchanged if the other is not a verifier."""
    if not is_verifier(other):
        return reward
    limit = lowest_correct_value(other)
    return verifier(reward) if limit is None else right_from(limit)(reward)


def _unwrap_partial(reward: Callable) -> Callable:
    return reward.func if isinstance(reward, partial) else reward


def is_verifier(reward: Callable) -> bool:
    """True if a reward is marked as a verifier.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> is_verifier(BY_NAME["math"]), is_verifier(BY_NAME["format"])
        (True, False)
    """
    inner = _unwrap_partial(reward)
    return getattr(inner, "verifies", None) is inner


def is_right(reward: float, correct: bool | None) -> bool:
    """True if an answer is right: `correct` is the verifier's verdict; if that is None, a reward above 0 means right.

    Example:
        >>> is_right(0.2, False), is_right(0.2, None)
        (False, True)
    """
    return reward > 0 if correct is None else correct
