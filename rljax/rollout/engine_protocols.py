"""Protocols of engines, and the requests and responses that they exchange with callers: token ids without padding."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Int16, Int32

from rljax.errors import InputError
from rljax.models import Params

Finish = Literal["stop", "length", "turns"]


class Sampling(NamedTuple):
    """Settings of the sampler. The built-in engine compiles a program for each combination of these settings, except `stop`."""

    max_tokens: int
    """Largest number of tokens in a response, including EOS."""
    eos_ids: tuple[int, ...]
    """Tokens that end a response: first the tokenizer's end token, then the model's end tokens and the `--stop-ids`."""
    temperature: float = 1.0
    """Sampling temperature; 0 always takes the likeliest token."""
    top_k: int | None = None
    """Sample only from the k likeliest tokens."""
    top_p: float | None = None
    """Sample only from the smallest set of tokens whose total probability is at least this."""
    stop: tuple[str, ...] = ()
    """Texts that end a response: the response ends with the token that completes one of them in the decoded text. The stop text
    stays in the response, because the policy sampled it."""
    kept: int | None = None
    """K: with each token, record its sampling mask, the ids of the tokens that top-k and top-p kept, at most K of them, likeliest
    first. None records no masks."""
    strata: int | None = None
    """Number of strata: the responses of a group are sampled with uniform random numbers from different strata of (0, 1); see
    `rljax.rollout.stratified`. None samples each response independently of the others."""


class Request(NamedTuple):
    """A request for one response."""

    prompt_tokens: tuple[int, ...]
    """Token ids of the prompt, or of the prompt and the turns so far."""
    prompt_id: int
    """Index of the prompt in the set of prompts."""
    group: int
    """Index of the request's group in this call; requests of one group have the same prompt."""
    sampling: Sampling
    """How the response's tokens are sampled."""
    seed: int
    """Random seed, below 2^64. The same request gives the same response, whatever other requests are in the same call. (With the
    built-in engine this holds bit for bit, unless the model's own arithmetic depends on the number of rows.)"""

    def respond(
        self,
        tokens: Int32[np.ndarray, "N"],
        behaviour_logp: Float32[np.ndarray, "N"],
        finish: Finish,
        *,
        policy_logp: Float32[np.ndarray, "N"] | None = None,
        **others: Any,
    ) -> "Response":
        """Return a response to this request in which every token was sampled; see `Response` for the fields.

        Without `policy_logp`, it equals `behaviour_logp`, as it does without top-k and top-p.
        """
        before_truncation = behaviour_logp if policy_logp is None else policy_logp
        mask = np.ones(len(tokens), bool)
        return Response(self.prompt_id, self.group, tokens, mask, behaviour_logp, before_truncation, finish, **others)


class Response(NamedTuple):
    """The response to a prompt: N tokens, which the policy sampled or, between its turns, observed."""

    prompt_id: int
    """Index of the request's prompt."""
    group: int
    """Index of the request's group."""
    tokens: Int32[np.ndarray, "N"]
    """Token ids. If the response ended, the last token is EOS, or the token that completes a stop string."""
    mask: Bool[np.ndarray, "N"]
    """True for tokens that the policy sampled, which are trained on; False for observations, which are only context."""
    behaviour_logp: Float32[np.ndarray, "N"]
    """Log-probability under the exact sampling distribution (temperature, top-k and top-p applied), in nats; 0 outside the mask."""
    policy_logp: Float32[np.ndarray, "N"]
    """Log-probability under softmax(logits / temperature), before top-k and top-p, in nats; 0 outside the mask."""
    finish: Finish
    """Why sampling stopped: EOS or a stop string ("stop"), the token budget ("length"), or the limit of turns ("turns")."""
    version: int | Int32[np.ndarray, "N"] | None = None
    """Number of RL steps that the sampling weights had been trained for: one integer, or one per token if the weights changed
    during sampling. None means the weights that the caller passed to the engine."""
    turns: int = 1
    """Number of turns of the policy, with observations between them; 1 for a plain reply."""
    kept: Int32[np.ndarray, "N K"] | None = None
    """Sampling masks, if `Sampling.kept` is K: ids of the tokens that top-k and top-p kept, padded with -1, and -1 at observations.
    With sampling masks, both log-probabilities are under the distribution over these tokens."""
    experts: Int16[np.ndarray, "S Y C"] | None = None
    """For a mixture of experts: the C experts that each of Y layers used for the M tokens of the prompt and the N tokens of the
    response, S = M + N; -1 if unknown, e.g. for a last token that was not fed into the model. The learner uses the same experts."""

    @property
    def truncated(self) -> bool:
        """Whether the token budget or the limit of turns cut the response off."""
        return self.finish != "stop"

    @property
    def token_arrays(self) -> dict[str, np.ndarray]:
        """The arrays with one entry per token, by name."""
        names = ("tokens", "mask", "behaviour_logp", "policy_logp")
        arrays = {name: getattr(self, name) for name in names}
        optional = {"kept": self.kept, "version": self.version}
        return arrays | {name: array for name, array in optional.items() if isinstance(array, np.ndarray)}


