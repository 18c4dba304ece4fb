"""Judged answers as arrays: rewards, lengths, votes, and the scores by which choosers select one of several answers."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from rljax.data.diversity import distinct_share


class SampledAnswers(NamedTuple):
    """N answers to each of P problems."""

    rewards: np.ndarray
    """Reward of each answer, `[P, N]`; NaN if the reward function abstained or failed."""
    lengths: np.ndarray
    """Number of tokens in each answer, `[P, N]`."""
    truncated: np.ndarray
    """Whether each answer was truncated, `[P, N]`."""
    answers: list[list[str | None]]
    """Final answer extracted from each response, which is its vote in maj@k; None if the response contains none."""
    correct: np.ndarray | None = None
    """1 if a verifier accepts the answer, 0 if it rejects the answer, NaN if it abstains; None without a verifier."""
    scores: Mapping[str, np.ndarray] = MappingProxyType({})
    """Name of a chooser -> its score for each answer, `[P, N]`; NaN if the chooser returned no score."""
    confidence: np.ndarray | None = None
    """Confidence stated in each answer, `[P, N]`, or NaN; None instead of an array if no answer states a confidence."""
    distinct: np.ndarray | None = None
    """Distinct-2 of the answers to each problem, `[P]` (see `distinct_share`); None if N = 1."""
    only_subtracts: bool = False
    """Whether the reward only subtracts, as a constitution does: it is at most 0, and an answer with a reward of 0 is right."""

    def of_problems(self, places: Sequence[int]) -> "SampledAnswers":
        """Select the answers to some of the problems.

        Args:
            places: indices of the problems, in any order.
        """
        rows = list(places)
        arrays = {name: value[rows] for name, value in self._asdict().items() if isinstance(value, np.ndarray)}
        scores = {name: score[rows] for name, score in self.scores.items()}
        return self._replace(**arrays, answers=[self.answers[row] for row in rows], scores=scores)

    @property
    def judged(self) -> np.ndarray:
        """Mask of the answers that have a reward, `[P, N]`."""
        return ~np.isnan(self.rewards)

    def measured(self, right_above: float | None) -> str:
        """Describe in words what the fraction of right answers measures."""
        if right_above is None and self.correct is not None:
            return "accuracy"
        if right_above is None and self.only_subtracts:
            return "share of answers from which the reward subtracts nothing"
        return f"share of rewards above {0 if right_above is None else right_above:g}"

    def correctness_masks(self, right_above: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Masks of the right answers, and of the answers whose correctness is known, `[P, N]`.

        Args:
            right_above: an answer is right if its reward exceeds this. None lets the verifier decide; without a verifier, an answer
                is right if its reward is above 0, or at least 0 if rewards only subtract.

        Example:
            >>> rewards = np.array([[1.2, 0.2]])
            >>> sampled = SampledAnswers(rewards, np.ones((1, 2)), rewards < 0, [["2", "3"]], correct=np.array([[1.0, 0.0]]))
            >>> sampled.correctness_masks(None)[0].tolist(), sampled.correctness_masks(0.1)[0].tolist()
            ([[True, False]], [[True, True]])
        """
        values = self.rewards if right_above is not None or self.correct is None else self.correct
        known = ~np.isnan(values)
        found = np.where(known, values, -np.inf)
        if right_above is None and self.correct is None and self.only_subtracts:
            return known & (found >= 0), known
        return known & (found > (0.0 if right_above is None else right_above)), known


def gather(
    rows: Iterable[dict], problems: int, samples: int, *, verified: bool, scored: Sequence[str] = ()
) -> SampledAnswers:
    """Arrange the rows of a samples file in arrays.

    Args:
        rows: one row for each answer to each problem, in any order.
        problems: P, number of problems.
        samples: N, number of answers to each problem.
        verified: whether a verifier decides which answers are correct.
        scored: names of the choosers that scored the answers.

    Returns:
        Arrays `[P, N]`.

    Example:
        >>> row = {"problem": 0, "sample": 0, "reward": None, "correct": None, "tokens": 3, "truncated": False}
        >>> row |= {"completion": "#7", "given": "7"}
        >>> gather([row], 1, 1, verified=True).judged.tolist(), gather([row], 1, 1, verified=False).answers
        ([[False]], [['7']])
    """
    rewards, lengths = np.full((problems, samples), np.nan), np.zeros((problems, samples), int)
    truncated, correct = np.zeros((problems, samples), bool), np.full((problems, samples), np.nan)
    answers: list[list[str | None]] = [[None] * samples for _ in range(problems)]
    confidence = np.full((problems, samples), np.nan)
    scores = {name: np.full((problems, samples), np.nan) for name in scored}
    texts: list[list[str]] = [[] for _ in range(problems)]
    for row in rows:
        index = row["problem"], row["sample"]
        rewards[index] = np.nan if row["reward"] is None else row["reward"]
        correct[index] = np.nan if row["correct"] is None else row["correct"]
        lengths[index], truncated[index] = row["tokens"], row["truncated"]
        answers[index[0]][index[1]] = row["given"]
        confidence[index] = row.get("confidence", np.nan)
        texts[index[0]].append(row["completion"])
        for name, score in scores.items():
            score[index] = np.nan if row["scores"][name] is None else row["scores"][name]
    return SampledAnswers(
        rewards,
        lengths,
        truncated,
        answers,
        correct if verified else None,
        scores,
        None if np.isnan(confidence).all() else confidence,
        np.array([distinct_share(completions) for completions in texts]) if samples > 1 else None,
    )
