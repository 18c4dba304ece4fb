"""Routes of the server: requests are validated, queued, and answered in one piece or as a stream."""

import asyncio
import hmac
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rljax.data.problem import Problem
from rljax.data.tokenizer import HuggingFaceTokenizer, Tokenizer, check_no_special_token, prefix_ids
from rljax.data.turns import with_tools
from rljax.errors import InputError
from rljax.models import Params
from rljax.serving.answer_log import AnswerLog
from rljax.serving.batching import Batcher, DecodingFailure, Job, Piece, QueueFull, ResponseSampling, ServerClosed
from rljax.serving.extensions import Extension, FilteredPrompt, Prompt, SampledAnswer
from rljax.serving.metrics import Metrics
from rljax.serving.protocol import (
    ApiError,
    ChatRequest,
    Limits,
    SamplingFields,
    parse_chat,
    parse_completion,
    parse_json,
    response_tokens,
)
from rljax.serving.replies import Choice, Kind, envelope, new_id, usage_of

DISCONNECT_CHECK_SECONDS = 0.25
"""Seconds between two checks of whether the client is still connected."""
OPEN_PATHS = ("/health",)
"""Paths that need no API key."""


class ServerParts(NamedTuple):
    """The objects and settings that the routes use."""

    batcher: Batcher
    """The batcher, which decodes the responses."""
    tokenizer: Tokenizer
    """Tokenizer of the model."""
    limits: Limits
    """Limits that every request must respect."""
    fingerprint: str
    """Digest of the model's shape and of its tokenizer."""
    load_weights: Callable[[str], Params]
    """Model folder or run directory -> weights ready for decoding. Raises InputError if the weights do not fit the model."""
    api_key: str | None
    """API key that requests must send; None if no key is needed."""
    allows_weights: bool
    """Whether `POST /weights` is allowed."""
    body_bytes: int
    """Maximum size of a request's body, in bytes."""
    log: AnswerLog | None = None
    """Log of answers and feedback; None if the server has none."""
    extensions: Sequence[Extension] = ()
    """Optional parts, in the order in which they see requests and answers."""


class PendingRequest(NamedTuple):
    """A request whose responses are being sampled."""

    kind: Kind
    """Chat or text completion."""
    name: str
    """The identifier in the reply."""
    prompts: Sequence[Prompt]
    """Prompts of the request."""
    fields: SamplingFields
    """Sampling settings of the request."""
    choices: list[Choice]
    """Responses, which grow as pieces arrive."""
    jobs: list[Job]
    """The jobs of the decoding thread, one per response."""
    pieces: "asyncio.Queue[tuple[Choice, Piece | DecodingFailure]]"
    """Pieces that have not been added to their choices yet."""
    arrived: float
    """When the request arrived, on the monotonic clock."""


def make_app(served: ServerParts) -> Starlette:
    """Build the application from its parts."""
    server = _Server(served)
    routes = [
        Route("/health", server.wrap_handler(server.health), methods=["GET"]),
        Route("/metrics", server.wrap_handler(server.show_metrics), methods=["GET"]),
        Route("/v1/models", server.wrap_handler(server.models), methods=["GET"]),
        Route("/v1/models/{name:path}", server.wrap_handler(server.model), methods=["GET"]),
        Route("/v1/completions", server.wrap_handler(server.complete), methods=["POST"]),
        Route("/v1/chat/completions", server.wrap_handler(server.chat), methods=["POST"]),
        Route("/feedback", server.wrap_handler(server.take_feedback), methods=["POST"]),
        Route("/weights", server.wrap_handler(server.replace_weights), methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _refuse_route})


