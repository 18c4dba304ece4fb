"""Options of a server that its core does not know: they see requests before sampling, and answers before these are sent."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from rljax.serving.batching import RowChoice
from rljax.serving.protocol import SamplingFields
from rljax.serving.replies import Choice


class Prompt(NamedTuple):
    """A prompt of a request."""

    tokens: tuple[int, ...]
    """Its token ids."""
    written: Mapping[str, Any]
    """Its entries in the log."""


class SampledAnswer(NamedTuple):
    """A complete answer."""

    prompt: Prompt
    """Its prompt; the answers to one prompt share this object."""
    sampling: RowChoice
    """How it was sampled."""
    choice: Choice
    """The answer."""


class Guest:
    """An option of a server; by default it changes nothing."""

    waits = False
    """Whether `settle` must see all answers of a request before any of them is sent."""

    def register(self, registry: CollectorRegistry) -> None:
        """Add metrics."""

    def admit(self, prompts: Sequence[Prompt], fields: SamplingFields) -> SamplingFields:
        """Return the settings with which a request is sampled.

        Raises:
            ApiError: the request is refused.
        """
        del prompts
        return fields

    def settle(self, answers: list[SampledAnswer]) -> list[SampledAnswer]:
        """Return the answers to send.

        Args:
            answers: all answers of a request in their order if a guest waits, else one that has just ended.
        """
        return answers