@runtime_checkable
class Engine(Protocol):
    """Samples responses, in training and in evaluation. It takes token ids and returns token ids, never text.

    An engine must follow every field of a request's `Sampling`, or raise an `InputError`. `check_responses` validates the
    responses, but cannot see how their tokens were sampled. On several hosts, every process makes the same call.
    """

    def generate(self, params: Params, requests: Sequence[Request]) -> list[Response]:
        """Sample a response to each request.

        Args:
            params: parameters of the policy.
            requests: a request for each response; on several hosts the same in every process.

        Returns:
            The responses, in the order of the requests; on several hosts the same in every process.
        """
        ...


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that yields finished responses while it samples others, so that judging can begin early (`--reward-groups`)."""

    def stream(self, params: Params, requests: Sequence[Request]) -> Iterator[dict[int, Response]]:
        """Sample the same responses as `generate`, and yield them as they end.

        A background thread calls this method and advances and closes the iterator, while responses are judged. The thread ends
        when the iterator ends or, if the run stops, at the iterator's next value.

        Args:
            params: parameters of the policy.
            requests: a request for each response.

        Yields:
            Some responses, by the index of their request. Each response is yielded once; the order must not depend on timing.
        """
        ...


@runtime_checkable
class ReportingEngine(Engine, Protocol):
    """An engine that waits for something outside the process, such as a server, and tells the user that it is waiting."""

    def report_to(self, tell: Callable[[str], None]) -> None:
        """Set `tell` as the function that shows sentences to the user; the engine may call it from any thread."""
        ...


@runtime_checkable
class Dialogue(Protocol):
    """Samples the turns of many episodes. The prompt of each turn is its full context."""

    def add(self, requests: Mapping[int, Request]) -> None:
        """Queue turns; this may be called while others are being sampled.

        Args:
            requests: the next turn of each episode, by episode index; on several hosts the same in every process. The prompt is the
                full context: the episode's first prompt, its turns, and the observations between them.
        """
        ...

    def sample_turns(self) -> Mapping[int, Response]:
        """Sample until some turns have ended.

        Returns:
            The responses of these turns, by episode index, each once. Empty if no turn is queued or being sampled.
        """
        ...


@runtime_checkable
class DialogueEngine(Engine, Protocol):
    """An engine that caches the context of each episode between turns. Multi-turn environments use this if it is available."""

    def dialogue(self, params: Params, requests: Mapping[int, Request]) -> Dialogue:
        """Begin episodes.

        Args:
            params: parameters of the policy.
            requests: the first turn of each episode, by episode index. The budget of a later turn is the rest of the episode's
                budget. Further episodes may be added later, if their prompts and budgets are not larger than the largest of these.
        """
        ...


def truncate_response(response: Response, max_tokens: int) -> Response:
    """Keep only the first `max_tokens` tokens of a longer response, and set its `finish` to "length"."""
    if len(response.tokens) <= max_tokens:
        return response
    return response._replace(finish="length", **{name: array[:max_tokens] for name, array in response.token_arrays.items()})


def join_arrays(parts: Sequence[Response]) -> dict[str, np.ndarray]:
    """Concatenate the token arrays of a response's parts; return the arrays by name."""
    arrays = [part.token_arrays for part in parts]
    return {name: np.concatenate([each[name] for each in arrays]) for name in arrays[0]}


def observe(turn: Response, observation: Sequence[int]) -> Response:
    """Build the part of a response that contains an observation, which the policy sees after `turn` but did not sample."""
    zeros = np.zeros(len(observation), np.float32)
    version = np.full(len(observation), turn.version[-1]) if isinstance(turn.version, np.ndarray) else turn.version
    return turn._replace(
        tokens=np.asarray(observation, np.int32),
        mask=np.zeros(len(observation), bool),
        behaviour_logp=zeros,
        policy_logp=zeros,
        version=version,
        kept=None if turn.kept is None else np.full((len(observation), turn.kept.shape[-1]), -1, np.int32),
    )


def check_responses(requests: Sequence[Request], responses: Sequence[Response]) -> None:
    """Refuse responses that do not match their requests.

    Raises:
        InputError: the number of responses is wrong; or a response has the wrong prompt, more tokens than the budget, arrays of
            different lengths or of the wrong type, or impossible log-probabilities.
    """
    if not isinstance(responses, Sequence):
        raise InputError(f"engine.generate: the result must be a list of rljax.rollout.Response; got {responses!r:.80}.")
    if len(responses) != len(requests):
        raise InputError(f"engine.generate: {len(requests)} requests need one response each; got {len(responses)}.")
    for index, (request, response) in enumerate(zip(requests, responses, strict=True)):
        fault = _fault(request, response)
        if fault is not None:
            raise InputError(f"engine.generate: response {index} {fault}.")


