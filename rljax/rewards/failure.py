"""Records of completions that could not be judged. A failure is neither a wrong answer nor "no opinion"."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from rljax.records import documented


@dataclass(frozen=True)
class Failed:
    """The entry of one completion that could not be judged, in place of its reward.

    Args:
        kind: `raised` if the judging function raised or its process died; `timed_out` if it exceeded its time limit.
        reason: one line that explains the failure.
    """

    kind: Literal["raised", "timed_out"]
    reason: str


@documented
class Failures(NamedTuple):
    """Number of completions that one reward failed to judge."""

    raised: int = 0
    """Completions on which the function raised or its process died."""
    timed_out: int = 0
    """Completions on which the function exceeded its time limit."""
    wrong_count: int = 0
    """Completions of a call in which the function did not return one value for each completion."""

    @property
    def total(self) -> int:
        """The sum over all kinds."""
        return sum(self)

    def __str__(self) -> str:
        named = {"raised": self.raised, "timed out": self.timed_out, "without a value": self.wrong_count}
        return ", ".join(f"{count} {name}" for name, count in named.items() if count)
