"""Dialects: how to request responses from `rljax serve`, vLLM and SGLang, with the paths and JSON of each kind of server."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rljax.engines.http import Http
from rljax.errors import InputError
from rljax.rollout.engine_protocols import Request, Sampling

Server = Literal["rljax", "vllm", "sglang"]
SEED_BITS = 63
"""Number of bits of a seed in vLLM and SGLang."""
MOST_TEMPERATURE, MOST_STOPS = 2.0, 16
"""Highest temperature, and maximum number of stop strings, of a request to `rljax serve`."""


class Status(NamedTuple):
    """What a server reports about itself."""

    model: str
    """Name of the served model."""
    context_length: int | None
    """Maximum number of tokens of a prompt and its response; None if not reported."""
    max_tokens: int | None
    """Maximum number of tokens of a response; None if not reported."""
    version: int | None
    """Version of the weights; None if not reported."""
    max_responses: int | None = None
    """Maximum number of responses per request; None if not reported."""


class Reply(NamedTuple):
    """One response as a server returns it."""

    tokens: list[int]
    """Sampled token ids, including the end token."""
    behaviour_logp: list[float]
    """Log-probability of each token under the exact sampling distribution."""
    policy_logp: list[float]
    """Log-probability of each token before top-k and top-p."""
    finish: str
    """Why the response ended: "stop" or "length"."""
    version: int | None
    """Version of the weights; None if not reported."""
    token_versions: list[int] | None = None
    """Version of the weights for each token; None if not reported."""


class Dialect(NamedTuple):
    """How to communicate with one kind of server."""

    name: Server
    """Name of the kind of server."""
    path: str
    """Path of sampling requests."""
    samples_groups: bool
    """Whether one request can ask for all responses to a prompt, each with its own seed."""
    reports_version: bool
    """Whether each response reports the version of its weights."""
    status: Callable[[Http], Status]
    """Requests the server's status."""
    body: Callable[[str, Sequence[Request]], dict[str, Any]]
    """(name of the model, requests that share a prompt) -> JSON to send."""
    replies: Callable[[Any], list[Reply]]
    """JSON of the reply -> responses, in the order of the requests."""
    publish: Callable[[Http, str, int], None]
    """(client, folder, version): makes the server use the weights in the folder for all later requests."""
    why_unsupported: Callable[[Sampling], str | None]
    """Sampling settings -> why the server cannot sample with them; None if it can."""
    publish_in_flight: Callable[[Http, str, int], None] | None = None
    """Like `publish`, but responses in progress continue with the new weights; None if the server does not report each token's
    version."""


def dialect_of(name: str) -> Dialect:
    """Return the dialect of a kind of server.

    Raises:
        InputError: there is no dialect with this name.
    """
    if name not in DIALECTS:
        raise InputError(f"engine_server={name!r} is unknown; choose one of {', '.join(DIALECTS)}.")
    return DIALECTS[name]


def _openai_status(http: Http) -> Status:
    """Read the first model of `/v1/models`."""
    models = _get_field(http.get("/v1/models"), "data")
    if not isinstance(models, list) or not models:
        raise InputError(f"the server {http.url} lists no model at /v1/models; start it with a model.")
    entry = models[0]
    numbers = [entry.get(name) for name in ("max_model_len", "max_tokens", "weights_version", "max_responses")]
    return Status(str(_get_field(entry, "id")), *(value if isinstance(value, int) else None for value in numbers))


def _completion_body(model: str, requests: Sequence[Request]) -> dict[str, Any]:
    """Return the fields of a `/v1/completions` request that `rljax serve` and vLLM share."""
    sampling = requests[0].sampling
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(requests[0].prompt_tokens),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "stop_token_ids": list(sampling.eos_ids),
        "return_token_ids": True,
    }
    optional = {"top_k": sampling.top_k, "top_p": sampling.top_p, "stop": list(sampling.stop) or None}
    return body | {name: value for name, value in optional.items() if value is not None}


def _rljax_body(model: str, requests: Sequence[Request]) -> dict[str, Any]:
    seeds = [request.seed for request in requests]
    return _completion_body(model, requests) | {"n": len(requests), "seeds": seeds, "logprobs": 0}


def _rljax_replies(answer: Any) -> list[Reply]:
    return [
        Reply(
            tokens=_get_field(choice, "token_ids"),
            behaviour_logp=_get_field(choice, "sampler_logprobs"),
            policy_logp=_get_field(_get_field(choice, "logprobs"), "token_logprobs"),
            finish=_get_field(choice, "finish_reason"),
            version=_get_field(choice, "weights_version"),
            token_versions=choice.get("token_versions"),
        )
        for choice in sorted(_get_field(answer, "choices"), key=lambda choice: choice["index"])
    ]


