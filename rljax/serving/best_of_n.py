"""`rljax serve --best-of N` and `--majority N`: sample N answers to each prompt, and send only one of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from rljax.serving.extensions import Extension, Prompt, SampledAnswer
from rljax.serving.protocol import ApiError, SamplingFields


class Ranking(NamedTuple):
    """Scores of N answers to one prompt."""

    scores: Float[np.ndarray, "N"]
    """Score of each answer. The highest is sent; ties go to the most confident answer. NaN ranks below every number."""
    name: str
    """Name of the score in the reply."""


Rank = Callable[[Sequence[SampledAnswer]], Ranking]


def confidences(answers: Sequence[SampledAnswer]) -> Float[np.ndarray, "N"]:
    """Return the mean log-probability of each answer's tokens, in nats per token, from the log-probabilities in `logprobs`."""
    return np.array([np.mean(answer.choice.logp) for answer in answers], np.float64)


def by_confidence(answers: Sequence[SampledAnswer]) -> Ranking:
    """Rank answers by their mean log-probability, like `best_of` in OpenAI's completions API."""
    return Ranking(confidences(answers), "mean_logprob")


def by_votes(vote: Callable[[str], str | None]) -> Rank:
    """Return a function that ranks answers by the fraction of all answers that state the same result.

    Args:
        vote: a function of a text that returns the result that it states, or None; an answer without a result gets the fraction 0.
    """

    def rank(answers: Sequence[SampledAnswer]) -> Ranking:
        votes = [vote(answer.choice.text) for answer in answers]
        counts = Counter(votes)
        return Ranking(np.array([0.0 if cast is None else counts[cast] / len(votes) for cast in votes]), "agreement")

    return rank


def best_index(scores: Float[np.ndarray, "N"], confidence: Float[np.ndarray, "N"]) -> int:
    """Return the index of the highest score; ties go to the highest confidence, then to the first.

    Example:
        >>> best_index(np.array([np.nan, 0.5, 0.5]), np.array([-0.1, -0.3, -0.2]))
        2
    """
    lowest = np.where(np.isnan(scores), -np.inf, scores)
    return max(range(len(scores)), key=lambda index: (lowest[index], confidence[index]))


class Chooser(Extension):
    """An extension that samples several answers to each prompt and sends the one that ranks highest.

    At temperature 0 all samples would be identical, so only one is sampled.

    Args:
        samples: number of samples per prompt.
        rank: the function that ranks the samples of one prompt.
        max_samples: maximum number of samples per request.
    """

    waits = True

    def __init__(self, samples: int, rank: Rank, *, max_samples: int):
        self.samples, self.rank, self.max_samples = samples, rank, max_samples

    def admit(self, prompts: Sequence[Prompt], fields: SamplingFields) -> SamplingFields:
        """Set the number of samples per prompt, unless the temperature is 0.

        Raises:
            ApiError: the request asks for several answers, sets a seed for each answer, or has too many prompts.
        """
        if fields.samples > 1 or fields.seeds is not None:
            message = f"This server sends one of {self.samples} sampled answers per prompt; omit n and seeds."
            raise ApiError(400, message, param="n" if fields.samples > 1 else "seeds", code="chooses_answers")
        if len(prompts) * self.samples > self.max_samples:
            message = (
                f"A request may have at most {self.max_samples // self.samples} prompts of {self.samples} samples each."
            )
            raise ApiError(400, message, param="prompt")
        return fields if fields.temperature == 0 else fields._replace(samples=self.samples)

    def settle(self, answers: list[SampledAnswer]) -> list[SampledAnswer]:
        """Keep one answer per prompt."""
        groups = (list(group) for _, group in groupby(answers, key=lambda answer: id(answer.prompt)))
        return [self._choose(index, group) for index, group in enumerate(groups)]

    def _choose(self, index: int, group: list[SampledAnswer]) -> SampledAnswer:
        """Choose among the samples of a prompt that pass the filters, and report the chosen answer's score in the reply."""
        group = [answer for answer in group if answer.filtered is None] or group[:1]
        if len(group) > 1:
            ranking = self.rank(group)
            best = best_index(ranking.scores, confidences(group))
            score = ranking.scores[best]
            group[best].choice.notes |= {ranking.name: None if np.isnan(score) else float(score), "samples": len(group)}
            group = [group[best]]
        (chosen,) = group
        chosen.choice.index = index
        return chosen