async def _refuse_route(request: Request, error: Exception) -> Response:
    """Answer a request for a path or method that does not exist."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    what = "method" if status == 405 else "path"
    body = ApiError(status, f"There is no such {what}: {request.method} {request.url.path[:80]}.", code=f"unknown_{what}")
    return JSONResponse(body.to_json(), status, headers=headers)


class _Server:
    """The handlers of the routes."""

    def __init__(self, served: ServerParts):
        self.served, self.metrics = served, Metrics(lambda: served.batcher.load)
        for extension in served.extensions:
            extension.register(self.metrics.registry)
        self.created = int(time.time())
        self.weights_lock, self.weights_folder = asyncio.Lock(), ""

    def wrap_handler(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Wrap a handler: check the API key, report errors in OpenAI's format, and count the request."""

        async def answer(request: Request) -> Response:
            headers: dict[str, str] = {}
            try:
                self._check_key(request)
                response = await handler(request)
            except ApiError as error:
                headers |= {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
                headers |= {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
                response = JSONResponse(error.to_json(), error.status, headers)
            except QueueFull:
                full = ApiError(429, "Too many responses are waiting; try again later.", code="queue_full")
                response = JSONResponse(full.to_json(), 429, {"Retry-After": "1"})
            except ServerClosed as error:
                response = JSONResponse(ApiError(503, f"No requests are accepted: {error}.", code="closed").to_json(), 503)
            except ClientDisconnect:
                self.metrics.cancelled.inc()
                response = Response(status_code=499)
            self.metrics.requests.labels(request.scope["route"].path, str(response.status_code)).inc()
            return response

        return answer

    def _check_key(self, request: Request) -> None:
        key = self.served.api_key
        if key is None or request.url.path in OPEN_PATHS:
            return
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(sent.encode("latin-1", "replace"), key.encode()):
            raise ApiError(
                401, "The API key is missing or wrong; send 'Authorization: Bearer KEY'.", code="invalid_api_key"
            )

    async def _body(self, request: Request) -> Any:
        """Read and parse the body, up to the size limit."""
        most, body = self.served.body_bytes, bytearray()
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise ApiError(413, f"The body may have at most {most} bytes.", code="body_too_large")
        return parse_json(bytes(body))

    async def health(self, _: Request) -> Response:
        """Report whether the server can answer requests, and how busy it is."""
        load, fault = self.served.batcher.load, self.served.batcher.fault
        return JSONResponse({"status": fault or "ok", **load._asdict()}, 503 if fault else 200)

    async def show_metrics(self, _: Request) -> Response:
        """Report metrics for Prometheus."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self, _: Request) -> Response:
        """List the model."""
        return JSONResponse({"object": "list", "data": [self._model_entry()]})

    async def model(self, request: Request) -> Response:
        """Describe the model."""
        name = request.path_params["name"]
        if name != self.served.limits.model:
            raise ApiError(404, f"The model {name[:80]!r} does not exist.", param="model", code="model_not_found")
        return JSONResponse(self._model_entry())

    def _model_entry(self) -> dict[str, Any]:
        limits = self.served.limits
        entry = {"id": limits.model, "object": "model", "created": self.created, "owned_by": "rljax"}
        entry |= {"max_model_len": limits.context, "max_tokens": limits.max_tokens, "max_responses": limits.max_responses}
        return entry | {"fingerprint": self.served.fingerprint, "weights_version": self.served.batcher.version}

    async def complete(self, request: Request) -> Response:
        """Continue prompts."""
        parsed = parse_completion(await self._body(request), self.served.limits)
        prompts = [self._encode_prompt(prompt) for prompt in parsed.prompts]
        return await self._sample(request, "text_completion", prompts, parsed.fields, has_tools=False)

    async def chat(self, request: Request) -> Response:
        """Reply to a conversation."""
        parsed = parse_chat(await self._body(request), self.served.limits)
        prompts = [self._encode_conversation(parsed)]
        return await self._sample(request, "chat.completion", prompts, parsed.fields, has_tools=bool(parsed.tools))

    def _encode_prompt(self, prompt: str | tuple[int, ...]) -> Prompt:
        """Encode a prompt; token ids are used unchanged."""
        if not isinstance(prompt, str):
            return Prompt(prompt, {"prompt_ids": list(prompt)})
        try:
            tokens = (*prefix_ids(self.served.tokenizer), *self.served.tokenizer.encode(prompt))
            return Prompt(tokens, {"prompt": prompt})
        except InputError as error:
            raise ApiError(400, str(error), param="prompt") from error

    def _encode_conversation(self, parsed: ChatRequest) -> Prompt:
        tokenizer = self.served.tokenizer
        if not isinstance(tokenizer, HuggingFaceTokenizer) or not tokenizer.inner.chat_template:
            message = "The tokenizer has no chat template, so the model cannot chat; use /v1/completions to continue text."
            raise ApiError(400, message, code="no_chat_template")
        try:
            (problem,) = with_tools([Problem("", "", messages=parsed.messages)], parsed.tools, tokenizer)
            tokens = tuple(tokenizer.apply_chat_template(problem.messages or (), **problem.columns))
            return Prompt(tokens, {"prompt": list(problem.messages or ()), **problem.columns})
        except InputError as error:
            raise ApiError(400, str(error), param="messages") from error

    async def _sample(
        self, request: Request, kind: Kind, prompts: Sequence[Prompt], fields: SamplingFields, *, has_tools: bool
    ) -> Response:
        """Sample responses to prompts."""
        try:
            for extension in self.served.extensions:
                fields = await asyncio.to_thread(extension.admit, prompts, fields)
        except FilteredPrompt as refusal:
            if self.served.log is not None:
                await self._log(partial(self.served.log.record_prompt, refusal.prompt.log_entries, refusal.by))
            raise
        pending = self._submit(kind, prompts, fields, has_tools=has_tools)
        if fields.streams:
            stream = self._stream(pending)
            return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        collecting = asyncio.ensure_future(self._collect(pending))
        try:
            while not (await asyncio.wait([collecting], timeout=DISCONNECT_CHECK_SECONDS))[0]:
                if await request.is_disconnected():
                    raise ClientDisconnect
            ended = collecting.result()
        finally:
            collecting.cancel()
            self.served.batcher.cancel(pending.jobs)
        flags = {"has_logprobs": fields.has_logprobs, "has_token_ids": fields.has_token_ids}
        choices = [choice.to_json(**flags) for choice in ended]
        body = envelope(kind, pending.name, self.served.limits.model, choices, is_chunk=False)
        return JSONResponse(body | {"usage": usage_of(pending.choices)})

    def _submit(self, kind: Kind, prompts: Sequence[Prompt], fields: SamplingFields, *, has_tools: bool) -> PendingRequest:
        """Queue the responses of a request."""
        served, loop = self.served, asyncio.get_running_loop()
        try:
            check_no_special_token(served.tokenizer, fields.stop, ids="stop_token_ids")
        except InputError as error:
            raise ApiError(400, str(error), param="stop") from error
        pending = PendingRequest(kind, new_id(kind), prompts, fields, [], [], asyncio.Queue(), time.monotonic())

        def deliver_to(choice: Choice) -> Callable[[Piece | DecodingFailure], None]:
            def deliver(piece: Piece | DecodingFailure) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(pending.pieces.put_nowait, (choice, piece))

            return deliver

        for prompt in (prompt.tokens for prompt in prompts):
            most = response_tokens(fields, prompt, served.limits)
            for sample in range(fields.samples):
                seed = secrets.randbits(64) if fields.seed is None else (fields.seed + sample) % (1 << 64)
                choice = Choice(served.tokenizer, kind, len(pending.choices), prompt, fields.stop, has_tools=has_tools)
                sampling = ResponseSampling(
                    max_tokens=most,
                    temperature=fields.temperature,
                    top_k=fields.top_k,
                    top_p=fields.top_p,
                    seed=seed if fields.seeds is None else fields.seeds[sample],
                    stop=fields.stop,
                    stop_ids=fields.stop_ids,
                    top=fields.top,
                )
                pending.choices.append(choice)
                pending.jobs.append(Job(prompt, sampling, deliver_to(choice)))
        served.batcher.submit(pending.jobs)
        self.metrics.prompt_tokens.inc(sum(len(prompt.tokens) for prompt in prompts))
        return pending

    async def _pieces(self, pending: PendingRequest) -> AsyncIterator[Choice]:
        """Add pieces to their choices as they arrive, until all have ended."""
        left, is_first = len(pending.choices), True
        while left:
            choice, piece = await pending.pieces.get()
            if isinstance(piece, DecodingFailure):
                raise ApiError(500, f"The response cannot be completed: {piece.reason}.", code="decoding_failed")
            if is_first:
                self.metrics.first_token.observe(time.monotonic() - pending.arrived)
                is_first = False
            choice.add(piece)
            self.metrics.completion_tokens.inc(len(piece.tokens))
            left -= piece.finish is not None
            yield choice
        self.metrics.duration.observe(time.monotonic() - pending.arrived)

    async def _answers(self, pending: PendingRequest) -> AsyncIterator[Choice]:
        """Yield choices as their pieces arrive, or, if an extension must see all choices first, once all of them have ended."""
        waits = any(extension.waits for extension in self.served.extensions)
        async for choice in self._pieces(pending):
            if choice.finish is not None and not waits:
                await self._settle(pending, [choice])
            if not waits:
                yield choice
        for choice in await self._settle(pending, pending.choices) if waits else ():
            yield choice

    async def _settle(self, pending: PendingRequest, choices: Sequence[Choice]) -> list[Choice]:
        """Pass complete answers to the extensions, then log and return their answers; withheld answers lose their content."""
        answers = []
        for choice in choices:
            prompt, sample = divmod(choice.index, pending.fields.samples)
            answers.append(SampledAnswer(pending.prompts[prompt], pending.jobs[choice.index].sampling, choice, sample))
        for extension in self.served.extensions:
            answers = await asyncio.to_thread(extension.settle, answers)
        for answer in answers:
            await self._record(pending, answer)
        return [answer.choice if answer.filtered is None else answer.choice.without_content() for answer in answers]

    async def _record(self, pending: PendingRequest, answer: SampledAnswer) -> None:
        """Write a complete answer to the log, if the server has a log."""
        if self.served.log is None:
            return
        record, seconds = self.served.log.record, time.monotonic() - pending.arrived
        written = partial(record, pending.name, answer.prompt.log_entries, answer.choice)
        await self._log(partial(written, seconds=seconds, filtered=answer.filtered))

    async def _log(self, write: Callable[[], None]) -> None:
        """Write to the log; if the disk cannot be written to, the answer is still sent."""
        try:
            await asyncio.to_thread(write)
        except OSError as error:
            self.metrics.unlogged.inc()
            print(f"rljax: an answer is missing from the log ({error})", file=sys.stderr, flush=True)

    async def take_feedback(self, request: Request) -> Response:
        """Write feedback on an answer to the log."""
        if self.served.log is None:
            raise ApiError(404, "The server has no log; start it with --log FOLDER.", code="no_log")
        body = await self._body(request)
        try:
            return JSONResponse({"recorded": await asyncio.to_thread(self.served.log.take_feedback, body)})
        except OSError as error:
            raise ApiError(503, f"The feedback cannot be written ({type(error).__name__}).", code="log_failed") from error

    async def _collect(self, pending: PendingRequest) -> list[Choice]:
        choices = {choice.index: choice async for choice in self._answers(pending)}
        return [choices[index] for index in sorted(choices)]

    async def _stream(self, pending: PendingRequest) -> AsyncIterator[str]:
        """Send pieces as server-sent events."""
        name, model, fields = pending.name, self.served.limits.model, pending.fields
        flags = {"has_logprobs": fields.has_logprobs, "has_token_ids": fields.has_token_ids}
        try:
            async for choice in self._answers(pending):
                entry = choice.chunk(**flags)
                if entry is not None:
                    yield _event(envelope(pending.kind, name, model, [entry], is_chunk=True))
            if fields.usage_at_end:
                end = envelope(pending.kind, name, model, [], is_chunk=True)
                yield _event(end | {"usage": usage_of(pending.choices)})
            yield "data: [DONE]\n\n"
        except ApiError as error:  # the HTTP status has already been sent, so the stream reports the error
            yield _event(error.to_json())
        except (GeneratorExit, asyncio.CancelledError):
            if any(choice.finish is None for choice in pending.choices):
                self.metrics.cancelled.inc()
            raise
        finally:
            self.served.batcher.cancel(pending.jobs)

    async def replace_weights(self, request: Request) -> Response:
        """Load weights from a folder, and switch to them once the responses in progress have ended, or at once if `in_flight`."""
        if not self.served.allows_weights:
            message = "Weights can be replaced only if the server has an API key or listens only on its own machine."
            raise ApiError(403, message, code="weights_not_allowed")
        body = await self._body(request)
        folder, version, in_flight = body.get("folder"), body.get("version"), body.get("in_flight", False)
        unknown = body.keys() - {"folder", "version", "in_flight"}
        if unknown or not isinstance(folder, str) or not folder or "\0" in folder or not isinstance(in_flight, bool):
            raise ApiError(
                400,
                "The body must contain folder, a string, and version, an integer; it may contain in_flight, true or false, and "
                "nothing else.",
                param="folder",
            )
        if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 1 << 63:
            raise ApiError(400, "version must be an integer of at least 0.", param="version")
        batcher = self.served.batcher
        async with self.weights_lock:
            if (folder, version) == (self.weights_folder, batcher.version):  # a repeated request, because a reply was lost
                return JSONResponse({"weights_version": version})
            if version <= batcher.version:
                message = f"version {version} must be above the current version, {batcher.version}."
                raise ApiError(409, message, param="version", code="version_not_newer")
            try:
                params = await asyncio.to_thread(self.served.load_weights, folder)
            except InputError as error:
                raise ApiError(400, str(error), param="folder") from error
            done: Future[None] = batcher.replace_weights(params, version, in_flight=in_flight)
            del params
            await asyncio.wrap_future(done)
            self.weights_folder = folder
        return JSONResponse({"weights_version": version})


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
