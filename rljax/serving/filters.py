"""`rljax serve --filter-prompts` and `--filter-answers`: withhold prompts and answers whose score is too low."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from prometheus_client import CollectorRegistry, Counter

from rljax.data.problem import Problem
from rljax.data.tokenizer import Tokenizer
from rljax.serving.extensions import Extension, FilteredPrompt, Prompt, SampledAnswer, Score, problem_of
from rljax.serving.protocol import SamplingFields

CountVerdict = Callable[[str, str], None]


class Filter(NamedTuple):
    """A filter, which withholds a text if its score is below `least` or it has no score."""

    name: str
    """Name in metrics, errors and the log."""
    score: Score
    """Function that scores texts."""
    least: float
    """The lowest score of a text that passes."""


def verdicts(scores: Float[np.ndarray, "N"], least: float) -> list[str]:
    """Return the verdict on each text, by its score.

    Example:
        >>> verdicts(np.array([0.0, -0.5, np.nan]), 0)
        ['passed', 'withheld', 'unjudged']
    """
    return ["unjudged" if np.isnan(score) else "withheld" if score < least else "passed" for score in scores]


def withheld_by(
    filters: Sequence[Filter], problems: Sequence[Problem], texts: Sequence[str], count: CountVerdict
) -> list[str | None]:
    """Return, for each of N texts, the name of the first filter that the text does not pass; None if it passes all filters.

    Args:
        filters: the filters; every filter scores every text.
        problems: the problem that each text answers.
        texts: the texts.
        count: a function that is called for each filter and text, with the filter's name and its verdict.
    """
    found: list[str | None] = [None] * len(texts)
    for one in filters:
        for index, verdict in enumerate(verdicts(one.score(problems, texts), one.least)):
            count(one.name, verdict)
            if verdict != "passed" and found[index] is None:
                found[index] = one.name
    return found


class Filters(Extension):
    """An extension that refuses requests if a prompt does not pass its filters, and withholds answers that do not pass theirs.

    Args:
        prompts: filters of prompts; they score the text that the model reads, including the text that the chat template adds.
        answers: filters of answers.
        tokenizer: tokenizer of the model.
    """

    def __init__(self, prompts: Sequence[Filter], answers: Sequence[Filter], tokenizer: Tokenizer):
        self.prompts, self.answers, self.tokenizer = prompts, answers, tokenizer
        self.waits = bool(answers)

    def register(self, registry: CollectorRegistry) -> None:
        """Add a counter of verdicts to the server's registry."""
        labels = ["what", "filter", "verdict"]
        self.counter = Counter(
            "filtered_texts", "Prompts and answers by verdict.", labels, registry=registry, namespace="rljax"
        )
        for what, filters in {"prompt": self.prompts, "answer": self.answers}.items():
            for one in filters:
                for verdict in ("passed", "withheld", "unjudged"):
                    self.counter.labels(what, one.name, verdict)

    def admit(self, prompts: Sequence[Prompt], fields: SamplingFields) -> SamplingFields:
        """Admit a request whose prompts all pass.

        Raises:
            FilteredPrompt: a filter withholds one of its prompts.
        """
        texts = [self.tokenizer.decode(prompt.tokens) for prompt in prompts]
        found = withheld_by(self.prompts, [Problem("", "")] * len(texts), texts, self._counter_of("prompt"))
        for prompt, name in zip(prompts, found, strict=True):
            if name is not None:
                raise FilteredPrompt(prompt, name)
        return fields

    def settle(self, answers: list[SampledAnswer]) -> list[SampledAnswer]:
        """Mark the answers that the filters withhold."""
        problems = [problem_of(answer.prompt, self.tokenizer) for answer in answers]
        found = withheld_by(self.answers, problems, [answer.choice.text for answer in answers], self._counter_of("answer"))
        return [answer._replace(filtered=name) for answer, name in zip(answers, found, strict=True)]

    def _counter_of(self, what: str) -> CountVerdict:
        return lambda name, verdict: self.counter.labels(what, name, verdict).inc()
