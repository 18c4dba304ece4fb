"""Validation of requests in OpenAI's format. A wrong field raises an `ApiError` that says what was expected and what was sent."""

import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from rljax.text import counted, unique_names

MAX_SAMPLES = 128
"""Maximum number of samples per prompt, as in OpenAI's API."""
MAX_TEMPERATURE = 2.0
"""Highest temperature, as in OpenAI's API."""
MAX_STOPS = 16
"""Maximum number of stop strings."""
COMPLETION_TOKENS = 16
"""Maximum length of a completion if `max_tokens` is absent, as in OpenAI's API."""
IGNORED_FIELDS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
        "safety_identifier",
    }
)
"""Fields that are accepted and have no effect."""
NEUTRAL_VALUES: MappingProxyType[str, tuple[Any, ...]] = MappingProxyType(
    {
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "repetition_penalty": (1,),
        "min_p": (0,),
        "logit_bias": ({},),
        "echo": (False,),
        "suffix": ("",),
        "best_of": (1,),
        "response_format": ({"type": "text"},),
        "parallel_tool_calls": (True,),
        "verbosity": ("medium",),
    }
)
"""Name of a field that the server does not implement -> the values that are accepted, because they have no effect."""
SHARED_FIELDS = frozenset(
    {
        "model",
        "n",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "seeds",
        "stop",
        "stop_token_ids",
        "stream",
        "stream_options",
    }
    | {"logprobs", "return_token_ids"}
)
ROLES = ("system", "developer", "user", "assistant", "tool")


class ApiError(Exception):
    """An error that is sent to the client.

    Args:
        status: HTTP status.
        message: a sentence that says what was expected and what was passed.
        param: name of the wrong field.
        code: a short code for programs.
        retry_after: seconds that the client should wait before it tries again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    def to_json(self) -> dict[str, Any]:
        """Return the error in OpenAI's format."""
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, "invalid_request_error")
        kind = "server_error" if self.status >= 500 else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class Limits(NamedTuple):
    """Limits of the requests that a server accepts."""

    model: str
    """Name of the model."""
    context: int
    """Maximum total number of tokens in a prompt and its response."""
    max_tokens: int
    """Maximum number of tokens of a response."""
    vocabulary: int
    """Number of token ids in the vocabulary."""
    max_responses: int
    """Maximum number of responses per request."""


class SamplingFields(NamedTuple):
    """The sampling fields, which completion and chat requests share."""

    samples: int
    """Number of responses per prompt."""
    max_tokens: int | None
    """Maximum number of tokens of a response; None if the request does not set it."""
    temperature: float
    """Sampling temperature."""
    top_k: int | None
    """Sample only from the k most likely tokens."""
    top_p: float | None
    """Sample only from the smallest set of tokens whose total probability is at least this."""
    seed: int | None
    """Random seed."""
    seeds: tuple[int, ...] | None
    """Random seed of each sample."""
    stop: tuple[str, ...]
    """Texts that end a response."""
    stop_ids: tuple[int, ...]
    """Tokens that end a response."""
    streams: bool
    """Whether the response is sent while it is sampled."""
    usage_at_end: bool
    """Whether a stream ends with the token counts."""
    has_logprobs: bool
    """Whether log-probabilities are reported."""
    top: int
    """Number of most likely tokens that are reported with each token."""
    has_token_ids: bool
    """Whether token ids are reported."""


class CompletionRequest(NamedTuple):
    """A request to `/v1/completions`."""

    prompts: tuple[str | tuple[int, ...], ...]
    """Strings, or token ids that are used unchanged."""
    fields: SamplingFields
    """The other fields."""


class ChatRequest(NamedTuple):
    """A request to `/v1/chat/completions`."""

    messages: tuple[dict[str, Any], ...]
    """The conversation, in the form that chat templates read."""
    tools: tuple[dict[str, Any], ...]
    """Schemas of the tools that the model may call."""
    fields: SamplingFields
    """The other fields."""