def _rljax_publish(http: Http, folder: str, version: int) -> None:
    http.post("/weights", {"folder": folder, "version": version})


def _rljax_publish_in_flight(http: Http, folder: str, version: int) -> None:
    http.post("/weights", {"folder": folder, "version": version, "in_flight": True})


def _why_unsupported_by_rljax(sampling: Sampling) -> str | None:
    if sampling.strata is not None:
        return "it samples each response independently; do not set stratified"
    if sampling.temperature > MOST_TEMPERATURE or len(sampling.stop) > MOST_STOPS:
        return f"its requests have temperatures up to {MOST_TEMPERATURE:g} and at most {MOST_STOPS} stop strings"
    return None if sampling.kept is None else "it does not record sampling masks; do not set sampling_mask"


def _vllm_body(model: str, requests: Sequence[Request]) -> dict[str, Any]:
    # with logprobs=0, vLLM reports only the sampled token's log-probability; token_ids includes the end token
    return _completion_body(model, requests) | {"seed": requests[0].seed % (1 << SEED_BITS), "logprobs": 0}


def _vllm_replies(answer: Any) -> list[Reply]:
    (choice,) = _get_field(answer, "choices")
    logp = _get_field(_get_field(choice, "logprobs"), "token_logprobs")
    return [Reply(_get_field(choice, "token_ids"), logp, logp, _get_field(choice, "finish_reason"), None)]


def _vllm_publish(http: Http, folder: str, version: int) -> None:
    del version  # vLLM does not count versions
    http.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})
    http.post("/reset_prefix_cache", {})


def _why_unsupported_with_one_logp(sampling: Sampling) -> str | None:
    """Explain why a server that reports one log-probability per token cannot sample with these settings; None if it can."""
    if sampling.top_k is not None or sampling.top_p is not None or sampling.kept is not None:
        return "it reports one log-probability per token, so top_k, top_p and sampling_mask must not be set"
    if sampling.strata is not None:
        return "it samples each response independently; do not set stratified"
    if sampling.stop:
        return "its stop strings may end within a token; use stop_ids"
    return None


def _sglang_status(http: Http) -> Status:
    found = http.get("/get_model_info")
    context = found.get("max_context_length") or found.get("context_length")
    return Status(str(_get_field(found, "model_path")), context if isinstance(context, int) else None, None, None)


def _sglang_body(model: str, requests: Sequence[Request]) -> dict[str, Any]:
    del model  # requests to SGLang's own path do not contain the model's name
    sampling = requests[0].sampling
    settings = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "stop_token_ids": list(sampling.eos_ids),
        "sampling_seed": requests[0].seed % (1 << SEED_BITS),
        "no_stop_trim": True,
    }
    return {"input_ids": list(requests[0].prompt_tokens), "sampling_params": settings, "return_logprob": True}


def _sglang_replies(answer: Any) -> list[Reply]:
    meta = _get_field(answer, "meta_info")
    pairs = _get_field(meta, "output_token_logprobs")
    logp, tokens = [float(pair[0]) for pair in pairs], [int(pair[1]) for pair in pairs]
    version = str(meta.get("weight_version", ""))
    finish = _get_field(_get_field(meta, "finish_reason"), "type")
    return [Reply(tokens, logp, logp, finish, int(version) if version.isdecimal() else None)]


def _sglang_publish(http: Http, folder: str, version: int) -> None:
    body = {"model_path": folder, "flush_cache": True, "weight_version": str(version)}
    answer = http.post("/update_weights_from_disk", body)
    if not answer.get("success"):
        raise InputError(f"the server {http.url} could not load the weights: {str(answer.get('message'))[:200]}")


def _get_field(value: Any, name: str) -> Any:
    """Return a field of an answer.

    Raises:
        InputError: the answer does not have the field.
    """
    if not isinstance(value, Mapping) or value.get(name) is None:
        raise InputError(f"the server's answer has no {name!r}: {str(value)[:200]}")
    return value[name]


DIALECTS: Mapping[str, Dialect] = {
    "rljax": Dialect(
        "rljax",
        "/v1/completions",
        True,
        True,
        _openai_status,
        _rljax_body,
        _rljax_replies,
        _rljax_publish,
        _why_unsupported_by_rljax,
        _rljax_publish_in_flight,
    ),
    "vllm": Dialect(
        "vllm",
        "/v1/completions",
        False,
        False,
        _openai_status,
        _vllm_body,
        _vllm_replies,
        _vllm_publish,
        _why_unsupported_with_one_logp,
    ),
    "sglang": Dialect(
        "sglang",
        "/generate",
        False,
        True,
        _sglang_status,
        _sglang_body,
        _sglang_replies,
        _sglang_publish,
        _why_unsupported_with_one_logp,
    ),
}
"""Kind of server -> its dialect."""
