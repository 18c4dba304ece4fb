"""Records of completions that could not be judged. A failure is neither a wrong answer nor a missing verdict.

An answer that a verifier could not finish judging is a wrong answer, and is counted apart: the model wrote it, so it must
not be able to stop the run.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class Failed:
    """The entry of one completion that could not be judged, in place of its reward.

    Args:
        kind: `raised` if the judging function raised or its process died; `timed_out` if it exceeded its time limit;
            `out_of_range` if its reward is NaN, infinite or too large.
        reason: one line that explains the failure.
    """

    kind: Literal["raised", "timed_out", "out_of_range"]
    reason: str


class Unfinished(float):
    """The reward 0 of one completion whose answer the verifier could not finish judging.

    Args:
        reason: one line that explains why.

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


class Unstated(float):
    """The reward 0 of one completion that states no answer in the form that the reward reads.

    Example:
        >>> Unstated()
        0.0
    """


class Failures(NamedTuple):
    """Number of completions that one reward failed to judge."""

    raised: int = 0
    """Completions on which the function raised or its process died."""
    timed_out: int = 0
    """Completions on which the function exceeded its time limit."""
    wrong_count: int = 0
    """Completions of a call in which the function did not return one value for each completion."""

    out_of_range: int = 0
    """Completions whose reward was NaN, infinite or too large for 32-bit numbers."""
    unfinished: int = 0
    """Completions whose answer the verifier could not finish judging. They are wrong answers and no failures."""

    unstated: int = 0
    """Completions that state no answer in the form that the reward reads. They are wrong answers and no failures."""

    @property
    def total(self) -> int:
        """The sum over all kinds of failures."""
        return sum(self) - self.unfinished - self.unstated

    def __str__(self) -> str:
        named = {
            "raised": self.raised,
            "timed out": self.timed_out,
            "without a value": self.wrong_count,
            "NaN, infinite or too large": self.out_of_range,
        }
        return ", ".join(f"{count} {name}" for name, count in named.items() if count)


UNFINISHED, UNSTATED = (1 + Failures._fields.index(kind) for kind in ("unfinished", "unstated"))
"""The codes of an unfinished answer and of a completion without one in an array of kinds."""
