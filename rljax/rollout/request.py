"""Requests to an engine and its responses, as token ids without padding."""

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Int32

from rljax.errors import InputError
from rljax.models import Params
from rljax.records import documented

Finish = Literal["stop", "length", "turns"]


@documented
class Sampling(NamedTuple):
    """Settings of the sampler. The built-in engine compiles one program for each value, `stop` aside."""

    max_tokens: int
    """Response budget, EOS included."""
    eos_ids: tuple[int, ...]
    """Tokens that end a response: the tokenizer's end token first, then further ones of the model and of `--stop-ids`."""
    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_k: int | None = None
    """Draw from the k likeliest tokens only."""
    top_p: float | None = None
    """Draw from the smallest set of tokens that holds this share of probability."""
    stop: tuple[str, ...] = ()
    """Texts that end a response: its last token is the one with which its decoded text first has one of them. They stay in the
    response, which is what was drawn."""


@documented
class Request(NamedTuple):
    """One response to be drawn."""

    prompt_tokens: tuple[int, ...]
    """Token ids of the prompt, or of the prompt and the turns so far."""
    prompt_id: int
    """Index of the prompt in the set of prompts."""
    group: int
    """Index of its group in this call; requests of one group have the same prompt."""
    sampling: Sampling
    """How its tokens are drawn."""
    seed: int
    """Seed of its draws, below 2^64. The same request gives the same response, whatever other requests are drawn with it. (The
    built-in engine guarantees this bit for bit, as far as the model's own arithmetic does not depend on the number of rows.)"""


@documented
class Response(NamedTuple):
    """The response to a prompt: N tokens, drawn by the policy or observed."""

    prompt_id: int
    """Index of the request's prompt."""
    group: int
    """Index of the request's group."""
    tokens: Int32[np.ndarray, "N"]
    """Token ids; a response that ended has EOS as its last one, or the token that completes a stop string."""
    mask: Bool[np.ndarray, "N"]
    """Tokens that the policy drew, which are trained on; False for observations, which are only context."""
    behaviour_logp: Float32[np.ndarray, "N"]
    """Log-probability under exactly the distribution drawn from (temperature, top-k, top-p applied), nats; 0 outside the mask."""
    policy_logp: Float32[np.ndarray, "N"]
    """Log-probability under softmax(logits / temperature), before top-k and top-p, nats; 0 outside the mask."""
    finish: Finish
    """Why it ended: EOS or a stop string ("stop"), the token budget ("length"), or the limit of turns ("turns")."""
    version: int | None = None
    """RL steps made by the weights that it was drawn with; None for the weights that the engine was called with."""
    turns: int = 1
    """Number of turns of the policy, with observations between them; 1 for a plain reply."""

    @property
    def truncated(self) -> bool:
        """True if the response was cut off before its end."""
        return self.finish != "stop"


@runtime_checkable
class Engine(Protocol):
    """Draws responses, in training and in evaluation. It takes token ids and returns token ids, never text.

    `check_responses` validates the responses. On several hosts every process makes the same call.
    """

    def generate(self, params: Params, requests: Sequence[Request]) -> list[Response]:
        """Draw a response to each request.

        Args:
            params: parameters of the policy.
            requests: the responses to draw; on several hosts the same in every process.

        Returns:
            The responses, in the order of the requests; on several hosts the same in every process.
        """
        ...


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that hands out responses while it draws others. `--reward-groups` then judges them meanwhile."""

    def stream(self, params: Params, requests: Sequence[Request]) -> Iterator[dict[int, Response]]:
        """Draw the responses of `generate`, and yield them as they end.

        It is called, and the iterator is advanced and closed, in a thread of its own, so that judging goes on beside it. The thread
        ends when the iterator does, or at its next piece if the run stops.

        Args:
            params: parameters of the policy.
            requests: the responses to draw.

        Yields:
            Some responses, by the places of their requests; each once, in any order that does not depend on time.
        """
        ...


def check_responses(requests: Sequence[Request], responses: Sequence[Response]) -> None:
    """Refuse responses that do not answer their requests.

    Raises:
        InputError: the number of responses is wrong; or a response has another prompt, more tokens than the budget, arrays of
            different lengths or of another type, or impossible log-probabilities. The message names what was expected and what
            was returned.
    """
    if not isinstance(responses, Sequence):
        raise InputError(f"engine.generate: the result must be a list of rljax.rollout.Response; got {responses!r:.80}.")
    if len(responses) != len(requests):
        raise InputError(f"engine.generate: {len(requests)} requests need one response each; got {len(responses)}.")
    for place, (request, response) in enumerate(zip(requests, responses, strict=True)):
        fault = _fault(request, response)
        if fault is not None:
            raise InputError(f"engine.generate: response {place} {fault}.")


_KINDS = MappingProxyType(
    {
        "tokens": (np.integer, "whole numbers"),
        "mask": (np.bool_, "booleans"),
        "behaviour_logp": (np.floating, "floating-point numbers"),
        "policy_logp": (np.floating, "floating-point numbers"),
    }
)
"""Array of a response -> its NumPy dtype class, and that class in words."""


def check_engine(engine: Engine) -> None:
    """Refuse an object that is not an engine.

    Raises:
        InputError: the object has no method `generate`.
    """
    if not callable(getattr(engine, "generate", None)):
        raise InputError(
            f"engine.generate: an engine must have the method generate(params, requests); got {engine!r:.80} without it."
        )


def _fault(request: Request, response: Response) -> str | None:
    """Describe what is wrong with a response; None if nothing is."""
    if not isinstance(response, Response):
        return f"must be an rljax.rollout.Response; got {response!r:.80}"
    expected, found = (request.prompt_id, request.group), (response.prompt_id, response.group)
    if found != expected:
        return f"must answer prompt {expected[0]} of group {expected[1]}; got prompt {found[0]} of group {found[1]}"
    if response.finish not in get_args(Finish):
        return f"must have ended by one of {', '.join(map(repr, get_args(Finish)))}; got finish={response.finish!r:.80}"
    if not isinstance(response.turns, int | np.integer) or response.turns < 1:
        return f"must have a whole number of at least 1 as its turns; got {response.turns!r:.80}"
    return _array_fault(response, request.sampling.max_tokens)


def _array_fault(response: Response, budget: int) -> str | None:
    """Describe what is wrong with the arrays of a response; None if nothing is."""
    arrays = {name: response._asdict()[name] for name in _KINDS}
    for name, (kind, words) in _KINDS.items():
        if not (isinstance(arrays[name], np.ndarray) and np.issubdtype(arrays[name].dtype, kind)):
            return f"must have a NumPy array of {words} as its {name}; got {arrays[name]!r:.80}"
    count = len(response.tokens)
    if not 1 <= count <= budget:
        return f"must have 1 to {budget} tokens; got {count}"
    for name, array in arrays.items():
        if array.shape != (count,):
            return f"has {count} tokens, so its {name} must have the shape [{count}]; got {list(array.shape)}"
    for name in ("behaviour_logp", "policy_logp"):
        logp = arrays[name][response.mask]
        possible = np.isfinite(logp) & (logp <= 1e-4)
        if not possible.all():
            return f"must have finite log-probabilities of at most 0 in {name}; got {logp[~possible][0]}"
    return None
