"""Extensions of a server: optional parts that check or change requests before sampling, and answers before they are sent."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from prometheus_client import CollectorRegistry

from rljax.data.cells import join_contents
from rljax.data.problem import Problem
from rljax.data.tokenizer import Tokenizer
from rljax.serving.batching import ResponseSampling
from rljax.serving.protocol import ApiError, SamplingFields
from rljax.serving.replies import Choice

Score = Callable[[Sequence[Problem], Sequence[str]], Float[np.ndarray, "N"]]
"""(problems, texts) -> score of each text; NaN for a text without a score."""


class Prompt(NamedTuple):
    """A prompt of a request."""

    tokens: tuple[int, ...]
    """Token ids of the prompt."""
    log_entries: Mapping[str, Any]
    """What the answer log records of it: `prompt` (a text or messages) with the request's other columns, or `prompt_ids`."""


class SampledAnswer(NamedTuple):
    """A complete answer."""

    prompt: Prompt
    """The prompt; all answers to one prompt share this object."""
    sampling: ResponseSampling
    """How the answer was sampled."""
    choice: Choice
    """The answer's tokens and text, and how it finished."""
    sample: int = 0
    """Index among the answers to the same prompt."""
    filtered: str | None = None
    """Name of the filter that withholds the answer; None if no filter does."""


class FilteredPrompt(ApiError):
    """The error that refuses a request because a filter withholds one of its prompts.

    Args:
        prompt: the prompt.
        by: name of the filter.
    """

    def __init__(self, prompt: Prompt, by: str):
        super().__init__(400, "The prompt is withheld by a filter of this server.", param="prompt", code="content_filter")
        self.prompt, self.by = prompt, by


def problem_of(prompt: Prompt, tokenizer: Tokenizer) -> Problem:
    """Convert a request's prompt to the problem that a reward function reads."""
    content = prompt.log_entries.get("prompt")
    if isinstance(content, str):
        return Problem(content, "")
    if content is None:
        return Problem(tokenizer.decode(prompt.tokens), "")
    columns = {name: value for name, value in prompt.log_entries.items() if name != "prompt"}
    return Problem(join_contents(content), "", columns=columns, messages=tuple(content))


class Extension:
    """An optional part of a server; this base class changes nothing."""

    waits = False
    """Whether `settle` must see all answers of a request before any of them is sent."""

    def register(self, registry: CollectorRegistry) -> None:
        """Add the extension's metrics to the server's registry."""

    def admit(self, prompts: Sequence[Prompt], fields: SamplingFields) -> SamplingFields:
        """Check a request before sampling, and return its sampling settings, which may be changed.

        Raises:
            ApiError: the request is refused.
        """
        del prompts
        return fields

    def settle(self, answers: list[SampledAnswer]) -> list[SampledAnswer]:
        """Return the answers to send.

        Args:
            answers: all answers of a request, in order, if `waits` is True for any extension; otherwise the answer that just ended.
        """
        return answers