def check_token_ids(responses: Sequence[Response], vocabulary: int | None) -> None:
    """Refuse responses with a token id that the policy does not have.

    Args:
        responses: any number of responses, with at least one token each.
        vocabulary: V, number of the policy's token ids; None checks nothing.

    Raises:
        InputError: an id is not below `vocabulary`. (`check_responses` refuses negative ids.)
    """
    highest = max((int(response.tokens.max()) for response in responses), default=0)
    if vocabulary is not None and highest >= vocabulary:
        raise InputError(f"engine.generate: the token ids of the policy are 0 to {vocabulary - 1}; got {highest}.")


def sample_responses(engine: Engine, params: Params, requests: Sequence[Request]) -> list[Response]:
    """Sample a response to each request, and check the responses; see `check_responses`."""
    responses = engine.generate(params, requests)
    check_responses(requests, responses)
    return responses


_KINDS = MappingProxyType(
    {
        "tokens": (np.integer, "integers"),
        "mask": (np.bool_, "booleans"),
        "behaviour_logp": (np.floating, "floating-point numbers"),
        "policy_logp": (np.floating, "floating-point numbers"),
    }
)
"""For each array of a response, its NumPy dtype class, and that class in words."""


def check_engine(engine: Engine) -> None:
    """Refuse an object that is not an engine.

    Raises:
        InputError: the object is a class, or has no method `generate`.
    """
    if isinstance(engine, type):
        raise InputError(f"engine: an object is needed; got the class {engine.__qualname__}. Pass an instance.")
    if not callable(getattr(engine, "generate", None)):
        raise InputError(
            f"engine.generate: an engine must have the method generate(params, requests); got {engine!r:.80}, which has none."
        )


def _fault(request: Request, response: Response) -> str | None:
    """Describe what is wrong with a response; None if nothing is."""
    if not isinstance(response, Response):
        return f"must be an rljax.rollout.Response; got {response!r:.80}"
    expected, found = (request.prompt_id, request.group), (response.prompt_id, response.group)
    if found != expected:
        return f"must answer prompt {expected[0]} of group {expected[1]}; got prompt {found[0]} of group {found[1]}"
    if response.finish not in get_args(Finish):
        return f"must have one of {', '.join(map(repr, get_args(Finish)))} as its finish; got {response.finish!r:.80}"
    if not isinstance(response.turns, int | np.integer) or response.turns < 1:
        return f"must have an integer of at least 1 as its number of turns; got {response.turns!r:.80}"
    sampling = request.sampling
    fault = _array_fault(response, sampling.max_tokens) or _token_fault(response, sampling.eos_ids)
    return fault or _kept_fault(response, sampling.kept)


def _advice(logp: Float32[np.ndarray, "N"]) -> str:
    """Explain log-probabilities that are not finite; empty if all are finite."""
    if np.isfinite(logp).all():
        return ""
    return (
        ", because the policy's parameters are infinite, NaN or far too large: start a new run with a lower --learning-rate "
        "(--warm-start-learning-rate if this is before RL); `rljax export RUN model` writes the best checkpoint as a model to "
        "start from"
    )


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
    version = response.version
    if isinstance(version, np.ndarray) and not (version.shape == (count,) and np.issubdtype(version.dtype, np.integer)):
        return (
            f"has {count} tokens, so its version must be one integer or an array of {count} integers; got {version.dtype} "
            f"{list(version.shape)}"
        )
    for name in ("behaviour_logp", "policy_logp"):
        logp = arrays[name][response.mask]
        possible = np.isfinite(logp) & (logp <= 1e-4)
        if not possible.all():
            return f"must have finite log-probabilities of at most 0 in {name}; got {logp[~possible][0]}{_advice(logp)}"
    return None


def _token_fault(response: Response, eos_ids: tuple[int, ...]) -> str | None:
    """Describe what is wrong with the token ids of a response; None if nothing is."""
    if response.tokens.min() < 0:
        return f"must have token ids of at least 0; got {response.tokens.min()}"
    continues = response.mask[:-1] & response.mask[1:]  # a later turn follows an observation, which is not sampled
    early = response.tokens[:-1][continues & np.isin(response.tokens[:-1], eos_ids)]
    return f"continues after the token {early[0]}, but each token of eos_ids ends a response" if early.size else None


def _kept_fault(response: Response, max_kept: int | None) -> str | None:
    """Describe what is wrong with a response's sampling masks, `Response.kept`; None if nothing is."""
    if max_kept is None:
        return None if response.kept is None else "has sampling masks (kept), but the request's sampling.kept is None"
    expected = (len(response.tokens), max_kept)
    if response.kept is None or response.kept.shape != expected or not np.issubdtype(response.kept.dtype, np.integer):
        found = "none" if response.kept is None else f"{response.kept.dtype} {list(response.kept.shape)}"
        return f"must have its sampling masks (kept) as an integer array of shape {list(expected)}; got {found}"
    lost = response.mask & ~(response.kept == response.tokens[:, None]).any(-1)
    if lost.any():
        return f"has token {response.tokens[lost][0]} outside its own sampling mask"
    return None
