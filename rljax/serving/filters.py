"""`rljax serve --filter-prompts` and `--filter-answers`: scores of texts below which a prompt or an answer is withheld."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from prometheus_client import CollectorRegistry, Counter

from rljax.data.problem import Problem
from rljax.data.tokenizer import Tokenizer
from rljax.serving.guests import FilteredPrompt, Guest, Prompt, SampledAnswer, Score, problem_of
from rljax.serving.protocol import SamplingFields

Count = Callable[[str, str], None]


class Filter(NamedTuple):
    """A text with a lower score is withheld, and so is a text without a score."""

    name: str
    """Name in metrics, errors and the log."""
    score: Score
    """Scores texts."""
    least: float
    """The lowest score of a text that passes."""


def verdicts(scores: Float[np.ndarray, "N"], least: float) -> list[str]:
    """Judge texts by their scores.

    Example:
        >>> verdicts(np.array([0.0, -0.5, np.nan]), 0)
        ['passed', 'withheld', 'unjudged']
    """
    return ["unjudged" if np.isnan(score) else "withheld" if score < least else "passed" for score in scores]


def withheld_by(
    filters: Sequence[Filter], problems: Sequence[Problem], texts: Sequence[str], count: Count
) -> list[str | None]:
    """Return, for each of N texts, the name of the first filter that it does not pass; None if it passes all of them.

    Args:
        filters: all of them judge every text.
        problems: what the texts answer.
        texts: the texts.
        count: called with the name of the filter and its verdict, for each filter and text.
    """
    found: list[str | None] = [None] * len(texts)
    for one in filters:
        for place, verdict in enumerate(verdicts(one.score(problems, texts), one.least)):
            count(one.name, verdict)
            if verdict != "passed" and found[place] is None:
                found[place] = one.name
    return found


class Filters(Guest):
    """Refuses requests by their prompts, and withholds answers.

    Args:
        prompts: filters of prompts, which judge the text that the model reads, its chat template included.
        answers: filters of answers.
        tokenizer: tokenizer of the model.
    """

    def __init__(self, prompts: Sequence[Filter], answers: Sequence[Filter], tokenizer: Tokenizer):
        self.prompts, self.answers, self.tokenizer = prompts, answers, tokenizer
        self.waits = bool(answers)

    def register(self, registry: CollectorRegistry) -> None:
        """Count verdicts."""
        labels = ["what", "filter", "verdict"]
        self.counter = Counter(
            "filtered_texts", "Prompts and answers by verdict.", labels, registry=registry, namespace="rljax"
        )
        for what, filters in {"prompt": self.prompts, "answer": self.answers}.items():
            for one in filters:
                for verdict in ("passed", "withheld", "unjudged"):
                    self.counter.labels(what, one.name, verdict)

    def admit(self, prompts: Sequence[Prompt], fields: SamplingFields) -> SamplingFields:
        """Let a request pass.

        Raises:
            FilteredPrompt: a filter withholds one of its prompts.
        """
        texts = [self.tokenizer.decode(prompt.tokens) for prompt in prompts]
        found = withheld_by(self.prompts, [Problem("", "")] * len(texts), texts, self._counts("prompt"))
        for prompt, name in zip(prompts, found, strict=True):
            if name is not None:
                raise FilteredPrompt(prompt, name)
        return fields

    def settle(self, answers: list[SampledAnswer]) -> list[SampledAnswer]:
        """Mark the answers that are withheld."""
        problems = [problem_of(answer.prompt, self.tokenizer) for answer in answers]
        found = withheld_by(self.answers, problems, [answer.choice.text for answer in answers], self._counts("answer"))
        return [answer._replace(filtered=name) for answer, name in zip(answers, found, strict=True)]

    def _counts(self, what: str) -> Count:
        return lambda name, verdict: self.counter.labels(what, name, verdict).inc()
