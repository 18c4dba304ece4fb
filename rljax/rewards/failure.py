"""What is said of a completion that could not be judged: this is neither a wrong answer nor "no opinion"."""

from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class Failed:
    """Stands where a reward should stand, for one completion.

    Args:
        kind: the judging function raised (or its process died), or did not end within its time limit.
        reason: one line for a person.
    """

    kind: Literal["raised", "timed_out"]
    reason: str


class Failures(NamedTuple):
    """How many completions one reward failed to judge."""

    raised: int = 0
    timed_out: int = 0
    wrong_count: int = 0
    """All of a call's completions, when the reward did not return one value for each."""

    @property
    def total(self) -> int:
        """All kinds together."""
        return sum(self)

    def __str__(self) -> str:
        named = {"raised": self.raised, "timed out": self.timed_out, "without a value": self.wrong_count}
        return ", ".join(f"{count} {name}" for name, count in named.items() if count)
