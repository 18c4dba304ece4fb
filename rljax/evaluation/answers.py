"""Judged answers to problems as arrays: rewards, lengths, what each votes for, and what choosers think of it."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from rljax.records import documented


@documented
class Sampled(NamedTuple):
    """N answers to each of P problems."""

    rewards: np.ndarray
    """Reward of each answer, `[P, N]`; NaN where the reward had no opinion or failed."""
    lengths: np.ndarray
    """Number of tokens of each answer, `[P, N]`."""
    truncated: np.ndarray
    """Whether each answer was cut off, `[P, N]`."""
    answers: list[list[str | None]]
    """What each response votes for in maj@k; None where it holds no answer."""
    correct: np.ndarray | None = None
    """1 where a verifier finds the answer correct, 0 where it does not, NaN where it has no opinion; None without a verifier."""
    scores: Mapping[str, np.ndarray] = MappingProxyType({})
    """Name of a chooser -> its score of each answer, `[P, N]`; NaN where it gave none."""
    confidence: np.ndarray | None = None
    """Confidence that each answer states, `[P, N]`; NaN where it states none; None where no answer states one."""

    def of_problems(self, places: Sequence[int]) -> "Sampled":
        """The answers to some of the problems.

        Args:
            places: of the problems, in any order.
        """
        rows = list(places)
        arrays = {name: value[rows] for name, value in self._asdict().items() if isinstance(value, np.ndarray)}
        scores = {name: score[rows] for name, score in self.scores.items()}
        return self._replace(**arrays, answers=[self.answers[place] for place in rows], scores=scores)

    @property
    def judged(self) -> np.ndarray:
        """Mask of the answers that have a reward, `[P, N]`."""
        return ~np.isnan(self.rewards)

    def right_and_known(self, right_above: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Masks of the answers that are right, and of those for which this is known, `[P, N]`.

        Args:
            right_above: an answer is right when its reward is above this; None leaves it to the verifier, or, without one, to a
                reward above 0.

        Example:
            >>> found = np.array([[1.2, 0.2]])
            >>> sampled = Sampled(found, np.ones((1, 2)), found < 0, [["2", "3"]], correct=np.array([[1.0, 0.0]]))
            >>> sampled.right_and_known(None)[0].tolist(), sampled.right_and_known(0.1)[0].tolist()
            ([[True, False]], [[True, True]])
        """
        values = self.rewards if right_above is not None or self.correct is None else self.correct
        known = ~np.isnan(values)
        return known & (np.where(known, values, -np.inf) > (0.0 if right_above is None else right_above)), known


def gathered(rows: Iterable[dict], problems: int, samples: int, *, verified: bool, scored: Sequence[str] = ()) -> Sampled:
    """Arrange the rows of the file in arrays.

    Args:
        rows: one for each answer to each problem, in any order.
        problems: P.
        samples: N.
        verified: whether a verifier decides what is correct.
        scored: names of the choosers that scored the answers.

    Returns:
        Arrays `[P, N]`.

    Example:
        >>> row = {"problem": 0, "sample": 0, "reward": None, "correct": None, "tokens": 3, "truncated": False, "given": "7"}
        >>> gathered([row], 1, 1, verified=True).judged.tolist(), gathered([row], 1, 1, verified=False).answers
        ([[False]], [['7']])
    """
    rewards, lengths = np.full((problems, samples), np.nan), np.zeros((problems, samples), int)
    truncated, correct = np.zeros((problems, samples), bool), np.full((problems, samples), np.nan)
    answers: list[list[str | None]] = [[None] * samples for _ in range(problems)]
    confidence = np.full((problems, samples), np.nan)
    scores = {name: np.full((problems, samples), np.nan) for name in scored}
    for row in rows:
        place = row["problem"], row["sample"]
        rewards[place] = np.nan if row["reward"] is None else row["reward"]
        correct[place] = np.nan if row["correct"] is None else row["correct"]
        lengths[place], truncated[place] = row["tokens"], row["truncated"]
        answers[place[0]][place[1]] = row["given"]
        confidence[place] = row.get("confidence", np.nan)
        for name, score in scores.items():
            score[place] = np.nan if row["scores"][name] is None else row["scores"][name]
    return Sampled(
        rewards,
        lengths,
        truncated,
        answers,
        correct if verified else None,
        scores,
        None if np.isnan(confidence).all() else confidence,
    )