def parse_json(body: bytes) -> Mapping[str, Any]:
    """Parse the body of a request.

    Raises:
        ApiError: the body is not a JSON object.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        value = json.loads(body.decode("utf-8"), parse_constant=refuse, object_pairs_hook=unique_names)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # a lone surrogate cannot be encoded
    except (ValueError, RecursionError) as error:
        fault = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(400, f"The body must be JSON in UTF-8 ({fault}).", code="invalid_json") from error
    if not isinstance(value, dict):
        raise ApiError(400, f"The body must be a JSON object, not {_type_name(value)}.", code="invalid_json")
    return value


def parse_completion(body: Mapping[str, Any], limits: Limits) -> CompletionRequest:
    """Validate a request to `/v1/completions`.

    Raises:
        ApiError: a field cannot be used.
    """
    _check_names(body, {"prompt"})
    top = _integer(body, "logprobs", 0, 5)
    fields = _fields(body, limits, has_logprobs=top is not None, top=top or 0)
    fields = fields._replace(max_tokens=COMPLETION_TOKENS if fields.max_tokens is None else fields.max_tokens)
    prompts = _prompts(body.get("prompt"), limits)
    _check_rows(len(prompts) * fields.samples, limits)
    return CompletionRequest(prompts, fields)


def parse_chat(body: Mapping[str, Any], limits: Limits) -> ChatRequest:
    """Validate a request to `/v1/chat/completions`.

    Raises:
        ApiError: a field cannot be used.
    """
    _check_names(body, {"messages", "tools", "tool_choice", "top_logprobs", "max_completion_tokens"})
    has_logprobs, top = _flag(body, "logprobs"), _integer(body, "top_logprobs", 0, 20) or 0
    if top and not has_logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
    most = _integer(body, "max_completion_tokens", 1, limits.max_tokens)
    fields = _fields(body, limits, has_logprobs=has_logprobs, top=top)
    if most is not None and fields.max_tokens not in (None, most):
        raise ApiError(400, "max_tokens and max_completion_tokens differ; send one.", param="max_completion_tokens")
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise ApiError(400, f"tool_choice must be 'auto' or 'none'; got {_shorten(choice)}.", param="tool_choice")
    tools = () if choice == "none" else _tools(body.get("tools"))
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, f"messages must be a list of at least one message; got {_shorten(messages)}.", param="messages")
    _check_rows(fields.samples, limits)
    fields = fields._replace(max_tokens=fields.max_tokens if most is None else most)
    return ChatRequest(tuple(_message(message, index) for index, message in enumerate(messages)), tools, fields)


def response_tokens(fields: SamplingFields, prompt: Sequence[int], limits: Limits) -> int:
    """Return the maximum number of tokens of the response to a prompt.

    Raises:
        ApiError: the prompt and its response do not fit into the context, or the prompt is empty.
    """
    if not prompt:
        raise ApiError(400, "The prompt has no tokens; send at least one.", param="prompt")
    room = limits.context - len(prompt)
    most = fields.max_tokens if fields.max_tokens is not None else max(1, min(room, limits.max_tokens))
    if most > room:
        message = (
            f"The prompt has {len(prompt)} tokens and the response may have {most}; the context is {limits.context} tokens."
        )
        raise ApiError(400, message, param="prompt", code="context_length_exceeded")
    return most


def _check_names(body: Mapping[str, Any], own: set[str]) -> None:
    for name, value in body.items():
        if name in NEUTRAL_VALUES and value is not None and value not in NEUTRAL_VALUES[name]:
            message = f"{name}={_shorten(value)} is not supported; omit {name[:60]!r}."
            raise ApiError(400, message, param=name, code="unsupported_parameter")
        if name not in SHARED_FIELDS | own | IGNORED_FIELDS | NEUTRAL_VALUES.keys():
            raise ApiError(400, f"The field {name[:60]!r} is unknown.", param=name[:60], code="unknown_parameter")


def _check_rows(count: int, limits: Limits) -> None:
    if count > limits.max_responses:
        raise ApiError(
            400, f"A request may have at most {limits.max_responses} responses; this one has {count}.", param="n"
        )


def _fields(body: Mapping[str, Any], limits: Limits, *, has_logprobs: bool, top: int) -> SamplingFields:
    model = body.get("model")
    if not isinstance(model, str):
        raise ApiError(
            400, f"model must be a string; got {_shorten(model)}. This server has {limits.model!r}.", param="model"
        )
    if model != limits.model:
        message = f"The model {_shorten(model)} does not exist; this server has {limits.model!r}."
        raise ApiError(404, message, param="model", code="model_not_found")
    options = body.get("stream_options")
    if options is not None and (not isinstance(options, dict) or options.keys() - {"include_usage"}):
        raise ApiError(
            400, f"stream_options may contain only include_usage; got {_shorten(options)}.", param="stream_options"
        )
    streams = _flag(body, "stream")
    if options is not None and not streams:
        raise ApiError(400, "stream_options applies only with stream; set stream to true.", param="stream_options")
    temperature = _number(body, "temperature", 0.0, MAX_TEMPERATURE)
    samples = _integer(body, "n", 1, MAX_SAMPLES) or 1
    return SamplingFields(
        samples=samples,
        max_tokens=_integer(body, "max_tokens", 1, limits.max_tokens),
        temperature=1.0 if temperature is None else temperature,
        top_k=_integer(body, "top_k", 1, 1 << 31),
        top_p=_probability(body, "top_p"),
        seed=_integer(body, "seed", -(1 << 63), (1 << 64) - 1),
        seeds=_seeds(body, samples),
        stop=_stops(body.get("stop")),
        stop_ids=() if body.get("stop_token_ids") is None else _ids(body["stop_token_ids"], "stop_token_ids", limits),
        streams=streams,
        usage_at_end=_flag(options or {}, "include_usage"),
        has_logprobs=has_logprobs,
        top=top,
        has_token_ids=_flag(body, "return_token_ids"),
    )


def _seeds(body: Mapping[str, Any], samples: int) -> tuple[int, ...] | None:
    """Return the seed of each sample; None if the request does not set `seeds`."""
    seeds = body.get("seeds")
    if seeds is None:
        return None
    is_good = isinstance(seeds, list) and len(seeds) == samples and body.get("seed") is None
    if not is_good or not all(
        isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 1 << 64 for seed in seeds
    ):
        message = (
            f"seeds must be a list of {counted(samples, 'integer')} from 0 to 2^64 - 1, one per sample, without seed; got "
            f"{_shorten(seeds)}."
        )
        raise ApiError(400, message, param="seeds")
    return tuple(seeds)


def _prompts(value: object, limits: Limits) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if all(isinstance(part, str) for part in value):
            return tuple(value)
        if all(isinstance(part, list) for part in value):
            return tuple(_ids(part, "prompt", limits) for part in value)
        return (_ids(value, "prompt", limits),)
    message = (
        f"prompt must be a string, a list of strings, a list of token ids, or a list of such lists; got {_shorten(value)}."
    )
    raise ApiError(400, message, param="prompt")


def _ids(value: object, name: str, limits: Limits) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(part, int) and not isinstance(part, bool) for part in value):
        raise ApiError(400, f"{name} must be a list of token ids; got {_shorten(value)}.", param=name)
    wrong = next((part for part in value if not 0 <= part < limits.vocabulary), None)
    if wrong is not None:
        raise ApiError(400, f"{name} contains {_shorten(wrong)}; token ids are 0 to {limits.vocabulary - 1}.", param=name)
    return tuple(value)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    is_good = isinstance(stops, list) and len(stops) <= MAX_STOPS
    if not is_good or not all(isinstance(part, str) and part for part in stops):
        raise ApiError(400, f"stop must be a string or up to {MAX_STOPS} strings; got {_shorten(value)}.", param="stop")
    return tuple(stops)


def _tools(value: Any) -> tuple[dict[str, Any], ...]:
    tools = [] if value is None else value
    is_good = isinstance(tools, list) and all(
        isinstance(tool, dict)
        and tool.get("type") == "function"
        and isinstance(tool.get("function"), dict)
        and isinstance(tool["function"].get("name"), str)
        for tool in tools
    )
    if not is_good:
        raise ApiError(400, f"tools must be a list of functions with names; got {_shorten(value)}.", param="tools")
    return tuple(tools)


def _message(value: object, index: int) -> dict[str, Any]:
    param = f"messages[{index}]"
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        raise ApiError(
            400, f"{param} must be an object whose role is one of {', '.join(ROLES)}; got {_shorten(value)}.", param=param
        )
    unknown = value.keys() - {"role", "content", "name", "tool_calls", "tool_call_id", "refusal"}
    if unknown:
        raise ApiError(400, f"{param} contains the unknown field {min(unknown)[:60]!r}.", param=param)
    content, calls = value.get("content"), _tool_call_list(value.get("tool_calls"), param)
    if calls and value["role"] != "assistant":
        raise ApiError(400, f"{param}: only an assistant message can have tool_calls.", param=param)
    if isinstance(content, list):
        if not all(
            isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in content
        ):
            raise ApiError(
                400, f"{param}: only parts that contain text are supported; got {_shorten(content)}.", param=param
            )
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) and not (content is None and value["role"] == "assistant" and calls):
        raise ApiError(400, f"{param} must have a string as its content; got {_shorten(content)}.", param=param)
    role = "system" if value["role"] == "developer" else value["role"]
    message: dict[str, Any] = {"role": role, "content": content or ""}
    for name in ("name", "tool_call_id"):
        if not isinstance(value.get(name), str | None):
            raise ApiError(400, f"{param}: {name} must be a string; got {_shorten(value[name])}.", param=param)
    if value.get("refusal") is not None:
        raise ApiError(400, f"{param}: a refusal is not supported; send it as the content.", param=param)
    message |= {name: value[name] for name in ("name", "tool_call_id") if value.get(name) is not None}
    return message | ({"tool_calls": [_tool_call(call, param) for call in calls]} if calls else {})


def _tool_call_list(value: object, param: str) -> list[Any]:
    if not isinstance(value, list | None):
        raise ApiError(400, f"{param}: tool_calls must be a list; got {_shorten(value)}.", param=param)
    return value or []


def _tool_call(value: object, param: str) -> dict[str, Any]:
    """Return a tool call with its arguments as an object, which chat templates expect."""
    function = value.get("function") if isinstance(value, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(value, dict) or not isinstance(function, dict) or not isinstance(arguments, dict):
        raise ApiError(
            400, f"{param}: a tool call needs a function with JSON arguments; got {_shorten(value)}.", param=param
        )
    if not isinstance(function.get("name"), str) or not isinstance(value.get("id"), str | None):
        raise ApiError(
            400,
            f"{param}: a tool call needs the name of its function, and its id must be a string; got {_shorten(value)}.",
            param=param,
        )
    return {"id": value.get("id"), "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _number(body: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not low <= value <= high
        or not math.isfinite(value)
    ):
        raise ApiError(400, f"{name} must be a number from {low:g} to {high:g}; got {_shorten(value)}.", param=name)
    return float(value)


def _probability(body: Mapping[str, Any], name: str) -> float | None:
    """Return a probability above 0; None if the field is absent, or is 1, which has no effect."""
    value = _number(body, name, 0.0, 1.0)
    if value == 0:
        raise ApiError(400, f"{name} must be above 0 and at most 1; got 0.", param=name)
    return None if value == 1 else value


def _integer(body: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ApiError(400, f"{name} must be an integer from {low} to {high}; got {_shorten(value)}.", param=name)
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name} must be true or false; got {_shorten(value)}.", param=name)
    return bool(value)


def _type_name(value: object) -> str:
    kinds = {list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")


def _shorten(value: object) -> str:
    """Format a value for an error message; a long value is cut."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 64:
        return "an integer of more than 64 bits"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:80] + "…"
