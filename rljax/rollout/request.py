"""What an engine is asked for and what it returns: token ids both ways, nothing padded."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Int32

from rljax.errors import InputError
from rljax.models import Params
from rljax.records import documented

Finish = Literal["stop", "length", "turns"]


@documented
class Sampling(NamedTuple):
    """How tokens are drawn. The built-in engine compiles one program for each value."""

    max_tokens: int
    """Response budget, EOS included."""
    eos_id: int
    """Token that ends a response."""
    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_k: int | None = None
    """Draw from the k likeliest tokens only."""
    top_p: float | None = None
    """Draw from the smallest set of tokens that holds this share of probability."""


@documented
class Request(NamedTuple):
    """One response to be drawn."""

    tokens: tuple[int, ...]
    """Ids of the prompt, or of the prompt and the turns so far."""
    prompt_id: int
    """Index of the prompt among those that may be asked."""
    group: int
    """Number of its group in this call; requests of one group have the same prompt."""
    sampling: Sampling
    """How its tokens are drawn."""
    seed: int
    """Of its draws alone, below 2^64: the same request gives the same response, whatever else is drawn beside it."""


@documented
class Response(NamedTuple):
    """What follows a prompt: N tokens, drawn by the policy or observed."""

    prompt_id: int
    """The request's."""
    group: int
    """The request's."""
    tokens: Int32[np.ndarray, "N"]
    """Token ids; a response that ended has EOS as its last one."""
    mask: Bool[np.ndarray, "N"]
    """Tokens that the policy drew, which are trained on; False for observations, which are only seen."""
    behaviour_logp: Float32[np.ndarray, "N"]
    """Log-probability under exactly the distribution drawn from (temperature, top-k, top-p applied), nats; 0 outside the mask."""
    policy_logp: Float32[np.ndarray, "N"]
    """Log-probability under softmax(logits / temperature), before top-k and top-p, nats; 0 outside the mask."""
    finish: Finish
    """Why it ended: EOS ("stop"), the token budget ("length"), or the limit of turns ("turns")."""
    version: int | None = None
    """RL steps that the weights it was drawn with had made; None: those that the engine was called with."""
    turns: tuple[int, ...] = (0,)
    """Places of the first token of each turn of the policy."""

    @property
    def truncated(self) -> bool:
        """Whether it was cut off before its end."""
        return self.finish != "stop"


@runtime_checkable
class Engine(Protocol):
    """What draws responses. It takes token ids and returns token ids: text is nobody's business here."""

    def generate(self, params: Params, requests: Sequence[Request]) -> list[Response]:
        """Draw a response to each request.

        Args:
            params: of the policy.
            requests: what to draw; on several hosts the same in every process.

        Returns:
            The responses, in the order of the requests; on several hosts the same in every process.
        """
        ...


def check_responses(requests: Sequence[Request], responses: Sequence[Response]) -> None:
    """Refuse responses that do not answer their requests.

    Raises:
        InputError: another number of responses, another prompt, more tokens than the budget, arrays of different lengths, or
            log-probabilities that cannot be any; names the engine's fault with what was expected and what came.
    """
    if len(responses) != len(requests):
        raise InputError(f"engine.generate: {len(requests)} requests must give as many responses; got {len(responses)}.")
    for place, (request, response) in enumerate(zip(requests, responses, strict=True)):
        fault = _fault(request, response)
        if fault is not None:
            raise InputError(f"engine.generate: response {place} {fault}.")


def _fault(request: Request, response: Response) -> str | None:
    """What is wrong with a response, None if nothing is."""
    expected, found = (request.prompt_id, request.group), (response.prompt_id, response.group)
    if found != expected:
        return f"must answer prompt {expected[0]} of group {expected[1]}; got prompt {found[0]} of group {found[1]}"
    count, budget = len(response.tokens), request.sampling.max_tokens
    if not 1 <= count <= budget:
        return f"must have 1 to {budget} tokens; got {count}"
    for name in ("mask", "behaviour_logp", "policy_logp"):
        shape = np.shape(getattr(response, name))
        if shape != (count,):
            return f"has {count} tokens, so its {name} must have the shape [{count}]; got {list(shape)}"
    for name in ("behaviour_logp", "policy_logp"):
        logp = np.asarray(getattr(response, name))[np.asarray(response.mask, bool)]
        if not (np.isfinite(logp).all() and (logp <= 1e-4).all()):
            worst = logp[~(np.isfinite(logp) & (logp <= 1e-4))][0]
            return f"must have finite log-probabilities of at most 0 in {name}; got {worst}"
    return None
