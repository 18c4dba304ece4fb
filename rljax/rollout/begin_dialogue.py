"""Begin multi-turn episodes with any engine: `begin_dialogue` chooses the dialogue that suits the engine."""

from collections.abc import Mapping, Sequence
from typing import Any

from rljax.lazy import renamed_attributes, warn_renamed
from rljax.models import Params
from rljax.rollout.cached_dialogue import CachedDialogue
from rljax.rollout.engine import DecodingEngine
from rljax.rollout.engine_protocols import (
    Dialogue,
    DialogueEngine,
    Engine,
    Request,
    Response,
    sample_responses,
    truncate_response,
)


@renamed_attributes(draw="sample_turns")
class RereadingDialogue:
    """A dialogue that works with any engine: all waiting turns are sampled together, and the full context is read again each turn.

    Args:
        engine: the engine that samples the turns.
        params: parameters of the policy.
        requests: the first turn of each episode, by episode index.
    """

    def __init__(self, engine: Engine, params: Params, requests: Mapping[int, Request]):
        self.engine, self.params = engine, params
        self.waiting: dict[int, Request] = {}
        self.budget = 0
        self.add(requests)

    def add(self, requests: Mapping[int, Request]) -> None:
        """Queue turns."""
        self.waiting |= requests
        self.budget = max([self.budget, *(request.sampling.max_tokens for request in requests.values())])

    def sample_turns(self) -> dict[int, Response]:
        """Sample all waiting turns with the largest of their token budgets; tokens beyond a turn's own budget are dropped.

        The common budget is rounded up to a power of two, so that few programs are compiled.

        Raises:
            InputError: the engine's responses do not match the requests.
        """
        if not self.waiting:
            return {}
        limits = {episode: request.sampling.max_tokens for episode, request in self.waiting.items()}
        budget = min(1 << (max(limits.values()) - 1).bit_length(), self.budget)
        requests = [
            request._replace(sampling=request.sampling._replace(max_tokens=budget)) for request in self.waiting.values()
        ]
        self.waiting = {}
        responses = sample_responses(self.engine, self.params, requests)
        ended = zip(limits.items(), responses, strict=True)
        return {episode: truncate_response(response, limit) for (episode, limit), response in ended}


class _RenamedDialogue:
    """Adapts a custom dialogue whose method `sample_turns` still has its earlier name, `draw`."""

    def __init__(self, dialogue: Any):
        self.add = dialogue.add
        self.sample_turns = warn_renamed(dialogue.draw, "Dialogue.draw", "Dialogue.sample_turns")


def begin_dialogue(
    engine: Engine, params: Params, requests: Mapping[int, Request], later: Sequence[Request] = ()
) -> Dialogue:
    """Begin a dialogue for multi-turn episodes.

    A `DialogueEngine` provides its own dialogue. A `DecodingEngine` whose decoder has `turns` caches the context of each episode
    between turns, in rows or in pages; this needs at least one request, because the requests determine the length of a row.
    Otherwise, the full context is read again at each turn.

    Args:
        engine: the engine that samples the turns.
        params: parameters of the policy.
        requests: the first turn of each episode, by episode index.
        later: first turns of episodes that begin later; rows get enough room for them, but they are not queued.
    """
    if isinstance(engine, DialogueEngine):
        dialogue = engine.dialogue(params, requests)
        has_earlier_name = hasattr(dialogue, "draw") and not hasattr(dialogue, "sample_turns")
        return _RenamedDialogue(dialogue) if has_earlier_name else dialogue
    if not isinstance(engine, DecodingEngine) or engine.decoder.turns is None or not (requests or later):
        return RereadingDialogue(engine, params, requests)
    if not engine.has_pages:
        return CachedDialogue(engine, params, requests, later)
    from rljax.rollout.paged_dialogue import PagedDialogue  # noqa: PLC0415
    from rljax.rollout.paged_sampling import PagedEngine  # noqa: PLC0415  most runs have no pages

    assert isinstance(engine, PagedEngine)  # the only engine with pages
    return PagedDialogue(engine, params, requests, later)
